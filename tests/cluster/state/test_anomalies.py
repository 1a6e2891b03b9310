"""The known anomalies of databases: each test shows that one of them cannot occur.

Decisions are committed to a log in memory, as a server commits them, and come back to the replica through it.
"""

from typing import Any

import pytest

from tests.cluster.state.inventory import (
    CRATES,
    CRATES_BY_COLOUR,
    CRATES_OF_OWNER,
    NOTICE,
    Notice,
    make_batch,
    make_crate,
    make_replica,
    make_write,
)
from wharf.cluster.engines.memory.log import MemoryLog
from wharf.cluster.engines.port import Committed, WriteConflict, WriteOutcome
from wharf.cluster.state import Replica
from wharf.cluster.state.codec import DamagedRecord
from wharf.cluster.state.watches import watch_table
from wharf.contract.model.log import Batch, Condition, DeleteRecord, EncodedChange, PutRecord
from wharf.world.simulated import SimulatedWorld


class Cluster:
    """A log and one replica of it. Writes are decided on the replica and reach it only through the log."""

    def __init__(self) -> None:
        self.log = MemoryLog(SimulatedWorld(seed=1))
        self.replica = make_replica()
        self._writes = 0

    def commit(self, *changes: PutRecord | DeleteRecord, conditions: tuple[Condition, ...] = ()) -> WriteOutcome:
        self._writes += 1
        write = make_write(*changes, conditions=conditions)
        return self.log.commit(self.replica.encode_write(write, write_id=f"write-{self._writes}"))

    def follow(self) -> None:
        while batch := self.log.find_next_batch(self.replica.index, self.log.epoch):
            self.replica.apply_batch(batch)


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.commit(
        CRATES.build_put(make_crate("a", owner="ann", colour="red")), CRATES.build_put(make_crate("b", owner="bob"))
    )
    cluster.follow()
    return cluster


def owners(replica: Replica) -> list[str]:
    return [crate.owner for crate in replica.iter_all(CRATES)]


def test_dirty_read_a_rejected_write_is_never_visible(cluster: Cluster) -> None:
    outcome = cluster.commit(
        CRATES.build_put(make_crate("a", owner="eve")), conditions=(Condition("crates", "north\0a", 7),)
    )
    cluster.follow()

    assert WriteConflict([("crates", "north\0a")]) == outcome
    assert owners(cluster.replica) == ["ann", "bob"]


def test_dirty_read_a_write_is_not_visible_before_its_commit(cluster: Cluster) -> None:
    cluster.replica.encode_write(make_write(CRATES.build_put(make_crate("a", owner="eve"))), write_id="never sent")

    assert owners(cluster.replica) == ["ann", "bob"]


def test_dirty_read_a_batch_that_fails_half_way_is_not_visible(cluster: Cluster) -> None:
    batch = make_batch(2, CRATES.build_put(make_crate("a", owner="eve")))
    broken = Batch(2, "w", "test", batch.cause, [*batch.changes, EncodedChange("crates", "north\0b", b"\x81")])

    with pytest.raises(DamagedRecord):
        cluster.replica.apply_batch(broken)

    assert owners(cluster.replica) == ["ann", "bob"]


def test_dirty_read_a_woken_subscriber_sees_the_whole_batch(cluster: Cluster) -> None:
    seen: list[list[str]] = []
    cluster.replica.watches.subscribe([watch_table(CRATES)], lambda: seen.append(owners(cluster.replica)))

    cluster.commit(CRATES.build_put(make_crate("a", owner="eve")), CRATES.build_put(make_crate("b", owner="eve")))
    cluster.follow()

    assert seen == [["eve", "eve"]]


def test_fuzzy_read_a_record_that_was_read_never_changes(cluster: Cluster) -> None:
    read = cluster.replica.get(CRATES, "north", "a")
    cluster.commit(CRATES.build_put(make_crate("a", owner="eve")))

    assert read is cluster.replica.get(CRATES, "north", "a"), "nothing changes until the batch is applied"
    cluster.follow()
    assert read is not None
    assert (read.owner, read.modify_index) == ("ann", 1)


