"""A websocket whose other end sends floods of frames, messages that are too long, or everything at once and then the end."""

import asyncio
import base64
import hashlib
import re
from collections.abc import Awaitable, Callable

import pytest

from tests.kit.loop_holds import measure_holds
from wharf.contract.client.relay.port import RelayRequest
from wharf.contract.client.relay.websockets import MAX_MESSAGE_BYTES, WebSocket, WebSocketRelay

ACCEPT_SUFFIX = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
EMPTY_MESSAGE = b"\x82\x00"
PING = b"\x89\x00"
CLOSE = b"\x88\x02\x03\xe8"
T = Callable[[WebSocket], Awaitable[object]]


async def with_peer(data: bytes, use: T, *, is_endless: bool = False) -> object:
    """Return what `use` returns with a websocket whose other end sends these bytes, and then ends or repeats them."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        found = re.search(rb"(?i)sec-websocket-key: (\S+)", head)
        assert found is not None
        accepted = base64.b64encode(hashlib.sha1(found[1] + ACCEPT_SUFFIX).digest())
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accepted + b"\r\n\r\n" + data
        )
        try:
            await writer.drain()
            while is_endless:
                writer.write(data)
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    relay = WebSocketRelay(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        async with asyncio.timeout(10), relay.open_socket(RelayRequest("GET", b"/", ())) as websocket:
            return await use(websocket)
    finally:
        server.close()


async def receive_all(websocket: WebSocket) -> tuple[int, int]:
    """Return the number of messages up to the end, and the close code."""
    count = 0
    while await websocket.receive() is not None:
        count += 1
    return count, websocket.close_code


async def receive_for_a_moment(websocket: WebSocket) -> bool:
    try:
        async with asyncio.timeout(0.5):
            await receive_all(websocket)
    except TimeoutError:
        websocket.abort()
        return True
    return False


@pytest.mark.parametrize("frame", [EMPTY_MESSAGE, PING], ids=["messages", "pings"])
def test_a_flood_of_frames_does_not_hold_the_loop(frame: bytes) -> None:
    asyncio.run(with_peer(CLOSE, receive_all))  # Loads modules before the measurement.

    with measure_holds() as holds:
        assert asyncio.run(with_peer(frame * 50_000, receive_for_a_moment, is_endless=True))

    holds.require_short("a flood of frames")


def test_after_an_abort_nothing_that_was_received_is_parsed() -> None:
    counts = []

    async def abort_later(websocket: WebSocket) -> None:
        await receive_for_a_moment(websocket)
        counts.append(holds.count)

    with measure_holds() as holds:
        asyncio.run(with_peer(PING * 50_000, abort_later, is_endless=True))

    assert holds.count - counts[0] < 50  # A chunk of the transport has 256 slices.


def test_all_messages_before_the_end_are_received_in_order() -> None:
    result = asyncio.run(with_peer(EMPTY_MESSAGE * 20_000 + CLOSE, receive_all))

    assert result == (20_000, 1000)


def test_messages_before_a_connection_that_ends_without_closing_are_received() -> None:
    result = asyncio.run(with_peer(EMPTY_MESSAGE * 20_000, receive_all))

    assert result == (20_000, 1011)


def test_a_message_that_is_too_long_closes_the_websocket() -> None:
    head = b"\x82\x7f" + (MAX_MESSAGE_BYTES + 1).to_bytes(8, "big")

    result = asyncio.run(with_peer(head + b"x" * 100, receive_all))

    assert result == (0, 1011)  # Not the message, and not 1000.
