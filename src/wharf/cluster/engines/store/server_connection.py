"""One connection to the store process: requests in, replies and streams out, with limits on both.

It translates between messages and `AsyncSqliteStore`. It stops reading from a peer that does not read replies, and
sends the next piece of a stream only after the previous one was sent.
"""

import asyncio
import logging
from contextlib import aclosing
from functools import partial
from typing import Final, Protocol, TypeVar, cast

import msgspec

from wharf.cluster.engines.port import FollowerBehind, LogUnavailable, LogUnchanged, WriteOutcome
from wharf.cluster.engines.sqlite.async_store import AsyncSqliteStore
from wharf.cluster.engines.sqlite.leases import LeaseTracker
from wharf.cluster.engines.sqlite.restore import SqliteRestore
from wharf.cluster.engines.store.messages import (
    MAX_FRAME_BYTES,
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
from wharf.world.framing import FrameDecoder, FrameTooLong, encode_frame

LOAD_STALL_TIMEOUT_S: Final = 60.0
"""A load holds back trimming of the log: a client that reads nothing of it for this long is disconnected."""

MAX_RESTORE_SLICES: Final = 4
"""Limits memory: how many received slices of a restore may wait to be written before the connection stops reading."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class StoreContext(Protocol):
    """What the connections of a store share."""

    store: AsyncSqliteStore
    leases: LeaseTracker
    world: World
    connections: "set[StoreServerConnection]"
    main_connections: "dict[str, StoreServerConnection]"
    """The main connection of each engine, by owner."""


class StoreServerConnection(asyncio.Protocol):
    """The store's end of one connection."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._store = context.store
        self._frames = FrameDecoder(MAX_FRAME_BYTES)
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = ""
        self._is_main = False
        self._unsent_frames: list[bytes] = []
        self._writable = asyncio.Event()
        self._writable.set()
        self._pause_reasons: set[str] = set()
        self._request_tasks: set[asyncio.Task[None]] = set()
        self._restore_slices: asyncio.Queue[RestoreRecords | RestoreEnd] | None = None

    # -- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's, but have the same methods.
        self._transport = cast(asyncio.Transport, transport)
        self._context.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (how it ended makes no difference)
        """Cancel the tasks of this connection and detach the engine."""
        self._context.connections.discard(self)
        if not self.closed.done():
            self.closed.set_result(None)
        self._writable.set()
        for task in self._request_tasks:
            task.cancel()
        if self._is_main:
            if self._context.main_connections.get(self._owner) is self:
                del self._context.main_connections[self._owner]
            self._context.leases.detach(self._owner)

    def pause_writing(self) -> None:
        self._writable.clear()
        self._pause("replies")

    def resume_writing(self) -> None:
        self._writable.set()
        self._resume("replies")

    def data_received(self, data: bytes) -> None:
        """Execute all complete requests, and stop reading while the store is full."""
        if self._transport.is_closing():
            return  # Ignore requests of an engine that has already reconnected on another connection.
        try:
            for body in self._frames.feed(data):
                self._on_request(decode_request(body))
        except (FrameTooLong, msgspec.DecodeError) as error:
            _log.error("closed connection to the log: invalid message error=%s", error)
            self._transport.abort()
        if self._store.is_full():
            self._pause("hub")
            self._store.call_when_drained(partial(self._resume, "hub"))

    def close(self) -> None:
        """Close the connection after the queued replies are sent."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def _pause(self, reason: str) -> None:
        if not self._pause_reasons and not self._transport.is_closing():
            self._transport.pause_reading()
        self._pause_reasons.add(reason)

    def _resume(self, reason: str) -> None:
        self._pause_reasons.discard(reason)
        if not self._pause_reasons and not self._transport.is_closing():
            self._transport.resume_reading()

    # -- replies

    def _queue_message(self, message: StoreMessage) -> None:
        """Queue a message. All messages queued in one iteration of the event loop are sent together."""
        if not self._unsent_frames:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent_frames.append(encode_frame(message))

    def _flush(self) -> None:
        if self._unsent_frames and not self._transport.is_closing():
            self._transport.write(
                b"".join(self._unsent_frames) if len(self._unsent_frames) > 1 else self._unsent_frames[0]
            )
        self._unsent_frames.clear()

    def _fail(self, number: int, error: BaseException) -> None:
        """Reply with an error; log errors that are not part of the port."""
        if not isinstance(error, (FollowerBehind, LogUnavailable)):
            _log.error("request to the log failed error=%r", error, exc_info=error)
        why, is_unchanged = str(error) or repr(error), isinstance(error, LogUnchanged)
        self._queue_message(FailureReply(number, isinstance(error, FollowerBehind), why, is_unchanged))

    # -- requests

    def _on_request(self, request: StoreRequest) -> None:
        """Execute a request: commits and barriers at once, all others as tasks."""
        number = 0
        try:
            match request:
                case CommitRequest():
                    number = request.number
                    self._store.submit_write(request.write, partial(self._on_decided, number))
                case BarrierRequest():
                    number = request.number
                    index = self._store.barrier()
                    if isinstance(index, int):
                        self._queue_message(ValueReply(number, index))
                    else:
                        index.add_done_callback(partial(self._on_barrier_result, number))
                case StoreHello():
                    self._on_hello(request)
                case RestoreRecords() | RestoreEnd():
                    self._queue_restore_request(request)
                case RestoreBegin():
                    self._restore_slices = asyncio.Queue()
                    self._start_task(request)
                case _:
                    self._start_task(request)
        except LogUnavailable as error:
            self._fail(number, error)

    def _on_decided(self, number: int, outcome: WriteOutcome) -> None:
        self._queue_message(CommitReply(number, outcome))

    def _on_barrier_result(self, number: int, index: asyncio.Future[int]) -> None:
        """Reply to a barrier once its index is known."""
        if index.cancelled():
            return
        if (error := index.exception()) is not None:
            self._fail(number, error)
        else:
            self._queue_message(ValueReply(number, index.result()))

    def _on_hello(self, hello: StoreHello) -> None:
        """Check the protocol version, attach the engine, and reply with the limits and its leases."""
        if hello.version != PROTOCOL_VERSION:
            raise LogUnavailable(
                f"the store speaks version {PROTOCOL_VERSION}, the engine {hello.version}: restart both"
            )
        self._owner, self._is_main = hello.owner, hello.is_main
        if hello.is_main:
            earlier_connection = self._context.main_connections.get(hello.owner)
            if earlier_connection is not None:
                earlier_connection.abort()
            self._context.main_connections[hello.owner] = self
            self._context.leases.attach(hello.owner)
        store = self._store.sync_store
        leases = [lease.id for lease in store.leases.values() if lease.owner == hello.owner]
        self._queue_message(StoreWelcome(store.limits, leases))

    def _start_task(self, request: StoreRequest) -> None:
        task = self._context.world.start_task(
            self._perform(request), name=f"the store's answer to {type(request).__name__}"
        )
        self._request_tasks.add(task)
        task.add_done_callback(self._request_tasks.discard)

    async def _perform(self, request: StoreRequest) -> None:
        """Execute a request that takes time, or serve a stream."""
        number = getattr(request, "number", 0)
        try:
            match request:
                case FindWriteRequest():
                    self._queue_message(
                        ValueReply(number, await self._store.find_write(request.write_id, since=request.since))
                    )
                case GrantLeaseRequest():
                    self._queue_message(
                        ValueReply(
                            number, await self._context.leases.grant_lease(owner=self._owner, ttl_s=request.ttl_s)
                        )
                    )
                case RevokeLeaseRequest():
                    await self._context.leases.revoke_lease(request.lease)
                    self._queue_message(ValueReply(number, None))
                case CompactRequest():
                    await self._store.compact(request.before)
                    self._queue_message(ValueReply(number, None))
                case LogHealthRequest():
                    self._queue_message(
                        LogHealthReply(number, await self._store.run_on_store(self._store.sync_store.read_health))
                    )
                case FollowRequest():
                    await self._stream_feed(request.after)
                case LoadRequest():
                    await self._stream_load()
                case RestoreBegin():
                    await self._receive_restore(request)
        except (FollowerBehind, LogUnavailable) as error:
            self._fail(number, error)

    # -- streams

    async def _stream_feed(self, after: int) -> None:
        """Send the batches after an index, without end."""
        async with aclosing(self._store.iter_feed(after)) as feed:
            async for frames in feed:
                self._flush()
                self._transport.write(b"".join(frames) if len(frames) > 1 else frames[0])
                if not self._writable.is_set():
                    await self._writable.wait()

    async def _stream_load(self) -> None:
        """Send all records, then the position."""
        loading = await self._store.begin_load()
        try:
            async with aclosing(loading.iter_slices()) as slices:
                async for rows in slices:
                    # The rows are plain tuples; they encode like `StoredRecord`, which is an array too.
                    self._transport.write(encode_frame(RecordsReply(rows)))  # type: ignore[arg-type]
                    if not self._writable.is_set():
                        async with asyncio.timeout(LOAD_STALL_TIMEOUT_S):
                            await self._writable.wait()
        except TimeoutError:
            _log.warning("closed connection of a stalled load stalled_s=%d", LOAD_STALL_TIMEOUT_S)
            self._transport.abort()
            return
        finally:
            loading.close()
        self._queue_message(LoadEndReply(loading.position))

    def _queue_restore_request(self, request: RestoreRecords | RestoreEnd) -> None:
        """Queue a slice or the end of a restore; stop reading while too many slices wait."""
        if self._restore_slices is None:
            raise LogUnavailable("records of a restore arrived before its beginning")
        self._restore_slices.put_nowait(request)
        if self._restore_slices.qsize() >= MAX_RESTORE_SLICES:
            self._pause("restore")

    async def _receive_restore(self, begin: RestoreBegin) -> None:
        """Write the received records, then activate or abandon the restore."""
        slices = self._restore_slices
        assert slices is not None, "made when the request arrived"
        restore = SqliteRestore(self._store.sync_store)
        await self._store.run_on_store(partial(restore.begin, begin.position))
        try:
            while isinstance(request := await slices.get(), RestoreRecords):
                await self._store.run_read(partial(restore.add_records, request.records))
                if slices.qsize() < MAX_RESTORE_SLICES:
                    self._resume("restore")
            end_restore = restore.finish if request.is_whole else restore.abandon
            self._queue_message(ValueReply(0, await self._store.run_on_store(end_restore)))
        finally:
            # Also when the connection is lost and this task is cancelled: abandoning keeps the old log active.
            if not self._store.stopped.is_set():
                self._store.run_on_store(restore.abandon)
