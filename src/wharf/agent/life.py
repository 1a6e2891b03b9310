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

from wharf.agent.channel import (
    BEAT_S,
    Alive,
    CannotGoOn,
    DescribeYourself,
    Description,
    FromParent,
    Go,
    Inbox,
    LogTold,
    NewSettings,
    Order,
    PleaseReload,
    Ready,
    ReloadAnswer,
    Stop,
    TellLog,
    send,
    send_if_room,
)
from wharf.agent.log_telling import LogTeller
from wharf.agent.logs import LogOrder, Logs
from wharf.config.settings import Settings
from wharf.server.agent_door import say_stacks
from wharf.world import RealWorld

GRACE_WITHOUT_PARENT_S: Final = 3.0
"""When the parent is gone nobody else would end a child that hangs."""

log = logging.getLogger(__name__)


class CannotStart(Exception):
    """A sentence for people: what keeps this process from its work, and what to do. Raised by roles."""


class Life:
    """Made in the main thread, before any loop runs. Its tasks and callbacks live on the loop of `run`."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._inbox: Inbox[FromParent] = Inbox(FromParent)
        self._waiting: list[FromParent] = []
        self._sending = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_reload: list[Callable[[Settings], None]] = []
        self._facts: Callable[[], dict[str, str]] = dict
        self._questions: dict[int, asyncio.Future[ReloadAnswer]] = {}
        first = self._receive()
        if not isinstance(first, Order):
            raise SystemExit(1)  # The parent ended at once, or something else is on our standard input.
        self.order = first
        self.world = RealWorld()
        self.logs = Logs(first.name)
        self._teller = LogTeller(lambda lines, missed: self._say(LogTold(list(lines), missed)))
        self.logs.apply(first.log)

    def attach(self) -> None:
        """Call once, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._gone = asyncio.Event()
        self.stopping = asyncio.Event()
        """Set when the process should end. The role closes what it holds and returns."""
        threading.Thread(target=self._listen, name="parent", daemon=True).start()

    async def beat(self) -> None:
        """Until cancelled: tell the parent that this loop goes round."""
        while True:
            # Who sends just now says more than a beat would; waiting for it could hold the loop.
            if self._sending.acquire(blocking=False):
                try:
                    send_if_room(self._channel, Alive())
                except OSError:
                    return  # The parent is gone.
                finally:
                    self._sending.release()
            await asyncio.sleep(BEAT_S)

    async def wait_to_begin(self) -> bool:
        """True when the role may begin; False when it should stop before it has."""
        await self._gone.wait()
        return not self.stopping.is_set()

    def ready(self, **details: str) -> None:
        """Tell the parent, with what people may want to know."""
        log.debug("ready", extra=dict(details))
        self._say(Ready(details))

    def cannot_go_on(self, why: str) -> None:
        self._say(CannotGoOn(why))

    def on_reload(self, take: Callable[[Settings], None]) -> None:
        """`take` is called on the loop with the new settings, of which only those marked as live differ."""
        self._on_reload.append(take)

    async def first_of(self, works: Sequence[asyncio.Task[Any]]) -> None:
        """Wait until one of them ends; end the others. Raises what the first one raised."""
        done, others = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for work in done:
            work.result()

    def tell_facts(self, facts: Callable[[], dict[str, str]]) -> None:
        """`facts` is called from another thread, for `wharf operator debug`: it only reads, and is quick."""
        self._facts = facts

    async def ask_for_reload(self) -> ReloadAnswer:
        """Make the agent read its files again, as SIGHUP does."""
        question = max(self._questions, default=0) + 1
        answer: asyncio.Future[ReloadAnswer] = asyncio.get_running_loop().create_future()
        self._questions[question] = answer
        self._say(PleaseReload(question))
        try:
            return await answer
        finally:
            del self._questions[question]

    def _listen(self) -> None:
        while (message := self._receive()) is not None:
            if isinstance(message, DescribeYourself):
                self._say(self._describe(message.question))
            else:
                self._on_loop(self._take, message)
        self._on_loop(self._take, Stop())
        threading.Event().wait(GRACE_WITHOUT_PARENT_S)
        os._exit(1)

    def _on_loop(self, call: Callable[[FromParent], None], message: FromParent) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # The loop is closed: we are ending anyhow.
            self._loop.call_soon_threadsafe(call, message)

    def _take(self, message: FromParent) -> None:
        match message:
            case Go():
                self._gone.set()
            case Stop():
                self.stopping.set()
                self._gone.set()
            case TellLog(level):
                self.logs.tell(level, self._teller.put)
            case NewSettings(settings, order):
                self._reload(settings, order)
            case ReloadAnswer(question) if question in self._questions:
                if not self._questions[question].done():
                    self._questions[question].set_result(message)
            case _:
                pass

    def _reload(self, settings: Settings, order: LogOrder) -> None:
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
            self._waiting.extend(self._inbox.add(data))
        return self._waiting.pop(0)

    def _say(self, message: msgspec.Struct) -> None:
        with contextlib.suppress(OSError), self._sending:  # The parent may be gone; the listening thread knows too.
            send(self._channel, message)

    def _describe(self, question: int) -> Description:
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
        return Description(question, say_stacks(self._loop), self.logs.kept_lines(), own | facts)
