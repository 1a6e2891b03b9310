"""A batch taken in by steps: one state before `take_in`, another after it, and waiters woken a slice at a time."""

import pytest

from tests.state.inventory import NOTICE, PARCELS, PARCELS_IN_YARD, Notice, a_batch, a_parcel, a_replica
from wharf.model.changes import THIS
from wharf.model.log import Batch, Change, Standing
from wharf.state import Applying, Loading, OutOfOrder, Replica, Subscription
from wharf.state.codec import Damaged
from wharf.state.replica import DECODED_AT_ONCE
from wharf.state.watches import WOKEN_AT_ONCE, those, whole


def a_large_batch(index: int) -> Batch:
    return a_batch(index, *(PARCELS.put(a_parcel(f"{number:04}", yard="north")) for number in range(1_000)))


def test_a_large_batch_is_decoded_in_steps_and_seen_all_at_once() -> None:
    replica = a_replica()
    applying = Applying(replica, a_large_batch(1))
    seen = [replica.count(PARCELS) for _ in applying.decode_in_steps()]
    before = replica.count(PARCELS)
    applying.take_in()

    assert seen == [0] * (1_000 // DECODED_AT_ONCE - 1)
    assert (before, replica.count(PARCELS), replica.index) == (0, 1_000, 1)


def test_a_small_batch_is_decoded_and_wakes_in_one_step() -> None:
    replica = a_replica()
    woken: list[str] = []
    replica.watches.subscribe([whole(NOTICE)], lambda: woken.append("notice"))
    applying = Applying(replica, a_batch(1, NOTICE.put(Notice(create_index=THIS))))

    assert list(applying.decode_in_steps()) == []
    applying.take_in()
    assert woken == []
    assert list(applying.wake_in_steps()) == []
    assert woken == ["notice"]


def test_a_damaged_record_in_a_later_step_leaves_the_state_as_it_was() -> None:
    replica = a_replica()
    batch = a_large_batch(1)
    batch = Batch(1, batch.id, batch.kind, batch.cause, [*batch.changes, Change(PARCELS.name, "x", b"\xff")])

    with pytest.raises(Damaged):
        list(Applying(replica, batch).decode_in_steps())
    assert (replica.index, replica.count(PARCELS)) == (0, 0)


def test_a_batch_that_was_taken_in_before_is_out_of_order() -> None:
    replica = a_replica()
    replica.apply(a_batch(4, NOTICE.put(Notice(create_index=THIS))))

    with pytest.raises(OutOfOrder):
        Applying(replica, a_batch(4, NOTICE.drop()))


def a_crowd(replica: Replica, count: int, woken: list[int]) -> list[Subscription]:
    def wake(number: int) -> None:
        woken.append(number)

    return [
        replica.watches.subscribe([those(PARCELS_IN_YARD, "north")], lambda number=number: wake(number))  # type: ignore[misc]  # bound now
        for number in range(count)
    ]


def test_a_crowd_is_woken_in_slices_in_the_order_in_which_it_came() -> None:
    replica = a_replica()
    woken: list[int] = []
    a_crowd(replica, WOKEN_AT_ONCE * 2 + 1, woken)
    applying = Applying(replica, a_large_batch(1))
    list(applying.decode_in_steps())
    applying.take_in()

    assert [len(woken) for _ in applying.wake_in_steps()] == [0, WOKEN_AT_ONCE, WOKEN_AT_ONCE * 2]
    assert woken == list(range(WOKEN_AT_ONCE * 2 + 1))


def test_who_ends_or_comes_between_two_slices_is_not_woken() -> None:
    replica = a_replica()
    woken: list[int] = []
    crowd = a_crowd(replica, WOKEN_AT_ONCE + 2, woken)
    applying = Applying(replica, a_large_batch(1))
    list(applying.decode_in_steps())
    applying.take_in()
    waking = applying.wake_in_steps()
    next(waking)
    next(waking)
    crowd[-1].end()
    late: list[int] = []
    a_crowd(replica, 1, late)

    assert list(waking) == []
    assert woken == list(range(WOKEN_AT_ONCE + 1))
    assert late == []


def test_who_comes_after_a_large_batch_was_taken_in_is_not_woken_for_it() -> None:
    replica = a_replica()
    woken: list[int] = []
    (first,) = a_crowd(replica, 1, woken)
    applying = Applying(replica, a_large_batch(1))
    list(applying.decode_in_steps())
    applying.take_in()
    late: list[int] = []
    a_crowd(replica, 1, late)

    assert [len(woken) for _ in applying.wake_in_steps()] == [0]
    assert (woken, first.fired, late) == ([0], True, [])


def test_a_large_batch_wakes_nobody_where_the_last_who_waited_has_gone() -> None:
    replica = a_replica()
    woken: list[int] = []
    (only,) = a_crowd(replica, 1, woken)
    applying = Applying(replica, a_large_batch(1))
    list(applying.decode_in_steps())
    applying.take_in()
    only.end()

    assert [len(woken) for _ in applying.wake_in_steps()] == [0]
    assert woken == []


def test_a_first_load_wakes_a_crowd_in_slices_too() -> None:
    replica = a_replica()
    woken: list[int] = []
    a_crowd(replica, WOKEN_AT_ONCE + 1, woken)
    loading = Loading(replica)

    assert [len(woken) for _ in loading.finish_in_steps(Standing(3, {}))] == [WOKEN_AT_ONCE]
    assert len(woken) == WOKEN_AT_ONCE + 1
