"""Decides whether and when failed or lost allocations are placed again on other nodes (scheduling.md 5.7)."""

from typing import Final

from wharf.cluster.scheduling.reconcile.group_state import AllocationsById, GroupState
from wharf.cluster.scheduling.reconcile.input import ReconcileInput
from wharf.cluster.scheduling.reconcile.interruption import was_interrupted
from wharf.cluster.scheduling.reconcile.outcome import FollowUp
from wharf.cluster.scheduling.reconcile.step_retry import FAILURE_CAUSES, build_step_tracker, decide_step_retry
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
from wharf.contract.model.times import SECOND, has_passed, to_ns

DUE_TOLERANCE_NS: Final = SECOND
"""A retry that is due within this time from now is made now."""

DISABLED_DELAY_NS: Final = 30 * SECOND
"""How long the replacement of an ended service allocation waits if its group allows no reschedule attempts. It is the default
delay of services."""

MAX_RESCHEDULE_EVENTS: Final = 5
"""Limits the size of a reschedule tracker: how many earlier attempts it has, unless the policy counts more."""


def decide_retry(
    allocation: Allocation,
    group: TaskGroup,
    now_ns: int,
    *,
    is_follow_up_due: bool = False,
    is_retry_pending: bool = False,
    failed_at_ns: int | None = None,
) -> int | None:
    """Return when the allocation is replaced by the reschedule policy of its group, in Unix nanoseconds: `now_ns` or
    later.

    Return `None` if it is not retried, or if another evaluation will decide. `is_follow_up_due`: this evaluation was
    created for the retry. `is_retry_pending`: another evaluation for the retry still waits. `failed_at_ns` is used if
    the node cannot report when the allocation failed.
    """
    policy = group.reschedule_policy
    if group.retry is not None:
        decision = decide_step_retry(allocation, group.retry)
        if not decision.is_allowed:
            return None
        due_at_ns = min(now_ns, get_failure_time_ns(allocation)) + decision.delay_ns
        return _choose_retry_time(due_at_ns, now_ns, is_follow_up_due, is_retry_pending)
    if policy is None or not policy.is_enabled:
        return None
    # A failure time in the future comes from another clock, or from before the clock was set back.
    failed_at = min(now_ns, get_failure_time_ns(allocation) if failed_at_ns is None else failed_at_ns)
    events = list_reschedule_events(allocation)
    delay = get_next_delay_ns(policy, events, failed_at)
    if not can_retry(policy, events, failed_at, delay):
        return None
    return _choose_retry_time(failed_at + delay, now_ns, is_follow_up_due, is_retry_pending)


def _choose_retry_time(due_at_ns: int, now_ns: int, is_follow_up_due: bool, is_retry_pending: bool) -> int | None:
    """Return when a retry that is due at a time is made, or `None` if another evaluation decides."""
    if is_follow_up_due or due_at_ns - now_ns <= DUE_TOLERANCE_NS:
        return now_ns
    return None if is_retry_pending else due_at_ns


def can_retry(policy: ReschedulePolicy, events: tuple[RescheduleEvent, ...], failed_at_ns: int, delay_ns: int) -> bool:
    """Return whether the reschedule policy allows one more attempt after a failure at this time.

    `events` are the earlier attempts, and `delay_ns` is the delay before the next one.
    """
    if policy.unlimited:
        return True
    if policy.attempts <= 0:
        return False
    used = sum(_counts(event, policy, failed_at_ns) for event in events)
    return used < policy.attempts and delay_ns < policy.interval


def _counts(event: RescheduleEvent, policy: ReschedulePolicy, time_ns: int) -> bool:
    """Return whether an attempt counts toward the limit of attempts at a time: the policy's interval has not passed."""
    return not has_passed(event.reschedule_time + policy.interval, policy.interval, time_ns)


def can_ever_retry(allocation: Allocation, group: TaskGroup) -> bool:
    """Return whether the retry rule or the reschedule policy of the group allows another attempt for the failed allocation,
    now or later.
    """
    if group.retry is not None:
        return decide_step_retry(allocation, group.retry).is_allowed
    policy = group.reschedule_policy
    if policy is None or not policy.is_enabled:
        return False
    events, failed_at = list_reschedule_events(allocation), get_failure_time_ns(allocation)
    return can_retry(policy, events, failed_at, get_next_delay_ns(policy, events, failed_at))


