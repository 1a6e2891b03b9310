"""When failed allocations are retried (scheduling.md 5.7)."""

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job
from tests.kit.state import SECOND_NS, an_allocation
from wharf.cluster.scheduling.reconcile.rescheduling import (
    build_tracker,
    decide_retry,
    get_next_delay_ns,
    list_avoided_nodes,
)
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, RescheduleEvent, RescheduleTracker
from wharf.contract.model.allocations.task_states import TaskState, TaskStatus
from wharf.contract.model.jobs.group_policies import ReschedulePolicy
from wharf.contract.model.times import to_datetime

FAILED_AT_NS = 1_700_000_000 * SECOND_NS
"""The time of the failure."""


def make_events(*delays: int, last_s_ago: int = 10) -> tuple[RescheduleEvent, ...]:
    """Return events with these delays: the last one this long before the failure, the others 100 s apart."""
    ages = [last_s_ago + 100 * (len(delays) - 1 - position) for position in range(len(delays))]
    return tuple(
        RescheduleEvent(
            reschedule_time=FAILED_AT_NS - age * SECOND_NS,
            prev_alloc_id=f"a{position}",
            prev_node_id=f"n{position}",
            delay=delay * SECOND_NS,
        )
        for position, (age, delay) in enumerate(zip(ages, delays, strict=True))
    )


def make_failed(*events: RescheduleEvent) -> Allocation:
    return an_allocation(
        a_job(),
        node_id="n-last",
        client_status=ClientStatus.FAILED,
        modify_time=FAILED_AT_NS,
        reschedule_tracker=RescheduleTracker(events=events) if events else None,
    )


def a_policy(**fields: object) -> ReschedulePolicy:
    defaults = {"delay": 5 * SECOND_NS, "delay_function": "constant", "max_delay": 3600 * SECOND_NS, "unlimited": True}
    return replace(ReschedulePolicy(), **{**defaults, **fields})


@pytest.mark.parametrize(
    ("function", "events", "expected_s"),
    [
        ("constant", make_events(5, 5), 5),
        ("exponential", (), 5),
        ("exponential", make_events(5), 10),
        ("exponential", make_events(5, 10, 20), 40),
        ("exponential", make_events(5, 40), 60),
        ("exponential", make_events(5, 40, last_s_ago=61), 5),
        ("fibonacci", (), 5),
        ("fibonacci", make_events(5), 5),
        ("fibonacci", make_events(5, 5), 10),
        ("fibonacci", make_events(5, 5, 10, 15), 25),
        ("fibonacci", make_events(30, 40), 60),
    ],
)
def test_delays_grow_by_their_function_up_to_the_maximum_and_start_again_after_a_good_run(
    function: str, events: tuple[RescheduleEvent, ...], expected_s: int
) -> None:
    policy = a_policy(delay_function=function, max_delay=60 * SECOND_NS)

    assert expected_s * SECOND_NS == get_next_delay_ns(policy, events, FAILED_AT_NS)


@pytest.mark.parametrize(("function", "expected_s"), [("constant", 5), ("exponential", 8_000), ("fibonacci", 6_000)])
def test_without_a_maximum_delays_grow_for_ever(function: str, expected_s: int) -> None:
    policy = a_policy(delay_function=function, max_delay=0)

    assert expected_s * SECOND_NS == get_next_delay_ns(policy, make_events(2_000, 4_000), FAILED_AT_NS)


def decide(policy: ReschedulePolicy, *events: RescheduleEvent, after_s: float = 0, **options: bool) -> int | None:
    group = a_group(reschedule_policy=policy)
    return decide_retry(make_failed(*events), group, FAILED_AT_NS + round(after_s * SECOND_NS), **options)


def test_a_retry_due_within_a_second_is_made_now_and_else_later() -> None:
    later = FAILED_AT_NS + 5 * SECOND_NS

    assert [decide(a_policy(), after_s=s) for s in (0, 3.9, 4, 7)] == [
        later,
        later,
        FAILED_AT_NS + 4 * SECOND_NS,
        FAILED_AT_NS + 7 * SECOND_NS,
    ]
    assert decide(a_policy(), is_follow_up_due=True) == FAILED_AT_NS
    assert decide(a_policy(), is_retry_pending=True) is None


def test_a_failure_time_in_the_future_counts_as_now() -> None:
    ended = TaskState(state=TaskStatus.DEAD, failed=True, finished_at=to_datetime(FAILED_AT_NS + 3_600 * SECOND_NS))
    allocation = replace(make_failed(), task_states={"server": ended})

    assert decide(a_policy(), after_s=-3_600) == FAILED_AT_NS - 3_595 * SECOND_NS
    assert decide_retry(allocation, a_group(reschedule_policy=a_policy()), FAILED_AT_NS) == FAILED_AT_NS + 5 * SECOND_NS


def test_only_the_attempts_of_the_interval_count() -> None:
    policy = a_policy(unlimited=False, attempts=2, interval=150 * SECOND_NS)

    assert decide(policy, *make_events(5, last_s_ago=20)) == FAILED_AT_NS + 5 * SECOND_NS
    assert decide(policy, *make_events(5, 5, last_s_ago=20)) is None
    assert decide(policy, *make_events(5, 5, last_s_ago=60)) == FAILED_AT_NS + 5 * SECOND_NS
    assert (
        decide(policy, *make_events(5, 5, last_s_ago=-152)) == FAILED_AT_NS + 5 * SECOND_NS
    )  # The clock was set back.
    assert decide(a_policy(unlimited=False, attempts=0)) is None
    assert decide(a_policy(unlimited=False, attempts=1, interval=5 * SECOND_NS)) is None


def test_a_limited_policy_remembers_its_interval_and_an_unlimited_one_the_last_five_attempts() -> None:
    limited = a_group(reschedule_policy=a_policy(unlimited=False, attempts=9, interval=250 * SECOND_NS))
    unlimited = a_group(reschedule_policy=a_policy())
    previous = make_failed(*make_events(1, 2, 3, 4, 5, 6, 7))

    def delays(group: object) -> list[int]:
        tracker = build_tracker(previous, group, FAILED_AT_NS)  # type: ignore[arg-type]
        return [event.delay // SECOND_NS for event in tracker.events or ()]

    assert (delays(limited), delays(unlimited)) == ([5, 6, 7, 5], [3, 4, 5, 6, 7, 5])


@pytest.mark.parametrize("attempts", [0, 3])
def test_a_limited_policy_remembers_few_replacements_of_allocations_that_always_end(attempts: int) -> None:
    policy = a_policy(unlimited=False, attempts=attempts, interval=24 * 3600 * SECOND_NS)

    tracker = build_tracker(make_failed(*make_events(*[5] * 100)), a_group(reschedule_policy=policy), FAILED_AT_NS)

    earlier_ids = [event.prev_alloc_id for event in tracker.events or ()][:-1]
    assert earlier_ids == ["a95", "a96", "a97", "a98", "a99"]


def test_the_newest_event_names_the_replaced_allocation_and_its_node() -> None:
    tracker = build_tracker(make_failed(), a_group(reschedule_policy=a_policy()), FAILED_AT_NS)

    assert tracker.events == (
        RescheduleEvent(reschedule_time=FAILED_AT_NS, prev_alloc_id="a1", prev_node_id="n-last", delay=5 * SECOND_NS),
    )


def test_nodes_of_failed_attempts_are_avoided() -> None:
    assert list_avoided_nodes(make_failed(*make_events(5, 5))) == ("n0", "n1", "n-last")
    assert list_avoided_nodes(replace(make_failed(*make_events(5)), client_status=ClientStatus.LOST)) == ("n0",)
