"""The main connection of an engine to its store: many requests on their way at once, each answered by its number.

It does not reconnect; when it is lost, every request on its way is told so.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import msgspec

from wharf.cluster.engines.framing import FramingError, SocketFrameDecoder, encode_frame
from wharf.cluster.engines.port import FollowerBehind, LogUnavailable, WriteLimits, WriteOutcome, WriteOutcomeUnknown
from wharf.cluster.engines.store.messages import (
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

WELCOME_TIMEOUT_S: Final = 5.0


class MainConnection(asyncio.Protocol):
    """`on_contact` is told when the request was sent that has just been answered.

    A request that has no answer after `answer_within_s` ends the connection: a store that hangs must not hang its
    callers.
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
        self._frames = SocketFrameDecoder()
        self._out: list[bytes] = []
        self._number = 0
        self._waiting: dict[int, tuple[asyncio.Future[StoreReply], float]] = {}
        self._unbounded: set[int] = set()
        self._answer_within_s = request_timeout_s
        self._watch: asyncio.TimerHandle | None = None
        self._loop = loop
        self.welcome: asyncio.Future[StoreWelcome] = loop.create_future()
        self.lost_reason: asyncio.Future[str] = loop.create_future()
        """Why, once it is lost."""

    async def wait_welcomed(self) -> None:
        """Returns once it is welcomed or lost."""
        ends: tuple[asyncio.Future[Any], ...] = (self.welcome, self.lost_reason)
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)

    # -- asking

    async def commit_write(self, build_request: Callable[[int], CommitRequest]) -> WriteOutcome:
        """`Unknown` when the connection is lost before the outcome is told."""
        try:
            reply = await self._ask(build_request)
        except _Lost as error:
            return WriteOutcomeUnknown(f"{error}; whether the write happened was not told")
        assert isinstance(reply, CommitReply)
        return reply.outcome

    async def send_request(
        self, build_request: Callable[[int], StoreMessage], *, has_timeout: bool = True
    ) -> ValueReply | LogHealthReply:
        """Raises `Unavailable` and `Behind`. What may take long by its nature is not bounded; it ends with the link."""
        try:
            reply = await self._ask(build_request, is_bounded=has_timeout)
        except _Lost as error:
            raise LogUnavailable(str(error)) from error
        assert isinstance(reply, (ValueReply, LogHealthReply))
        return reply

    async def _ask(self, build: Callable[[int], StoreMessage], *, is_bounded: bool = True) -> StoreReply:
        if self.lost_reason.done():
            raise LogUnavailable(self.lost_reason.result())
        self._number += 1
        number = self._number
        future: asyncio.Future[StoreReply] = self._loop.create_future()
        self._say(build(number))
        self._waiting[number] = (future, self._clock())
        if not is_bounded:
            self._unbounded.add(number)
        elif self._watch is None:
            self._watch = self._loop.call_later(self._answer_within_s, self._end_if_it_hangs)
        try:
            reply = await future
        finally:
            self._waiting.pop(number, None)
            self._unbounded.discard(number)
        if isinstance(reply, FailureReply):
            raise FollowerBehind(reply.why) if reply.is_behind else LogUnavailable(reply.why)
        return reply

    def _end_if_it_hangs(self) -> None:
        """One timer for all requests: it looks at the oldest, and comes back when that one is due."""
        self._watch = None
        oldest_s = next(
            (sent_s for number, (_, sent_s) in self._waiting.items() if number not in self._unbounded), None
        )
        if oldest_s is None:
            return
        left_s = oldest_s + self._answer_within_s - self._clock()
        if left_s > 0:
            self._watch = self._loop.call_later(left_s, self._end_if_it_hangs)
            return
        self._lose(f"the store has not answered for {self._answer_within_s:g} s: its process or its disk hangs")
        self._transport.abort()

    def close(self) -> None:
        self._lose("the engine was closed")
        self._transport.abort()

    def _say(self, message: StoreMessage) -> None:
        """At the end of this turn of the loop, together with what else is said in it."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(encode_frame(message))

    def _flush(self) -> None:
        if self._out and not self._transport.is_closing():
            self._transport.write(b"".join(self._out) if len(self._out) > 1 else self._out[0])
        self._out.clear()

    # -- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's, but do the same.
        self._transport = cast(asyncio.Transport, transport)
        self._say(StoreHello(PROTOCOL_VERSION, self._owner, is_main=True))

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(f"the store went away ({exc})" if exc else "the store went away")

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._frames.feed(data):
                self._on_reply(decode_reply(body))
        except (FramingError, msgspec.DecodeError) as error:
            self._lose(f"what came from the store makes no sense: {error}")
            self._transport.abort()

    def _on_reply(self, reply: StoreReply) -> None:
        match reply:
            case CommitReply() | ValueReply() | LogHealthReply():
                self._answer(reply.number, reply)
            case FailureReply(number=0):
                self._lose(reply.why)
                self._transport.abort()
            case FailureReply():
                self._answer(reply.number, reply)
            case StoreWelcome():
                if not self.welcome.done():
                    self.welcome.set_result(reply)

    def _answer(self, number: int, reply: StoreReply) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is None:
            return  # Whoever asked has gone.
        future, sent_s = waiting
        self._on_contact(sent_s)
        if not future.done():
            future.set_result(reply)

    def _lose(self, why: str) -> None:
        if self.lost_reason.done():
            return
        self.lost_reason.set_result(why)
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if not self.welcome.done():
            self.welcome.cancel()
        waiting, self._waiting = self._waiting, {}
        for future, _ in waiting.values():
            if not future.done():
                future.set_exception(_Lost(why))


class _Lost(Exception):
    """The connection was lost with the request on its way."""


class StoreAttachment(msgspec.Struct, frozen=True):
    """A link that was welcomed."""

    connection: MainConnection
    limits: WriteLimits
    leases: Sequence[int]
