"""Decides whether a reconnected allocation or its replacement continues (scheduling.md 5.9)."""

from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.jobs.group_policies import ReconcileStrategy
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job


def is_obsolete(original: Allocation, job: Job) -> bool:
    """Return whether the allocation is no longer needed: it is stopped, marked to move, or of another version."""
    transition = original.desired_transition
    is_marked = transition is not None and (transition.migrate or transition.reschedule or transition.force_reschedule)
    is_older = (original.job_version, original.job_create_index) != (job.version, job.create_index)
    return original.is_server_terminal or bool(is_marked) or is_older


def should_keep_original(original: Allocation, replacement: Allocation, group: TaskGroup) -> bool:
    """Return whether the original continues, by the group's `disconnect.reconcile` strategy."""
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
    """Return whether the original continues because its score is better.

    The replacement wins only with a better score, and only if it runs or the original does not run.
    """
    is_running = replacement.client_status is ClientStatus.RUNNING
    can_win = is_running or original.client_status is not ClientStatus.RUNNING
    return not (_get_best_score(replacement) > _get_best_score(original) and can_win)


def _get_best_score(allocation: Allocation) -> float:
    """Return the highest score of the allocation's placement."""
    scores = (allocation.metrics.score_meta_data if allocation.metrics is not None else None) or ()
    return max((score.norm_score for score in scores), default=0.0)


def _has_longer_run(original: Allocation, replacement: Allocation, group: TaskGroup) -> bool | None:
    """Return whether the original runs longer. `None`: the start time of neither is known."""
    original_start, replacement_start = _get_start_time(original, group), _get_start_time(replacement, group)
    if original_start is None or replacement_start is None:
        return None if original_start is replacement_start else original_start is not None
    return original_start <= replacement_start


def _get_start_time(allocation: Allocation, group: TaskGroup) -> float | None:
    """Return the earliest start time of the leader task, or of any task without a leader."""
    states = allocation.task_states or {}
    leaders = [task.name for task in group.tasks or () if task.leader and task.name in states]
    starts = [
        state.started_at.timestamp()
        for name, state in states.items()
        if (not leaders or name in leaders) and state.started_at is not None
    ]
    return min(starts, default=None)
