"""Runs commands in tasks, requested through the node channel: passes input and output between caller and command.

In both directions each message is one JSON object. When the caller disconnects, the command is ended with everything
that it started.
"""

import asyncio
import base64
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

import msgspec

from wharf.contract.model.refusal import Refusal, RefusalCode, RefusalReason, invalid_request
from wharf.contract.wire.allocations.exec import ExecExit, ExecInput, ExecResult, encode_output, encode_output_close
from wharf.contract.wire.nodes import channel
from wharf.node.agent.allocations.manager import AllocationManager
from wharf.node.channel.allocations import require_allocation, require_task
from wharf.node.channel.endpoint import JSON_CONTENT_TYPE, ChannelReply, VerbHandler
from wharf.node.drivers.port import CannotStart, Command, CommandDriver, CommandOrder, Stream
from wharf.world import World
from wharf.world.tasks import cancel_tasks, start_supervised

log = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_S: Final = 10.0
"""Seconds without output after which an empty message shows that the connection is alive."""
OUTPUT_GRACE_S: Final = 0.25
"""How long to wait for more output of other processes after the command itself has ended."""
MAX_QUEUED_MESSAGES: Final = 16
"""Limit of output messages in memory; beyond it the command has to wait."""
OUTPUT_STREAMS: Final[tuple[Stream, ...]] = ("stdout", "stderr")
HEARTBEAT_MESSAGE: Final = b"{}"


class ExecHandlers:
    """Handles requests to run commands in tasks. The names of all commands of this node begin with `name_prefix`."""

    def __init__(self, world: World, manager: AllocationManager, *, is_allowed: bool, name_prefix: str) -> None:
        self._world = world
        self._manager = manager
        self._is_allowed = is_allowed
        self._name_prefix = name_prefix

    def handlers(self) -> dict[str, VerbHandler]:
        """Return the handler of requests to run a command, by verb of the node channel."""
        return {"exec": self._exec}

    async def _exec(self, request: channel.ChannelRequest, inputs: AsyncIterator[bytes]) -> ChannelReply:
        """Start a command in a running task. Return a reply that streams its output as messages.

        Raises `Refusal` if commands are disabled, the task is not running, or the command cannot be started.
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
        try:
            command = await driver.run_beside(order)
        except CannotStart as error:
            raise Refusal(RefusalCode.UNAVAILABLE, str(error)) from error
        session = ExecSession(self._world, command, inputs, is_tty=order.is_tty)
        return ChannelReply(JSON_CONTENT_TYPE, chunks=session.stream_messages(), release=command.end)


class ExecSession:
    """Passes input and output between one running command and its caller.

    Does not end the command: the handler that started it does.
    """

    def __init__(self, world: World, command: Command, inputs: AsyncIterator[bytes], *, is_tty: bool) -> None:
        self._world = world
        self._command = command
        self._inputs = inputs
        self._streams = OUTPUT_STREAMS[:1] if is_tty else OUTPUT_STREAMS
        self._messages: asyncio.Queue[bytes] = asyncio.Queue(MAX_QUEUED_MESSAGES)
        self._passed_count = 0

    async def stream_messages(self) -> AsyncGenerator[bytes, None]:
        """Yield output messages until the command has ended, and pass the caller's input to it meanwhile.

        An empty message is sent after `HEARTBEAT_INTERVAL_S` without output.
        """
        input_task = start_supervised(self._world, self._pass_input(), name="command input")
        output_tasks = [
            start_supervised(self._world, self._pass_output(stream), name=f"command {stream}")
            for stream in self._streams
        ]
        end_task = start_supervised(self._world, self._finish(output_tasks), name="command end")
        try:
            while True:
                try:
                    message = await asyncio.wait_for(self._messages.get(), HEARTBEAT_INTERVAL_S)
                except TimeoutError:
                    if end_task.done():  # It has failed: otherwise its last message would be in the queue.
                        raise Refusal(
                            RefusalCode.OUTCOME_UNKNOWN, "internal error of the node; see the node's log"
                        ) from None
                    yield HEARTBEAT_MESSAGE
                    continue
                yield message
                if message.startswith(EXITED_PREFIX):
                    return
        finally:
            await cancel_tasks(input_task, end_task, *output_tasks)

    async def _pass_input(self) -> None:
        """Pass input and terminal sizes from the caller to the command, until canceled."""
        async for message in self._inputs:
            try:
                exec_input = msgspec.json.decode(message, type=ExecInput)
            except msgspec.MsgspecError:
                continue  # Unknown messages only show that the caller is alive.
            if exec_input.tty_size is not None:
                self._command.resize(exec_input.tty_size.height, exec_input.tty_size.width)
            if exec_input.stdin is not None:
                if exec_input.stdin.data:
                    try:
                        data = base64.b64decode(exec_input.stdin.data)
                    except ValueError:
                        log.info("ignoring input of a command: not base64")
                        continue
                    await self._command.write(data)
                if exec_input.stdin.close:
                    await self._command.close_input()

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


EXITED_PREFIX: Final = b'{"exited":true'
"""The beginning of the last message."""
