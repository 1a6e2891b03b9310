"""The websocket protocol of the port: uvicorn's protocol with limits of buffers, frames and silence.

At most one message waits in memory, and nothing is read until the application has taken it. Access and what messages
mean do not belong here. The classes use internal methods of uvicorn and websockets: check them when upgrading these.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import HeaderLineTooLong, RequestLineTooLong, TooManyHeaders
from websockets.frames import Frame
from websockets.http11 import MAX_LINE_LENGTH, MAX_NUM_HEADERS, Request
from websockets.server import ServerProtocol

from wharf.cluster.api.connection import WEBSOCKET_EXTENSION
from wharf.contract.model.body_limits import cut_echo

FRAMES_PER_STEP: Final = 16
"""Frames of one connection that are processed in an iteration of the event loop: about 0.2 ms. A client could send 40,000
empty frames in one packet otherwise, and hold the event loop for half a second."""
MAX_FRAGMENTS: Final = 4_096
"""Frames of one message. Limits the work for a message that never ends: empty frames do not count for its size."""
STALLED_TIMEOUT_S: Final = 60.0
"""How long output may be unsent because the client does not read. Then the connection is aborted."""
BLOCKED_CHECK_INTERVAL_S: Final = 1.0
"""How often a connection that is not read is checked for its end, which only reading would report."""
BLOCKED_CHECKS_PER_PING: Final = 2
"""Checks after which a ping is sent: a client that closed its end with unread data in between reveals that only then."""
CLOSED_TCP_STATES: Final = frozenset((7, 8))
"""`TCP_CLOSE` and `TCP_CLOSE_WAIT` of Linux: the client has reset or closed the connection."""
MESSAGE_TOO_BIG_CODE: Final = 1009
WEBSOCKET_VERSION: Final = "13"

SHORT_LENGTH_MAX: Final = 125
"""The longest payload whose length is in the second byte of the header (RFC 6455, 5.2)."""
MASK_BYTES: Final = 4


class FrameBoundaryFinder:
    """Finds the ends of frames in received bytes, so that they can be processed one by one. Does not read payloads."""

    __slots__ = ("_header", "_remaining")

    def __init__(self) -> None:
        self._header = bytearray()
        """The received part of the header of the current frame."""
        self._remaining = 0
        """Bytes of the current frame's payload that have not been received."""

    def find_end(self, data: bytes, start: int) -> int:
        """Return the position after the frame that begins or continues at `start`, or the end of `data` if it is earlier."""
        end = len(data)
        while not self._remaining:
            needed = self._get_header_size() - len(self._header)
            part = data[start : start + needed]
            self._header += part
            start += len(part)
            if len(part) < needed:
                return end
            if len(self._header) < self._get_header_size():
                continue
            self._remaining = self._parse_length()
            self._header.clear()
            if not self._remaining:
                return start
        available = min(self._remaining, end - start)
        self._remaining -= available
        return start + available

    def _get_header_size(self) -> int:
        """Return the size of the header, as far as its received part shows."""
        if len(self._header) < 2:
            return 2
        length = self._header[1] & 0x7F
        length_bytes = 0 if length <= SHORT_LENGTH_MAX else 2 if length == SHORT_LENGTH_MAX + 1 else 8
        return 2 + length_bytes + (MASK_BYTES if self._header[1] & 0x80 else 0)

    def _parse_length(self) -> int:
        """Return the length of the payload, from a complete header."""
        length = self._header[1] & 0x7F
        if length <= SHORT_LENGTH_MAX:
            return length
        return int.from_bytes(self._header[2 : 4 if length == SHORT_LENGTH_MAX + 1 else 10], "big")


