"""Commands beside tasks, asked through the node's channel: what the caller says goes in, what the command says comes back.

Both ways each message is one object of JSON. A command ends with its caller: nothing that it started is left.
"""

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

import msgspec

from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request
from wharf.contract.wire.allocations.exec import ExecExit, ExecInput, ExecResult, encode_output, encode_output_close
from wharf.contract.wire.nodes import channel
from wharf.node.agent.allocations.manager import AllocationManager
from wharf.node.channel.allocations import require_allocation, require_task
from wharf.node.channel.endpoint import ChannelReply
from wharf.node.channel.files import JSON_CONTENT_TYPE, VerbHandler
from wharf.node.drivers.port import CannotStart, Command, CommandDriver, CommandOrder, Stream
from wharf.world import World

HEARTBEAT_INTERVAL_S: Final = 10.0
OUTPUT_GRACE_S: Final = 0.25
"""How long what others still write is waited for, when the command itself has ended."""
MAX_QUEUED_MESSAGES: Final = 16
OUTPUT_STREAMS: Final[tuple[Stream, ...]] = ("stdout", "stderr")
HEARTBEAT_MESSAGE: Final = b"{}"


class ExecHandlers:
    """`mark`: what the names of all commands of this node begin with."""

    def __init__(self, world: World, works: AllocationManager, *, is_allowed: bool, name_prefix: str) -> None:
        self._world = world
        self._works = works
        self._is_allowed = is_allowed
        self._mark = name_prefix

    def handlers(self) -> dict[str, VerbHandler]:
        return {"exec": self._exec}

    async def _exec(self, question: channel.ChannelRequest, inputs: AsyncIterator[bytes]) -> ChannelReply:
        if not self._is_allowed:
            raise Refusal(RefusalCode.FORBIDDEN, "permission denied: this node runs no commands from outside")
        work = require_allocation(self._works, question.about)
        task = str(question.parameters.get("task", ""))
        require_task(work, task)
        record = work.record.task(task)
        if not record.has_process or not record.has_started:
            raise invalid_request(f'task "{task}" does not run')
        driver = self._works.find_driver(work, task)
        if not isinstance(driver, CommandDriver):
            raise invalid_request(f"the driver {work.task(task).driver} runs no commands beside its tasks")
        environment, folders = self._works.get_environment_and_folders(work, task)
        is_tty = bool(question.parameters.get("tty", False))
        if is_tty:
            environment.setdefault("TERM", "xterm")
        order = CommandOrder(
            run=work.make_run_name(task, record.run),
            name=f"{self._mark}.{self._world.new_id()}",
            command=tuple(msgspec.json.decode(str(question.parameters["command"]), type=list[str])),
            environment=environment,
            folder=str(folders.task),
            is_tty=is_tty,
        )
        try:
            command = await driver.run_beside(order)
        except CannotStart as error:
            raise Refusal(RefusalCode.UNAVAILABLE, str(error)) from error
        conversation = ExecSession(self._world, command, inputs, is_tty=order.is_tty)
        return ChannelReply(JSON_CONTENT_TYPE, chunks=conversation.stream_messages(), release=command.end)


class ExecSession:
    """One command with its caller. Whoever has begun the command ends it."""

    def __init__(self, world: World, command: Command, inputs: AsyncIterator[bytes], *, is_tty: bool) -> None:
        self._world = world
        self._command = command
        self._inputs = inputs
        self._streams = OUTPUT_STREAMS[:1] if is_tty else OUTPUT_STREAMS
        self._said: asyncio.Queue[bytes] = asyncio.Queue(MAX_QUEUED_MESSAGES)
        self._passed = 0

    async def stream_messages(self) -> AsyncGenerator[bytes, None]:
        hearing = self._world.start_task(self._hear(), name="command input")
        speaking = [self._world.start_task(self._pass_on(stream), name=f"command {stream}") for stream in self._streams]
        ending = self._world.start_task(self._end(speaking), name="command end")
        try:
            while True:
                try:
                    said = await asyncio.wait_for(self._said.get(), HEARTBEAT_INTERVAL_S)
                except TimeoutError:
                    yield HEARTBEAT_MESSAGE
                    continue
                yield said
                if said.startswith(EXITED_PREFIX):
                    return
        finally:
            for task in (hearing, ending, *speaking):
                task.cancel()
            await asyncio.gather(hearing, ending, *speaking, return_exceptions=True)

    async def _hear(self) -> None:
        async for message in self._inputs:
            try:
                said = msgspec.json.decode(message, type=ExecInput)
            except msgspec.MsgspecError:
                continue  # As unknown messages are to be: no more than a sign of life.
            if said.tty_size is not None:
                self._command.resize(said.tty_size.height, said.tty_size.width)
            if said.stdin is not None:
                if said.stdin.data:
                    await self._command.write(base64.b64decode(said.stdin.data))
                if said.stdin.close:
                    await self._command.close_input()

    async def _pass_on(self, stream: Stream) -> None:
        while data := await self._command.read(stream):
            await self._said.put(encode_output(stream, data))
            self._passed += 1

    async def _end(self, speaking: list[asyncio.Task[None]]) -> None:
        code = await self._command.wait()
        # What it left behind may hold its output open for ever: only as long as more comes, more is waited for.
        passed = -1
        while passed != self._passed or self._said.full():
            passed = self._passed
            _, left = await asyncio.wait(speaking, timeout=OUTPUT_GRACE_S)
            if not left:
                break
        for stream in self._streams:
            await self._said.put(encode_output_close(stream))
        await self._said.put(msgspec.json.encode(ExecExit(exited=True, result=ExecResult(code))))


EXITED_PREFIX: Final = b'{"exited":true'