def test_phantom_read_a_list_that_was_read_neither_grows_nor_shrinks(cluster: Cluster) -> None:
    red = cluster.replica.list_by_index(CRATES_BY_COLOUR, "red")
    of_ann = cluster.replica.list_by_index_sorted(CRATES_OF_OWNER, "north", "ann")

    cluster.commit(CRATES.build_put(make_crate("c", owner="ann", colour="red")))
    cluster.commit(CRATES.build_delete("north", "a"))
    assert red == cluster.replica.list_by_index(CRATES_BY_COLOUR, "red"), (
        "the same read returns the same result until then"
    )
    cluster.follow()

    assert [crate.name for crate in red] == ["a"]
    assert [crate.name for crate in of_ann] == ["a"]
    assert [crate.name for crate in cluster.replica.list_by_index(CRATES_BY_COLOUR, "red")] == ["c"]


def test_lost_update_of_two_writers_that_read_the_same_version_one_conflicts(cluster: Cluster) -> None:
    def make_heavier() -> tuple[PutRecord, tuple[Condition, ...]]:
        crate = cluster.replica.get(CRATES, "north", "a")
        assert crate is not None
        change = CRATES.build_put(make_crate("a", weight=crate.weight + 1, create_index=crate.create_index))
        return change, (cluster.replica.build_record_condition(CRATES, crate),)

    (first, first_conditions), (second, second_conditions) = make_heavier(), make_heavier()
    assert Committed(2) == cluster.commit(first, conditions=first_conditions)
    assert WriteConflict([("crates", "north\0a")]) == cluster.commit(second, conditions=second_conditions)

    cluster.follow()
    repeated, repeated_conditions = make_heavier()
    assert Committed(3) == cluster.commit(repeated, conditions=repeated_conditions)
    cluster.follow()
    crate = cluster.replica.get(CRATES, "north", "a")
    assert crate is not None
    assert crate.weight == 2


def test_lost_update_of_two_writers_that_saw_no_record_only_one_creates_it(cluster: Cluster) -> None:
    missing_condition = cluster.replica.build_key_condition(CRATES, "south", "new")

    assert Committed(2) == cluster.commit(
        CRATES.build_put(make_crate("new", yard="south", owner="ann")), conditions=(missing_condition,)
    )
    assert WriteConflict([("crates", "south\0new")]) == cluster.commit(
        CRATES.build_put(make_crate("new", yard="south", owner="bob")), conditions=(missing_condition,)
    )


def test_lost_update_a_deleted_record_is_not_written_back(cluster: Cluster) -> None:
    seen = cluster.replica.build_key_condition(CRATES, "north", "a")
    cluster.commit(CRATES.build_delete("north", "a"))

    assert WriteConflict([("crates", "north\0a")]) == cluster.commit(
        CRATES.build_put(make_crate("a", owner="eve")), conditions=(seen,)
    )


def test_write_skew_a_write_that_depends_on_two_records_conflicts_if_either_changes(cluster: Cluster) -> None:
    """One of two crates must keep an owner. Each decision is right alone; both together would leave none."""

    def remove_owner(name: str) -> tuple[PutRecord, tuple[Condition, ...]]:
        crates = list(cluster.replica.iter_all(CRATES))
        assert all(crate.owner for crate in crates), "each decision sees both owners"
        return CRATES.build_put(make_crate(name, owner="")), tuple(
            cluster.replica.build_record_condition(CRATES, crate) for crate in crates
        )

    (first, first_conditions), (second, second_conditions) = remove_owner("a"), remove_owner("b")
    assert Committed(2) == cluster.commit(first, conditions=first_conditions)
    assert WriteConflict([("crates", "north\0a")]) == cluster.commit(second, conditions=second_conditions)


def test_write_skew_over_a_set_is_prevented_by_a_record_for_the_whole_set(cluster: Cluster) -> None:
    """No condition can name a record that does not exist yet. So every writer that adds to a set writes the set's record."""

    def add_last_crate(name: str) -> tuple[list[PutRecord], tuple[Condition, ...]]:
        assert cluster.replica.count_records(CRATES) == 2, "one more crate is allowed"
        changes: list[Any] = [CRATES.build_put(make_crate(name)), NOTICE.build_put(Notice())]
        return changes, (cluster.replica.build_key_condition(NOTICE),)

    (first, first_conditions), (second, second_conditions) = add_last_crate("c"), add_last_crate("d")
    assert Committed(2) == cluster.commit(*first, conditions=first_conditions)
    assert WriteConflict([("notice", "notice")]) == cluster.commit(*second, conditions=second_conditions)
