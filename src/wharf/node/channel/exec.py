"""Runs commands in tasks, requested through the node channel: passes input and output between caller and command.

In both directions each message is one JSON object. When the caller disconnects, the command is ended with everything
that it started.
"""

import asyncio
import base64
import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Final

import msgspec

from wharf.contract.model.refusal import Refusal, RefusalCode, RefusalReason, invalid_request
from wharf.contract.wire.allocations.exec import (
    EXITED_PREFIX,
    ExecExit,
    ExecInput,
    ExecResult,
    encode_output,
    encode_output_close,
)
from wharf.contract.wire.nodes import channel
from wharf.node.agent.allocations.manager import AllocationManager
from wharf.node.channel.allocations import require_allocation, require_task
from wharf.node.channel.endpoint import JSON_CONTENT_TYPE, ChannelReply, VerbHandler
from wharf.node.channel.shares import take_slot
from wharf.node.drivers.port import CannotStart, Command, CommandDriver, CommandOrder, Stream
from wharf.node.open_files import FairSlots
from wharf.world import World
from wharf.world.tasks import cancel_tasks, start_supervised

log = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_S: Final = 10.0
"""Seconds without output after which an empty message shows that the connection is alive."""
OUTPUT_GRACE_S: Final = 0.25
"""How long to wait for more output of other processes after the command itself has ended."""
MAX_QUEUED_MESSAGES: Final = 16
"""Limit of output messages in memory; beyond it the command has to wait."""
MAX_COMMANDS_PER_TASK: Final = 64
"""Commands that callers run in one task at a time. The commands of a node are limited by `wharf.node.open_files`."""
MAX_PENDING_INPUT_BYTES: Final = 64 << 10
"""Input in memory that the command has not read. Beyond it no further messages are processed, so the caller is not read."""
WRITE_BYTES: Final = 16 << 10
"""Input that is written to the command at a time. The pipe to the command holds up to 64 KiB more."""
OUTPUT_STREAMS: Final[tuple[Stream, ...]] = ("stdout", "stderr")
HEARTBEAT_MESSAGE: Final = b"{}"


