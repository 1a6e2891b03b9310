"""Which of two goes on when a node comes back: the allocation that was out of contact, or its replacement (5.9)."""

from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.jobs.group_policies import ReconcileStrategy
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job


def is_obsolete(original: Allocation, job: Job) -> bool:
    """Nobody wants it any more, whatever it did meanwhile."""
    transition = original.desired_transition
    is_marked = transition is not None and (transition.migrate or transition.reschedule or transition.force_reschedule)
    is_older = (original.job_version, original.job_create_index) != (job.version, job.create_index)
    return original.is_server_terminal or bool(is_marked) or is_older


def should_keep_original(original: Allocation, replacement: Allocation, group: TaskGroup) -> bool:
    if replacement.job_version > original.job_version:
        return False
    strategy = group.disconnect.reconcile if group.disconnect is not None else ReconcileStrategy.BEST_SCORE
    match strategy:
        case ReconcileStrategy.KEEP_ORIGINAL:
            return True
        case ReconcileStrategy.KEEP_REPLACEMENT:
            return False
        case ReconcileStrategy.LONGEST_RUNNING:
            longest = _keeps_longest_running(original, replacement, group)
            return _keeps_best(original, replacement) if longest is None else longest
    return _keeps_best(original, replacement)


def _keeps_best(original: Allocation, replacement: Allocation) -> bool:
    """The replacement must be better, and run, unless the original does not run either."""
    is_running = replacement.client_status is ClientStatus.RUNNING
    may_win = is_running or original.client_status is not ClientStatus.RUNNING
    return not (_best_score(replacement) > _best_score(original) and may_win)


def _best_score(allocation: Allocation) -> float:
    scores = (allocation.metrics.score_meta_data if allocation.metrics is not None else None) or ()
    return max((score.norm_score for score in scores), default=0.0)


def _keeps_longest_running(original: Allocation, replacement: Allocation, group: TaskGroup) -> bool | None:
    """None: neither says since when it runs."""
    since, other = _running_since(original, group), _running_since(replacement, group)
    if since is None or other is None:
        return None if since is other else since is not None
    return since <= other


def _running_since(allocation: Allocation, group: TaskGroup) -> float | None:
    states = allocation.task_states or {}
    leaders = [task.name for task in group.tasks or () if task.leader and task.name in states]
    starts = [
        state.started_at.timestamp()
        for name, state in states.items()
        if (not leaders or name in leaders) and state.started_at is not None
    ]
    return min(starts, default=None)
