"""The leader's queue of pending evaluations."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders import a_job
from tests.kit.state import SECOND_NS, an_evaluation
from wharf.cluster.controllers import evaluation_broker
from wharf.cluster.controllers.evaluation_broker import DELIVERIES_BY_AGE, PLACES_PER_NAMESPACE, EvaluationBroker
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus
from wharf.contract.model.times import to_datetime


def make_evaluation(job_id: str, evaluation_id: str, **fields: Any) -> Evaluation:
    return an_evaluation(a_job(job_id), evaluation_id, **fields)


def ended(evaluation: Evaluation, status: EvaluationStatus = EvaluationStatus.COMPLETE) -> Evaluation:
    return replace(evaluation, status=status)


def take_all(broker: EvaluationBroker) -> list[str]:
    """Return all evaluations in the order of delivery, each finished at once."""
    order = []
    while (evaluation := broker.take_next()) is not None:
        order.append(evaluation.id)
        broker.update(ended(evaluation))
        broker.finish(evaluation)
    return order


def test_higher_priority_comes_first_and_then_the_older_evaluation() -> None:
    broker = EvaluationBroker()
    for evaluation in (
        make_evaluation("a", "young", create_index=9),
        make_evaluation("b", "old", create_index=3),
        make_evaluation("c", "urgent", create_index=12, priority=90),
    ):
        broker.update(evaluation)

    assert take_all(broker) == ["urgent", "old", "young"]


def test_only_one_evaluation_of_a_job_is_delivered_at_a_time() -> None:
    broker = EvaluationBroker()
    for number in range(3):
        broker.update(make_evaluation("a", f"a{number}", create_index=number))
    first = broker.take_next()
    assert first is not None

    assert broker.take_next() is None

    broker.update(ended(first))
    broker.finish(first)
    assert take_all(broker) == ["a1", "a2"]


def test_other_jobs_are_delivered_while_one_is_busy() -> None:
    broker = EvaluationBroker()
    broker.update(make_evaluation("a", "a1", create_index=1))
    broker.update(make_evaluation("a", "a2", create_index=2))
    broker.update(make_evaluation("b", "b1", create_index=3))
    broker.take_next()

    following = broker.take_next()

    assert following is not None
    assert following.id == "b1"


def test_an_evaluation_that_is_still_pending_when_finished_is_delivered_again() -> None:
    broker = EvaluationBroker()
    broker.update(make_evaluation("a", "a1"))
    first = broker.take_next()
    assert first is not None

    broker.finish(first)

    assert broker.take_next() == first


def test_a_redelivered_evaluation_has_its_newest_version() -> None:
    broker = EvaluationBroker()
    broker.update(make_evaluation("a", "a1"))
    first = broker.take_next()
    assert first is not None
    broker.update(replace(first, modify_index=99))

    broker.finish(first)

    assert broker.take_next() == replace(first, modify_index=99)


def test_an_evaluation_that_ended_meanwhile_is_not_delivered() -> None:
    broker = EvaluationBroker()
    broker.update(make_evaluation("a", "a1"))

    broker.update(ended(make_evaluation("a", "a1")))

    assert (broker.take_next(), len(broker)) == (None, 0)


def test_a_deleted_evaluation_is_not_delivered() -> None:
    broker = EvaluationBroker()
    broker.update(make_evaluation("a", "a1"))

    broker.remove("a1")

    assert (broker.take_next(), len(broker)) == (None, 0)


def test_an_evaluation_that_was_blocked_and_unblocked_is_delivered_once() -> None:
    broker = EvaluationBroker()
    pending, blocked = make_evaluation("a", "a1"), make_evaluation("a", "a1", status=EvaluationStatus.BLOCKED)
    for _ in range(5):
        broker.update(pending)
        broker.update(blocked)
    broker.update(pending)

    assert take_all(broker) == ["a1"]


def test_an_evaluation_that_is_updated_repeatedly_is_queued_once() -> None:
    broker = EvaluationBroker()
    broker.update(make_evaluation("a", "a1"))
    for _ in range(5):
        evaluation = broker.take_next()
        assert evaluation is not None
        broker.update(evaluation)
        broker.finish(evaluation)

    assert take_all(broker) == ["a1"]


def test_a_failed_evaluation_is_redelivered_after_one_and_twenty_seconds_and_keeps_its_job_busy() -> None:
    broker = EvaluationBroker()
    for number in range(2):
        broker.update(make_evaluation("a", f"a{number}", create_index=number))
    arguments = []
    for wait_s in (1, 20):
        evaluation = broker.take_next()
        assert evaluation is not None
        arguments.append(evaluation.id)
        assert broker.redeliver_later(evaluation, 0)
        broker.enqueue_due(wait_s * 1_000_000_000 - 1)
        assert broker.take_next() is None
        broker.enqueue_due(wait_s * 1_000_000_000)
    third = broker.take_next()
    assert third is not None

    assert [*arguments, third.id] == ["a0", "a0", "a0"]
    assert not broker.redeliver_later(third, 0)


def test_a_failed_evaluation_does_not_wait_longer_when_the_clock_is_set_back() -> None:
    broker = EvaluationBroker()
    broker.update(make_evaluation("a", "a1"))
    first = broker.take_next()
    assert first is not None
    broker.redeliver_later(first, 3_600_000_000_000)

    broker.enqueue_due(0)

    assert (take_all(broker), broker.next_wake_ns()) == (["a1"], None)


def test_a_failed_evaluation_that_is_canceled_releases_its_job() -> None:
    broker = EvaluationBroker()
    for number in range(2):
        broker.update(make_evaluation("a", f"a{number}", create_index=number))
    first = broker.take_next()
    assert first is not None
    broker.redeliver_later(first, 0)

    broker.update(ended(first, EvaluationStatus.CANCELED))

    assert take_all(broker) == ["a1"]


def test_evaluations_retried_together_keep_their_order_at_the_position_of_the_oldest() -> None:
    broker = EvaluationBroker()
    old, young = (
        an_evaluation(a_job("old"), "old", create_index=3),
        an_evaluation(a_job("young"), "young", create_index=9),
    )
    broker.assign_slots([young, old])
    for each in (an_evaluation(a_job("new"), "new", create_index=5), old, young):
        broker.update(each)
    arguments = [broker.take_next() for _ in range(3)]

    assert ([each.id for each in arguments if each is not None], broker.remaining_slots) == (["young", "old", "new"], 0)


def take_id(broker: EvaluationBroker) -> str | None:
    evaluation = broker.take_next()
    return None if evaluation is None else evaluation.id


# -- delayed evaluations


def test_an_evaluation_that_waits_is_delivered_when_its_wait_after_the_last_change_has_passed() -> None:
    broker = EvaluationBroker()
    broker.update(make_evaluation("a", "a1", wait=5 * SECOND_NS, modify_time=10 * SECOND_NS))
    wake_ns = broker.next_wake_ns()

    broker.enqueue_due(15 * SECOND_NS - 1)
    early = take_id(broker)
    broker.enqueue_due(15 * SECOND_NS)

    assert (wake_ns, early, take_id(broker), broker.next_wake_ns()) == (15 * SECOND_NS, None, "a1", None)


def test_an_evaluation_with_a_start_time_is_delivered_at_that_time() -> None:
    broker = EvaluationBroker()
    broker.update(make_evaluation("a", "a1", wait_until=to_datetime(15 * SECOND_NS)))

    broker.enqueue_due(15 * SECOND_NS - 1)
    early = take_id(broker)
    broker.enqueue_due(15 * SECOND_NS)

    assert (early, take_id(broker)) == (None, "a1")


def test_a_delayed_evaluation_does_not_keep_other_evaluations_of_its_job_waiting() -> None:
    broker = EvaluationBroker()
    broker.update(make_evaluation("a", "late", wait=5 * SECOND_NS, create_index=1))
    broker.update(make_evaluation("a", "now", create_index=2))

    assert take_all(broker) == ["now"]


def test_a_delayed_evaluation_that_is_updated_after_it_was_due_is_delivered_once() -> None:
    broker = EvaluationBroker()
    evaluation = make_evaluation("a", "a1", wait=5 * SECOND_NS)
    broker.update(evaluation)
    broker.update(evaluation)
    broker.enqueue_due(5 * SECOND_NS)
    broker.update(replace(evaluation, modify_index=9))

    assert (take_all(broker), broker.next_wake_ns()) == (["a1"], None)


def test_a_delayed_evaluation_that_was_removed_is_not_delivered() -> None:
    broker = EvaluationBroker()
    broker.update(make_evaluation("a", "a1", wait=5 * SECOND_NS))
    broker.remove("a1")
    broker.enqueue_due(5 * SECOND_NS)

    assert (take_id(broker), broker.next_wake_ns()) == (None, None)


def test_all_due_evaluations_are_queued_at_once() -> None:
    broker = EvaluationBroker()
    for number in (3, 1, 2):
        broker.update(make_evaluation(f"job-{number}", f"e{number}", wait=number * SECOND_NS, create_index=number))

    first_wake_ns = broker.next_wake_ns()
    broker.enqueue_due(2 * SECOND_NS)

    assert (first_wake_ns, take_all(broker), broker.next_wake_ns()) == (SECOND_NS, ["e1", "e2"], 3 * SECOND_NS)


def test_the_broker_wakes_for_whichever_is_due_first_a_delayed_or_a_failed_evaluation() -> None:
    broker = EvaluationBroker()
    broker.update(make_evaluation("failed", "failed"))
    failed = broker.take_next()
    assert failed is not None
    broker.redeliver_later(failed, 10 * SECOND_NS)

    only_failed = broker.next_wake_ns()
    broker.update(make_evaluation("later", "later", wait=20 * SECOND_NS))
    with_later = broker.next_wake_ns()
    broker.update(make_evaluation("sooner", "sooner", wait=5 * SECOND_NS))

    assert (only_failed, with_later, broker.next_wake_ns()) == (11 * SECOND_NS, 11 * SECOND_NS, 5 * SECOND_NS)


# -- failed evaluations


def test_an_evaluation_that_was_never_delivered_is_not_delivered_later() -> None:
    assert not EvaluationBroker().redeliver_later(make_evaluation("a", "a1"), 0)


def test_the_deliveries_of_an_evaluation_that_was_finished_count_from_zero() -> None:
    broker = EvaluationBroker()
    broker.update(make_evaluation("a", "a1"))
    for _ in range(10):
        evaluation = broker.take_next()
        assert evaluation is not None
        broker.finish(evaluation)
    evaluation = broker.take_next()
    assert evaluation is not None

    assert broker.redeliver_later(evaluation, 0)
    assert broker.next_wake_ns() == SECOND_NS


def test_the_deliveries_of_a_removed_evaluation_count_from_zero() -> None:
    broker = EvaluationBroker()
    for _ in range(3):
        broker.update(make_evaluation("a", "a1"))
        evaluation = broker.take_next()
        assert evaluation is not None
        broker.redeliver_later(evaluation, 0)
        wake_ns = broker.next_wake_ns()
        broker.remove("a1")

        assert (wake_ns, broker.next_wake_ns()) == (SECOND_NS, None)


def test_a_failed_evaluation_is_not_waited_for_after_its_delay() -> None:
    broker = EvaluationBroker()
    broker.update(make_evaluation("a", "a1"))
    evaluation = broker.take_next()
    assert evaluation is not None
    broker.redeliver_later(evaluation, 0)

    broker.enqueue_due(SECOND_NS)

    assert (broker.next_wake_ns(), take_id(broker)) == (None, "a1")


# -- slots and counts


def test_released_slots_are_not_used() -> None:
    broker = EvaluationBroker()
    old, young = make_evaluation("old", "old", create_index=3), make_evaluation("young", "young", create_index=9)
    broker.assign_slots([young, old])
    reserved = broker.remaining_slots

    broker.release_slots([young, make_evaluation("other", "unknown")])
    for each in (make_evaluation("new", "new", create_index=5), old, young):
        broker.update(each)

    assert (reserved, broker.remaining_slots) == (2, 1)
    assert take_all(broker) == ["old", "new", "young"]
    assert broker.remaining_slots == 0


def test_a_slot_is_released_with_its_evaluation() -> None:
    broker = EvaluationBroker()
    evaluation = make_evaluation("a", "a1")
    broker.assign_slots([evaluation])

    broker.update(ended(evaluation))

    assert broker.remaining_slots == 0


def test_slots_are_of_one_priority() -> None:
    broker = EvaluationBroker()
    retried = [
        make_evaluation("a", "low-young", create_index=8, priority=20),
        make_evaluation("b", "high", create_index=2, priority=80),
        make_evaluation("c", "low-old", create_index=6, priority=20),
    ]
    broker.assign_slots(retried)
    broker.update(make_evaluation("d", "low-between", create_index=5, priority=20))
    broker.update(make_evaluation("e", "low-last", create_index=7, priority=20))
    for each in retried:
        broker.update(each)

    assert take_all(broker) == ["high", "low-between", "low-young", "low-old", "low-last"]


def test_evaluations_are_counted_as_queued_waiting_for_their_job_or_in_process() -> None:
    broker = EvaluationBroker()
    for job_id, evaluation_id, index in (
        ("a", "a1", 1),
        ("a", "a2", 2),
        ("a", "a3", 3),
        ("b", "b1", 4),
        ("c", "c1", 5),
    ):
        broker.update(make_evaluation(job_id, evaluation_id, create_index=index))
    queued = broker.count_queues()
    first = broker.take_next()
    following = broker.take_next()
    assert first is not None
    assert following is not None
    busy = broker.count_queues()

    broker.finish(following)
    broker.redeliver_later(first, 0)

    assert (queued, busy, broker.count_queues(), len(broker)) == ((5, 0, 0), (1, 2, 2), (2, 2, 1), 5)


def test_an_evaluation_that_waits_for_its_job_is_not_queued_by_an_update() -> None:
    broker = EvaluationBroker()
    for number in (1, 2):
        broker.update(make_evaluation("a", f"a{number}", create_index=number))
    first = broker.take_next()
    broker.take_next()

    broker.update(make_evaluation("a", "a2", create_index=2, modify_index=9))
    if first is not None:
        broker.update(first)

    assert broker.count_queues() == (0, 1, 1)


def test_a_newer_evaluation_comes_after_all_that_are_retried_although_the_oldest_is_retried_first() -> None:
    broker = EvaluationBroker()
    old, young = make_evaluation("a", "old", create_index=103), make_evaluation("b", "young", create_index=109)
    broker.assign_slots([old, young])
    for each in (make_evaluation("c", "new", create_index=105), young, old):
        broker.update(each)

    assert take_all(broker) == ["old", "young", "new"]


def test_a_delayed_evaluation_that_was_blocked_meanwhile_waits_again() -> None:
    broker = EvaluationBroker()
    delayed = make_evaluation("a", "a1", wait=5 * SECOND_NS)
    broker.update(delayed)
    broker.enqueue_due(5 * SECOND_NS)
    taken = broker.take_next()
    assert taken is not None
    broker.update(replace(delayed, status=EvaluationStatus.BLOCKED))
    broker.finish(taken)

    broker.update(replace(delayed, modify_time=10 * SECOND_NS))

    assert (take_id(broker), broker.next_wake_ns()) == (None, 15 * SECOND_NS)


def test_an_evaluation_that_was_removed_does_not_hide_those_behind_it() -> None:
    broker = EvaluationBroker()
    for number in (1, 2):
        broker.update(make_evaluation(f"job-{number}", f"e{number}", create_index=number))
    broker.remove("e1")

    assert take_all(broker) == ["e2"]


def test_evaluations_that_were_delayed_in_the_future_are_delivered_once_the_clock_was_set_back() -> None:
    broker = EvaluationBroker()
    year_ns = 365 * 24 * 3_600 * SECOND_NS
    now_ns = 50 * year_ns
    broker.enqueue_due(now_ns + year_ns)
    future_ns = now_ns + year_ns
    broker.update(make_evaluation("a", "a1", wait_until=to_datetime(future_ns + SECOND_NS), create_time=future_ns))
    broker.update(make_evaluation("b", "b1", wait=5 * SECOND_NS, modify_time=future_ns))
    broker.update(make_evaluation("c", "c1", wait_until=to_datetime(now_ns + SECOND_NS), create_time=now_ns))

    broker.enqueue_due(now_ns)
    delivered = [take_id(broker), take_id(broker), take_id(broker)]

    assert (sorted(filter(None, delivered)), broker.next_wake_ns()) == (["a1", "b1"], now_ns + SECOND_NS)


def test_a_new_leader_delivers_evaluations_that_were_delayed_before_the_clock_was_set_back() -> None:
    broker = EvaluationBroker()
    year_ns = 365 * 24 * 3_600 * SECOND_NS
    broker.update(make_evaluation("a", "a1", wait_until=to_datetime(51 * year_ns), create_time=51 * year_ns - 1_000))

    broker.enqueue_due(50 * year_ns)

    assert take_id(broker) == "a1"


def test_a_small_correction_of_the_clock_ends_no_delay() -> None:
    broker = EvaluationBroker()
    now_ns = 1_000_000 * SECOND_NS
    broker.enqueue_due(now_ns)
    broker.update(make_evaluation("a", "a1", wait_until=to_datetime(now_ns + 60 * SECOND_NS), create_time=now_ns))

    broker.enqueue_due(now_ns - 30 * SECOND_NS)

    assert take_id(broker) is None


def make_in_namespace(namespace: str, index: int, **fields: Any) -> Evaluation:
    job = a_job(f"j{index}", namespace=namespace)
    return an_evaluation(job, f"{namespace}-{index:05}", create_index=index, **fields)


def test_a_namespace_with_many_evaluations_delays_those_of_another_by_its_places_at_most() -> None:
    broker = EvaluationBroker()
    for index in range(1_000):
        broker.update(make_in_namespace("flood", index))
    broker.update(make_in_namespace("other", 1_000))
    for index in range(1_001, 2_000):
        broker.update(make_in_namespace("flood", index))

    order = take_all(broker)

    assert order.index("other-01000") <= PLACES_PER_NAMESPACE
    assert len(set(order)) == len(order) == 2_000


def test_the_evaluations_of_one_namespace_keep_their_order_however_many_there_are() -> None:
    broker = EvaluationBroker()
    for index in reversed(range(500)):
        broker.update(make_in_namespace("only", index))

    order = take_all(broker)

    late = PLACES_PER_NAMESPACE  # Those that came first have their places; the others follow by age.
    assert order[late:] == sorted(order[late:])
    assert sorted(order) == [f"only-{index:05}" for index in range(500)]


def test_an_urgent_evaluation_waits_for_one_place_of_its_crowded_namespace() -> None:
    broker = EvaluationBroker()
    for index in range(500):
        broker.update(make_in_namespace("only", index))
    broker.update(make_in_namespace("only", 500, priority=90))

    assert take_all(broker).index("only-00500") == 1


def test_a_stream_of_urgent_evaluations_holds_up_no_other_for_ever() -> None:
    broker = EvaluationBroker()
    broker.update(make_in_namespace("other", 0, priority=1))
    order: list[str] = []
    for index in range(1, 1_000):
        broker.update(make_in_namespace("flood", index, priority=100))
        evaluation = broker.take_next()
        assert evaluation is not None
        order.append(evaluation.id)
        broker.update(ended(evaluation))
        broker.finish(evaluation)

    assert order.index("other-00000") < DELIVERIES_BY_AGE


def test_an_evaluation_that_ends_while_it_waits_for_a_place_is_not_delivered() -> None:
    broker = EvaluationBroker()
    evaluations = [make_in_namespace("only", index) for index in range(PLACES_PER_NAMESPACE + 3)]
    for evaluation in evaluations:
        broker.update(evaluation)
    broker.update(ended(evaluations[-2]))

    assert broker.count_queues() == (PLACES_PER_NAMESPACE + 2, 0, 0)
    assert sorted(take_all(broker)) == sorted(each.id for each in evaluations if each is not evaluations[-2])


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["update", "end", "block", "retry", "take", "finish"]),
            st.integers(0, 11),
            st.sampled_from(["a", "b"]),
            st.integers(1, 3),
        ),
        max_size=150,
    )
)
def test_after_any_steps_each_pending_evaluation_is_delivered(steps: list[tuple[str, int, str, int]]) -> None:
    broker = EvaluationBroker()
    current: dict[str, Evaluation] = {}
    active: list[Evaluation] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation_broker, "PLACES_PER_NAMESPACE", 2)
        for name, number, namespace, priority in steps:
            key = f"{namespace}-{number:05}"
            match name:
                case "update":
                    current.setdefault(key, make_in_namespace(namespace, number, priority=priority))
                    broker.update(current[key])
                case "end" | "block" if key in current:
                    status = EvaluationStatus.COMPLETE if name == "end" else EvaluationStatus.BLOCKED
                    current[key] = ended(current[key], status)
                    broker.update(current[key])
                case "retry" if key in current and current[key].status is EvaluationStatus.BLOCKED:
                    broker.assign_slots([current[key]])
                    current[key] = ended(current[key], EvaluationStatus.PENDING)
                    broker.update(current[key])
                case "take" if (taken := broker.take_next()) is not None:
                    active.append(taken)
                case "finish" if active:
                    broker.finish(active.pop())
        for evaluation in active:
            broker.finish(evaluation)

        expected = sorted(key for key, each in current.items() if each.status is EvaluationStatus.PENDING)
        assert sorted(take_all(broker)) == expected
        assert (broker.has_queued, broker.remaining_slots, broker.count_queues()) == (False, 0, (0, 0, 0))
