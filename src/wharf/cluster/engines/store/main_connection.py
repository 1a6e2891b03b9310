"""The main connection of an engine to the store: many requests in flight, each with a number that its reply repeats.

It does not reconnect. When it is lost, every request in flight fails.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import msgspec

from wharf.cluster.engines.port import FollowerBehind, LogUnavailable, WriteLimits, WriteOutcome, WriteOutcomeUnknown
from wharf.cluster.engines.store.messages import (
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    CommitReply,
    CommitRequest,
    FailureReply,
    LogHealthReply,
    StoreHello,
    StoreMessage,
    StoreReply,
    StoreWelcome,
    ValueReply,
    decode_reply,
)
from wharf.world.framing import FrameDecoder, FrameTooLong, encode_frame

WELCOME_TIMEOUT_S: Final = 5.0
"""How long a new connection waits for the store's welcome."""


class MainConnection(asyncio.Protocol):
    """The engine's end of the main connection.

    `on_contact` is called with the time at which the answered request was sent. A request without a reply after
    `request_timeout_s` closes the connection, so that a store that hangs does not block its callers.
    """

    def __init__(
        self,
        *,
        owner: str,
        clock: Callable[[], float],
        on_contact: Callable[[float], None],
        request_timeout_s: float,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._owner = owner
        self._clock = clock
        self._on_contact = on_contact
        self._frames = FrameDecoder(MAX_FRAME_BYTES)
        self._unsent_frames: list[bytes] = []
        self._last_number = 0
        self._waiting: dict[int, tuple[asyncio.Future[StoreReply], float]] = {}
        self._without_timeout: set[int] = set()
        self._request_timeout_s = request_timeout_s
        self._timeout_timer: asyncio.TimerHandle | None = None
        self._loop = loop
        self.welcome: asyncio.Future[StoreWelcome] = loop.create_future()
        self.lost_reason: asyncio.Future[str] = loop.create_future()
        """Why the connection was lost; done once it is lost."""

    async def wait_welcomed(self) -> None:
        """Return once the welcome has arrived or the connection is lost."""
        ends: tuple[asyncio.Future[Any], ...] = (self.welcome, self.lost_reason)
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)

    # -- requests

    async def commit_write(self, build_request: Callable[[int], CommitRequest]) -> WriteOutcome:
        """Send a write and return its outcome: `WriteOutcomeUnknown` if the connection is lost before the reply
        arrives."""
        try:
            reply = await self._send_and_wait(build_request)
        except _ConnectionLost as error:
            return WriteOutcomeUnknown(f"{error}; it is unknown whether the write happened")
        assert isinstance(reply, CommitReply)
        return reply.outcome

    async def send_request(
        self, build_request: Callable[[int], StoreMessage], *, has_timeout: bool = True
    ) -> ValueReply | LogHealthReply:
        """Send a request and return its reply. Raises `LogUnavailable` and `FollowerBehind`.

        A request that may take long has no timeout; it ends with its reply or with the connection.
        """
        try:
            reply = await self._send_and_wait(build_request, has_timeout=has_timeout)
        except _ConnectionLost as error:
            raise LogUnavailable(str(error)) from error
        assert isinstance(reply, (ValueReply, LogHealthReply))
        return reply

    async def _send_and_wait(self, build: Callable[[int], StoreMessage], *, has_timeout: bool = True) -> StoreReply:
        """Send a request with a new number and wait for its reply. Raises `_ConnectionLost` when the connection is
        lost."""
        if self.lost_reason.done():
            raise LogUnavailable(self.lost_reason.result())
        self._last_number += 1
        number = self._last_number
        future: asyncio.Future[StoreReply] = self._loop.create_future()
        self._queue_message(build(number))
        self._waiting[number] = (future, self._clock())
        if not has_timeout:
            self._without_timeout.add(number)
        elif self._timeout_timer is None:
            self._timeout_timer = self._loop.call_later(self._request_timeout_s, self._check_timeout)
        try:
            reply = await future
        finally:
            self._waiting.pop(number, None)
            self._without_timeout.discard(number)
        if isinstance(reply, FailureReply):
            raise FollowerBehind(reply.why) if reply.is_behind else LogUnavailable(reply.why)
        return reply

    def _check_timeout(self) -> None:
        """Close the connection if the oldest request has timed out. One timer serves all requests."""
        self._timeout_timer = None
        oldest_s = next(
            (sent_s for number, (_, sent_s) in self._waiting.items() if number not in self._without_timeout), None
        )
        if oldest_s is None:
            return
        remaining_s = oldest_s + self._request_timeout_s - self._clock()
        if remaining_s > 0:
            self._timeout_timer = self._loop.call_later(remaining_s, self._check_timeout)
            return
        self._mark_lost(f"the store has not answered for {self._request_timeout_s:g} s: its process or its disk hangs")
        self._transport.abort()

    def close(self) -> None:
        self._mark_lost("the engine was closed")
        self._transport.abort()

    def _queue_message(self, message: StoreMessage) -> None:
        """Queue a message. All messages queued in one iteration of the event loop are sent together."""
        if not self._unsent_frames:
            self._loop.call_soon(self._flush)
        self._unsent_frames.append(encode_frame(message))

    def _flush(self) -> None:
        if self._unsent_frames and not self._transport.is_closing():
            self._transport.write(
                b"".join(self._unsent_frames) if len(self._unsent_frames) > 1 else self._unsent_frames[0]
            )
        self._unsent_frames.clear()

    # -- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's, but have the same methods.
        self._transport = cast(asyncio.Transport, transport)
        self._queue_message(StoreHello(PROTOCOL_VERSION, self._owner, is_main=True))

    def connection_lost(self, exc: Exception | None) -> None:
        self._mark_lost(f"the store went away ({exc})" if exc else "the store went away")

    def data_received(self, data: bytes) -> None:
        """Handle all complete replies; close the connection if one is invalid."""
        try:
            for body in self._frames.feed(data):
                self._on_reply(decode_reply(body))
        except (FrameTooLong, msgspec.DecodeError) as error:
            self._mark_lost(f"the store sent an invalid message: {error}")
            self._transport.abort()

    def _on_reply(self, reply: StoreReply) -> None:
        """Resolve the request of a reply. A failure with number 0 ends the connection."""
        match reply:
            case CommitReply() | ValueReply() | LogHealthReply():
                self._resolve_request(reply.number, reply)
            case FailureReply(number=0):
                self._mark_lost(reply.why)
                self._transport.abort()
            case FailureReply():
                self._resolve_request(reply.number, reply)
            case StoreWelcome():
                if not self.welcome.done():
                    self.welcome.set_result(reply)

    def _resolve_request(self, number: int, reply: StoreReply) -> None:
        """Return the reply to the caller that waits for the request with this number, and record the contact."""
        request = self._waiting.pop(number, None)
        if request is None:
            return  # The caller was cancelled.
        future, sent_s = request
        self._on_contact(sent_s)
        if not future.done():
            future.set_result(reply)

    def _mark_lost(self, reason: str) -> None:
        """Record why the connection was lost and fail all requests in flight."""
        if self.lost_reason.done():
            return
        self.lost_reason.set_result(reason)
        if self._timeout_timer is not None:
            self._timeout_timer.cancel()
            self._timeout_timer = None
        if not self.welcome.done():
            self.welcome.cancel()
        waiting, self._waiting = self._waiting, {}
        for future, _ in waiting.values():
            if not future.done():
                future.set_exception(_ConnectionLost(reason))


class _ConnectionLost(Exception):
    """The connection was lost while the request was in flight."""


class StoreAttachment(msgspec.Struct, frozen=True):
    """A main connection that the store welcomed, with the store's limits and the engine's live leases."""

    connection: MainConnection
    limits: WriteLimits
    leases: Sequence[int]
