"""The leader's queue of evaluations that wait for room."""

from typing import Any

from msgspec.structs import replace

from tests.builders import a_job
from tests.kit.state import SECOND_NS, an_evaluation
from wharf.cluster.controllers.blocked_queue import BlockedQueue
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus, EvaluationTrigger


def waiting(evaluation_id: str, **fields: Any) -> Evaluation:
    given = {"status": EvaluationStatus.BLOCKED, "snapshot_index": 10, "class_eligibility": {"small": False}, **fields}
    return an_evaluation(a_job(evaluation_id), evaluation_id, **given)


def with_these(*evaluations: Evaluation) -> BlockedQueue:
    blocked = BlockedQueue()
    for evaluation in evaluations:
        blocked.update(evaluation)
    return blocked


def tried(blocked: BlockedQueue, most: int = 10) -> list[str]:
    return [evaluation.id for evaluation in blocked.select_retries(most)]


def test_only_those_that_could_profit_are_tried() -> None:
    blocked = with_these(
        waiting("cannot"),
        waiting("can", class_eligibility={"small": True}),
        waiting("unseen", class_eligibility={"large": False}),
        waiting("escaped", class_eligibility=None, escaped_computed_class=True),
    )

    blocked.on_capacity_freed(["small"], 11)

    assert sorted(tried(blocked)) == ["can", "escaped", "unseen"]


def test_room_on_a_node_whose_kind_has_no_name_may_help_any() -> None:
    blocked = with_these(waiting("any"))

    blocked.on_capacity_freed([""], 11)

    assert tried(blocked) == ["any"]


def test_room_that_came_while_it_was_decided_is_not_missed() -> None:
    blocked = BlockedQueue()
    blocked.on_capacity_freed(["large"], 11)
    blocked.update(waiting("before", snapshot_index=10))
    blocked.update(waiting("after", snapshot_index=11))
    blocked.update(waiting("cannot", snapshot_index=10, class_eligibility={"large": False}))

    assert tried(blocked) == ["before"]


def test_the_most_urgent_are_tried_first_and_then_the_oldest() -> None:
    blocked = with_these(
        waiting("young", create_index=9),
        waiting("old", create_index=3),
        waiting("urgent", create_index=12, priority=90),
    )
    blocked.retry_all()

    assert tried(blocked, 2) == ["urgent", "old"]


def test_what_is_no_longer_blocked_is_not_tried() -> None:
    evaluation = waiting("e")
    blocked = with_these(evaluation)
    blocked.retry_all()
    blocked.update(replace(evaluation, status=EvaluationStatus.PENDING))

    assert (tried(blocked), len(blocked)) == ([], 0)


def test_what_met_too_many_conflicts_is_tried_after_a_minute() -> None:
    blocked = with_these(
        waiting("room"),
        waiting("conflicts", triggered_by=EvaluationTrigger.MAX_PLAN_ATTEMPTS, modify_time=5 * SECOND_NS),
    )
    blocked.retry_conflicted(64 * SECOND_NS)
    early = tried(blocked)
    blocked.retry_conflicted(65 * SECOND_NS)

    assert (early, tried(blocked), blocked.next_wake_ns()) == ([], ["conflicts"], 65 * SECOND_NS)


def test_what_met_too_many_conflicts_is_tried_at_once_when_the_clock_was_set_back() -> None:
    blocked = with_these(
        waiting("conflicts", triggered_by=EvaluationTrigger.MAX_PLAN_ATTEMPTS, modify_time=5 * SECOND_NS)
    )

    blocked.retry_conflicted(4 * SECOND_NS)

    assert tried(blocked) == ["conflicts"]


def test_what_its_quota_keeps_waiting_profits_from_whatever_ends() -> None:
    blocked = with_these(waiting("quota", quota_limit_reached="small"))

    blocked.on_capacity_freed(["small"], 11)

    assert tried(blocked) == ["quota"]


def behind(evaluation_id: str, create_index: int, **fields: Any) -> Evaluation:
    return waiting(evaluation_id, waits_behind="parent", create_index=create_index, **fields)


def test_when_a_turn_comes_whoever_waits_longest_behind_the_job_is_tried_and_nobody_else() -> None:
    blocked = with_these(behind("young", 9), behind("old", 3), waiting("other", waits_behind="another"))

    blocked.on_slot_freed("default", "parent", 11)

    assert tried(blocked) == ["old"]


def test_no_room_helps_who_waits_for_a_turn() -> None:
    blocked = with_these(behind("child", 3))

    blocked.on_capacity_freed(["small", ""], 11)

    assert tried(blocked) == []


def test_a_turn_that_came_while_it_was_decided_is_not_missed() -> None:
    blocked = BlockedQueue()
    blocked.on_slot_freed("default", "parent", 11)
    blocked.update(behind("child", 3, snapshot_index=10))

    assert tried(blocked) == ["child"]


def test_who_lacks_room_when_its_turn_comes_leaves_the_turn_to_the_next() -> None:
    first = behind("first", 3)
    blocked = with_these(first, behind("second", 4))
    blocked.on_slot_freed("default", "parent", 11)
    blocked.update(replace(first, status=EvaluationStatus.PENDING))
    blocked.update(replace(first, waits_behind="", snapshot_index=11))

    assert tried(blocked) == ["second"]


def test_who_is_to_have_a_node_is_looked_at_every_fifteen_seconds() -> None:
    blocked = with_these(waiting("big"))

    assert [blocked.start_reservation_check(at_s * SECOND_NS) for at_s in (200, 201, 214, 215)] == [
        True,
        False,
        False,
        True,
    ]


def test_a_clock_that_is_set_back_delays_no_look_at_who_waits_too_long() -> None:
    blocked = with_these(waiting("e"))

    looked = [blocked.start_reservation_check(at_s * SECOND_NS) for at_s in (4_000, 400, 401, 415)]

    assert looked == [True, True, False, True]
