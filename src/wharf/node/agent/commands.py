"""Commands beside tasks, asked through the node's channel: what the caller says goes in, what the command says comes back.

Both ways each message is one object of JSON. A command ends with its caller: nothing that it started is left.
"""

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

import msgspec

from wharf.model.refusal import Code, Refusal, invalid
from wharf.node.agent.asked import JSON, Answer
from wharf.node.agent.channel import Reply
from wharf.node.agent.steered import check_task, found
from wharf.node.agent.works import Works
from wharf.node.drivers.beside import Command, CommandOrder, RunsBeside, Stream
from wharf.node.drivers.port import CannotStart
from wharf.wire import channel
from wharf.wire.exec_shapes import ExecInput, ExecResult, Exited, output_closed, output_of
from wharf.world import World

BEAT_S: Final = 10.0
LAST_WORDS_S: Final = 0.25
"""How long what others still write is waited for, when the command itself has ended."""
WAITING_MAX: Final = 16
SEVERAL: Final[tuple[Stream, ...]] = ("stdout", "stderr")
HEARTBEAT: Final = b"{}"


class Commands:
    """`mark`: what the names of all commands of this node begin with."""

    def __init__(self, world: World, works: Works, *, is_allowed: bool, mark: str) -> None:
        self._world = world
        self._works = works
        self._is_allowed = is_allowed
        self._mark = mark

    def answers(self) -> dict[str, Answer]:
        return {"exec": self._exec}

    async def _exec(self, question: channel.Ask, inputs: AsyncIterator[bytes]) -> Reply:
        if not self._is_allowed:
            raise Refusal(Code.FORBIDDEN, "permission denied: this node runs no commands from outside")
        work = found(self._works, question.about)
        task = str(question.parameters.get("task", ""))
        check_task(work, task)
        record = work.record.task(task)
        if not record.has_process or not record.has_started:
            raise invalid(f'task "{task}" does not run')
        driver = self._works.driver_of(work, task)
        if not isinstance(driver, RunsBeside):
            raise invalid(f"the driver {work.task(task).driver} runs no commands beside its tasks")
        environment, folders = self._works.surroundings(work, task)
        is_tty = bool(question.parameters.get("tty", False))
        if is_tty:
            environment.setdefault("TERM", "xterm")
        order = CommandOrder(
            run=work.run_of(task, record.run),
            name=f"{self._mark}.{self._world.new_id()}",
            command=tuple(msgspec.json.decode(str(question.parameters["command"]), type=list[str])),
            environment=environment,
            folder=str(folders.task),
            is_tty=is_tty,
        )
        try:
            command = await driver.run_beside(order)
        except CannotStart as error:
            raise Refusal(Code.UNAVAILABLE, str(error)) from error
        conversation = Conversation(self._world, command, inputs, is_tty=order.is_tty)
        return Reply(JSON, parts=conversation.parts(), end=command.end)


class Conversation:
    """One command with its caller. Whoever has begun the command ends it."""

    def __init__(self, world: World, command: Command, inputs: AsyncIterator[bytes], *, is_tty: bool) -> None:
        self._world = world
        self._command = command
        self._inputs = inputs
        self._streams = SEVERAL[:1] if is_tty else SEVERAL
        self._said: asyncio.Queue[bytes] = asyncio.Queue(WAITING_MAX)
        self._passed = 0

    async def parts(self) -> AsyncGenerator[bytes, None]:
        hearing = self._world.start(self._hear(), name="command input")
        speaking = [self._world.start(self._pass_on(stream), name=f"command {stream}") for stream in self._streams]
        ending = self._world.start(self._end(speaking), name="command end")
        try:
            while True:
                try:
                    said = await asyncio.wait_for(self._said.get(), BEAT_S)
                except TimeoutError:
                    yield HEARTBEAT
                    continue
                yield said
                if said.startswith(EXITED):
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
            await self._said.put(output_of(stream, data))
            self._passed += 1

    async def _end(self, speaking: list[asyncio.Task[None]]) -> None:
        code = await self._command.wait()
        # What it left behind may hold its output open for ever: only as long as more comes, more is waited for.
        passed = -1
        while passed != self._passed or self._said.full():
            passed = self._passed
            _, left = await asyncio.wait(speaking, timeout=LAST_WORDS_S)
            if not left:
                break
        for stream in self._streams:
            await self._said.put(output_closed(stream))
        await self._said.put(msgspec.json.encode(Exited(exited=True, result=ExecResult(code))))


EXITED: Final = b'{"exited":true'