class LimitedWebSocket(WebSocketsSansIOProtocol):
    """The websocket protocol of one connection. It begins with a valid handshake of the HTTP protocol.

    Frames are processed a few at a time, and none while a message waits or the client does not read. The application gets
    this object in the extensions of its scope, as `WebSocketConnection`.
    """

    def __init__(self, *args: Any, on_end: Callable[[], None], **options: Any) -> None:  # The others are uvicorn's.
        """`on_end` is called once, when the connection has ended or no longer counts for its client."""
        super().__init__(*args, **options)
        self.disconnected_event = asyncio.Event()
        """Set when the connection has ended, also while messages of the client are unread."""
        self._on_end: Callable[[], None] | None = on_end
        self._boundaries = FrameBoundaryFinder()
        self._unprocessed = b""
        """Received bytes that are not processed yet: at most what one read of the socket returned."""
        self._position = 0
        """The length of the processed part of `_unprocessed`."""
        self._is_reading = True
        self._step: asyncio.Handle | None = None
        self._message = bytearray()
        self._fragment_count = 0
        self._has_received = True
        """Whether anything was received since the last ping, or would have been if the connection had been read."""
        self._stalled_timer: asyncio.TimerHandle | None = None
        self._blocked_timer: asyncio.TimerHandle | None = None
        self._blocked_checks = 0

    # -- the connection ----------------------------------------------------------------------------------------------

    def begin(self, transport: asyncio.Transport, request: Request) -> None:
        """Take over the connection after a valid handshake request, and pass it to the application."""
        self.connection_made(transport)
        self.handle_connect(request)
        transport.set_protocol(self)

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        extensions: dict[str, Any] = {**(self.scope["extensions"] or {}), WEBSOCKET_EXTENSION: self}
        self.scope["extensions"] = extensions

    def stop_counting(self) -> None:
        """Stop counting the connection for its client. Later calls do nothing."""
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()

    def abort(self) -> None:
        """Drop the connection, also if output is unsent."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_counting()
        self._unprocessed, self._position = b"", 0
        for handle in (self._step, self._stalled_timer, self._blocked_timer):
            if handle is not None:
                handle.cancel()
        super().connection_lost(exc)
        self.disconnected_event.set()

    def handle_close(self, event: Frame) -> None:
        super().handle_close(event)
        self.disconnected_event.set()

    # -- reading -----------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Process received frames, some now and the others in later iterations of the event loop."""
        self._has_received = True
        self._unprocessed = self._unprocessed[self._position :] + data if self._unprocessed else data
        self._position = 0
        if self._step is None:
            self._process()

    def _process(self) -> None:
        """Process up to `FRAMES_PER_STEP` frames, as far as the application takes messages and the client reads."""
        self._step = None
        data = self._unprocessed
        for _ in range(FRAMES_PER_STEP):
            start = self._position
            if start >= len(data) or self._is_blocked or self.transport.is_closing():
                break
            self._position = self._boundaries.find_end(data, start)
            super().data_received(data[start : self._position])
        if self.transport.is_closing():
            self._unprocessed, self._position = b"", 0
            return
        if self._position >= len(data):
            self._unprocessed, self._position = b"", 0
        elif not self._is_blocked:
            self._step = self.loop.call_soon(self._process)
        self._set_reading(not self._unprocessed and not self._is_blocked)

    @property
    def _is_blocked(self) -> bool:
        """Whether no frame may be processed now: before the handshake, while a message waits, or while output is unsent."""
        return self.read_paused or not self.handshake_complete or not self.writable.is_set()

    def _set_reading(self, is_reading: bool) -> None:
        """Read the connection or not, and check it for its end while it is not read."""
        if is_reading == self._is_reading or self.transport.is_closing():
            return
        self._is_reading = is_reading
        if is_reading:
            self._has_received = True
            self.transport.resume_reading()
            if self._blocked_timer is not None:
                self._blocked_timer.cancel()
                self._blocked_timer = None
        else:
            self.transport.pause_reading()
            if self._blocked_timer is None:
                self._blocked_checks = 0
                self._blocked_timer = self.loop.call_later(BLOCKED_CHECK_INTERVAL_S, self._check_blocked)

    def _continue(self) -> None:
        """Process further frames in the next iteration of the event loop, unless they must wait."""
        if self._is_blocked or self.transport.is_closing():
            return
        if self._unprocessed:
            self._step = self._step or self.loop.call_soon(self._process)
        else:
            self._set_reading(True)

    def _check_blocked(self) -> None:
        """Abort a connection that is not read if its client has closed it. Sends a ping at intervals to find that out."""
        self._blocked_timer = None
        if self.transport.is_closing():
            return
        if _is_closed_by_peer(self.transport):
            self.transport.abort()
            return
        self._blocked_checks += 1
        if self._blocked_checks % BLOCKED_CHECKS_PER_PING == 0 and self.handshake_complete and not self.close_sent:
            self.conn.send_ping(b"")
            self.transport.write(b"".join(self.conn.data_to_send()))
        self._blocked_timer = self.loop.call_later(BLOCKED_CHECK_INTERVAL_S, self._check_blocked)

    async def receive(self) -> Any:
        """Return the next ASGI message, and read on once the application has taken all."""
        message = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            self._continue()
        return message

    async def send(self, message: Any) -> None:
        """Send an ASGI message. The end of the handshake and of the session permit to process further frames."""
        if message["type"] == "websocket.close":
            self.read_paused = False  # uvicorn would resume reading, whatever else blocks it.
        await super().send(message)
        if message["type"] in ("websocket.accept", "websocket.close"):
            self._continue()

    # -- messages ----------------------------------------------------------------------------------------------------

    def handle_text(self, event: Frame) -> None:
        self.curr_msg_data_type = "text"
        self._begin_message(event)

    def handle_bytes(self, event: Frame) -> None:
        self.curr_msg_data_type = "bytes"
        self._begin_message(event)

    def _begin_message(self, event: Frame) -> None:
        self._fragment_count = 0
        if event.fin:
            self._end_message(bytes(event.data))
        else:
            self._message = bytearray(event.data)

    def handle_cont(self, event: Frame) -> None:
        """Add a frame to the message. A message of too many frames ends the connection."""
        self._fragment_count += 1
        if self._fragment_count >= MAX_FRAGMENTS:
            self.conn.fail(MESSAGE_TOO_BIG_CODE, f"a message has more than {MAX_FRAGMENTS} frames")
            self.handle_parser_exception()
            return
        self._message += event.data
        if event.fin:
            data, self._message = bytes(self._message), bytearray()
            self._end_message(data)

    def _end_message(self, data: bytes) -> None:
        """Queue a complete message for the application. It then counts as read-paused until the message is taken."""
        if self.close_sent:
            return
        if self.curr_msg_data_type == "bytes":
            self.queue.put_nowait({"type": "websocket.receive", "bytes": data})
        else:
            try:
                text = data.decode()
            except UnicodeDecodeError:
                self.conn.fail(1007, "a text message is not UTF-8")
                self.handle_parser_exception()
                return
            self.queue.put_nowait({"type": "websocket.receive", "text": text})
        self.read_paused = True

    # -- writing and silence -----------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled_timer is None:
            self._stalled_timer = self.loop.call_later(STALLED_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled_timer is not None:
            self._stalled_timer.cancel()
            self._stalled_timer = None
        self._continue()

    def send_keepalive_ping(self) -> None:
        self._has_received = False
        super().send_keepalive_ping()

    def keepalive_timeout(self) -> None:
        """Close the connection of a silent client. A client whose messages are not read may have answered."""
        if not self._has_received and self._is_reading:
            super().keepalive_timeout()
            return
        self.pong_timer, self.pending_ping_payload = None, None
        self.schedule_ping()


def _is_closed_by_peer(transport: asyncio.Transport) -> bool:
    """Return whether the other end has closed a TCP connection, even if data before the end is unread."""
    connection = transport.get_extra_info("socket")
    with suppress(OSError, AttributeError):  # Not TCP, or closed just now.
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in CLOSED_TCP_STATES
    return False


class UpgradeRefused(Exception):
    """The error of a websocket handshake that gets an HTTP reply: its status line, further headers and text."""

    def __init__(self, status: bytes, text: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = headers


def parse_upgrade(handshake: ServerProtocol, head: bytes) -> Request:
    """Return the handshake request whose head this is, parsed by `handshake`. Raises `UpgradeRefused` if it is invalid."""
    handshake.receive_data(head)
    event = next(iter(handshake.events_received()), None)
    if not isinstance(event, Request):
        raise _build_head_refusal(handshake.handshake_exc)
    versions = [value.strip() for value in event.headers.get_all("Sec-WebSocket-Version")]
    if versions != [WEBSOCKET_VERSION]:
        raise UpgradeRefused(
            b"426 Upgrade Required",
            f'the websocket version is "{cut_echo(", ".join(versions))}": send one Sec-WebSocket-Version header with 13',
            (b"sec-websocket-version", WEBSOCKET_VERSION.encode()),
            (b"upgrade", b"websocket"),
        )
    response = handshake.accept(event)
    if response.status_code != 101:
        status = f"{response.status_code} {response.reason_phrase}".encode()
        allowed = [(b"allow", b"GET")] if response.status_code == 405 else []
        raise UpgradeRefused(status, _build_refusal_text(handshake.handshake_exc), *allowed)
    return event


def _build_head_refusal(error: Exception | None) -> UpgradeRefused:
    """Return the refusal of a handshake whose head cannot be parsed because of this error."""
    if isinstance(error, RequestLineTooLong):
        return UpgradeRefused(
            b"414 URI Too Long", f"the request line of a websocket is longer than {MAX_LINE_LENGTH} bytes"
        )
    if isinstance(error, HeaderLineTooLong | TooManyHeaders):
        return UpgradeRefused(
            b"431 Request Header Fields Too Large",
            f"the request for a websocket has a header of more than {MAX_LINE_LENGTH} bytes, or more than "
            f"{MAX_NUM_HEADERS} headers",
        )
    return UpgradeRefused(b"400 Bad Request", _build_refusal_text(error.__cause__ if error is not None else None))


def _build_refusal_text(error: BaseException | None) -> str:
    """Return the text of a refused handshake, with the reason that the library names."""
    reason = cut_echo(str(error).encode("ascii", "backslashreplace").decode()) if error is not None else ""
    return f"the request for a websocket is invalid: {reason or 'its head cannot be parsed'}"
