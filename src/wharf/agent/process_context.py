"""What a role sees of the process it runs in: its order, when to begin, how to say that it is ready, when to stop.

A thread of its own listens to the parent, so that a loop that hangs can still be asked for its stacks, and ends when the
parent is gone.
"""

import asyncio
import contextlib
import logging
import os
import resource
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from wharf.agent.logs.forwarding import LogForwarder
from wharf.agent.logs.setup import LogConfiguration, ProcessLogging
from wharf.agent.supervision.channel import (
    SIGN_OF_LIFE_INTERVAL_S,
    BeginWork,
    DescribeRequest,
    FollowLogRequest,
    ForwardedLogLines,
    FromParent,
    MessageDecoder,
    NewSettings,
    ProcessDescription,
    ProcessOrder,
    Ready,
    ReloadReply,
    ReloadRequest,
    SignOfLife,
    StartupFailure,
    StopRequest,
    send_message,
    send_without_waiting,
)
from wharf.cluster.server.agent_interface import format_stacks
from wharf.config.settings import AgentSettings
from wharf.world import RealWorld

ORPHAN_GRACE_S: Final = 3.0
"""When the parent is gone nobody else would end a child that hangs."""

log = logging.getLogger(__name__)


class ProcessContext:
    """Made in the main thread, before any loop runs. Its tasks and callbacks live on the loop of `run`."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._inbox: MessageDecoder[FromParent] = MessageDecoder(FromParent)
        self._waiting: list[FromParent] = []
        self._sending = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_reload: list[Callable[[AgentSettings], None]] = []
        self._facts: Callable[[], dict[str, str]] = dict
        self._questions: dict[int, asyncio.Future[ReloadReply]] = {}
        first = self._receive()
        if not isinstance(first, ProcessOrder):
            raise SystemExit(1)  # The parent ended at once, or something else is on our standard input.
        self.order = first
        self.world = RealWorld()
        self.logs = ProcessLogging(first.name)
        self._teller = LogForwarder(lambda lines, missed: self._say(ForwardedLogLines(list(lines), missed)))
        self.logs.apply(first.log)

    def attach(self) -> None:
        """Call once, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._gone = asyncio.Event()
        self.stopping = asyncio.Event()
        """Set when the process should end. The role closes what it holds and returns."""
        threading.Thread(target=self._listen, name="parent", daemon=True).start()

    async def send_signs_of_life(self) -> None:
        """Until cancelled: tell the parent that this loop goes round."""
        while True:
            # Who sends just now says more than a beat would; waiting for it could hold the loop.
            if self._sending.acquire(blocking=False):
                try:
                    send_without_waiting(self._channel, SignOfLife())
                except OSError:
                    return  # The parent is gone.
                finally:
                    self._sending.release()
            await asyncio.sleep(SIGN_OF_LIFE_INTERVAL_S)

    async def wait_to_begin(self) -> bool:
        """True when the role may begin; False when it should stop before it has."""
        await self._gone.wait()
        return not self.stopping.is_set()

    def report_ready(self, **details: str) -> None:
        """Tell the parent, with what people may want to know."""
        log.debug("ready", extra=dict(details))
        self._say(Ready(details))

    def report_failure(self, why: str) -> None:
        self._say(StartupFailure(why))

    def add_reload_handler(self, handler: Callable[[AgentSettings], None]) -> None:
        """`take` is called on the loop with the new settings, of which only those marked as live differ."""
        self._on_reload.append(handler)

    async def wait_for_first(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        """Wait until one of them ends; end the others. Raises what the first one raised."""
        done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for work in done:
            work.result()

    def set_facts(self, facts: Callable[[], dict[str, str]]) -> None:
        """`facts` is called from another thread, for `wharf operator debug`: it only reads, and is quick."""
        self._facts = facts

    async def request_reload(self) -> ReloadReply:
        """Make the agent read its files again, as SIGHUP does."""
        question = max(self._questions, default=0) + 1
        answer: asyncio.Future[ReloadReply] = asyncio.get_running_loop().create_future()
        self._questions[question] = answer
        self._say(ReloadRequest(question))
        try:
            return await answer
        finally:
            del self._questions[question]

    def _listen(self) -> None:
        while (message := self._receive()) is not None:
            if isinstance(message, DescribeRequest):
                self._say(self._describe(message.question))
            else:
                self._on_loop(self._take, message)
        self._on_loop(self._take, StopRequest())
        threading.Event().wait(ORPHAN_GRACE_S)
        os._exit(1)

    def _on_loop(self, call: Callable[[FromParent], None], message: FromParent) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # The loop is closed: we are ending anyhow.
            self._loop.call_soon_threadsafe(call, message)

    def _take(self, message: FromParent) -> None:
        match message:
            case BeginWork():
                self._gone.set()
            case StopRequest():
                self.stopping.set()
                self._gone.set()
            case FollowLogRequest(level):
                self.logs.forward_lines(level, self._teller.put)
            case NewSettings(settings, order):
                self._reload(settings, order)
            case ReloadReply(question) if question in self._questions:
                if not self._questions[question].done():
                    self._questions[question].set_result(message)
            case _:
                pass

    def _reload(self, settings: AgentSettings, order: LogConfiguration) -> None:
        try:
            self.logs.apply(order)
        except OSError as error:
            log.error("the log file cannot be opened; logging goes on as before", extra={"why": str(error)})
        self.order = msgspec.structs.replace(self.order, settings=settings, log=order)
        for take in self._on_reload:
            take(settings)

    def _receive(self) -> FromParent | None:
        """The next message, waiting for it. None when the parent is gone."""
        while not self._waiting:
            try:
                data = self._channel.recv(65_536)
            except OSError:
                return None
            if not data:
                return None
            self._waiting.extend(self._inbox.feed(data))
        return self._waiting.pop(0)

    def _say(self, message: msgspec.Struct) -> None:
        with contextlib.suppress(OSError), self._sending:  # The parent may be gone; the listening thread knows too.
            send_message(self._channel, message)

    def _describe(self, question: int) -> ProcessDescription:
        try:
            facts = self._facts()
        except Exception as error:  # The top of a request; a debug archive with a gap is better than none.
            facts = {"facts": f"failed: {error}"}
        usage = resource.getrusage(resource.RUSAGE_SELF)
        own = {
            "pid": str(os.getpid()),
            "memory_peak_kb": str(usage.ru_maxrss),
            "cpu_s": f"{usage.ru_utime + usage.ru_stime:.2f}",
            "threads": str(threading.active_count()),
        }
        return ProcessDescription(question, format_stacks(self._loop), self.logs.get_retained_lines(), own | facts)
