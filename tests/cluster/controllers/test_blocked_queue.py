"""The leader's queue of blocked evaluations."""

from typing import Any

from msgspec.structs import replace

from tests.builders import a_job
from tests.kit.state import SECOND_NS, an_evaluation
from wharf.cluster.controllers.blocked_queue import (
    CONFLICT_RETRY_DELAY_NS,
    MAX_CACHED_CHANGES,
    RESERVATION_CHECK_INTERVAL_NS,
    BlockedQueue,
)
from wharf.cluster.scheduling.blocked.reservation_policy import RESERVATION_DELAY_NS
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


def test_an_empty_queue_does_not_delay_the_first_reservation_check() -> None:
    blocked = make_queue()
    checked_empty = blocked.start_reservation_check(200 * SECOND_NS)
    blocked.update(waiting("e"))

    assert (checked_empty, blocked.start_reservation_check(201 * SECOND_NS)) == (False, True)


def make_conflicted(evaluation_id: str = "conflicts", **fields: Any) -> Evaluation:
    return waiting(evaluation_id, triggered_by=EvaluationTrigger.MAX_PLAN_ATTEMPTS, **fields)


# -- capacity


def test_evaluations_that_know_no_classes_use_any_capacity() -> None:
    blocked = make_queue(waiting("e", class_eligibility=None))

    blocked.on_capacity_freed(["small"], 11)

    assert take_retries(blocked) == ["e"]


def test_an_evaluation_with_unique_constraints_uses_capacity_of_classes_that_were_not_eligible() -> None:
    blocked = make_queue(waiting("e", escaped_computed_class=True, class_eligibility={"small": False}))

    blocked.on_capacity_freed(["small"], 11)

    assert take_retries(blocked) == ["e"]


def test_capacity_of_one_of_several_classes_is_enough() -> None:
    blocked = make_queue(waiting("e", class_eligibility={"small": True, "large": False}))

    blocked.on_capacity_freed(["large", "small"], 11)

    assert take_retries(blocked) == ["e"]


def test_capacity_freed_on_no_node_retries_nothing() -> None:
    blocked = make_queue(waiting("before", class_eligibility=None))
    blocked.on_capacity_freed([], 11)
    blocked.update(waiting("after", class_eligibility=None))

    assert (take_retries(blocked), blocked.has_retries) == ([], False)


def test_a_class_is_remembered_at_the_index_of_its_last_change() -> None:
    blocked = BlockedQueue()
    blocked.on_capacity_freed(["large"], 11)
    blocked.on_capacity_freed(["large"], 13)
    blocked.update(waiting("e", snapshot_index=12))

    assert take_retries(blocked) == ["e"]


def test_the_classes_that_changed_longest_ago_are_dropped_when_there_are_too_many() -> None:
    blocked = BlockedQueue()
    blocked.on_capacity_freed(["first", "second"], 11)
    blocked.on_capacity_freed(["first"], 12)
    blocked.on_capacity_freed([f"class-{number}" for number in range(MAX_CACHED_CHANGES - 1)], 13)
    known = dict.fromkeys((f"class-{number}" for number in range(MAX_CACHED_CHANGES)), False)
    blocked.update(waiting("first", class_eligibility={**known, "second": False}))
    blocked.update(waiting("second", class_eligibility={**known, "first": False}))

    assert take_retries(blocked) == ["first"]


# -- conflicts


def test_the_queue_wakes_a_minute_after_the_oldest_conflict() -> None:
    blocked = make_queue(
        *(make_conflicted(f"e{at_s}", modify_time=at_s * SECOND_NS, reserved_node_id="n") for at_s in (7, 5, 9))
    )

    assert blocked.next_wake_ns() == 5 * SECOND_NS + CONFLICT_RETRY_DELAY_NS


def test_an_evaluation_is_not_retried_for_a_conflict_in_the_first_minute() -> None:
    blocked = make_queue(make_conflicted(modify_time=5 * SECOND_NS))

    blocked.retry_conflicted(5 * SECOND_NS)

    assert take_retries(blocked) == []


def test_an_evaluation_that_was_removed_is_retried_for_no_reason() -> None:
    blocked = make_queue(make_conflicted(), waiting("other", reserved_node_id="n"))
    blocked.retry_all()
    blocked.remove("conflicts")
    blocked.remove("unknown")
    blocked.retry_conflicted(3_600 * SECOND_NS)

    assert (take_retries(blocked), blocked.next_wake_ns()) == (["other"], None)


# -- children


def test_a_slot_goes_to_the_child_that_waited_longest_and_then_to_the_oldest() -> None:
    blocked = make_queue(
        make_child("old", 3, waiting_since=9),
        make_child("young", 5, waiting_since=7),
        make_child("next", 4, waiting_since=9),
    )
    order = []
    for index in (11, 12, 13):
        blocked.on_slot_freed("default", "parent", index)
        (retried,) = blocked.select_retries(10)
        order.append(retried.id)
        blocked.update(replace(retried, status=EvaluationStatus.COMPLETE))

    assert order == ["young", "old", "next"]


def test_a_slot_that_was_freed_before_the_child_was_planned_is_used_already() -> None:
    blocked = BlockedQueue()
    blocked.on_slot_freed("default", "parent", 10)
    blocked.on_slot_freed("default", "other parent", 11)
    blocked.update(make_child("child", 3, snapshot_index=10))

    assert take_retries(blocked) == []