def get_next_delay_ns(policy: ReschedulePolicy, events: tuple[RescheduleEvent, ...], failed_at_ns: int) -> int:
    """Return the delay before the next attempt in nanoseconds, by the policy's delay function (constant, exponential,
    fibonacci).

    `events` are the earlier attempts, oldest first.
    """
    if policy.delay_function == DelayFunction.CONSTANT or not events:
        return policy.delay
    last = events[-1]
    if policy.delay_function == DelayFunction.EXPONENTIAL:
        delay = last.delay * 2
    else:
        delay = last.delay + events[-2].delay if len(events) > 1 else policy.delay
    if policy.max_delay and delay > policy.max_delay:
        # After a run of more than `max_delay` the delays start again.
        return policy.delay if failed_at_ns - last.reschedule_time > policy.max_delay else policy.max_delay
    return delay


def get_failure_time_ns(allocation: Allocation) -> int:
    """Return when the allocation failed, in Unix nanoseconds: the end of its last task, or its last write if no end is
    known.

    Never later than the last write, because the node's clock may be ahead.
    """
    ends = [state.finished_at for state in (allocation.task_states or {}).values() if state.finished_at is not None]
    return min(to_ns(max(ends)), allocation.modify_time) if ends else allocation.modify_time


def list_reschedule_events(allocation: Allocation) -> tuple[RescheduleEvent, ...]:
    """Return the earlier attempts to reschedule the allocation, oldest first."""
    tracker = allocation.reschedule_tracker
    return (tracker.events if tracker is not None else None) or ()


def build_tracker(
    previous: Allocation, group: TaskGroup, now_ns: int, failed_at_ns: int | None = None
) -> RescheduleTracker:
    """Return the reschedule tracker for the replacement of `previous`: the attempts that still count, including this
    one.

    `failed_at_ns` is used if the node cannot report when `previous` failed.
    """
    if group.retry is not None:
        return build_step_tracker(previous, now_ns)
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
            # Replacements of ended allocations are not limited to the attempts, but count as such.
            recent = tuple(event for event in events if _counts(event, policy, now_ns))
            events = recent[-max(policy.attempts, MAX_RESCHEDULE_EVENTS) :]
    event = RescheduleEvent(
        reschedule_time=now_ns, prev_alloc_id=previous.id, prev_node_id=previous.node_id, delay=delay
    )
    return RescheduleTracker(events=(*events, event))


def list_avoided_nodes(previous: Allocation) -> tuple[str, ...]:
    """Return the ids of the nodes where this allocation and those that it replaced failed."""
    avoid = [event.prev_node_id for event in list_reschedule_events(previous) if event.cause in FAILURE_CAUSES]
    if previous.client_status == "failed":
        avoid.append(previous.node_id)
    return tuple(dict.fromkeys(avoid))


def split_retries(state: GroupState) -> None:
    """Remove from `state.untainted` the allocations that are retried now, and those that have ended or were replaced.

    Those that are retried now are added to `state.reschedule_now`: failed ones, and those of a service that ended although
    they should run. A retry at a later time becomes a follow-up evaluation.
    """
    remaining: AllocationsById = {}
    for key, allocation in state.untainted.items():
        if allocation.next_allocation and allocation.is_terminal:
            continue  # It was replaced already.
        if not _is_retry_candidate(state, allocation):
            if not _has_ended(state.input, allocation):
                remaining[key] = allocation
                continue
            if allocation.is_server_terminal or (state.is_canarying and key in state.canary_ids):
                continue
            due_at_ns = _get_ended_retry_time_ns(state, allocation)
        else:
            due_at_ns = _get_retry_time_ns(state, allocation)
        if due_at_ns is not None and due_at_ns <= state.input.now_ns:
            state.reschedule_now.append(allocation)
            continue
        remaining[key] = allocation
        if waits_for_watcher(state.input, allocation):
            state.awaiting_watcher.append(allocation)
        if due_at_ns is not None:
            state.outcome.follow_ups.append(FollowUp(allocation, due_at_ns, EvaluationTrigger.ALLOC_RESCHEDULE))
            state.counts["reschedule_later"] += 1
    state.untainted = remaining


