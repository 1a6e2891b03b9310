"""What a role sees of the child process it runs in: its order, the signals to begin and stop, and reports to the parent.

A separate thread reads messages from the parent. It can still describe the process if the event loop hangs, and it ends
the process if the parent is gone.
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
from wharf.world.tasks import cancel_tasks

ORPHAN_GRACE_S: Final = 3.0
"""How long a child may run on after its parent is gone. Then it exits, because nobody else would end a child that hangs."""

log = logging.getLogger(__name__)


class ProcessContext:
    """The connection of a child process to its parent. Create it in the main thread, before an event loop runs."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._inbox: MessageDecoder[FromParent] = MessageDecoder(FromParent)
        self._received_messages: list[FromParent] = []
        self._send_lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_parent_lost = False
        """Set when the parent ended without asking this process to stop, for example because it was killed."""
        self._on_reload: list[Callable[[AgentSettings], None]] = []
        self._facts: Callable[[], dict[str, str]] = dict
        self._pending_reloads: dict[int, asyncio.Future[ReloadReply]] = {}
        first = self._receive()
        if not isinstance(first, ProcessOrder):
            raise SystemExit(1)  # The parent has ended, or standard input is not the channel.
        self.order = first
        self.world = RealWorld()
        self.logs = ProcessLogging(first.name)
        self._log_forwarder = LogForwarder(lambda lines, missed: self._send(ForwardedLogLines(list(lines), missed)))
        self.logs.apply(first.log)

    def attach(self) -> None:
        """Start to receive messages. Call once, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._may_begin = asyncio.Event()
        self.stopping = asyncio.Event()
        """Set when the process should end. The role then closes its resources and returns."""
        threading.Thread(target=self._listen, name="parent", daemon=True).start()

    async def send_signs_of_life(self) -> None:
        """Report to the parent, until cancelled, that this event loop still runs."""
        while True:
            # Skip the sign of life if another thread sends a message: that message proves life too. Waiting for the
            # lock could block the loop.
            if self._send_lock.acquire(blocking=False):
                try:
                    send_without_waiting(self._channel, SignOfLife())
                except OSError:
                    return  # The parent is gone.
                finally:
                    self._send_lock.release()
            await asyncio.sleep(SIGN_OF_LIFE_INTERVAL_S)

    async def wait_to_begin(self) -> bool:
        """Wait until the parent lets this process begin its work.

        Return `False` if it asks the process to stop instead.
        """
        await self._may_begin.wait()
        return not self.stopping.is_set()

    def report_ready(self, **details: str) -> None:
        """Report to the parent that this process is ready. `details` are shown to the operator."""
        log.debug("ready", extra=dict(details))
        self._send(Ready(details))

    def report_failure(self, why: str) -> None:
        """Report to the parent why this process cannot start."""
        self._send(StartupFailure(why))

    def add_reload_handler(self, handler: Callable[[AgentSettings], None]) -> None:
        """Call `handler` on the loop at each reload. Only settings that can change without a restart differ."""
        self._on_reload.append(handler)

    async def wait_for_first(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        """Wait until the first task ends, then cancel the others. Raises the exception of the task that ended."""
        done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await cancel_tasks(*others)
        for task in done:
            task.result()

    def set_facts(self, facts: Callable[[], dict[str, str]]) -> None:
        """Set the function that returns facts for `wharf operator debug`.

        It is called from another thread, so it must only read and must be quick.
        """
        self._facts = facts

    async def request_reload(self) -> ReloadReply:
        """Ask the parent to reload the configuration, as SIGHUP does, and return its reply."""
        question = max(self._pending_reloads, default=0) + 1
        reply: asyncio.Future[ReloadReply] = asyncio.get_running_loop().create_future()
        self._pending_reloads[question] = reply
        self._send(ReloadRequest(question))
        try:
            return await reply
        finally:
            del self._pending_reloads[question]

    def _listen(self) -> None:
        """Receive messages on a thread until the parent is gone, then end the process."""
        while (message := self._receive()) is not None:
            if isinstance(message, DescribeRequest):
                self._send(self._describe(message.question))
            else:
                self._call_on_loop(self._handle_message, message)
        self._call_on_loop(self._handle_parent_lost)
        threading.Event().wait(ORPHAN_GRACE_S)
        os._exit(1)

    def _call_on_loop(self, call: Callable[..., None], *arguments: FromParent) -> None:
        """Call the function with the arguments on the event loop."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # The loop is closed: the process is ending.
            self._loop.call_soon_threadsafe(call, *arguments)

    def _handle_parent_lost(self) -> None:
        """Stop, because the parent is gone. Runs on the event loop."""
        self.is_parent_lost = not self.stopping.is_set()
        self._handle_message(StopRequest())

    def _handle_message(self, message: FromParent) -> None:
        """Act on a message of the parent. Runs on the event loop."""
        match message:
            case BeginWork():
                self._may_begin.set()
            case StopRequest():
                self.stopping.set()
                self._may_begin.set()
            case FollowLogRequest(level):
                self.logs.forward_lines(level, self._log_forwarder.put)
            case NewSettings(settings, order):
                self._reload(settings, order)
            case ReloadReply(question) if question in self._pending_reloads:
                if not self._pending_reloads[question].done():
                    self._pending_reloads[question].set_result(message)
            case _:
                pass

    def _reload(self, settings: AgentSettings, order: LogConfiguration) -> None:
        """Apply new log settings, then pass the new settings to the reload handlers."""
        try:
            self.logs.apply(order)
        except OSError as error:
            log.error(
                "log file not opened at reload; the previous log configuration stays in use", extra={"why": str(error)}
            )
        self.order = msgspec.structs.replace(self.order, settings=settings, log=order)
        for handler in self._on_reload:
            handler(settings)

    def _receive(self) -> FromParent | None:
        """Wait for the next message and return it. Return `None` if the parent is gone."""
        while not self._received_messages:
            try:
                data = self._channel.recv(65_536)
            except OSError:
                return None
            if not data:
                return None
            self._received_messages.extend(self._inbox.feed(data))
        return self._received_messages.pop(0)

    def _send(self, message: msgspec.Struct) -> None:
        """Send a message to the parent. Does nothing if the parent is gone."""
        with (
            contextlib.suppress(OSError),
            self._send_lock,
        ):  # The parent may be gone; the listening thread ends the process.
            send_message(self._channel, message)

    def _describe(self, question: int) -> ProcessDescription:
        """Return stacks, recent log lines and facts of this process for a debug archive.

        `question` is the id of the request.
        """
        try:
            facts = self._facts()
        except Exception as error:  # Top level of a request: an archive without these facts is still useful.
            facts = {"facts": f"failed: {error}"}
        usage = resource.getrusage(resource.RUSAGE_SELF)
        own = {
            "pid": str(os.getpid()),
            "memory_peak_kb": str(usage.ru_maxrss),
            "cpu_s": f"{usage.ru_utime + usage.ru_stime:.2f}",
            "threads": str(threading.active_count()),
        }
        return ProcessDescription(question, format_stacks(self._loop), self.logs.get_retained_lines(), own | facts)