def test_a_slot_of_a_parent_with_the_same_name_in_another_namespace_is_another_slot() -> None:
    blocked = make_queue(make_child("child", 3))

    blocked.on_slot_freed("other", "parent", 11)
    blocked.update(make_child("later", 4))

    assert take_retries(blocked) == []


def test_a_slot_is_not_given_to_a_child_that_waits_for_something_else_by_now() -> None:
    first = make_child("first", 3)
    blocked = make_queue(first, make_child("second", 4))
    blocked.update(replace(first, waits_behind="", class_eligibility={"small": False}))

    blocked.on_slot_freed("default", "parent", 11)

    assert take_retries(blocked) == ["second"]


def test_a_child_that_waits_for_its_slot_again_does_not_pass_it_on() -> None:
    first = make_child("first", 3)
    blocked = make_queue(first, make_child("second", 4))
    blocked.on_slot_freed("default", "parent", 11)
    blocked.update(replace(first, status=EvaluationStatus.PENDING))
    blocked.update(replace(first, snapshot_index=11))

    assert take_retries(blocked) == []


def test_a_child_passes_its_slot_on_once() -> None:
    first, second = make_child("first", 3), make_child("second", 4)
    blocked = make_queue(first, second, make_child("third", 5))
    blocked.on_slot_freed("default", "parent", 11)
    blocked.update(replace(first, status=EvaluationStatus.PENDING))
    blocked.update(replace(first, waits_behind="", snapshot_index=11))
    blocked.update(replace(second, status=EvaluationStatus.PENDING))
    blocked.update(replace(first, waits_behind="", snapshot_index=12))

    assert take_retries(blocked) == []


def test_a_slot_that_is_freed_again_is_remembered_at_its_last_index() -> None:
    blocked = BlockedQueue()
    blocked.on_slot_freed("default", "parent", 11)
    blocked.on_slot_freed("default", "parent", 13)
    blocked.update(make_child("child", 3, snapshot_index=12))

    assert take_retries(blocked) == ["child"]


def test_the_parents_whose_slots_were_freed_longest_ago_are_dropped_when_there_are_too_many() -> None:
    blocked = BlockedQueue()
    for parent in ("first", "second", "first", *(f"parent-{number}" for number in range(MAX_CACHED_CHANGES - 1))):
        blocked.on_slot_freed("default", parent, 11)
    for parent in ("first", "second"):
        blocked.update(waiting(parent, waits_behind=parent))

    assert take_retries(blocked) == ["first"]


# -- reservations, and the order of retries


def test_the_queue_wakes_for_a_reservation_when_the_longest_waiting_evaluation_has_waited_long_enough() -> None:
    blocked = make_queue(
        waiting("reserved", waiting_since=1, reserved_node_id="n"),
        waiting("young", waiting_since=9),
        waiting("old", waiting_since=5),
    )

    assert blocked.next_wake_ns() == 5 + RESERVATION_DELAY_NS


def test_the_next_reservation_check_is_due_an_interval_after_the_last_one() -> None:
    blocked = make_queue(waiting("e", waiting_since=5))
    blocked.start_reservation_check(RESERVATION_DELAY_NS)

    assert blocked.next_wake_ns() == RESERVATION_DELAY_NS + RESERVATION_CHECK_INTERVAL_NS


def test_a_reservation_check_long_ago_does_not_bring_the_next_one_forward() -> None:
    blocked = make_queue(waiting("first"))
    blocked.start_reservation_check(5)
    blocked.remove("first")
    blocked.update(waiting("e", waiting_since=RESERVATION_CHECK_INTERVAL_NS))

    assert blocked.next_wake_ns() == RESERVATION_CHECK_INTERVAL_NS + RESERVATION_DELAY_NS


def test_the_earlier_of_a_conflict_retry_and_a_reservation_check_wakes_the_queue() -> None:
    blocked = make_queue(make_conflicted(modify_time=5, reserved_node_id="n"), waiting("e", waiting_since=5))
    by_delay = sorted((5 + CONFLICT_RETRY_DELAY_NS, 5 + RESERVATION_DELAY_NS))

    assert blocked.next_wake_ns() == by_delay[0]


def test_an_empty_queue_has_nothing_to_wake_for() -> None:
    assert make_queue().next_wake_ns() is None


def test_all_blocked_evaluations_are_listed_and_stay_until_they_change() -> None:
    first, second = waiting("first"), waiting("second")
    blocked = make_queue(first, second)
    blocked.retry_all()

    assert blocked.list_waiting() == [first, second]
    assert (take_retries(blocked), take_retries(blocked)) == (["first", "second"], ["first", "second"])


def test_retries_of_equal_age_are_ordered_by_their_ids() -> None:
    blocked = make_queue(waiting("b", create_index=3), waiting("a", create_index=3))
    blocked.retry_all()

    assert take_retries(blocked) == ["a", "b"]


def test_retries_can_be_ordered_by_the_caller() -> None:
    blocked = make_queue(waiting("a"), waiting("b"), waiting("c"))
    blocked.retry_all()

    retries = blocked.select_retries(
        2, lambda evaluations, limit: sorted(evaluations, key=lambda each: each.id, reverse=True)[:limit]
    )

    assert [each.id for each in retries] == ["c", "b"]