def _is_retry_candidate(state: GroupState, allocation: Allocation) -> bool:
    """Return whether the allocation may have to be replaced: it failed, or an operator requests it.

    A stopped allocation is one too if the last attempt to replace it found no node.
    """
    if _is_retry_forced(allocation):
        return True
    tracker = allocation.reschedule_tracker
    has_failed_to_place = tracker is not None and tracker.last_reschedule is RescheduleOutcome.NO_PLACEMENT
    if allocation.is_server_terminal:
        return has_failed_to_place and not (state.input.is_batch and has_succeeded(allocation, state.group))
    return allocation.client_status is ClientStatus.FAILED


def _is_retry_forced(allocation: Allocation) -> bool:
    """Return whether an operator requested that this allocation, which has ended, is replaced."""
    transition = allocation.desired_transition
    return transition is not None and bool(transition.force_reschedule) and allocation.is_client_terminal


def _has_ended(reconcile_input: ReconcileInput, allocation: Allocation) -> bool:
    """Return whether a service allocation has ended and no longer counts.

    False for batch jobs, where it counts as done.
    """
    if reconcile_input.is_batch:
        return False
    return allocation.is_server_terminal or allocation.client_status in (ClientStatus.COMPLETE, ClientStatus.LOST)


def _get_retry_time_ns(state: GroupState, allocation: Allocation) -> int | None:
    """Return when the failed allocation is replaced, in Unix nanoseconds: now or later, or `None` for never.

    Also `None` if the leader's deployment controller must decide first.
    """
    if _is_retry_forced(allocation):
        return state.input.now_ns
    if waits_for_watcher(state.input, allocation):
        return None
    follow_up = allocation.followup_eval_id
    return decide_retry(
        allocation,
        state.group,
        state.input.now_ns,
        is_follow_up_due=bool(follow_up) and follow_up == state.input.evaluation_id,
        is_retry_pending=bool(follow_up) and state.input.is_evaluation_pending(follow_up),
    )


def _get_ended_retry_time_ns(state: GroupState, allocation: Allocation) -> int | None:
    """Return when an allocation of a service is replaced that ended although it should run: now or later.

    This happens after a restore, if servers had stopped it since, or because its task ended with success and is not
    restarted. The first replacement is placed at once. Each further one waits as if its predecessor had failed, even if
    the group allows no reschedule attempts, so that tasks that always end cause no endless load. Return `None` for an
    unhealthy allocation of a failed deployment, and if another evaluation will decide.
    """
    now_ns, deployment = state.input.now_ns, state.input.deployment
    is_of_deployment = deployment is not None and allocation.deployment_id == deployment.id
    if state.is_failed and is_of_deployment and allocation.is_unhealthy:
        return None
    events = list_reschedule_events(allocation)
    if not events:
        return now_ns
    policy = state.group.reschedule_policy
    failed_at = min(now_ns, get_failure_time_ns(allocation))
    is_enabled = policy is not None and policy.is_enabled
    delay = get_next_delay_ns(policy, events, failed_at) if policy is not None and is_enabled else DISABLED_DELAY_NS
    follow_up = allocation.followup_eval_id
    if failed_at + delay - now_ns <= DUE_TOLERANCE_NS or (follow_up and follow_up == state.input.evaluation_id):
        return now_ns
    return None if follow_up and state.input.is_evaluation_pending(follow_up) else failed_at + delay


def waits_for_watcher(reconcile_input: ReconcileInput, allocation: Allocation) -> bool:
    """Return whether the leader's deployment controller must decide first whether the failed allocation is replaced.

    That is so while its deployment is active and the controller has not marked it for rescheduling.
    """
    deployment, transition = reconcile_input.deployment, allocation.desired_transition
    if deployment is None or not deployment.is_active or allocation.deployment_id != deployment.id:
        return False
    return transition is None or not transition.reschedule


def has_succeeded(allocation: Allocation, group: TaskGroup) -> bool:
    """Return whether all tasks ended successfully, and the decisive ones by themselves."""
    states = allocation.task_states or {}
    is_successful = bool(states) and all(state.is_successful for state in states.values())
    return is_successful and not was_interrupted(allocation, group)