class ExecHandlers:
    """Handles requests to run commands in tasks. The names of all commands of this node begin with `name_prefix`."""

    def __init__(
        self, world: World, manager: AllocationManager, slots: FairSlots, *, is_allowed: bool, name_prefix: str
    ) -> None:
        """`slots` limits the commands of the node, by namespace."""
        self._world = world
        self._manager = manager
        self._slots = slots
        self._is_allowed = is_allowed
        self._name_prefix = name_prefix
        self._running: Counter[str] = Counter()
        """The number of commands by run name of their task."""

    def handlers(self) -> dict[str, VerbHandler]:
        """Return the handler of requests to run a command, by verb of the node channel."""
        return {"exec": self._exec}

    async def _exec(self, request: channel.ChannelRequest, inputs: AsyncIterator[bytes]) -> ChannelReply:
        """Start a command in a running task. Return a reply that streams its output as messages.

        Raises `Refusal` if commands are disabled, the task is not running, too many commands run, or the command cannot be
        started.
        """
        if not self._is_allowed:
            text = "permission denied: remote commands are disabled on this node"
            raise Refusal(RefusalCode.FORBIDDEN, text, RefusalReason.EXEC_DISABLED)
        allocation = require_allocation(self._manager.table, request.about)
        task = str(request.parameters.get("task", ""))
        require_task(allocation, task)
        record = allocation.record.task(task)
        if not record.has_process or not record.has_started:
            raise invalid_request(f'task "{task}" is not running')
        driver = self._manager.tasks.find_driver(allocation, task)
        if not isinstance(driver, CommandDriver):
            raise invalid_request(f"driver {allocation.task(task).driver} cannot run commands in tasks")
        words = msgspec.json.decode(str(request.parameters["command"]), type=list[str])
        if not words or any("\0" in word for word in words):
            raise invalid_request("command is empty or contains a zero byte, which no program can receive: remove it")
        environment, folders = self._manager.tasks.build_environment_and_folders(allocation, task)
        is_tty = bool(request.parameters.get("tty", False))
        if is_tty:
            environment.setdefault("TERM", "xterm")
        order = CommandOrder(
            run=allocation.make_run_name(task, record.run),
            name=f"{self._name_prefix}.{self._world.new_id()}",
            command=tuple(words),
            environment=environment,
            folder=str(folders.task),
            is_tty=is_tty,
        )
        namespace = allocation.assignment.allocation.namespace
        self._count_command(order.run, namespace)
        try:
            command = await driver.run_beside(order)
        except CannotStart as error:
            self._uncount_command(order.run, namespace)
            raise Refusal(RefusalCode.UNAVAILABLE, str(error)) from error
        except BaseException:
            self._uncount_command(order.run, namespace)
            raise
        session = ExecSession(self._world, command, inputs, is_tty=order.is_tty)

        async def end_command() -> None:
            try:
                await command.end()
            finally:
                self._uncount_command(order.run, namespace)

        return ChannelReply(JSON_CONTENT_TYPE, chunks=session.stream_messages(), release=end_command)

    def _count_command(self, run: str, namespace: str) -> None:
        """Count a command beside a task. Raises `Refusal` if the task or its namespace has too many on this node."""
        if self._running[run] >= MAX_COMMANDS_PER_TASK:
            text = f"{MAX_COMMANDS_PER_TASK} commands run in this task already: end some, or retry later"
            raise Refusal(RefusalCode.UNAVAILABLE, text, RefusalReason.OVERLOADED)
        take_slot(self._slots, namespace, "commands")
        self._running[run] += 1

    def _uncount_command(self, run: str, namespace: str) -> None:
        """Stop counting a command that has ended."""
        self._slots.release(namespace)
        self._running[run] -= 1
        if not self._running[run]:
            del self._running[run]


class PendingInput:
    """The input that the command has not read, in order, with the end of the input. One task adds and one writes.

    It holds up to `MAX_PENDING_INPUT_BYTES` and one more message.
    """

    def __init__(self, command: Command) -> None:
        self._command = command
        self._parts: deque[bytes | None] = deque()
        """Data to write; `None` is the end of the input."""
        self._byte_count = 0
        self._is_changed = asyncio.Event()

    async def add(self, part: bytes | None) -> None:
        """Add data, or the end of the input, once less than `MAX_PENDING_INPUT_BYTES` are pending."""
        while self._byte_count >= MAX_PENDING_INPUT_BYTES:
            await self._wait()
        self._parts.append(part)
        self._byte_count += len(part or b"")
        self._is_changed.set()

    async def write_all(self) -> None:
        """Write what is added to the command, as fast as it reads. Runs until canceled."""
        while True:
            while not self._parts:
                await self._wait()
            part = self._parts.popleft()
            if part is None:
                await self._command.close_input()
                continue
            for start in range(0, len(part), WRITE_BYTES):
                data = part[start : start + WRITE_BYTES]
                await self._command.write(data)
                self._byte_count -= len(data)
                self._is_changed.set()

    async def _wait(self) -> None:
        """Wait until the other task has added or written something."""
        self._is_changed.clear()
        await self._is_changed.wait()


