"""One connection to the store process: its requests in, replies and streams out, with bounds on both.

It translates between messages and the hub, and holds no more of either than it must: who does not read is not read from,
and a stream goes on only when the last piece has left.
"""

import asyncio
import logging
from contextlib import aclosing
from functools import partial
from typing import Final, Protocol, TypeVar, cast

import msgspec

from wharf.cluster.engines.framing import FramingError, SocketFrameDecoder, encode_frame
from wharf.cluster.engines.port import FollowerBehind, LogUnavailable, WriteOutcome
from wharf.cluster.engines.sqlite.async_store import AsyncSqliteStore
from wharf.cluster.engines.sqlite.leases import LeaseTracker
from wharf.cluster.engines.sqlite.restore import SqliteRestore
from wharf.cluster.engines.store.messages import (
    PROTOCOL_VERSION,
    BarrierRequest,
    CommitReply,
    CommitRequest,
    CompactRequest,
    FailureReply,
    FindWriteRequest,
    FollowRequest,
    GrantLeaseRequest,
    LoadEndReply,
    LoadRequest,
    LogHealthReply,
    LogHealthRequest,
    RecordsReply,
    RestoreBegin,
    RestoreEnd,
    RestoreRecords,
    RevokeLeaseRequest,
    StoreHello,
    StoreMessage,
    StoreRequest,
    StoreWelcome,
    ValueReply,
    decode_request,
)
from wharf.world import World

LOAD_STALL_TIMEOUT_S: Final = 60.0
"""A load holds back trimming: whoever takes nothing of it for so long loses it."""

