"""The steps for allocations whose node is disconnected, reconnected or lost (scheduling.md 5.8, 5.9)."""

from collections.abc import Iterable
from typing import Final

from wharf.cluster.scheduling.reconcile.classification import (
    get_lost_after_ns,
    get_unknown_since_ns,
    is_last_state_unknown,
    should_replace_lost,
)
from wharf.cluster.scheduling.reconcile.group_state import AllocationsById, GroupState, stop_as_lost
from wharf.cluster.scheduling.reconcile.input import (
    MIGRATING_TEXT,
    NOT_NEEDED_TEXT,
    RECONNECTED_TEXT,
    RESCHEDULED_TEXT,
    add_state,
    mark_unknown,
)
from wharf.cluster.scheduling.reconcile.outcome import AllocationStop, FollowUp
from wharf.cluster.scheduling.reconcile.rescheduling import decide_retry, waits_for_watcher
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.group_policies import ReconcileStrategy
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.times import SECOND, has_passed, to_ns

MIN_KILL_TIMEOUT_NS: Final = 5 * SECOND
"""The shortest time that a node may take to stop a lost allocation."""


def handle_reconnects(state: GroupState, reconnecting: AllocationsById) -> None:
    """Decide for each allocation whose node is back whether it or its replacement continues, and stop the other.

    An allocation that continues is moved to `state.untainted`.
    """
    for key, original in reconnecting.items():
        if original.client_status is ClientStatus.FAILED and not original.is_server_terminal:
            state.add_stop(AllocationStop(original, RESCHEDULED_TEXT))
            continue
        if _is_obsolete(original, state.job):
            state.add_stop(AllocationStop(original, NOT_NEEDED_TEXT))
            continue
        keeps_original = True
        for replacement in state.find_replacements(original):
            if replacement.is_terminal:
                continue
            if _should_keep_original(original, replacement, state.group):
                if state.untainted.pop(replacement.id, None) is not None:
                    state.add_stop(AllocationStop(replacement, RECONNECTED_TEXT))
            else:
                keeps_original = False
        if not keeps_original:
            state.add_stop(AllocationStop(original, RECONNECTED_TEXT))
            continue
        if original.client_status is not ClientStatus.UNKNOWN:
            state.outcome.reconnects.append(add_state(original, original.client_status, state.input.now_ns))
            state.counts["reconnect"] += 1
        state.untainted[key] = original


def handle_disconnects(state: GroupState, disconnecting: AllocationsById) -> None:
    """Mark allocations whose node disconnected as unknown, and select unknown allocations that are replaced now.

    Each marked one gets a follow-up evaluation for the time when it is lost. Replaced ones are moved from
    `state.untainted` to `state.replaced_unknown`.
    """
    now_ns, lost_after_ns = state.input.now_ns, get_lost_after_ns(state.group)
    for key, allocation in disconnecting.items():
        unknown = mark_unknown(allocation, now_ns)
        state.outcome.disconnects.append(unknown)
        state.counts["disconnect"] += 1
        if lost_after_ns:
            follow_up = FollowUp(unknown, now_ns + lost_after_ns, EvaluationTrigger.MAX_DISCONNECT_TIMEOUT)
            state.outcome.follow_ups.append(follow_up)
        state.untainted[key] = unknown
    for key, allocation in [*state.untainted.items()]:
        if allocation.client_status is ClientStatus.UNKNOWN and _replace_unknown(state, allocation):
            state.untainted.pop(key)


def _replace_unknown(state: GroupState, allocation: Allocation) -> bool:
    """Decide whether the unknown allocation is replaced now. Return True and add it to `state.replaced_unknown` if so.

    For a later replacement, a follow-up evaluation is added instead.
    """
    now_ns, unknown_since_ns = state.input.now_ns, get_unknown_since_ns(allocation)
    if allocation.next_allocation or unknown_since_ns is None or not should_replace_lost(state.group):
        return False
    if waits_for_watcher(state.input, allocation):
        return False
    due_at_ns = decide_retry(allocation, state.group, now_ns, failed_at_ns=unknown_since_ns)
    if due_at_ns is None:
        return False
    if due_at_ns > now_ns:
        follow_up = FollowUp(allocation, due_at_ns, EvaluationTrigger.ALLOC_RESCHEDULE, is_linked=False)
        state.outcome.follow_ups.append(follow_up)
        return False
    state.replaced_unknown.append((allocation, unknown_since_ns))
    return True


def stop_migrating_with_replacement(state: GroupState) -> None:
    """Stop migrating allocations that were already replaced while their node was disconnected.

    They are removed from `state.migrating`, so that no second replacement is requested.
    """
    for allocation in [*state.migrating.values()]:
        if is_last_state_unknown(allocation) and state.has_counting_replacement(allocation):
            del state.migrating[allocation.id]
            if not allocation.is_terminal:
                state.add_stop(AllocationStop(allocation, MIGRATING_TEXT))