class ExecSession:
    """Passes input and output between one running command and its caller.

    Does not end the command: the handler that started it does.
    """

    def __init__(self, world: World, command: Command, inputs: AsyncIterator[bytes], *, is_tty: bool) -> None:
        self._world = world
        self._command = command
        self._inputs = inputs
        self._streams = OUTPUT_STREAMS[:1] if is_tty else OUTPUT_STREAMS
        self._messages: asyncio.Queue[bytes | Exception] = asyncio.Queue(MAX_QUEUED_MESSAGES)
        """Messages for the caller, or the error that ends the session."""
        self._passed_count = 0

    async def stream_messages(self) -> AsyncGenerator[bytes, None]:
        """Yield output messages until the command has ended, and pass the caller's input to it meanwhile.

        An empty message is sent after `HEARTBEAT_INTERVAL_S` without output. Raises the `Refusal` of an invalid input
        message.
        """
        pending = PendingInput(self._command)
        output_tasks = [
            self._start(partial(self._pass_output, stream), f"command {stream}") for stream in self._streams
        ]
        tasks = [
            *output_tasks,
            self._start(partial(self._receive_input, pending), "command input"),
            self._start(pending.write_all, "command stdin"),
            self._start(partial(self._finish, output_tasks), "command end"),
        ]
        try:
            while True:
                try:
                    # `asyncio.wait_for` would swallow a cancellation that comes together with a message.
                    async with asyncio.timeout(HEARTBEAT_INTERVAL_S):
                        message = await self._messages.get()
                except TimeoutError:
                    yield HEARTBEAT_MESSAGE
                    continue
                if isinstance(message, Exception):
                    raise message
                yield message
                if message.startswith(EXITED_PREFIX):
                    return
        finally:
            await cancel_tasks(*tasks)

    def _start(self, run: Callable[[], Awaitable[None]], name: str) -> asyncio.Task[None]:
        """Start a task of the session. Its error is queued as the last message, so that it ends the session."""

        async def run_and_report() -> None:
            try:
                await run()
            except Exception as error:
                await self._messages.put(error)

        return start_supervised(self._world, run_and_report(), name=name)

    async def _receive_input(self, pending: PendingInput) -> None:
        """Apply terminal sizes from the caller, and queue its input for the command. Runs until canceled.

        A terminal size is applied although input before it is pending. Raises `Refusal` for an invalid message.
        """
        async for message in self._inputs:
            exec_input = _decode_input(message)
            del message
            if exec_input.tty_size is not None:
                self._command.resize(exec_input.tty_size.height, exec_input.tty_size.width)
            stdin, exec_input = exec_input.stdin, NO_INPUT
            if stdin is not None:
                data, is_last = _decode_data(stdin.data), stdin.close
                del stdin
                if data:
                    await pending.add(data)
                if is_last:
                    await pending.add(None)

    async def _pass_output(self, stream: Stream) -> None:
        """Put the output of one stream into the queue of messages, until the stream ends."""
        while data := await self._command.read(stream):
            await self._messages.put(encode_output(stream, data))
            self._passed_count += 1

    async def _finish(self, output_tasks: list[asyncio.Task[None]]) -> None:
        """Wait until the command has ended and no more output arrives, then queue the last messages with its exit code."""
        code = await self._command.wait()
        # Processes that it left behind may keep the output open forever, so wait only while more output arrives.
        previous_count = -1
        while previous_count != self._passed_count or self._messages.full():
            previous_count = self._passed_count
            _, running = await asyncio.wait(output_tasks, timeout=OUTPUT_GRACE_S)
            if not running:
                break
        for stream in self._streams:
            await self._messages.put(encode_output_close(stream))
        await self._messages.put(msgspec.json.encode(ExecExit(exited=True, result=ExecResult(code))))


NO_INPUT: Final = ExecInput()


def _decode_input(message: bytes) -> ExecInput:
    """Return a message of the caller. Raises `Refusal` if it is not an object as the protocol defines it.

    An empty message, and an object with unknown fields, only show that the caller is alive.
    """
    if not message.strip():
        return NO_INPUT
    try:
        return msgspec.json.decode(message, type=ExecInput)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        text = f'the input message is invalid: {error}: send an object such as {{"stdin":{{"data":"..."}}}}'
        raise invalid_request(text) from None


def _decode_data(text: str) -> bytes:
    """Return the bytes of input. Raises `Refusal` if the text is not base64."""
    try:
        return base64.b64decode(text)
    except ValueError:
        raise invalid_request('the input message is invalid: "stdin.data" must be base64') from None
