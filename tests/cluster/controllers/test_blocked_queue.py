"""The leader's queue of blocked evaluations."""

from typing import Any

from msgspec.structs import replace

from tests.builders import a_job
from tests.kit.state import SECOND_NS, an_evaluation
from wharf.cluster.controllers.blocked_queue import BlockedQueue
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus, EvaluationTrigger


def waiting(evaluation_id: str, **fields: Any) -> Evaluation:
    arguments = {
        "status": EvaluationStatus.BLOCKED,
        "snapshot_index": 10,
        "class_eligibility": {"small": False},
        **fields,
    }
    return an_evaluation(a_job(evaluation_id), evaluation_id, **arguments)


def make_queue(*evaluations: Evaluation) -> BlockedQueue:
    blocked = BlockedQueue()
    for evaluation in evaluations:
        blocked.update(evaluation)
    return blocked


def take_retries(blocked: BlockedQueue, max_count: int = 10) -> list[str]:
    return [evaluation.id for evaluation in blocked.select_retries(max_count)]


def test_only_evaluations_that_can_use_freed_capacity_are_retried() -> None:
    blocked = make_queue(
        waiting("cannot"),
        waiting("can", class_eligibility={"small": True}),
        waiting("unseen", class_eligibility={"large": False}),
        waiting("escaped", class_eligibility=None, escaped_computed_class=True),
    )

    blocked.on_capacity_freed(["small"], 11)

    assert sorted(take_retries(blocked)) == ["can", "escaped", "unseen"]


def test_capacity_freed_on_a_node_without_a_class_matches_every_evaluation() -> None:
    blocked = make_queue(waiting("any"))

    blocked.on_capacity_freed([""], 11)

    assert take_retries(blocked) == ["any"]


def test_capacity_freed_while_an_evaluation_was_planned_is_not_missed() -> None:
    blocked = BlockedQueue()
    blocked.on_capacity_freed(["large"], 11)
    blocked.update(waiting("before", snapshot_index=10))
    blocked.update(waiting("after", snapshot_index=11))
    blocked.update(waiting("cannot", snapshot_index=10, class_eligibility={"large": False}))

    assert take_retries(blocked) == ["before"]


def test_retries_are_ordered_by_priority_and_then_by_age() -> None:
    blocked = make_queue(
        waiting("young", create_index=9),
        waiting("old", create_index=3),
        waiting("urgent", create_index=12, priority=90),
    )
    blocked.retry_all()

    assert take_retries(blocked, 2) == ["urgent", "old"]


def test_an_unblocked_evaluation_is_not_retried() -> None:
    evaluation = waiting("e")
    blocked = make_queue(evaluation)
    blocked.retry_all()
    blocked.update(replace(evaluation, status=EvaluationStatus.PENDING))

    assert (take_retries(blocked), len(blocked)) == ([], 0)


def test_an_evaluation_with_too_many_conflicts_is_retried_after_a_minute() -> None:
    blocked = make_queue(
        waiting("room"),
        waiting("conflicts", triggered_by=EvaluationTrigger.MAX_PLAN_ATTEMPTS, modify_time=5 * SECOND_NS),
    )
    blocked.retry_conflicted(64 * SECOND_NS)
    early = take_retries(blocked)
    blocked.retry_conflicted(65 * SECOND_NS)

    assert (early, take_retries(blocked), blocked.next_wake_ns()) == ([], ["conflicts"], 65 * SECOND_NS)


def test_an_evaluation_with_too_many_conflicts_is_retried_at_once_when_the_clock_is_set_back() -> None:
    blocked = make_queue(
        waiting("conflicts", triggered_by=EvaluationTrigger.MAX_PLAN_ATTEMPTS, modify_time=5 * SECOND_NS)
    )

    blocked.retry_conflicted(4 * SECOND_NS)

    assert take_retries(blocked) == ["conflicts"]


def test_an_evaluation_that_waits_for_its_quota_is_retried_when_any_allocation_ends() -> None:
    blocked = make_queue(waiting("quota", quota_limit_reached="small"))

    blocked.on_capacity_freed(["small"], 11)

    assert take_retries(blocked) == ["quota"]


def make_child(evaluation_id: str, create_index: int, **fields: Any) -> Evaluation:
    return waiting(evaluation_id, waits_behind="parent", create_index=create_index, **fields)


def test_a_freed_slot_retries_only_the_child_that_has_waited_longest() -> None:
    blocked = make_queue(make_child("young", 9), make_child("old", 3), waiting("other", waits_behind="another"))

    blocked.on_slot_freed("default", "parent", 11)

    assert take_retries(blocked) == ["old"]


def test_freed_capacity_does_not_retry_a_child_that_waits_for_a_slot() -> None:
    blocked = make_queue(make_child("child", 3))

    blocked.on_capacity_freed(["small", ""], 11)

    assert take_retries(blocked) == []


def test_a_slot_freed_while_a_child_was_planned_is_not_missed() -> None:
    blocked = BlockedQueue()
    blocked.on_slot_freed("default", "parent", 11)
    blocked.update(make_child("child", 3, snapshot_index=10))

    assert take_retries(blocked) == ["child"]


def test_a_child_that_lacks_capacity_passes_its_slot_to_the_next_child() -> None:
    first = make_child("first", 3)
    blocked = make_queue(first, make_child("second", 4))
    blocked.on_slot_freed("default", "parent", 11)
    blocked.update(replace(first, status=EvaluationStatus.PENDING))
    blocked.update(replace(first, waits_behind="", snapshot_index=11))

    assert take_retries(blocked) == ["second"]


def test_reservations_are_checked_every_fifteen_seconds() -> None:
    blocked = make_queue(waiting("big"))

    assert [blocked.start_reservation_check(at_s * SECOND_NS) for at_s in (200, 201, 214, 215)] == [
        True,
        False,
        False,
        True,
    ]


def test_a_clock_that_is_set_back_does_not_delay_the_reservation_check() -> None:
    blocked = make_queue(waiting("e"))

    checked = [blocked.start_reservation_check(at_s * SECOND_NS) for at_s in (4_000, 400, 401, 415)]

    assert checked == [True, True, False, True]
