"""Whether, and when, something that failed or was lost is tried again on another node (scheduling.md 5.7).

Which of a group's allocations failed and are tried again, now or later, and which are given up (scheduling.md 5.7).
"""

import enum
from typing import Final

import msgspec

from wharf.cluster.scheduling.reconcile.input import ReconcileInput
from wharf.cluster.scheduling.reconcile.outcome import FollowUp
from wharf.cluster.scheduling.reconcile.surplus import AllocationsById
from wharf.contract.model.allocations.allocation import (
    Allocation,
    ClientStatus,
    RescheduleEvent,
    RescheduleOutcome,
    RescheduleTracker,
)
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.group_policies import DelayFunction, ReschedulePolicy
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.times import to_ns

SECOND_NS: Final = 1_000_000_000
DUE_TOLERANCE_NS: Final = SECOND_NS
"""What is due within so long is done now."""

MAX_RESCHEDULE_EVENTS: Final = 5


class RetryKind(enum.Enum):
    NEVER = "never"
    NOW = "now"
    LATER = "later"


class RetryDecision(msgspec.Struct, frozen=True):
    """`at_ns` says when, where it is later."""

    kind: RetryKind
    due_at_ns: int = 0


NEVER_RETRY: Final = RetryDecision(RetryKind.NEVER)
RETRY_NOW: Final = RetryDecision(RetryKind.NOW)


def decide_retry(
    allocation: Allocation,
    group: TaskGroup,
    now_ns: int,
    *,
    is_follow_up_due: bool = False,
    is_retry_pending: bool = False,
    failed_at_ns: int | None = None,
) -> RetryDecision:
    """By the group's policy. `is_followed_up`: this very evaluation was made to try it again. `is_awaited`: another one
    was, and its time is still to come. `failed_at_ns` stands for the time of a failure that the node could not tell of.
    """
    policy = group.reschedule_policy
    if policy is None or not policy.is_enabled:
        return NEVER_RETRY
    # What failed in the future did so before the clock was set back, or by another's clock.
    failed_at = min(now_ns, get_failure_time_ns(allocation) if failed_at_ns is None else failed_at_ns)
    events = list_reschedule_events(allocation)
    delay = get_next_delay_ns(policy, events, failed_at)
    if not can_retry(policy, events, failed_at, delay):
        return NEVER_RETRY
    due = failed_at + delay
    if is_follow_up_due or due - now_ns <= DUE_TOLERANCE_NS:
        return RETRY_NOW
    return NEVER_RETRY if is_retry_pending else RetryDecision(RetryKind.LATER, due)


def can_retry(policy: ReschedulePolicy, events: tuple[RescheduleEvent, ...], failed_at_ns: int, delay_ns: int) -> bool:
    if policy.unlimited:
        return True
    if policy.attempts <= 0:
        return False
    used = sum(failed_at_ns - event.reschedule_time < policy.interval for event in events)
    return used < policy.attempts and delay_ns < policy.interval


def can_ever_retry(allocation: Allocation, group: TaskGroup) -> bool:
    """Whether the policy leaves another attempt at all."""
    policy = group.reschedule_policy
    if policy is None or not policy.is_enabled:
        return False
    events, failed_at = list_reschedule_events(allocation), get_failure_time_ns(allocation)
    return can_retry(policy, events, failed_at, get_next_delay_ns(policy, events, failed_at))


def get_next_delay_ns(policy: ReschedulePolicy, events: tuple[RescheduleEvent, ...], failed_at_ns: int) -> int:
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


def get_failure_time_ns(allocation: Allocation) -> int:
    """When its last task ended; where nobody says, when it was last written. A node whose clock is ahead is not believed."""
    ends = [state.finished_at for state in (allocation.task_states or {}).values() if state.finished_at is not None]
    return min(to_ns(max(ends)), allocation.modify_time) if ends else allocation.modify_time


def list_reschedule_events(allocation: Allocation) -> tuple[RescheduleEvent, ...]:
    tracker = allocation.reschedule_tracker
    return (tracker.events if tracker is not None else None) or ()


