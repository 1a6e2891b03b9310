"""The leader's queue of pending evaluations."""

from typing import Any

from msgspec.structs import replace

from tests.builders import a_job
from tests.kit.state import an_evaluation
from wharf.cluster.controllers.evaluation_broker import EvaluationBroker
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus


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
