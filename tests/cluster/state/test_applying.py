"""Applying a batch in steps: readers see the old state, then the new one, and subscriptions are woken in slices."""

import pytest

from tests.cluster.state.inventory import (
    NOTICE,
    PARCELS,
    PARCELS_IN_YARD,
    Notice,
    make_batch,
    make_parcel,
    make_replica,
)
from wharf.cluster.state import BatchApplication, OutOfOrder, Replica, ReplicaLoad, Subscription
from wharf.cluster.state.codec import DamagedRecord
from wharf.cluster.state.replica import MAX_DECODED_BYTES_PER_STEP, MAX_DECODED_PER_STEP
from wharf.cluster.state.watches import MAX_WAKES_PER_STEP, watch_index, watch_table
from wharf.contract.model.log import WRITE_INDEX, Batch, EncodedChange, LogPosition


def make_large_batch(index: int) -> Batch:
    return make_batch(index, *(PARCELS.build_put(make_parcel(f"{number:04}", yard="north")) for number in range(1_000)))


def test_a_large_batch_is_decoded_in_steps_and_becomes_visible_at_once() -> None:
    replica = make_replica()
    applying = BatchApplication(replica, make_large_batch(1))
    seen = [replica.count_records(PARCELS) for _ in applying.decode_in_steps()]
    before = replica.count_records(PARCELS)
    applying.apply_changes()

    assert seen == [0] * (1_000 // MAX_DECODED_PER_STEP - 1)
    assert (before, replica.count_records(PARCELS), replica.index) == (0, 1_000, 1)


@pytest.mark.parametrize(
    ("sizes", "expected_steps"),
    [
        pytest.param([1.01], 1, id="a large record is decoded in one step and applied in the next"),
        pytest.param([0.1, 1.01, 0.1], 2, id="a large record between small ones has a step of its own"),
        pytest.param([0.3, 0.3, 0.3, 0.3], 1, id="records that are large together"),
        pytest.param([0.3, 0.3, 0.3], 0, id="records that fit into one step"),
    ],
)
def test_large_records_are_decoded_in_steps(sizes: list[float], expected_steps: int) -> None:
    replica = make_replica()
    parcels = [
        make_parcel(f"{number}", yard="x" * int(size * MAX_DECODED_BYTES_PER_STEP)) for number, size in enumerate(sizes)
    ]
    applying = BatchApplication(replica, make_batch(1, *map(PARCELS.build_put, parcels)))

    assert len(list(applying.decode_in_steps())) == expected_steps
    assert replica.count_records(PARCELS) == 0
    applying.apply_changes()
    assert replica.count_records(PARCELS) == len(sizes)


def test_a_small_batch_is_decoded_and_wakes_subscriptions_in_one_step() -> None:
    replica = make_replica()
    woken: list[str] = []
    replica.watches.subscribe([watch_table(NOTICE)], lambda: woken.append("notice"))
    applying = BatchApplication(replica, make_batch(1, NOTICE.build_put(Notice(create_index=WRITE_INDEX))))

    assert list(applying.decode_in_steps()) == []
    applying.apply_changes()
    assert woken == []
    assert list(applying.wake_in_steps()) == []
    assert woken == ["notice"]


def test_a_damaged_record_in_a_later_step_leaves_the_state_as_it_was() -> None:
    replica = make_replica()
    batch = make_large_batch(1)
    batch = Batch(1, batch.id, batch.kind, batch.cause, [*batch.changes, EncodedChange(PARCELS.name, "x", b"\xff")])

    with pytest.raises(DamagedRecord):
        list(BatchApplication(replica, batch).decode_in_steps())
    assert (replica.index, replica.count_records(PARCELS)) == (0, 0)


def test_a_batch_that_was_applied_before_is_out_of_order() -> None:
    replica = make_replica()
    replica.apply_batch(make_batch(4, NOTICE.build_put(Notice(create_index=WRITE_INDEX))))

    with pytest.raises(OutOfOrder):
        BatchApplication(replica, make_batch(4, NOTICE.build_delete()))


def subscribe_many(replica: Replica, count: int, woken: list[int]) -> list[Subscription]:
    def wake(number: int) -> None:
        woken.append(number)

    return [
        replica.watches.subscribe([watch_index(PARCELS_IN_YARD, "north")], lambda number=number: wake(number))  # type: ignore[misc]  # bound now
        for number in range(count)
    ]


def test_many_subscriptions_are_woken_in_slices_in_the_order_of_subscribing() -> None:
    replica = make_replica()
    woken: list[int] = []
    subscribe_many(replica, MAX_WAKES_PER_STEP * 2 + 1, woken)
    applying = BatchApplication(replica, make_large_batch(1))
    list(applying.decode_in_steps())
    applying.apply_changes()

    assert [len(woken) for _ in applying.wake_in_steps()] == [0, MAX_WAKES_PER_STEP, MAX_WAKES_PER_STEP * 2]
    assert woken == list(range(MAX_WAKES_PER_STEP * 2 + 1))


def test_a_subscription_that_is_closed_or_made_between_two_slices_is_not_woken() -> None:
    replica = make_replica()
    woken: list[int] = []
    crowd = subscribe_many(replica, MAX_WAKES_PER_STEP + 2, woken)
    applying = BatchApplication(replica, make_large_batch(1))
    list(applying.decode_in_steps())
    applying.apply_changes()
    waking = applying.wake_in_steps()
    next(waking)
    next(waking)
    crowd[-1].close()
    late: list[int] = []
    subscribe_many(replica, 1, late)

    assert list(waking) == []
    assert woken == list(range(MAX_WAKES_PER_STEP + 1))
    assert late == []


def test_a_subscription_made_after_a_large_batch_was_applied_is_not_woken_for_it() -> None:
    replica = make_replica()
    woken: list[int] = []
    (first,) = subscribe_many(replica, 1, woken)
    applying = BatchApplication(replica, make_large_batch(1))
    list(applying.decode_in_steps())
    applying.apply_changes()
    late: list[int] = []
    subscribe_many(replica, 1, late)

    assert [len(woken) for _ in applying.wake_in_steps()] == [0]
    assert (woken, first.has_fired, late) == ([0], True, [])


def test_a_large_batch_wakes_no_subscription_if_all_were_closed() -> None:
    replica = make_replica()
    woken: list[int] = []
    (only,) = subscribe_many(replica, 1, woken)
    applying = BatchApplication(replica, make_large_batch(1))
    list(applying.decode_in_steps())
    applying.apply_changes()
    only.close()

    assert [len(woken) for _ in applying.wake_in_steps()] == [0]
    assert woken == []


def test_a_first_load_wakes_many_subscriptions_in_slices() -> None:
    replica = make_replica()
    woken: list[int] = []
    subscribe_many(replica, MAX_WAKES_PER_STEP + 1, woken)
    loading = ReplicaLoad(replica)

    assert [len(woken) for _ in loading.finish_in_steps(LogPosition(3, {}))] == [MAX_WAKES_PER_STEP]
    assert len(woken) == MAX_WAKES_PER_STEP + 1
