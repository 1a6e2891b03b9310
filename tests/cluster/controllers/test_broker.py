"""The leader's queue of evaluations."""

from typing import Any

from msgspec.structs import replace

from tests.builders import a_job
from tests.kit.state import an_evaluation
from wharf.cluster.controllers.evaluation_broker import EvaluationBroker
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus


def of(job_id: str, evaluation_id: str, **fields: Any) -> Evaluation:
    return an_evaluation(a_job(job_id), evaluation_id, **fields)


def ended(evaluation: Evaluation, status: EvaluationStatus = EvaluationStatus.COMPLETE) -> Evaluation:
    return replace(evaluation, status=status)


def drained(broker: EvaluationBroker) -> list[str]:
    """Every evaluation in the order in which it is given, each done at once."""
    order = []
    while (evaluation := broker.take_next()) is not None:
        order.append(evaluation.id)
        broker.update(ended(evaluation))
        broker.finish(evaluation)
    return order


def test_the_higher_priority_goes_first_and_then_the_older() -> None:
    broker = EvaluationBroker()
    for evaluation in (
        of("a", "young", create_index=9),
        of("b", "old", create_index=3),
        of("c", "urgent", create_index=12, priority=90),
    ):
        broker.update(evaluation)

    assert drained(broker) == ["urgent", "old", "young"]


def test_only_one_evaluation_of_a_job_is_given_at_a_time() -> None:
    broker = EvaluationBroker()
    for number in range(3):
        broker.update(of("a", f"a{number}", create_index=number))
    first = broker.take_next()
    assert first is not None

    assert broker.take_next() is None

    broker.update(ended(first))
    broker.finish(first)
    assert drained(broker) == ["a1", "a2"]


def test_other_jobs_go_on_while_one_is_busy() -> None:
    broker = EvaluationBroker()
    broker.update(of("a", "a1", create_index=1))
    broker.update(of("a", "a2", create_index=2))
    broker.update(of("b", "b1", create_index=3))
    broker.take_next()

    following = broker.take_next()

    assert following is not None
    assert following.id == "b1"


def test_an_evaluation_that_is_still_pending_when_it_is_done_comes_again() -> None:
    broker = EvaluationBroker()
    broker.update(of("a", "a1"))
    first = broker.take_next()
    assert first is not None

    broker.finish(first)

    assert broker.take_next() == first


def test_it_comes_again_as_it_was_heard_of_last() -> None:
    broker = EvaluationBroker()
    broker.update(of("a", "a1"))
    first = broker.take_next()
    assert first is not None
    broker.update(replace(first, modify_index=99))

    broker.finish(first)

    assert broker.take_next() == replace(first, modify_index=99)


def test_an_evaluation_that_ended_meanwhile_is_not_given() -> None:
    broker = EvaluationBroker()
    broker.update(of("a", "a1"))

    broker.update(ended(of("a", "a1")))

    assert (broker.take_next(), len(broker)) == (None, 0)


def test_one_that_is_gone_is_not_given() -> None:
    broker = EvaluationBroker()
    broker.update(of("a", "a1"))

    broker.remove("a1")

    assert (broker.take_next(), len(broker)) == (None, 0)


def test_one_that_was_blocked_and_came_free_again_is_given_once() -> None:
    broker = EvaluationBroker()
    pending, blocked = of("a", "a1"), of("a", "a1", status=EvaluationStatus.BLOCKED)
    for _ in range(5):
        broker.update(pending)
        broker.update(blocked)
    broker.update(pending)

    assert drained(broker) == ["a1"]


def test_one_that_comes_again_and_again_is_in_the_queue_once() -> None:
    broker = EvaluationBroker()
    broker.update(of("a", "a1"))
    for _ in range(5):
        evaluation = broker.take_next()
        assert evaluation is not None
        broker.update(evaluation)
        broker.finish(evaluation)

    assert drained(broker) == ["a1"]


def test_what_could_not_be_processed_is_given_again_after_a_second_and_after_twenty_and_keeps_its_job_busy() -> None:
    broker = EvaluationBroker()
    for number in range(2):
        broker.update(of("a", f"a{number}", create_index=number))
    given = []
    for wait_s in (1, 20):
        evaluation = broker.take_next()
        assert evaluation is not None
        given.append(evaluation.id)
        assert broker.redeliver_later(evaluation, 0)
        broker.enqueue_due(wait_s * 1_000_000_000 - 1)
        assert broker.take_next() is None
        broker.enqueue_due(wait_s * 1_000_000_000)
    third = broker.take_next()
    assert third is not None

    assert [*given, third.id] == ["a0", "a0", "a0"]
    assert not broker.redeliver_later(third, 0)


def test_what_was_given_back_waits_no_longer_though_the_clock_is_set_back() -> None:
    broker = EvaluationBroker()
    broker.update(of("a", "a1"))
    first = broker.take_next()
    assert first is not None
    broker.redeliver_later(first, 3_600_000_000_000)

    broker.enqueue_due(0)

    assert (drained(broker), broker.next_wake_ns()) == (["a1"], None)


def test_what_was_given_back_and_is_cancelled_meanwhile_leaves_its_job_free() -> None:
    broker = EvaluationBroker()
    for number in range(2):
        broker.update(of("a", f"a{number}", create_index=number))
    first = broker.take_next()
    assert first is not None
    broker.redeliver_later(first, 0)

    broker.update(ended(first, EvaluationStatus.CANCELED))

    assert drained(broker) == ["a1"]


def test_those_that_are_tried_together_keep_their_turns_and_stand_where_the_oldest_of_them_stands() -> None:
    broker = EvaluationBroker()
    old, young = (
        an_evaluation(a_job("old"), "old", create_index=3),
        an_evaluation(a_job("young"), "young", create_index=9),
    )
    broker.assign_slots([young, old])
    for each in (an_evaluation(a_job("new"), "new", create_index=5), old, young):
        broker.update(each)
    given = [broker.take_next() for _ in range(3)]

    assert ([each.id for each in given if each is not None], broker.remaining_slots) == (["young", "old", "new"], 0)
