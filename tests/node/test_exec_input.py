"""Input of a command that runs next to a task: order, control messages beside blocked input, and invalid messages."""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.kit.virtual_time import in_virtual_time, now_s, pass_time
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.node.channel.exec import MAX_PENDING_INPUT_BYTES, WRITE_BYTES, ExecSession
from wharf.node.drivers.port import Stream
from wharf.world import SimulatedWorld


class MemoryCommand:
    """A command that reads its input while `is_reading` is set, and prints and ends as the test wants."""

    def __init__(self, *, is_reading: bool = True) -> None:
        self.is_reading = asyncio.Event()
        if is_reading:
            self.is_reading.set()
        self.input = b""
        self.is_input_closed = False
        self.sizes: list[tuple[int, int]] = []
        self.output: dict[Stream, asyncio.Queue[bytes]] = {"stdout": asyncio.Queue(), "stderr": asyncio.Queue()}
        self.exit_code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def read(self, stream: Stream) -> bytes:
        return await self.output[stream].get()

    async def write(self, data: bytes) -> None:
        await self.is_reading.wait()
        assert not self.is_input_closed, "input after its end"
        self.input += data

    async def close_input(self) -> None:
        self.is_input_closed = True

    def resize(self, height: int, width: int) -> None:
        self.sizes.append((height, width))

    async def wait(self) -> int:
        return await self.exit_code

    async def end(self) -> None:
        pass


class Inputs:
    """Messages of a caller. `taken_count` is how many the session has requested."""

    def __init__(self, *messages: bytes) -> None:
        self._messages = messages
        self.taken_count = 0

    async def iterate(self) -> AsyncIterator[bytes]:
        for message in self._messages:
            self.taken_count += 1
            yield message
        await asyncio.Event().wait()


@asynccontextmanager
async def run_session(
    command: MemoryCommand, inputs: Inputs, *, is_tty: bool = False
) -> AsyncGenerator[asyncio.Task[list[bytes]], None]:
    """Run a session, and yield the task that collects its messages."""
    session = ExecSession(SimulatedWorld(1, now_s), command, inputs.iterate(), is_tty=is_tty)

    async def collect() -> list[bytes]:
        return [message async for message in session.stream_messages()]

    task = asyncio.get_running_loop().create_task(collect())
    await pass_time(1)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def build_stdin(data: bytes = b"", *, close: bool = False) -> bytes:
    return json.dumps({"stdin": {"data": base64.b64encode(data).decode(), "close": close}}).encode()


@in_virtual_time
async def test_input_and_its_end_arrive_in_order() -> None:
    command = MemoryCommand()
    data = bytes(range(256)) * 1_000
    async with run_session(
        command, Inputs(build_stdin(b"first "), build_stdin(data), build_stdin(b"last", close=True))
    ):
        assert (command.input, command.is_input_closed) == (b"first " + data + b"last", True)


@in_virtual_time
async def test_the_end_of_input_waits_for_input_that_the_command_has_not_read() -> None:
    command = MemoryCommand(is_reading=False)
    async with run_session(command, Inputs(build_stdin(b"data"), build_stdin(close=True))):
        was_closed = command.is_input_closed
        command.is_reading.set()
        await pass_time(1)

        assert (was_closed, command.input, command.is_input_closed) == (False, b"data", True)


@in_virtual_time
async def test_a_terminal_size_is_applied_while_input_before_it_is_blocked() -> None:
    command = MemoryCommand(is_reading=False)
    size = b'{"tty_size":{"height":40,"width":100}}'
    async with run_session(command, Inputs(build_stdin(b"data"), size), is_tty=True):
        assert command.sizes == [(40, 100)]


@in_virtual_time
async def test_few_messages_are_taken_while_the_command_does_not_read() -> None:
    command, data = MemoryCommand(is_reading=False), b"x" * WRITE_BYTES
    inputs = Inputs(*[build_stdin(data)] * 100)
    async with run_session(command, inputs):
        first_count = inputs.taken_count
        command.is_reading.set()
        await pass_time(1)

        assert first_count <= MAX_PENDING_INPUT_BYTES // WRITE_BYTES + 2
        assert (inputs.taken_count, command.input) == (100, data * 100)


@in_virtual_time
async def test_a_command_ends_while_its_input_is_blocked() -> None:
    command = MemoryCommand(is_reading=False)
    async with run_session(command, Inputs(*[build_stdin(b"x" * WRITE_BYTES)] * 100)) as session:
        command.exit_code.set_result(3)
        for queue in command.output.values():
            queue.put_nowait(b"")

        assert (await session)[-1] == b'{"exited":true,"result":{"exit_code":3}}'


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b'{"stdin":{"data":"\xc3\xa4"}}', 'the input message is invalid: "stdin.data" must be base64'),
        (b'{"stdin":{"data":"YQ="}}', 'the input message is invalid: "stdin.data" must be base64'),
        (b'{"stdin":"ls"}', "the input message is invalid: Expected `object | null`, got `str` - at `$.stdin`"),
        (b'{"stdin":{"data":"\xff"}}', "the input message is invalid: "),
        (b"ls", "the input message is invalid: JSON is malformed"),
        (b"[]", "the input message is invalid: Expected `object`, got `array`"),
    ],
)
def test_an_invalid_message_ends_the_session_with_a_reason(message: bytes, text: str) -> None:
    @in_virtual_time
    async def scenario() -> None:
        command = MemoryCommand()
        async with run_session(command, Inputs(build_stdin(b"before"), message, build_stdin(b"after"))) as session:
            with pytest.raises(Refusal) as caught:
                await session

        assert caught.value.code is RefusalCode.INVALID
        assert caught.value.text.startswith(text)
        assert command.input in (b"", b"before")

    scenario()


@pytest.mark.parametrize("message", [b"", b"{}", b'{"unknown":1}', b'{"stdin":null}'])
def test_a_message_without_content_only_shows_that_the_caller_is_alive(message: bytes) -> None:
    @in_virtual_time
    async def scenario() -> None:
        command = MemoryCommand()
        async with run_session(command, Inputs(message, build_stdin(b"after"))) as session:
            assert (session.done(), command.input) == (False, b"after")

    scenario()
