"""Every engine is compared with a plain dict, step by step. Hypothesis generates the steps.

The same steps run on the memory engine and on a real etcd. So the test also shows that the memory engine simulates etcd
correctly.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from tests.cluster.engines.contract import EngineKind, FreshLog, RecordKey, a_write, follow_to, in_order, kinds, load
from wharf.cluster.engines.port import (
    LEASE_ENDED_KIND,
    Batch,
    Committed,
    EncodedChange,
    FollowerBehind,
    Lease,
    LogEngine,
    LogPosition,
    StoredRecord,
    WriteConflict,
    WriteRejected,
)
from wharf.contract.model.log import Condition

T = TypeVar("T")

WITHIN_S = 60.0
ROW_KEYS = [(table, key) for table in ("jobs", "nodes") for key in ("a", "b", "c")]

row_keys = st.sampled_from(ROW_KEYS)
data = st.one_of(st.none(), st.binary(max_size=4))
ages = st.integers(0, 6)


class EngineMachine(RuleBasedStateMachine):
    """A log and its model: `rows` and `history` are the records and batches that the log must have."""

    kind: EngineKind

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[RecordKey, tuple[int, bytes]] = {}
        self.last_changes: dict[str, int] = {}
        self.history: list[Batch] = []
        self.leases: list[tuple[Lease, dict[RecordKey, None]]] = []
        self.ended: list[int] = []
        self.top = 0  # The largest index that an engine has returned.
        self.epoch = 0
        self.first_followable_index = 1
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.run(self.open())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(asyncio.wait_for(work, WITHIN_S))

    async def open(self) -> None:
        folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.log: FreshLog = await self.stack.enter_async_context(self.kind.fresh(folder))
        self.engines: list[LogEngine] = [await self.log.open_engine()]
        if self.kind.allows_many_engines:
            self.engines.append(await self.log.open_engine())
        self.feed = self.engines[-1].follow(0)
        self.received_count = 0  # How many batches of the history the feed has returned.

    def teardown(self) -> None:
        try:
            self.run(self.check_state(self.engines[-1]))
            self.run(self.check_feed())
        finally:
            self.run(self.stack.aclose())
            self.runner.close()

    # --- the model ---

    def apply(self, batch: Batch) -> None:
        """Apply a batch to the model."""
        assert batch.index > self.top, "indexes grow"
        self.top = batch.index
        self.history.append(batch)
        for change in batch.changes:
            row_key = (change.table, change.key)
            self.last_changes[change.table] = batch.index
            for _, held in self.leases:
                held.pop(row_key, None)
            if change.data is None:
                self.rows.pop(row_key, None)
            else:
                self.rows[row_key] = (batch.index, change.data)

    def get_version(self, row_key: RecordKey) -> int:
        return self.rows[row_key][0] if row_key in self.rows else 0

    # --- writes ---

    @rule(
        engine_number=st.integers(0, 1),
        changes=st.dictionaries(row_keys, data, min_size=1, max_size=4),
        conditions=st.dictionaries(row_keys, ages, max_size=3),
        lease=st.one_of(st.none(), st.integers(0, 2)),
        prefix=st.one_of(st.none(), st.tuples(row_keys, st.integers(0, 1), ages)),
    )
    def commit(
        self,
        engine_number: int,
        changes: dict[RecordKey, bytes | None],
        conditions: dict[RecordKey, int],
        lease: int | None,
        prefix: tuple[RecordKey, int, int] | None,
    ) -> None:
        """Commit a write. `conditions` are ages: how many batches ago the version of a record was read; 0 is now.

        `prefix`: a key, how many of its characters are the prefix of a further condition, and the age of its version.
        """
        versions = {row_key: self.get_past_version(row_key, age) for row_key, age in conditions.items()}
        changed_keys = [row_key for row_key, version in versions.items() if version != self.get_version(row_key)]
        prefixes = []
        if prefix is not None:
            (table, key), length, age = prefix
            version = self.history[-1 - age].index if age < len(self.history) else 0
            prefixes.append(Condition(table, key[:length], version, is_prefix=True))
            if any(
                row_table == table and row_key.startswith(key[:length]) and row_version > version
                for (row_table, row_key), (row_version, _) in self.rows.items()
            ):
                changed_keys.append((table, key[:length]))
        held = self.leases[lease] if lease is not None and lease < len(self.leases) else None
        write = a_write(
            *(EncodedChange(table, key, value) for (table, key), value in changes.items()),
            conditions=[*(Condition(table, key, version) for (table, key), version in versions.items()), *prefixes],
            lease=held[0].id if held is not None else 0,
        )
        # A lease can only be used through the engine that granted it.
        outcome = self.run(self.engines[0 if held else engine_number % len(self.engines)].commit(write))

        if changed_keys:
            assert isinstance(outcome, WriteConflict)
            assert sorted(changed_keys) == sorted(tuple(row_key) for row_key in outcome.keys)
            return
        assert isinstance(outcome, Committed)
        self.apply(Batch(outcome.index, write.id, write.kind, write.cause, write.changes))
        if held is not None:
            held[1].update((row_key, None) for row_key, value in changes.items() if value is not None)

    def get_past_version(self, row_key: RecordKey, age: int) -> int:
        if age == 0:
            return self.get_version(row_key)
        return self.history[-age].index if age <= len(self.history) else 0

    @rule(changes=st.dictionaries(row_keys, data, min_size=1, max_size=2))
    @precondition(lambda self: self.ended)
    def write_on_an_ended_lease(self, changes: dict[RecordKey, bytes | None]) -> None:
        write = a_write(
            *(EncodedChange(table, key, value or b"") for (table, key), value in changes.items()), lease=self.ended[-1]
        )

        assert isinstance(self.run(self.engines[0].commit(write)), WriteRejected)

    @rule()
    def write_elsewhere(self) -> None:
        self.run(self.log.write_elsewhere())

    # --- leases ---

    @rule()
    @precondition(lambda self: self.history and len(self.leases) < 3)
    def grant(self) -> None:
        self.leases.append((self.run(self.engines[0].grant_lease(60.0)), {}))

    @rule(number=st.integers(0, 2))
    @precondition(lambda self: self.leases)
    def revoke(self, number: int) -> None:
        lease, held = self.leases.pop(number % len(self.leases))
        self.run(lease.revoke())
        self.ended.append(lease.id)
        if not held:
            return
        self.run(self.check_feed())
        batch = self.run(self.next_batch())
        assert (batch.kind, batch.id) == (LEASE_ENDED_KIND, "")
        assert [(row_key, None) for row_key in sorted(held)] == [
            ((change.table, change.key), change.data) for change in in_order(batch.changes)
        ]
        self.apply(batch)

    # --- reads ---

    @rule(engine_number=st.integers(0, 1))
    def read_all(self, engine_number: int) -> None:
        self.run(self.check_state(self.engines[engine_number % len(self.engines)]))

    @rule()
    def read_the_feed(self) -> None:
        self.run(self.check_feed())

    @rule(number=st.integers(0, 20))
    @precondition(lambda self: self.history)
    def follow_from_anywhere(self, number: int) -> None:
        batch = self.history[number % len(self.history)]
        expected = [after.index for after in self.history if after.index > batch.index]
        if expected and batch.index + 1 >= self.first_followable_index:
            batches = self.run(follow_to(self.engines[0], after=batch.index, index=self.history[-1].index))
            assert expected == [after.index for after in batches]

    @rule(number=st.integers(0, 20), back=st.integers(0, 3))
    @precondition(lambda self: self.history)
    def find(self, number: int, back: int) -> None:
        position = number % len(self.history)
        batch, since = self.history[position], self.history[max(position - back, 0)].index
        if not batch.id or since < self.first_followable_index:
            return
        assert self.run(self.engines[0].find_write(batch.id, since=since)) == batch.index
        assert self.run(self.engines[0].find_write("never", since=since)) is None

    @rule(engine_number=st.integers(0, 1))
    def pass_a_barrier(self, engine_number: int) -> None:
        written = max((batch.index for batch in self.history if batch.id), default=0)
        assert self.run(self.engines[engine_number % len(self.engines)].barrier()) >= written

    # --- compaction, restarts, restores ---

    @rule(number=st.integers(0, 20))
    @precondition(lambda self: self.history)
    def compact(self, number: int) -> None:
        before = self.history[number % len(self.history)].index
        self.run(self.check_feed())
        self.run(self.engines[0].compact(before))
        self.first_followable_index = max(self.first_followable_index, before)

    @rule()
    def reopen_an_engine(self) -> None:
        if len(self.engines) > 1:
            self.run(self.check_feed())
            self.run(self.engines[1].close())
            self.engines[1] = self.run(self.log.open_engine())
            self.feed = self.engines[1].follow(self.top)

    @rule(retained=st.sets(row_keys), index=st.integers(0, 50))
    @precondition(lambda self: self.history)
    def restore(self, retained: set[RecordKey], index: int) -> None:
        async def slices() -> AsyncIterator[Sequence[StoredRecord]]:
            yield [StoredRecord(table, key, 1, b"restored") for table, key in sorted(retained)]

        self.run(self.check_feed())
        old_top, tables = self.top, {*self.last_changes, *(table for table, _ in retained)}
        restored_index = self.run(self.engines[0].restore(slices(), LogPosition(index, {}, self.epoch)))
        rows, position = self.run(load(self.engines[0]))

        assert restored_index > max(old_top, index)
        assert position.epoch > self.epoch
        assert dict.fromkeys(retained, b"restored") == {row_key: value for row_key, (_, value) in rows.items()}
        assert all(max(old_top, index) < version <= restored_index for version, _ in rows.values())
        assert dict.fromkeys(sorted(tables), restored_index) == dict(sorted(position.last_changes.items()))
        self.run(self.expect_behind())
        self.rows, self.last_changes, self.epoch = rows, position.last_changes, position.epoch
        self.ended += [lease.id for lease, _ in self.leases]
        self.leases, self.history = [], []
        self.top = max(restored_index, position.index)
        self.first_followable_index = restored_index + 1
        self.feed, self.received_count = self.engines[-1].follow(self.top), 0

    # --- checks ---

    async def check_state(self, engine: LogEngine) -> None:
        rows, position = await load(engine)
        assert self.rows == rows
        assert self.last_changes == position.last_changes
        assert self.epoch == position.epoch
        assert position.index >= (self.history[-1].index if self.history else 0)
        self.top = max(self.top, position.index)

    async def check_feed(self) -> None:
        """Check that the feed returns the rest of the history."""
        for expected in self.history[self.received_count :]:
            batch = await self.next_batch()
            assert (expected.index, expected.id, expected.kind, expected.cause) == (
                batch.index,
                batch.id,
                batch.kind,
                batch.cause,
            )
            assert in_order(expected.changes) == in_order(batch.changes)

    async def next_batch(self) -> Batch:
        batch = await anext(self.feed)
        self.received_count += 1
        return batch

    async def expect_behind(self) -> None:
        with pytest.raises(FollowerBehind):
            await anext(self.feed)


@pytest.mark.parametrize("kind", kinds())
def test_the_engine_behaves_as_a_dict_and_a_list_would(kind: EngineKind) -> None:
    class Machine(EngineMachine):
        pass

    Machine.kind = kind
    run_state_machine_as_test(Machine)
