"""Writers and followers that continue during faults of a log, and the check that no write was lost or repeated."""

import asyncio
from collections.abc import Callable, Sequence

from tests.cluster.engines.contract import RecordKey, a_write, load, put, replay, unchanged
from tests.waiting import wait_on_loop_until
from wharf.cluster.engines.port import (
    Batch,
    Committed,
    FollowerBehind,
    LogEngine,
    LogUnavailable,
    WriteConflict,
    WriteRejected,
)
from wharf.world import RealWorld

PAUSE_S = 0.02


class Writer:
    """A writer that increments its own counter. Each write has a condition on the previous one."""

    def __init__(self, name: str, engine: LogEngine) -> None:
        self.name = name
        self.engine = engine
        self.acknowledged: dict[str, int] = {}  # Write id -> index.
        self.not_committed: list[str] = []  # Ids of writes that were certainly not committed.
        self.unknown = 0
        self.version = 0
        self.count = 0
        self.is_done = False

    async def write_until_done(self) -> None:
        while not self.is_done:
            await self.write_once()

    async def write_once(self) -> None:
        """Write once, and search for the write if its outcome is unknown."""
        record = put(self.name, str(self.count + 1).encode(), table="counters")
        condition = unchanged(self.name, self.version, table="counters")
        write = a_write(record, put(f"{self.name}-{self.count + 1}"), conditions=[condition])
        since = self.version
        try:
            outcome = await self.engine.commit(write)
        except LogUnavailable:
            await asyncio.sleep(PAUSE_S)
            return
        if isinstance(outcome, Committed):
            self._on_committed(write.id, outcome.index)
            return
        assert not isinstance(outcome, WriteConflict), (
            "only this writer writes this record, so a write was applied twice"
        )
        if isinstance(outcome, WriteRejected):
            self.not_committed.append(write.id)
            await asyncio.sleep(PAUSE_S)
            return
        self.unknown += 1
        index = await self._find(write.id, since)
        if index is None:
            self.not_committed.append(write.id)
        else:
            self._on_committed(write.id, index)

    def _on_committed(self, write_id: str, index: int) -> None:
        self.acknowledged[write_id] = index
        self.version = index
        self.count += 1

    async def _find(self, write_id: str, since: int) -> int | None:
        while True:
            try:
                await self.engine.barrier()
                return await self.engine.find_write(write_id, since=since)
            except LogUnavailable:
                await asyncio.sleep(PAUSE_S)


class Follower:
    """A replica that follows the log, loads it again when it is behind, and stores all received batches."""

    def __init__(self, engine: LogEngine) -> None:
        self.engine = engine
        self.rows: dict[RecordKey, tuple[int, bytes]] = {}
        self.index = 0
        self.epoch = 0
        self.batches: list[Batch] = []
        self.loads = 0

    async def follow_until_cancelled(self) -> None:
        """Apply each batch of the feed. Load the log again if the feed no longer reaches back far enough."""
        is_behind = False
        while True:
            try:
                if is_behind:
                    self.rows, position = await load(self.engine)
                    self.index, self.epoch = position.index, position.epoch
                    self.loads += 1
                    is_behind = False
                async for batch in self.engine.follow(self.index):
                    assert batch.index > self.index, "the indexes of the feed grow"
                    self.rows = replay([batch], self.rows)
                    self.index = batch.index
                    self.batches.append(batch)
            except LogUnavailable:
                await asyncio.sleep(PAUSE_S)
            except FollowerBehind:
                is_behind = True
                await asyncio.sleep(PAUSE_S)


class Workload:
    """Running writers and followers, as a context manager. `stop_and_check` ends the writers and checks the log."""

    def __init__(self, writers: Sequence[LogEngine], followers: Sequence[LogEngine]) -> None:
        self.writers = [Writer(f"writer{number}", engine) for number, engine in enumerate(writers)]
        self.followers = [Follower(engine) for engine in followers]
        self._world = RealWorld()
        self._writing: list[asyncio.Task[None]] = []
        self._following: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Workload":
        self._following = [
            self._world.start_task(follower.follow_until_cancelled(), name="follower") for follower in self.followers
        ]
        self._writing = [self._world.start_task(writer.write_until_done(), name=writer.name) for writer in self.writers]
        return self

    async def __aexit__(self, *_error: object) -> None:
        tasks = [*self._writing, *self._following]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def acknowledged(self) -> int:
        return sum(len(writer.acknowledged) for writer in self.writers)

    async def wait_for_writes(self, count: int, *, within_s: float = 60.0) -> None:
        """Wait until `count` more writes are acknowledged, with at least one of each writer."""
        before = {writer.name: len(writer.acknowledged) for writer in self.writers}
        target = self.acknowledged() + count
        await self.wait_until(
            lambda: (
                self.acknowledged() >= target
                and all(len(writer.acknowledged) > before[writer.name] for writer in self.writers)
            ),
            what=f"{count} more writes are acknowledged",
            within_s=within_s,
        )

    async def wait_until(self, state: Callable[[], bool], *, what: str, within_s: float = 60.0) -> None:
        def check_tasks() -> bool:
            for task in (*self._writing, *self._following):
                if task.done():
                    task.result()  # Raises the error that ended the task.
            return state()

        await wait_on_loop_until(check_tasks, what=what, within_s=within_s)

    async def stop_and_check(self) -> None:
        """Stop the writers. Check that each acknowledged write is in the log exactly once, and no other; followers agree."""
        await self._finish_writes()
        engine = self.writers[0].engine
        rows, position = await load(engine)
        last = max(version for version, _ in rows.values())
        await self.wait_until(
            lambda: all(follower.index >= last for follower in self.followers), what="followers have caught up"
        )
        for follower in self.followers:
            assert rows == follower.rows
            assert position.epoch == follower.epoch
        for writer in self.writers:
            assert rows["counters", writer.name] == (writer.version, str(writer.count).encode())
            assert all(("jobs", f"{writer.name}-{number}") in rows for number in range(1, writer.count + 1))
            assert ("jobs", f"{writer.name}-{writer.count + 1}") not in rows
        for follower in self.followers:
            if not follower.loads:
                self._check_batches(follower.batches)

    async def _finish_writes(self) -> None:
        """Wait until every write in flight has ended."""
        for writer in self.writers:
            writer.is_done = True
        async with asyncio.timeout(30.0):
            await asyncio.gather(*self._writing)
        self._writing = []

    def _check_batches(self, batches: list[Batch]) -> None:
        committed: dict[str, int] = {}
        for batch in batches:
            assert batch.id not in committed, "a write was committed twice"
            committed[batch.id] = batch.index
        for writer in self.writers:
            for write_id, index in writer.acknowledged.items():
                assert committed.get(write_id) == index
            assert [write_id for write_id in writer.not_committed if write_id in committed] == []
