"""The log of one folder, opened in this process: for tests and tools. A server's processes share one through `remote`.

The store works on a thread of its own, so that the loop goes on while the disk is waited for.
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
    """An engine over the file in `folder`. `tail_changes`: how far the feed reaches back at least, whatever is compacted."""

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
        self._tail_changes = min_tail_changes
        self._vfs = vfs
        self._hub: AsyncSqliteStore | None = None
        self._leases: LeaseTracker | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def open(self) -> None:
        store = SqliteStore(
            self._folder,
            clock=self._world.monotonic_s,
            limits=self.limits,
            min_tail_changes=self._tail_changes,
            vfs=self._vfs,
        )
        thread = ThreadPoolExecutor(1, thread_name_prefix="log")
        hub = AsyncSqliteStore(store, encode=_encode, writer=thread)
        try:
            await hub.open()
        except LogUnavailable:
            thread.shutdown()
            raise
        leases = LeaseTracker(hub)
        leases.attach(_OWNER)
        # Nobody is left to come back for the leases of an earlier opening.
        for lease in tuple(store.leases):
            await leases.revoke_lease(lease)
        self._hub, self._leases, self._thread = hub, leases, thread

    async def close(self) -> None:
        """Its leases end with it."""
        if self._hub is None or self._leases is None or self._thread is None:
            return
        hub, leases, thread = self._hub, self._leases, self._thread
        self._hub = self._leases = self._thread = None
        for lease in tuple(hub.sync_store.leases):
            try:
                await leases.revoke_lease(lease)
            except LogUnavailable:
                break  # The log takes no writes: they end when it is opened next.
        leases.close()
        await hub.close()
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
        self.get_store().submit_write(write, partial(_answer, outcome))
        return await outcome

    async def find_write(self, write_id: str, *, since: int) -> int | None:
        return await self.get_store().find_write(write_id, since=since)

    async def barrier(self) -> int:
        answer = self.get_store().barrier()
        return answer if isinstance(answer, int) else await answer

    async def grant_lease(self, ttl_s: float) -> "SqliteLease":
        hub = self.get_store()
        assert self._leases is not None
        return SqliteLease(self, hub, await self._leases.grant_lease(owner=_OWNER, ttl_s=ttl_s), ttl_s)

    async def revoke_lease(self, lease: int) -> None:
        self.get_store()
        assert self._leases is not None
        await self._leases.revoke_lease(lease)

    async def compact(self, before: int) -> None:
        await self.get_store().compact(before)

    async def restore(self, records: AsyncIterator[Sequence[StoredRecord]], position: LogPosition) -> int:
        hub = self.get_store()
        restore = SqliteRestore(hub.sync_store)
        await hub.run_on_store(partial(restore.begin, position))
        try:
            async for some in records:
                await hub.run_read(partial(restore.add_records, some))
            return await hub.run_on_store(restore.finish)
        finally:
            if not hub.stopped.is_set():
                await hub.run_on_store(restore.abandon)

    async def read_health(self) -> LogHealth:
        return await self.get_store().run_on_store(self.get_store().sync_store.read_health)

    def get_last_contact_s(self) -> float | None:
        """The log is in this very process: it is there as long as it is open."""
        return None if self._hub is None else self._world.monotonic_s()

    def read_clock_s(self) -> float:
        return self._world.monotonic_s()

    def get_store(self) -> AsyncSqliteStore:
        if self._hub is None:
            raise LogUnavailable(f"the log in {self._folder} is not open")
        return self._hub


class SqliteLoad:
    def __init__(self, engine: SqliteEngine) -> None:
        self._engine = engine
        self._standing: LogPosition | None = None

    async def iter_slices(self) -> AsyncIterator[Sequence[StoredRecord]]:
        loading = await self._engine.get_store().begin_load()
        try:
            async with aclosing(loading.iter_slices()) as slices:
                async for rows in slices:
                    yield [StoredRecord(*row) for row in rows]
        finally:
            loading.close()
        self._standing = loading.position

    async def get_position(self) -> LogPosition:
        assert self._standing is not None, "the standing of a load is known after its last slice"
        return self._standing


class SqliteLease:
    """It cannot run out: its owner is the process that keeps the log."""

    def __init__(self, engine: SqliteEngine, store: AsyncSqliteStore, lease: int, ttl_s: float) -> None:
        self.id = lease
        self._engine = engine
        self._hub = store
        self._ttl_s = ttl_s
        self._valid_until_s = engine.read_clock_s() + ttl_s

    def get_valid_until_s(self) -> float:
        if not self._hub.stopped.is_set() and self.id in self._hub.sync_store.leases:
            self._valid_until_s = self._engine.read_clock_s() + self._ttl_s
        return self._valid_until_s

    async def revoke(self) -> None:
        await self._engine.revoke_lease(self.id)
        self._valid_until_s = float("-inf")


def _answer(future: "asyncio.Future[WriteOutcome]", outcome: WriteOutcome) -> None:
    if not future.done():  # The caller may have gone meanwhile.
        future.set_result(outcome)
