"""Whether, and when, something that failed or was lost is tried again on another node (scheduling.md 5.7)."""

import enum
from typing import Final

import msgspec

from wharf.model.allocation import Allocation, RescheduleEvent, RescheduleTracker
from wharf.model.group import TaskGroup
from wharf.model.moment import to_ns
from wharf.model.policies import DelayFunction, ReschedulePolicy

SECOND_NS: Final = 1_000_000_000
SOON_NS: Final = SECOND_NS
"""What is due within so long is done now."""

EVENTS_KEPT: Final = 5


class When(enum.Enum):
    NEVER = "never"
    NOW = "now"
    LATER = "later"


class Retry(msgspec.Struct, frozen=True):
    """`at_ns` says when, where it is later."""

    when: When
    at_ns: int = 0


NEVER: Final = Retry(When.NEVER)
NOW: Final = Retry(When.NOW)


def retry_of(
    allocation: Allocation,
    group: TaskGroup,
    now_ns: int,
    *,
    is_followed_up: bool = False,
    is_awaited: bool = False,
    failed_at_ns: int | None = None,
) -> Retry:
    """By the group's policy. `is_followed_up`: this very evaluation was made to try it again. `is_awaited`: another one
    was, and its time is still to come. `failed_at_ns` stands for the time of a failure that the node could not tell of.
    """
    policy = group.reschedule_policy
    if policy is None or not policy.is_enabled:
        return NEVER
    # What failed in the future did so before the clock was set back, or by another's clock.
    failed_at = min(now_ns, failure_time_ns(allocation) if failed_at_ns is None else failed_at_ns)
    events = events_of(allocation)
    delay = next_delay_ns(policy, events, failed_at)
    if not is_eligible(policy, events, failed_at, delay):
        return NEVER
    due = failed_at + delay
    if is_followed_up or due - now_ns <= SOON_NS:
        return NOW
    return NEVER if is_awaited else Retry(When.LATER, due)


def is_eligible(
    policy: ReschedulePolicy, events: tuple[RescheduleEvent, ...], failed_at_ns: int, delay_ns: int
) -> bool:
    if policy.unlimited:
        return True
    if policy.attempts <= 0:
        return False
    used = sum(failed_at_ns - event.reschedule_time < policy.interval for event in events)
    return used < policy.attempts and delay_ns < policy.interval


def may_ever_retry(allocation: Allocation, group: TaskGroup) -> bool:
    """Whether the policy leaves another attempt at all."""
    policy = group.reschedule_policy
    if policy is None or not policy.is_enabled:
        return False
    events, failed_at = events_of(allocation), failure_time_ns(allocation)
    return is_eligible(policy, events, failed_at, next_delay_ns(policy, events, failed_at))


def next_delay_ns(policy: ReschedulePolicy, events: tuple[RescheduleEvent, ...], failed_at_ns: int) -> int:
    if policy.delay_function == DelayFunction.CONSTANT or not events:
        return policy.delay
    last = events[-1]
    if policy.delay_function == DelayFunction.EXPONENTIAL:
        delay = last.delay * 2
    else:
        delay = last.delay + events[-2].delay if len(events) > 1 else policy.delay
    if policy.max_delay and delay > policy.max_delay:
        # It ran well for so long that it begins anew.
        return policy.delay if failed_at_ns - last.reschedule_time > policy.max_delay else policy.max_delay
    return delay


def failure_time_ns(allocation: Allocation) -> int:
    """When its last task ended; where nobody says, when it was last written. A node whose clock is ahead is not believed."""
    ends = [state.finished_at for state in (allocation.task_states or {}).values() if state.finished_at is not None]
    return min(to_ns(max(ends)), allocation.modify_time) if ends else allocation.modify_time


def events_of(allocation: Allocation) -> tuple[RescheduleEvent, ...]:
    tracker = allocation.reschedule_tracker
    return (tracker.events if tracker is not None else None) or ()


def tracker_after(
    previous: Allocation, group: TaskGroup, now_ns: int, failed_at_ns: int | None = None
) -> RescheduleTracker:
    """What the replacement remembers of those before it."""
    policy = group.reschedule_policy
    events = events_of(previous)
    delay = 0
    if policy is not None:
        delay = next_delay_ns(policy, events, failure_time_ns(previous) if failed_at_ns is None else failed_at_ns)
        if policy.unlimited:
            events = events[-EVENTS_KEPT:]
        else:
            events = tuple(event for event in events if now_ns - event.reschedule_time < policy.interval)
    event = RescheduleEvent(
        reschedule_time=now_ns, prev_alloc_id=previous.id, prev_node_id=previous.node_id, delay=delay
    )
    return RescheduleTracker(events=(*events, event))


def nodes_to_avoid(previous: Allocation) -> tuple[str, ...]:
    """Where it failed before."""
    avoid = [event.prev_node_id for event in events_of(previous)]
    if previous.client_status == "failed":
        avoid.append(previous.node_id)
    return tuple(dict.fromkeys(avoid))
