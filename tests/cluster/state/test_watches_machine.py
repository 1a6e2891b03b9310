"""Watches compared with a plain model: exactly the subscriptions with a changed target are woken."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from tests.cluster.state.inventory import (
    CRATES,
    CRATES_BY_COLOUR,
    CRATES_BY_SIZE,
    CRATES_OF_OWNER,
    INDEXES,
    NOTICE,
    PARCELS,
    PARCELS_IN_YARD,
    PARCELS_OF_OWNER,
    TABLES,
    Model,
    Plain,
    apply_changes,
    batches_of_changes,
    compute_index_value,
    make_batch,
    make_empty_model,
    make_replica,
    names,
    yards,
)
from wharf.cluster.state import Index, Subscription, Table, WatchTarget
from wharf.cluster.state.watches import watch_index, watch_key, watch_prefix, watch_table
from wharf.contract.model.log import Batch, EncodedChange, LogPosition, StoredRecord

colours = st.sampled_from(["red", "blue"])
watched_owners = st.sampled_from(["ann", "bob"])
filled_yards = yards.filter(bool)
watch_targets = st.one_of(
    st.sampled_from(TABLES).map(watch_table),
    st.builds(watch_key, st.just(CRATES), yards, names),
    st.builds(watch_key, st.just(PARCELS), names),
    st.just(watch_key(NOTICE)),
    st.builds(watch_prefix, st.just(CRATES), yards | yards.map(lambda yard: yard + "\0")),
    st.builds(watch_prefix, st.just(PARCELS), names),
    st.builds(watch_index, st.just(CRATES_OF_OWNER), yards, watched_owners),
    st.builds(watch_index, st.just(CRATES_BY_COLOUR), colours),
    st.builds(watch_index, st.just(CRATES_BY_SIZE), st.just("big"), st.integers(2, 3)),
    st.builds(watch_index, st.just(PARCELS_OF_OWNER), yards, watched_owners),
    st.builds(watch_index, st.just(PARCELS_IN_YARD), filled_yards),
)


class Waiter:
    """A subscription, and whether the model expects the next change to wake it."""

    def __init__(self, name: int, watched: list[WatchTarget]) -> None:
        self.name = name
        self.watched = watched
        self.is_armed = True
        self.subscription: Subscription | None = None


def is_target_touched(
    watched: WatchTarget, table: Table[Any], key: str, versions: tuple[Plain | None, Plain | None]
) -> bool:
    """Return whether a target matches a change of the record under `key` between these two versions."""
    if watched.table != table.name:
        return False
    match watched.kind:
        case "table":
            return True
        case "key":
            return key == watched.value
        case "prefix":
            return key.startswith(str(watched.value))
        case kind:
            index = next(i for i in INDEXES if i.table == table.name and kind == f"index {i.name}")
            return any(_value(index, record) == watched.value for record in versions)


def _value(index: Index[Any], record: Plain | None) -> Any:
    return None if record is None else compute_index_value(index, record)


class WatchesMachine(RuleBasedStateMachine):
    """A replica with subscriptions, and a model that knows which of them each batch must wake."""

    waiters = Bundle("waiters")

    def __init__(self) -> None:
        super().__init__()
        self.replica = make_replica()
        self.model: Model = make_empty_model()
        self.rows: dict[tuple[str, str], StoredRecord] = {}
        self.last_changes = {table.name: 1 for table in TABLES}
        self.log_index = 0
        self.missed: list[Batch] = []
        self.log_model: Model = make_empty_model()
        self.alive: list[Waiter] = []
        self.woken: list[int] = []
        self.subscribed_count = 0

    @initialize(changes=batches_of_changes, watched=st.lists(watch_targets, max_size=3))
    def write_first_batch(self, changes: list[Any], watched: list[WatchTarget]) -> None:
        self.subscribe(watched)
        self._log(changes)
        self._follow()

    @rule(target=waiters, watched=st.lists(watch_targets, max_size=4))
    def subscribe(self, watched: list[WatchTarget]) -> Waiter:
        self.subscribed_count += 1
        waiter = Waiter(self.subscribed_count, watched)
        waiter.subscription = self.replica.watches.subscribe(watched, lambda: self.woken.append(waiter.name))
        self.alive.append(waiter)
        return waiter

    @rule(waiter=waiters)
    def rearm(self, waiter: Waiter) -> None:
        assert waiter.subscription is not None
        waiter.subscription.rearm()
        waiter.is_armed = True

    @rule(waiter=waiters)
    def end(self, waiter: Waiter) -> None:
        assert waiter.subscription is not None
        waiter.subscription.close()
        if waiter in self.alive:
            self.alive.remove(waiter)

    @rule(changes=batches_of_changes)
    def write_without_applying(self, changes: list[Any]) -> None:
        self._log(changes)

    @rule(changes=batches_of_changes)
    def write(self, changes: list[Any]) -> None:
        self._log(changes)
        self._follow()

    @rule(is_new_epoch=st.booleans())
    def reload(self, is_new_epoch: bool) -> None:
        old, new = self.model, self.log_model
        expected: list[int] = []
        for waiter in self.alive:
            if is_new_epoch:
                is_woken = bool(waiter.watched)
            else:
                is_woken = any(self._differs(watched, old, new) for watched in waiter.watched)
            if is_woken:
                self._expect(waiter, expected)
        epoch = self.replica.epoch + is_new_epoch
        self.replica.load_state(list(self.rows.values()), LogPosition(self.log_index, dict(self.last_changes), epoch))
        self.model = new
        self.missed.clear()

        self._check_woken(expected)

    def _differs(self, watched: WatchTarget, old: Model, new: Model) -> bool:
        table = self.replica.tables[watched.table]
        if watched.kind == "table":
            return any(change.table == table.name for batch in self.missed for change in batch.changes)
        return any(
            is_target_touched(watched, table, key, (old[table.name].get(key), new[table.name].get(key)))
            for key in {**old[table.name], **new[table.name]}
            if old[table.name].get(key) != new[table.name].get(key)
        )

    def _log(self, changes: list[Any]) -> None:
        self.log_index += 1
        batch = make_batch(self.log_index, *changes)
        self.log_model = apply_changes(self.log_model, self.log_index, changes)
        self.missed.append(batch)
        for change in batch.changes:
            self.last_changes[change.table] = self.log_index
            self.rows.pop((change.table, change.key), None)
            if change.data is not None:
                self.rows[change.table, change.key] = StoredRecord(
                    change.table, change.key, self.log_index, change.data
                )

    def _follow(self) -> None:
        """Apply the missed batches, and check after each which subscriptions were woken."""
        for batch in self.missed:
            before = self.model
            changes = [
                self.replica.tables[change.table].build_put(self._record(change, batch.index))
                if change.data is not None
                else self.replica.tables[change.table].build_delete(*_parts(change.table, change.key))
                for change in batch.changes
            ]
            self.model = apply_changes(before, batch.index, changes)
            expected: list[int] = []
            for waiter in self.alive:
                if any(self._is_touched(watched, before, batch) for watched in waiter.watched):
                    self._expect(waiter, expected)
            self.replica.apply_batch(batch)

            self._check_woken(expected)
        self.missed.clear()

        assert self.model == self.log_model

    def _record(self, change: EncodedChange, index: int) -> Any:
        assert change.data is not None
        return self.replica.get_table_records(self.replica.tables[change.table]).decoder.decode_record(
            change.key, change.data, index
        )

    def _is_touched(self, watched: WatchTarget, before: Model, batch: Batch) -> bool:
        for change in batch.changes:
            versions = (before[change.table].get(change.key), self.model[change.table].get(change.key))
            table = self.replica.tables[change.table]
            # Deleting a missing record changes the table's last change, so it touches watches of the table.
            is_change = versions != (None, None) or watched.kind == "table"
            if is_change and is_target_touched(watched, table, change.key, versions):
                return True
        return False

    def _expect(self, waiter: Waiter, expected: list[int]) -> None:
        if waiter.is_armed:
            expected.append(waiter.name)
            waiter.is_armed = False

    def _check_woken(self, expected: list[int]) -> None:
        assert expected == self.woken
        self.woken.clear()

    @invariant()
    def check_no_subscription_is_woken_between_batches(self) -> None:
        assert self.woken == []

    @invariant()
    def check_open_subscriptions_are_counted(self) -> None:
        assert len(self.alive) == self.replica.watches.subscription_count

    @invariant()
    def check_unwatched_tables_have_no_watches(self) -> None:
        expected = {watched.table for waiter in self.alive for watched in waiter.watched}

        assert expected == set(self.replica.watches.table_watches)


def _parts(table: str, key: str) -> list[str]:
    return [] if table == NOTICE.name else key.split("\0")


TestWatchesMachine = WatchesMachine.TestCase
