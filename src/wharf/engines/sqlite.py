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

from wharf.engines.port import (
    Batch,
    Bounds,
    Health,
    LogWrite,
    Outcome,
    Row,
    Standing,
    Unavailable,
)
from wharf.engines.sqlite_hub import Hub
from wharf.engines.sqlite_leases import LeaseBook
from wharf.engines.sqlite_restore import Restore
from wharf.engines.sqlite_store import TAIL_CHANGES, Store
from wharf.world import World

_OWNER = "this process"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Batch).decode


class SqliteEngine:
    """An engine over the file in `folder`. `tail_changes`: how far the feed reaches back at least, whatever is compacted."""

    single_server = True

    def __init__(
        self,
        world: World,
        folder: Path,
        *,
        tail_changes: int = TAIL_CHANGES,
        bounds: Bounds | None = None,
        vfs: str = "",
    ) -> None:
        self.bounds = bounds or Bounds()
        self._world = world
        self._folder = folder
        self._tail_changes = tail_changes
        self._vfs = vfs
        self._hub: Hub | None = None
        self._leases: LeaseBook | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def open(self) -> None:
        store = Store(
            self._folder,
            clock=self._world.monotonic_s,
            bounds=self.bounds,
            tail_changes=self._tail_changes,
            vfs=self._vfs,
        )
        thread = ThreadPoolExecutor(1, thread_name_prefix="log")
        hub = Hub(store, encode=_encode, writer=thread)
        try:
            await hub.open()
        except Unavailable:
            thread.shutdown()
            raise
        leases = LeaseBook(hub)
        leases.attach(_OWNER)
        # Nobody is left to come back for the leases of an earlier opening.
        for lease in tuple(store.leases):
            await leases.revoke(lease)
        self._hub, self._leases, self._thread = hub, leases, thread

    async def close(self) -> None:
        """Its leases end with it."""
        if self._hub is None or self._leases is None or self._thread is None:
            return
        hub, leases, thread = self._hub, self._leases, self._thread
        self._hub = self._leases = self._thread = None
        for lease in tuple(hub.store.leases):
            try:
                await leases.revoke(lease)
            except Unavailable:
                break  # The log takes no writes: they end when it is opened next.
        leases.close()
        await hub.close()
        thread.shutdown()

    def load(self) -> "SqliteLoad":
        return SqliteLoad(self)

    async def follow(self, after: int) -> AsyncIterator[Batch]:
        async with aclosing(self.hub().feed(after)) as feed:
            async for frames in feed:
                for frame in frames:
                    yield _decode(frame)

    async def commit(self, write: LogWrite) -> Outcome:
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.hub().submit(write, partial(_answer, outcome))
        return await outcome

    async def find(self, write_id: str, *, since: int) -> int | None:
        return await self.hub().find(write_id, since=since)

    async def barrier(self) -> int:
        answer = self.hub().barrier()
        return answer if isinstance(answer, int) else await answer

    async def grant(self, ttl_s: float) -> "SqliteLease":
        hub = self.hub()
        assert self._leases is not None
        return SqliteLease(self, hub, await self._leases.grant(owner=_OWNER, ttl_s=ttl_s), ttl_s)

    async def revoke(self, lease: int) -> None:
        self.hub()
        assert self._leases is not None
        await self._leases.revoke(lease)

    async def compact(self, before: int) -> None:
        await self.hub().compact(before)

    async def restore(self, rows: AsyncIterator[Sequence[Row]], standing: Standing) -> int:
        hub = self.hub()
        restore = Restore(hub.store)
        await hub.run(partial(restore.begin, standing))
        try:
            async for some in rows:
                await hub.read(partial(restore.add, some))
            return await hub.run(restore.finish)
        finally:
            if not hub.ended.is_set():
                await hub.run(restore.abandon)

    async def health(self) -> Health:
        return await self.hub().run(self.hub().store.health)

    def last_contact_s(self) -> float | None:
        """The log is in this very process: it is there as long as it is open."""
        return None if self._hub is None else self._world.monotonic_s()

    def now_s(self) -> float:
        return self._world.monotonic_s()

    def hub(self) -> Hub:
        if self._hub is None:
            raise Unavailable(f"the log in {self._folder} is not open")
        return self._hub


class SqliteLoad:
    def __init__(self, engine: SqliteEngine) -> None:
        self._engine = engine
        self._standing: Standing | None = None

    async def slices(self) -> AsyncIterator[Sequence[Row]]:
        loading = await self._engine.hub().load()
        try:
            async with aclosing(loading.slices()) as slices:
                async for rows in slices:
                    yield [Row(*row) for row in rows]
        finally:
            loading.close()
        self._standing = loading.standing

    async def standing(self) -> Standing:
        assert self._standing is not None, "the standing of a load is known after its last slice"
        return self._standing


class SqliteLease:
    """It cannot run out: its owner is the process that keeps the log."""

    def __init__(self, engine: SqliteEngine, hub: Hub, lease: int, ttl_s: float) -> None:
        self.id = lease
        self._engine = engine
        self._hub = hub
        self._ttl_s = ttl_s
        self._valid_until_s = engine.now_s() + ttl_s

    def valid_until_s(self) -> float:
        if not self._hub.ended.is_set() and self.id in self._hub.store.leases:
            self._valid_until_s = self._engine.now_s() + self._ttl_s
        return self._valid_until_s

    async def revoke(self) -> None:
        await self._engine.revoke(self.id)
        self._valid_until_s = float("-inf")


def _answer(future: "asyncio.Future[Outcome]", outcome: Outcome) -> None:
    if not future.done():  # The caller may have gone meanwhile.
        future.set_result(outcome)
