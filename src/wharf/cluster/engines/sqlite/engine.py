"""The engine that opens the log of a folder in this process, for tests and tools.

The processes of a server share a log through the store process instead (`engines.store`). The store works on a thread,
so that the event loop does not wait for the disk.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from pathlib import Path

import msgspec

from wharf.cluster.engines.port import (
    Batch,
    EncodedWrite,
    LoadBase,
    LogHealth,
    LogPosition,
    LogUnavailable,
    StoredRecord,
    WriteLimits,
    WriteOutcome,
)
from wharf.cluster.engines.sqlite.async_store import AsyncSqliteStore
from wharf.cluster.engines.sqlite.leases import LeaseTracker
from wharf.cluster.engines.sqlite.restore import SqliteRestore
from wharf.cluster.engines.sqlite.store import MIN_TAIL_CHANGES, SqliteStore
from wharf.world import World

_OWNER = "this process"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Batch).decode


class SqliteEngine:
    """The port to the log in `folder`. `min_tail_changes`: how many changes the feed always reaches back, whatever is
    compacted."""

    is_single_server = True

    def __init__(
        self,
        world: World,
        folder: Path,
        *,
        min_tail_changes: int = MIN_TAIL_CHANGES,
        limits: WriteLimits | None = None,
        vfs: str = "",
    ) -> None:
        self.limits = limits or WriteLimits()
        self._world = world
        self._folder = folder
        self._min_tail_changes = min_tail_changes
        self._vfs = vfs
        self._store: AsyncSqliteStore | None = None
        self._leases: LeaseTracker | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def open(self) -> None:
        """Open the file and end the leases of earlier openings."""
        sync_store = SqliteStore(
            self._folder,
            clock=self._world.monotonic_s,
            limits=self.limits,
            min_tail_changes=self._min_tail_changes,
            vfs=self._vfs,
        )
        thread = ThreadPoolExecutor(1, thread_name_prefix="log")
        store = AsyncSqliteStore(sync_store, encode=_encode, writer=thread)
        try:
            await store.open()
        except LogUnavailable:
            thread.shutdown()
            raise
        leases = LeaseTracker(store)
        leases.attach(_OWNER)
        # No process can return to the leases of an earlier opening.
        for lease in tuple(sync_store.leases):
            await leases.revoke_lease(lease)
        self._store, self._leases, self._thread = store, leases, thread

    async def close(self) -> None:
        """Close the file. The leases of this engine end."""
        if self._store is None or self._leases is None or self._thread is None:
            return
        store, leases, thread = self._store, self._leases, self._thread
        self._store = self._leases = self._thread = None
        for lease in tuple(store.sync_store.leases):
            try:
                await leases.revoke_lease(lease)
            except LogUnavailable:
                break  # The log accepts no writes: the leases end at the next opening.
        leases.close()
        await store.close()
        thread.shutdown()

    def load(self) -> "SqliteLoad":
        return SqliteLoad(self)

    async def follow(self, after: int) -> AsyncIterator[Batch]:
        async with aclosing(self.get_store().iter_feed(after)) as feed:
            async for frames in feed:
                for frame in frames:
                    yield _decode(frame)

    async def commit(self, write: EncodedWrite) -> WriteOutcome:
        outcome: asyncio.Future[WriteOutcome] = asyncio.get_running_loop().create_future()
        self.get_store().submit_write(write, partial(_set_outcome, outcome))
        return await outcome

    async def find_write(self, write_id: str, *, since: int) -> int | None:
        return await self.get_store().find_write(write_id, since=since)

    def read_published_index(self) -> None:
        """Return `None`: only a barrier returns the newest index."""

    async def barrier(self) -> int:
        index = self.get_store().barrier()
        return index if isinstance(index, int) else await index

    async def grant_lease(self, ttl_s: float) -> "SqliteLease":
        store = self.get_store()
        assert self._leases is not None
        return SqliteLease(self, store, await self._leases.grant_lease(owner=_OWNER, ttl_s=ttl_s), ttl_s)

    async def revoke_lease(self, lease: int) -> None:
        self.get_store()
        assert self._leases is not None
        await self._leases.revoke_lease(lease)

    async def compact(self, before: int) -> None:
        await self.get_store().compact(before)

    async def restore(self, records: AsyncIterator[Sequence[StoredRecord]], position: LogPosition) -> int:
        """Build the new log beside the old one and activate it; abandon it if an error occurs."""
        store = self.get_store()
        restore = SqliteRestore(store.sync_store)
        await store.run_on_store(partial(restore.begin, position))
        try:
            async for records_slice in records:
                await store.run_read(partial(restore.add_records, records_slice))
            return await store.run_on_store(restore.finish)
        finally:
            if not store.stopped.is_set():
                await store.run_on_store(restore.abandon)

    async def read_health(self) -> LogHealth:
        return await self.get_store().run_on_store(self.get_store().sync_store.read_health)

    def get_last_contact_s(self) -> float | None:
        """Return the current time: the log is in this process, so it is reachable while it is open."""
        return None if self._store is None else self._world.monotonic_s()

    def read_clock_s(self) -> float:
        return self._world.monotonic_s()

    def get_store(self) -> AsyncSqliteStore:
        if self._store is None:
            raise LogUnavailable(f"the log in {self._folder} is not open")
        return self._store


class SqliteLoad(LoadBase):
    """A full read of the log."""

    def __init__(self, engine: SqliteEngine) -> None:
        self._engine = engine

    async def iter_slices(self) -> AsyncIterator[Sequence[StoredRecord]]:
        """Yield all records. Raises `LogUnavailable`."""
        load = await self._engine.get_store().begin_load()
        try:
            async with aclosing(load.iter_slices()) as slices:
                async for rows in slices:
                    yield [StoredRecord(*row) for row in rows]
        finally:
            load.close()
        self._position = load.position


class SqliteLease:
    """A lease that cannot expire while the engine is open, because its owner is the process that owns the log."""

    def __init__(self, engine: SqliteEngine, store: AsyncSqliteStore, lease: int, ttl_s: float) -> None:
        self.id = lease
        self._engine = engine
        self._store = store
        self._ttl_s = ttl_s
        self._valid_until_s = engine.read_clock_s() + ttl_s

    def get_valid_until_s(self) -> float:
        if not self._store.stopped.is_set() and self.id in self._store.sync_store.leases:
            self._valid_until_s = self._engine.read_clock_s() + self._ttl_s
        return self._valid_until_s

    async def revoke(self) -> None:
        await self._engine.revoke_lease(self.id)
        self._valid_until_s = float("-inf")


def _set_outcome(future: "asyncio.Future[WriteOutcome]", outcome: WriteOutcome) -> None:
    """Give the outcome to the caller of `commit`."""
    if not future.done():  # The caller may have been cancelled.
        future.set_result(outcome)
