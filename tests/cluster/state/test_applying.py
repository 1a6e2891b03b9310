"""A batch taken in by steps: one state before `take_in`, another after it, and waiters woken a slice at a time."""

import pytest

from tests.cluster.state.inventory import NOTICE, PARCELS, PARCELS_IN_YARD, Notice, a_batch, a_parcel, a_replica
from wharf.cluster.state import BatchApplication, OutOfOrder, Replica, ReplicaLoad, Subscription
from wharf.cluster.state.codec import DamagedRecord
from wharf.cluster.state.replica import MAX_DECODED_PER_STEP
from wharf.cluster.state.watches import MAX_WAKES_PER_STEP, watch_index, watch_table
from wharf.contract.model.log import WRITE_INDEX, Batch, EncodedChange, LogPosition


def a_large_batch(index: int) -> Batch:
    return a_batch(index, *(PARCELS.build_put(a_parcel(f"{number:04}", yard="north")) for number in range(1_000)))


def test_a_large_batch_is_decoded_in_steps_and_seen_all_at_once() -> None:
    replica = a_replica()
    applying = BatchApplication(replica, a_large_batch(1))
    seen = [replica.count_records(PARCELS) for _ in applying.decode_in_steps()]
    before = replica.count_records(PARCELS)
    applying.apply_changes()

    assert seen == [0] * (1_000 // MAX_DECODED_PER_STEP - 1)
    assert (before, replica.count_records(PARCELS), replica.index) == (0, 1_000, 1)


def test_a_small_batch_is_decoded_and_wakes_in_one_step() -> None:
    replica = a_replica()
    woken: list[str] = []
    replica.watches.subscribe([watch_table(NOTICE)], lambda: woken.append("notice"))
    applying = BatchApplication(replica, a_batch(1, NOTICE.build_put(Notice(create_index=WRITE_INDEX))))

    assert list(applying.decode_in_steps()) == []
    applying.apply_changes()
    assert woken == []
    assert list(applying.wake_in_steps()) == []
    assert woken == ["notice"]


def test_a_damaged_record_in_a_later_step_leaves_the_state_as_it_was() -> None:
    replica = a_replica()
    batch = a_large_batch(1)
    batch = Batch(1, batch.id, batch.kind, batch.cause, [*batch.changes, EncodedChange(PARCELS.name, "x", b"\xff")])

    with pytest.raises(DamagedRecord):
        list(BatchApplication(replica, batch).decode_in_steps())
    assert (replica.index, replica.count_records(PARCELS)) == (0, 0)


def test_a_batch_that_was_taken_in_before_is_out_of_order() -> None:
    replica = a_replica()
    replica.apply_batch(a_batch(4, NOTICE.build_put(Notice(create_index=WRITE_INDEX))))

    with pytest.raises(OutOfOrder):
        BatchApplication(replica, a_batch(4, NOTICE.build_delete()))


def a_crowd(replica: Replica, count: int, woken: list[int]) -> list[Subscription]:
    def wake(number: int) -> None:
        woken.append(number)

    return [
        replica.watches.subscribe([watch_index(PARCELS_IN_YARD, "north")], lambda number=number: wake(number))  # type: ignore[misc]  # bound now
        for number in range(count)
    ]


def test_a_crowd_is_woken_in_slices_in_the_order_in_which_it_came() -> None:
    replica = a_replica()
    woken: list[int] = []
    a_crowd(replica, MAX_WAKES_PER_STEP * 2 + 1, woken)
    applying = BatchApplication(replica, a_large_batch(1))
    list(applying.decode_in_steps())
    applying.apply_changes()

    assert [len(woken) for _ in applying.wake_in_steps()] == [0, MAX_WAKES_PER_STEP, MAX_WAKES_PER_STEP * 2]
    assert woken == list(range(MAX_WAKES_PER_STEP * 2 + 1))


def test_who_ends_or_comes_between_two_slices_is_not_woken() -> None:
    replica = a_replica()
    woken: list[int] = []
    crowd = a_crowd(replica, MAX_WAKES_PER_STEP + 2, woken)
    applying = BatchApplication(replica, a_large_batch(1))
    list(applying.decode_in_steps())
    applying.apply_changes()
    waking = applying.wake_in_steps()
    next(waking)
    next(waking)
    crowd[-1].close()
    late: list[int] = []
    a_crowd(replica, 1, late)

    assert list(waking) == []
    assert woken == list(range(MAX_WAKES_PER_STEP + 1))
    assert late == []


def test_who_comes_after_a_large_batch_was_taken_in_is_not_woken_for_it() -> None:
    replica = a_replica()
    woken: list[int] = []
    (first,) = a_crowd(replica, 1, woken)
    applying = BatchApplication(replica, a_large_batch(1))
    list(applying.decode_in_steps())
    applying.apply_changes()
    late: list[int] = []
    a_crowd(replica, 1, late)

    assert [len(woken) for _ in applying.wake_in_steps()] == [0]
    assert (woken, first.has_fired, late) == ([0], True, [])


def test_a_large_batch_wakes_nobody_where_the_last_who_waited_has_gone() -> None:
    replica = a_replica()
    woken: list[int] = []
    (only,) = a_crowd(replica, 1, woken)
    applying = BatchApplication(replica, a_large_batch(1))
    list(applying.decode_in_steps())
    applying.apply_changes()
    only.close()

    assert [len(woken) for _ in applying.wake_in_steps()] == [0]
    assert woken == []


def test_a_first_load_wakes_a_crowd_in_slices_too() -> None:
    replica = a_replica()
    woken: list[int] = []
    a_crowd(replica, MAX_WAKES_PER_STEP + 1, woken)
    loading = ReplicaLoad(replica)

    assert [len(woken) for _ in loading.finish_in_steps(LogPosition(3, {}))] == [MAX_WAKES_PER_STEP]
    assert len(woken) == MAX_WAKES_PER_STEP + 1