MAX_RESTORE_SLICES: Final = 4
"""So many slices of a restore may wait to be written."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class StoreContext(Protocol):
    """What all connections share."""

    store: AsyncSqliteStore
    leases: LeaseTracker
    world: World
    connections: "set[StoreServerConnection]"
    main_connections: "dict[str, StoreServerConnection]"
    """The main connection of each engine."""


class StoreServerConnection(asyncio.Protocol):
    def __init__(self, context: StoreContext) -> None:
        self._house = context
        self._hub = context.store
        self._frames = SocketFrameDecoder()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = ""
        self._is_main = False
        self._out: list[bytes] = []
        self._writable = asyncio.Event()
        self._writable.set()
        self._paused: set[str] = set()
        self._work: set[asyncio.Task[None]] = set()
        self._restore_slices: asyncio.Queue[RestoreRecords | RestoreEnd] | None = None

    # -- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's, but do the same.
        self._transport = cast(asyncio.Transport, transport)
        self._house.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (how it ended makes no difference)
        self._house.connections.discard(self)
        if not self.closed.done():
            self.closed.set_result(None)
        self._writable.set()
        for work in self._work:
            work.cancel()
        if self._is_main:
            if self._house.main_connections.get(self._owner) is self:
                del self._house.main_connections[self._owner]
            self._house.leases.detach(self._owner)

    def pause_writing(self) -> None:
        self._writable.clear()
        self._pause("replies")

    def resume_writing(self) -> None:
        self._writable.set()
        self._resume("replies")

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return  # An engine that has come back on another connection must not be answered by what it sent on this.
        try:
            for body in self._frames.feed(data):
                self._on_request(decode_request(body))
        except (FramingError, msgspec.DecodeError) as error:
            _log.error("a connection to the log was closed: %s", error)
            self._transport.abort()
        if self._hub.is_full():
            self._pause("hub")
            self._hub.call_when_drained(partial(self._resume, "hub"))

    def close(self) -> None:
        """Once what was said has left."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def _pause(self, why: str) -> None:
        if not self._paused and not self._transport.is_closing():
            self._transport.pause_reading()
        self._paused.add(why)

    def _resume(self, why: str) -> None:
        self._paused.discard(why)
        if not self._paused and not self._transport.is_closing():
            self._transport.resume_reading()

    # -- saying

    def _say(self, message: StoreMessage) -> None:
        """At the end of this turn of the loop, together with what else is said in it."""
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out.append(encode_frame(message))

    def _flush(self) -> None:
        if self._out and not self._transport.is_closing():
            self._transport.write(b"".join(self._out) if len(self._out) > 1 else self._out[0])
        self._out.clear()

    def _fail(self, number: int, error: BaseException) -> None:
        if not isinstance(error, (FollowerBehind, LogUnavailable)):
            _log.error("a request to the log failed: %r", error, exc_info=error)
        self._say(FailureReply(number, isinstance(error, FollowerBehind), str(error) or repr(error)))

    # -- requests

    def _on_request(self, request: StoreRequest) -> None:
        number = 0
        try:
            match request:
                case CommitRequest():
                    number = request.number
                    self._hub.submit_write(request.write, partial(self._decided, number))
                case BarrierRequest():
                    number = request.number
                    index = self._hub.barrier()
                    if isinstance(index, int):
                        self._say(ValueReply(number, index))
                    else:
                        index.add_done_callback(partial(self._told, number))
                case StoreHello():
                    self._on_hello(request)
                case RestoreRecords() | RestoreEnd():
                    self._on_restore(request)
                case RestoreBegin():
                    self._restore_slices = asyncio.Queue()
                    self._start(request)
                case _:
                    self._start(request)
        except LogUnavailable as error:
            self._fail(number, error)

    def _decided(self, number: int, outcome: WriteOutcome) -> None:
        self._say(CommitReply(number, outcome))

    def _told(self, number: int, index: asyncio.Future[int]) -> None:
        if index.cancelled():
            return
        if (error := index.exception()) is not None:
            self._fail(number, error)
        else:
            self._say(ValueReply(number, index.result()))

    def _on_hello(self, hello: StoreHello) -> None:
        if hello.version != PROTOCOL_VERSION:
            raise LogUnavailable(
                f"the store speaks version {PROTOCOL_VERSION}, the engine {hello.version}: start both anew"
            )
        self._owner, self._is_main = hello.owner, hello.is_main
        if hello.is_main:
            earlier = self._house.main_connections.get(hello.owner)
            if earlier is not None:
                earlier.abort()
            self._house.main_connections[hello.owner] = self
            self._house.leases.attach(hello.owner)
        store = self._hub.sync_store
        leases = [lease.id for lease in store.leases.values() if lease.owner == hello.owner]
        self._say(StoreWelcome(store.limits, leases))

    def _start(self, request: StoreRequest) -> None:
        work = self._house.world.start_task(
            self._perform(request), name=f"the store's answer to {type(request).__name__}"
        )
        self._work.add(work)
        work.add_done_callback(self._work.discard)

    async def _perform(self, request: StoreRequest) -> None:
        number = getattr(request, "number", 0)
        try:
            match request:
                case FindWriteRequest():
                    self._say(ValueReply(number, await self._hub.find_write(request.write_id, since=request.since)))
                case GrantLeaseRequest():
                    self._say(
                        ValueReply(number, await self._house.leases.grant_lease(owner=self._owner, ttl_s=request.ttl_s))
                    )
                case RevokeLeaseRequest():
                    await self._house.leases.revoke_lease(request.lease)
                    self._say(ValueReply(number, None))
                case CompactRequest():
                    await self._hub.compact(request.before)
                    self._say(ValueReply(number, None))
                case LogHealthRequest():
                    self._say(LogHealthReply(number, await self._hub.run_on_store(self._hub.sync_store.read_health)))
                case FollowRequest():
                    await self._feed(request.after)
                case LoadRequest():
                    await self._load()
                case RestoreBegin():
                    await self._restore(request)
        except (FollowerBehind, LogUnavailable) as error:
            self._fail(number, error)

    # -- streams

    async def _feed(self, after: int) -> None:
        async with aclosing(self._hub.iter_feed(after)) as feed:
            async for frames in feed:
                self._flush()
                self._transport.write(b"".join(frames) if len(frames) > 1 else frames[0])
                if not self._writable.is_set():
                    await self._writable.wait()

    async def _load(self) -> None:
        loading = await self._hub.begin_load()
        try:
            async with aclosing(loading.iter_slices()) as slices:
                async for rows in slices:
                    # Rows as tuples encode like rows: a `Row` is an array too.
                    self._transport.write(encode_frame(RecordsReply(rows)))  # type: ignore[arg-type]
                    if not self._writable.is_set():
                        async with asyncio.timeout(LOAD_STALL_TIMEOUT_S):
                            await self._writable.wait()
        except TimeoutError:
            _log.warning("a load of the log was given up: nothing of it was taken for %d s", LOAD_STALL_TIMEOUT_S)
            self._transport.abort()
            return
        finally:
            loading.close()
        self._say(LoadEndReply(loading.position))

    def _on_restore(self, request: RestoreRecords | RestoreEnd) -> None:
        if self._restore_slices is None:
            raise LogUnavailable("rows of a restore came before its beginning")
        self._restore_slices.put_nowait(request)
        if self._restore_slices.qsize() >= MAX_RESTORE_SLICES:
            self._pause("restore")

    async def _restore(self, begin: RestoreBegin) -> None:
        slices = self._restore_slices
        assert slices is not None, "made when the request arrived"
        restore = SqliteRestore(self._hub.sync_store)
        await self._hub.run_on_store(partial(restore.begin, begin.position))
        try:
            while isinstance(request := await slices.get(), RestoreRecords):
                await self._hub.run_read(partial(restore.add_records, request.records))
                if slices.qsize() < MAX_RESTORE_SLICES:
                    self._resume("restore")
            ending = restore.finish if request.is_whole else restore.abandon
            self._say(ValueReply(0, await self._hub.run_on_store(ending)))
        finally:
            # Also when the connection is lost and this task cancelled: the old log goes on.
            if not self._hub.stopped.is_set():
                self._hub.run_on_store(restore.abandon)