def stop_lost(state: GroupState) -> None:
    """Stop lost allocations.

    If the group has `stop_on_client_after`, their nodes stop them by themselves later. Then all placements are held
    back, and a follow-up evaluation is added for that time.
    """
    wait_ns = _get_lost_wait_ns(state.group)
    for allocation in state.lost.values():
        state.add_stop(stop_as_lost(allocation))
        if wait_ns is not None:
            state.holds_placements = True
            state.outcome.follow_ups.append(
                FollowUp(allocation, state.input.now_ns + wait_ns, EvaluationTrigger.ALLOC_FAILURE)
            )


def hold_placements_for_lost(state: GroupState, allocations: Iterable[Allocation]) -> None:
    """Set `state.holds_placements` if an allocation that was lost earlier may still run on its disconnected node."""
    wait_ns = _get_lost_wait_ns(state.group)
    if wait_ns is None:
        return
    for allocation in allocations:
        if allocation.client_status is ClientStatus.LOST and not allocation.next_allocation:
            states = allocation.alloc_states or ()
            lost_at = states[-1].time if states and states[-1].value == ClientStatus.LOST else None
            lost_at_ns = to_ns(lost_at) if lost_at is not None else allocation.modify_time
            has_ended = has_passed(lost_at_ns + wait_ns, wait_ns, state.input.now_ns)
            state.holds_placements = state.holds_placements or not has_ended


def _get_lost_wait_ns(group: TaskGroup) -> int | None:
    """Return how long a disconnected node takes to stop the group's tasks, in nanoseconds.

    Return `None` if the group has no `stop_on_client_after`, so that replacements need not wait.
    """
    disconnect = group.disconnect
    if disconnect is None or disconnect.stop_on_client_after is None:
        return None
    kill_timeouts = [task.kill_timeout or 0 for task in group.tasks or ()]
    return disconnect.stop_on_client_after + max(MIN_KILL_TIMEOUT_NS, *kill_timeouts)


def limit_unknown_replacements(state: GroupState, free_slots: int) -> None:
    """Limit `state.replaced_unknown` to `free_slots` entries, and stop the removed ones that have an older version.

    Such an allocation is of no use when it reconnects. If it stayed, its replacement would later take the place, but
    not the name, of an allocation that the update stops.
    """
    for allocation, _ in state.replaced_unknown[free_slots:]:
        if not allocation.is_of_version(state.job):
            state.add_stop(AllocationStop(allocation, NOT_NEEDED_TEXT))
    state.replaced_unknown = state.replaced_unknown[:free_slots]


def _is_obsolete(original: Allocation, job: Job) -> bool:
    """Return whether the reconnected allocation is no longer needed: it is stopped, marked to move, or of another job
    version.
    """
    transition = original.desired_transition
    is_marked = transition is not None and (transition.migrate or transition.reschedule or transition.force_reschedule)
    return original.is_server_terminal or bool(is_marked) or not original.is_of_version(job)


def _should_keep_original(original: Allocation, replacement: Allocation, group: TaskGroup) -> bool:
    """Return whether the reconnected original continues, and not its replacement, by the group's `disconnect.reconcile`
    strategy.

    A replacement of a newer job version always continues.
    """
    if replacement.job_version > original.job_version:
        return False
    strategy = group.disconnect.reconcile if group.disconnect is not None else ReconcileStrategy.BEST_SCORE
    match strategy:
        case ReconcileStrategy.KEEP_ORIGINAL:
            return True
        case ReconcileStrategy.KEEP_REPLACEMENT:
            return False
        case ReconcileStrategy.LONGEST_RUNNING:
            longest = _has_longer_run(original, replacement, group)
            return _has_better_original_score(original, replacement) if longest is None else longest
    return _has_better_original_score(original, replacement)


def _has_better_original_score(original: Allocation, replacement: Allocation) -> bool:
    """Return whether the reconnected original continues, by the scores of its placement and of its replacement's.

    The replacement wins only with a higher score, and only if it runs or the original does not run.
    """
    is_running = replacement.client_status is ClientStatus.RUNNING
    can_win = is_running or original.client_status is not ClientStatus.RUNNING
    return not (_get_best_score(replacement) > _get_best_score(original) and can_win)


def _get_best_score(allocation: Allocation) -> float:
    """Return the highest score that a node had when the allocation was placed, or 0.0."""
    scores = (allocation.metrics.score_meta_data if allocation.metrics is not None else None) or ()
    return max((score.norm_score for score in scores), default=0.0)


def _has_longer_run(original: Allocation, replacement: Allocation, group: TaskGroup) -> bool | None:
    """Return whether the original has run longer than its replacement. `None`: neither has a known start time.

    One with a known start time wins over one without.
    """
    original_start, replacement_start = _get_start_time(original, group), _get_start_time(replacement, group)
    if original_start is None or replacement_start is None:
        return None if original_start is replacement_start else original_start is not None
    return original_start <= replacement_start


def _get_start_time(allocation: Allocation, group: TaskGroup) -> float | None:
    """Return when the allocation started, in Unix seconds: the earliest start of its leader task, or of any task
    without a leader.

    Return `None` if no start is known.
    """
    states = allocation.task_states or {}
    leaders = [task.name for task in group.tasks or () if task.leader and task.name in states]
    starts = [
        state.started_at.timestamp()
        for name, state in states.items()
        if (not leaders or name in leaders) and state.started_at is not None
    ]
    return min(starts, default=None)