def build_tracker(
    previous: Allocation, group: TaskGroup, now_ns: int, failed_at_ns: int | None = None
) -> RescheduleTracker:
    """What the replacement remembers of those before it."""
    policy = group.reschedule_policy
    events = list_reschedule_events(previous)
    delay = 0
    if policy is not None:
        delay = get_next_delay_ns(
            policy, events, get_failure_time_ns(previous) if failed_at_ns is None else failed_at_ns
        )
        if policy.unlimited:
            events = events[-MAX_RESCHEDULE_EVENTS:]
        else:
            events = tuple(event for event in events if now_ns - event.reschedule_time < policy.interval)
    event = RescheduleEvent(
        reschedule_time=now_ns, prev_alloc_id=previous.id, prev_node_id=previous.node_id, delay=delay
    )
    return RescheduleTracker(events=(*events, event))


def list_avoided_nodes(previous: Allocation) -> tuple[str, ...]:
    """Where it failed before."""
    avoid = [event.prev_node_id for event in list_reschedule_events(previous)]
    if previous.client_status == "failed":
        avoid.append(previous.node_id)
    return tuple(dict.fromkeys(avoid))


class RescheduleSplit(msgspec.Struct):
    """What failed and may be tried again leaves the set when it is due; what waits, or is given up, stays in it."""

    remaining: AllocationsById = msgspec.field(default_factory=dict)
    reschedule_now: list[Allocation] = msgspec.field(default_factory=list)
    follow_ups: list[FollowUp] = msgspec.field(default_factory=list)
    awaiting_watcher: list[Allocation] = msgspec.field(default_factory=list)
    """Those that wait for the word of who watches their deployment."""


class RescheduleSorter:
    def __init__(self, sight: ReconcileInput, group: TaskGroup) -> None:
        self._sight = sight
        self._group = group

    def split_allocations(self, untainted: AllocationsById) -> RescheduleSplit:
        found = RescheduleSplit()
        kept = found.remaining
        for key, allocation in untainted.items():
            if allocation.next_allocation and allocation.is_terminal:
                continue  # Somebody took its place already.
            if not self._is_candidate(allocation):
                if not self._is_over(allocation):
                    kept[key] = allocation
                continue
            retry = self._retry(allocation)
            if retry.kind is RetryKind.NOW:
                found.reschedule_now.append(allocation)
                continue
            kept[key] = allocation
            if self.waits_for_watcher(allocation):
                found.awaiting_watcher.append(allocation)
            if retry.kind is RetryKind.LATER:
                found.follow_ups.append(FollowUp(allocation, retry.due_at_ns, EvaluationTrigger.ALLOC_RESCHEDULE))
        return found

    def _is_candidate(self, allocation: Allocation) -> bool:
        transition = allocation.desired_transition
        if transition is not None and transition.force_reschedule and allocation.is_client_terminal:
            return True
        tracker = allocation.reschedule_tracker
        has_failed_to_place = tracker is not None and tracker.last_reschedule is RescheduleOutcome.NO_PLACEMENT
        if allocation.is_server_terminal:
            return has_failed_to_place and not (self._sight.is_batch and has_succeeded(allocation))
        return allocation.client_status is ClientStatus.FAILED

    def _is_over(self, allocation: Allocation) -> bool:
        """Of a service: it ended, and nothing counts it any more. Work of a batch job that ended is done."""
        if self._sight.is_batch:
            return False
        return allocation.is_server_terminal or allocation.client_status in (ClientStatus.COMPLETE, ClientStatus.LOST)

    def _retry(self, allocation: Allocation) -> RetryDecision:
        transition = allocation.desired_transition
        if transition is not None and transition.force_reschedule and allocation.is_client_terminal:
            return RETRY_NOW
        if self.waits_for_watcher(allocation):
            return NEVER_RETRY
        follow_up = allocation.followup_eval_id
        return decide_retry(
            allocation,
            self._group,
            self._sight.now_ns,
            is_follow_up_due=bool(follow_up) and follow_up == self._sight.evaluation_id,
            is_retry_pending=bool(follow_up) and self._sight.is_evaluation_pending(follow_up),
        )

    def waits_for_watcher(self, allocation: Allocation) -> bool:
        """While its deployment goes on, the deployment's watcher decides whether it is tried again."""
        deployment, transition = self._sight.deployment, allocation.desired_transition
        if deployment is None or not deployment.is_active or allocation.deployment_id != deployment.id:
            return False
        return transition is None or not transition.reschedule


def has_succeeded(allocation: Allocation) -> bool:
    """All its tasks ended as they should."""
    states = allocation.task_states or {}
    return bool(states) and all(state.is_successful for state in states.values())
