"""Indexes of some of the allocations on a node equal a filter of all that are on it."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.state.inventory import make_write
from wharf.cluster.operations.nodes.reports import compute_first_report_number
from wharf.cluster.state import BatchApplication, Replica, ReplicaLoad
from wharf.cluster.state.overlay import OverlayReplica
from wharf.cluster.state.tables import ALLOCATIONS, ALLOCATIONS_ON_NODE, UNFINISHED_ALLOCATIONS_ON_NODE
from wharf.contract.model.allocations.allocation import (
    REPORT_NUMBERS_PER_INDEX,
    Allocation,
    ClientStatus,
    DesiredStatus,
)
from wharf.contract.model.log import Batch, LogPosition, StoredRecord
from wharf.contract.model.nodes.node import Node

REPORTED_ENDS = (ClientStatus.COMPLETE, ClientStatus.FAILED)
NODE_IDS = ("node-1", "node-2")
ids = st.sampled_from([f"{number}-allocation" for number in range(8)])
allocations = st.builds(
    Allocation,
    id=ids,
    node_id=st.sampled_from(["", *NODE_IDS]),
    desired_status=st.sampled_from(DesiredStatus),
    client_status=st.sampled_from(ClientStatus),
    report_number=st.sampled_from(
        [0, 1, *(REPORT_NUMBERS_PER_INDEX * index + step for index in (1, 3, 5, 9) for step in (-1, 0))]
    ),
    create_index=st.just(1),
)
changes_of_a_batch = st.lists(
    allocations.map(ALLOCATIONS.build_put) | ids.map(ALLOCATIONS.build_delete),
    min_size=1,
    max_size=6,
    unique_by=lambda change: change.key,
)


def assert_unfinished_ones_equal_filter(replica: Replica) -> None:
    for node_id in NODE_IDS:
        existing = replica.list_by_index_sorted(ALLOCATIONS_ON_NODE, node_id)
        unfinished = [each for each in existing if each.client_status not in REPORTED_ENDS]
        assert replica.list_by_index_sorted(UNFINISHED_ALLOCATIONS_ON_NODE, node_id) == unfinished
        assert replica.count_by_index(UNFINISHED_ALLOCATIONS_ON_NODE, node_id) == len(unfinished)
        assert [each for each in existing if each.is_occupying] == [each for each in unfinished if each.is_occupying]


def assert_equals_filter(replica: Replica) -> None:
    assert_unfinished_ones_equal_filter(replica)
    for node_id in NODE_IDS:
        numbers = [each.report_number for each in replica.list_by_index(ALLOCATIONS_ON_NODE, node_id)]
        assert compute_first_report_number(replica, Node(id=node_id)) == max(
            (replica.index + 1) * REPORT_NUMBERS_PER_INDEX, 1 + max(numbers, default=0)
        )


def write_batch(replica: Replica, index: int, changes: list[Any], *, is_adopted: bool) -> None:
    """Apply the changes as the process that wrote them does, or as others do."""
    write = make_write(*changes)
    encoded = replica.encode_write(write, write_id=f"write-{index}")
    batch = Batch(index, encoded.id, encoded.kind, encoded.cause, encoded.changes)
    application = BatchApplication(replica, batch, replica.collect_adoptable(write) if is_adopted else None)
    for _ in application.decode_in_steps():
        pass
    application.apply_changes()
    for _ in application.wake_in_steps():
        pass


@given(st.lists(st.tuples(changes_of_a_batch, st.booleans()), min_size=1, max_size=8))
def test_the_indexes_equal_the_filters_after_every_batch(batches: list[tuple[list[Any], bool]]) -> None:
    replica = Replica([ALLOCATIONS])
    for index, (changes, is_adopted) in enumerate(batches, start=2):
        write_batch(replica, index, changes, is_adopted=is_adopted)
        assert_equals_filter(replica)


@given(stored=changes_of_a_batch, changes=changes_of_a_batch)
def test_the_indexes_equal_the_filters_in_an_overlay(stored: list[Any], changes: list[Any]) -> None:
    replica = Replica([ALLOCATIONS])
    write_batch(replica, 2, stored, is_adopted=False)

    assert_equals_filter(OverlayReplica(replica, changes))
    assert_equals_filter(replica)


@given(
    before=changes_of_a_batch,
    loaded=st.lists(allocations, unique_by=lambda allocation: allocation.id),
    slice_rows=st.integers(1, 4),
    is_restore=st.booleans(),
    later=changes_of_a_batch,
)
def test_the_indexes_equal_the_filters_after_a_load_or_a_restore(
    before: list[Any], loaded: list[Allocation], slice_rows: int, is_restore: bool, later: list[Any]
) -> None:
    replica = Replica([ALLOCATIONS])
    write_batch(replica, 2, before, is_adopted=True)
    encoded = replica.encode_write(make_write(*map(ALLOCATIONS.build_put, loaded)), write_id="write-3")
    rows = [StoredRecord(each.table, each.key, 3, each.data) for each in encoded.changes if each.data is not None]

    load = ReplicaLoad(replica)
    for start in range(0, len(rows), slice_rows):
        for _ in load.add_in_steps(rows[start : start + slice_rows]):
            pass
        assert_unfinished_ones_equal_filter(load.view_state())
    for _ in load.finish_in_steps(LogPosition(3, {ALLOCATIONS.name: 3}, epoch=int(is_restore))):
        assert_equals_filter(replica)
    assert [each.id for each in replica.iter_all(ALLOCATIONS)] == sorted(each.id for each in loaded)
    assert_equals_filter(replica)

    write_batch(replica, 4, later, is_adopted=False)
    assert_equals_filter(replica)
