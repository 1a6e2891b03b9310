"""Limits of websocket connections: frames, messages that wait, clients that do not read, are silent or have gone."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import uvicorn

from tests.agent.test_connections import REMOTE_ADDRESS, Wire, build_limiter
from tests.agent.test_http_port import HOST, Port, serve_until_exit
from tests.agent.test_websocket_upgrades import KEY, VERSION, build_upgrade
from tests.kit.virtual_time import in_virtual_time, pass_time
from tests.waiting import WITHIN_S, wait_on_loop_until
from wharf.agent.http.parsing_slots import ParsingSlots
from wharf.agent.http.protocol import build_protocol
from wharf.agent.http.websockets import FRAMES_PER_STEP, MAX_FRAGMENTS, STALLED_TIMEOUT_S, FrameBoundaryFinder
from wharf.cluster.api.websockets.sockets import CallerSocket

MASK = b"\x80\x00\x00\x00\x00"
"""Second byte of an empty frame with its mask."""
PING = b"\x89" + MASK
TEXT = b"\x81\x81\x00\x00\x00\x00a"
BEGIN = b"\x01" + MASK
MORE = b"\x00" + MASK
PONG = b"\x8a\x00"
CLOSE = b"\x88" + MASK

App = Callable[[Any, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]


class SocketWire(Wire):
    """The transport of a websocket. `sent_frames` is what was sent after the handshake."""

    def __init__(self) -> None:
        super().__init__(REMOTE_ADDRESS)
        self.is_being_read = True

    @property
    def sent_frames(self) -> bytes:
        return self.sent.partition(b"\r\n\r\n")[2]

    def pause_reading(self) -> None:
        self.is_being_read = False

    def resume_reading(self) -> None:
        self.is_being_read = True

    def receive(self, data: bytes) -> None:
        """Pass received bytes to the protocol, as a transport does that is read."""
        assert self.is_being_read, "the protocol has paused reading"
        protocol = self.get_protocol()
        assert isinstance(protocol, asyncio.Protocol)
        protocol.data_received(data)


class TakingApp:
    """An application that accepts a websocket and receives messages while `is_taking` is set."""

    def __init__(self, *, is_taking: bool) -> None:
        self.is_taking = asyncio.Event()
        if is_taking:
            self.is_taking.set()
        self.taken: list[Any] = []

    async def __call__(self, _scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while not self.taken or self.taken[-1]["type"] != "websocket.disconnect":
            await self.is_taking.wait()
            self.taken.append(await receive())


@asynccontextmanager
async def open_websocket(app: App) -> AsyncIterator[SocketWire]:
    """Open a websocket to the application, on a transport in memory."""
    config = uvicorn.Config(app, lifespan="off", log_config=None)
    config.load()
    state = uvicorn.server.ServerState()
    wire = SocketWire()
    protocol = build_protocol(build_limiter(1), ParsingSlots(lambda: 0.0))(config, state, {})  # type: ignore[call-arg]  # the server's own arguments
    wire.set_protocol(protocol)
    protocol.connection_made(wire)
    protocol.data_received(build_upgrade(KEY, VERSION))
    await pass_time(0.001)
    try:
        yield wire
    finally:
        wire.get_protocol().connection_lost(None)
        for task in list(state.tasks):
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)


def test_frames_of_any_size_are_found_in_parts_of_any_size() -> None:
    frames = [
        b"\x81\x81" + b"m" * 4 + b"a",
        b"\x89\x80" + b"m" * 4,
        b"\x82\xfe\x01\x00" + b"m" * 4 + b"b" * 256,
        b"\x82\xff\x00\x00\x00\x00\x00\x01\x00\x00" + b"m" * 4 + b"c" * 65_536,
        b"\x81\x05" + b"d" * 5,
    ]
    data = b"".join(frames)

    def split(part_bytes: int) -> list[bytes]:
        finder, found = FrameBoundaryFinder(), [b""]
        for start in range(0, len(data), part_bytes):
            part, position = data[start : start + part_bytes], 0
            while position < len(part):
                end = finder.find_end(part, position)
                found[-1] += part[position:end]
                position = end
                if len(found[-1]) == len(frames[len(found) - 1]):
                    found.append(b"")
        return found[:-1]

    assert [split(size) for size in (1, 3, 7, 1_000, len(data))] == [frames] * 5


@in_virtual_time
async def test_a_flood_of_control_frames_is_processed_in_steps() -> None:
    async with open_websocket(TakingApp(is_taking=True)) as wire:
        wire.receive(PING * 1_000)
        pongs_at_once, was_read_at_once = wire.sent_frames.count(PONG), wire.is_being_read
        await pass_time(0.001)

        assert (pongs_at_once, was_read_at_once) == (FRAMES_PER_STEP, False)
        assert (wire.sent_frames.count(PONG), wire.is_being_read) == (1_000, True)


@in_virtual_time
async def test_control_frames_are_not_answered_while_the_client_does_not_read() -> None:
    async with open_websocket(TakingApp(is_taking=True)) as wire:
        wire.get_protocol().pause_writing()
        wire.receive(PING * 100)
        await pass_time(1)
        sent_while_paused = wire.sent_frames
        wire.get_protocol().resume_writing()
        await pass_time(0.001)

        assert (sent_while_paused, wire.sent_frames.count(PONG)) == (b"", 100)


@in_virtual_time
async def test_a_client_that_reads_nothing_for_a_minute_is_disconnected() -> None:
    async with open_websocket(TakingApp(is_taking=True)) as wire:
        wire.get_protocol().pause_writing()
        await pass_time(STALLED_TIMEOUT_S - 25)
        was_aborted = wire.is_aborted
        await pass_time(26)

        assert (was_aborted, wire.is_aborted) == (False, True)


@in_virtual_time
async def test_one_message_waits_and_nothing_is_read_until_it_is_taken() -> None:
    app = TakingApp(is_taking=False)
    async with open_websocket(app) as wire:
        wire.receive(TEXT * 40_000)
        await pass_time(1)
        protocol: Any = wire.get_protocol()
        waiting, was_reading = protocol.queue.qsize(), wire.is_being_read
        app.is_taking.set()
        await pass_time(1)

        assert (waiting, was_reading) == (1, False)
        assert (len(app.taken), wire.is_being_read) == (40_000, True)


@in_virtual_time
async def test_a_client_whose_messages_are_not_taken_stays_connected() -> None:
    app = TakingApp(is_taking=False)
    async with open_websocket(app) as wire:
        wire.receive(TEXT * 2)
        await pass_time(600)

        assert (wire.is_closed, wire.is_aborted) == (False, False)


@in_virtual_time
async def test_a_silent_client_is_disconnected() -> None:
    async with open_websocket(TakingApp(is_taking=True)) as wire:
        await pass_time(41)

        assert wire.sent_frames.endswith(b"keepalive ping timeout")
        assert wire.is_closed


@in_virtual_time
async def test_a_message_of_millions_of_frames_ends_the_connection() -> None:
    app = TakingApp(is_taking=True)
    async with open_websocket(app) as wire:
        wire.receive(BEGIN + MORE * (MAX_FRAGMENTS + 10))
        await pass_time(1)

        assert wire.sent_frames.endswith(b"\x03\xf1a message has more than 4096 frames")
        assert (wire.is_closed, [message["type"] for message in app.taken]) == (True, ["websocket.disconnect"])


@in_virtual_time
async def test_a_message_in_many_frames_arrives_whole() -> None:
    app = TakingApp(is_taking=True)
    async with open_websocket(app) as wire:
        wire.receive(b"\x01\x81\x00\x00\x00\x00a" + b"\x00\x81\x00\x00\x00\x00b" * 1_000 + PING + b"\x80" + MASK)
        await pass_time(1)

        assert app.taken == [{"type": "websocket.receive", "text": "a" + "b" * 1_000}]


@in_virtual_time
async def test_text_that_is_not_utf_8_ends_the_connection() -> None:
    async with open_websocket(TakingApp(is_taking=True)) as wire:
        wire.receive(b"\x81\x81\x00\x00\x00\x00\xff")

        assert wire.sent_frames.endswith(b"\x03\xefa text message is not UTF-8")
        assert wire.is_closed


@in_virtual_time
async def test_frames_before_the_handshake_is_accepted_wait() -> None:
    is_permitted = asyncio.Event()

    async def accept_late(_scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        await receive()
        await is_permitted.wait()
        await send({"type": "websocket.accept"})
        await receive()

    async with open_websocket(accept_late) as wire:
        wire.receive(PING + b"\x83" + MASK)
        await pass_time(1)
        sent_before = wire.sent
        is_permitted.set()
        await pass_time(1)

        assert sent_before == b""
        assert wire.sent.startswith(b"HTTP/1.1 101")
        assert wire.sent_frames.startswith(PONG)
        assert wire.is_closed


@in_virtual_time
async def test_a_client_that_does_not_complete_the_closing_handshake_is_disconnected() -> None:
    async def close(_scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await receive()
        await send({"type": "websocket.close", "code": 1000})

    async with open_websocket(close) as wire:
        wire.receive(TEXT * 1_000)
        await pass_time(9)
        was_closed = wire.is_closed
        await pass_time(2)

        assert (was_closed, wire.is_closed) == (False, True)


@in_virtual_time
async def test_a_dropped_connection_does_not_wait_for_its_client() -> None:
    async def drop(scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        socket = CallerSocket(scope, receive, send, asyncio.Event())
        await socket.accept()
        await receive()
        await socket.close_at_once(1008, "replaced")

    async with open_websocket(drop) as wire:
        wire.receive(TEXT)
        await pass_time(0.001)

        assert wire.is_aborted
        assert b"replaced" in wire.sent_frames


class NotTakingPort(Port):
    """A port whose application never takes a message, and records when the connection has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ended_count = 0

    def has_ended(self, count: int) -> bool:
        return self.ended_count >= count

    async def __call__(self, scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await scope["extensions"]["wharf.websocket"].disconnected_event.wait()
        self.ended_count += 1


def test_the_end_of_a_client_is_noticed_while_its_messages_are_not_read() -> None:
    async def scenario() -> None:
        async with serve_until_exit(NotTakingPort()) as port:
            assert isinstance(port, NotTakingPort)
            for byte_count in (100, 20_000_000):  # With and without unsent data between its messages and its end.
                reader, writer = await asyncio.open_connection(HOST, port.number)
                writer.write(build_upgrade(KEY, VERSION))
                await reader.readuntil(b"\r\n\r\n")
                writer.write(TEXT * (byte_count // len(TEXT)))
                expected_count = port.ended_count + 1
                writer.transport.get_extra_info("socket").shutdown(2)
                writer.close()
                await wait_on_loop_until(partial(port.has_ended, expected_count), what="the end", within_s=WITHIN_S)

    asyncio.run(scenario())
