"""Deleting evaluations that nobody needs any more, before their time.

Only while the broker rests, so that none is taken away under the scheduler's hands. An evaluation is still needed as
long as it explains allocations that run, or that may yet be placed again.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from wharf.model.allocation import Allocation, ClientStatus
from wharf.model.changes import Cause, CauseKind, Condition, Drop, Put, Write
from wharf.model.evaluation import Evaluation
from wharf.model.job import Job, JobStatus
from wharf.model.moment import Moment
from wharf.model.refusal import invalid, unknown
from wharf.operations.decision import Decision
from wharf.state import Replica
from wharf.state.tables import (
    ALLOCATIONS_OF_EVALUATION,
    EVALUATIONS,
    JOB_VERSIONS,
    JOBS,
    SCHEDULER_CONFIGURATION,
)

IDS_MAX: Final = 7_281
CHANGES_A_JOB: Final = 3
"""What settling a job may change that lost an evaluation: its status, its summary, its parent's."""


class EvaluationsDeleted(msgspec.Struct, frozen=True):
    """`left`: those that did not fit in the write."""

    index: int
    count: int
    left: tuple[str, ...] = ()


def delete(
    snapshot: Replica,
    ids: Sequence[str],
    moment: Moment,
    *,
    changes_max: int,
    passes_over: bool = False,
    cause: str = "",
) -> Decision[EvaluationsDeleted]:
    """Delete as many of these as one write takes.

    One that is unknown or still needed refuses them all. `passes_over`: it is left where it is instead.
    """
    configuration = snapshot.get(SCHEDULER_CONFIGURATION)
    if configuration is None or not configuration.pause_eval_broker:
        raise invalid("eval broker is enabled; eval broker must be paused to delete evals")
    if len(ids) > IDS_MAX:
        raise invalid(f"request includes {len(ids)} evaluation IDs, must be {IDS_MAX} or fewer")
    found = _deletable(snapshot, ids, moment) if passes_over else _all_deletable(snapshot, ids, moment)
    taken = _fitting(found, changes_max)
    if not taken:
        return Decision(None, lambda _index: EvaluationsDeleted(0, 0))
    changes: list[Put | Drop] = [EVALUATIONS.drop(evaluation.id) for evaluation in taken]
    conditions: list[Condition] = [snapshot.unchanged(EVALUATIONS, evaluation) for evaluation in taken]
    # A broker that is let go on meanwhile is in conflict.
    conditions.append(snapshot.unchanged(SCHEDULER_CONFIGURATION, configuration))
    left = tuple(evaluation.id for evaluation in found[len(taken) :])
    return Decision(
        Write("evaluations-deleted", Cause(CauseKind.OPERATOR, cause), changes, conditions),
        lambda index: EvaluationsDeleted(index, len(taken), left),
    )


def is_needed(snapshot: Replica, evaluation: Evaluation, now_ns: int) -> bool:
    """Whether something of it still runs, or may be placed again."""
    job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
    if job is None or job.stop or job.status is JobStatus.DEAD:
        return False
    placed = snapshot.those(ALLOCATIONS_OF_EVALUATION, evaluation.id)
    return any(
        allocation.client_status in (ClientStatus.RUNNING, ClientStatus.UNKNOWN)
        or may_be_rescheduled(snapshot, allocation, now_ns)
        for allocation in placed
    )


def may_be_rescheduled(snapshot: Replica, allocation: Allocation, now_ns: int) -> bool:
    """A failed one that has no successor yet, and whose group allows another try."""
    if allocation.client_status is not ClientStatus.FAILED or allocation.next_allocation:
        return False
    if allocation.is_server_terminal:
        return False
    job: Job | None = snapshot.get(JOB_VERSIONS, allocation.namespace, allocation.job_id, allocation.job_version)
    group = job.group(allocation.task_group) if job is not None else None
    policy = group.reschedule_policy if group is not None else None
    if policy is None or not policy.is_enabled:
        return False
    if policy.unlimited:
        return True
    events = allocation.reschedule_tracker.events if allocation.reschedule_tracker is not None else None
    if not events:
        return True
    return events[-1].reschedule_time + policy.interval > now_ns


def _all_deletable(snapshot: Replica, ids: Sequence[str], moment: Moment) -> list[Evaluation]:
    found = []
    for eval_id in dict.fromkeys(ids):
        evaluation = snapshot.get(EVALUATIONS, eval_id)
        if evaluation is None:
            raise unknown("eval not found")
        if is_needed(snapshot, evaluation, moment.now_ns):
            raise invalid(f"eval {eval_id} is not safe to delete: its allocations run, or may be placed again")
        found.append(evaluation)
    return found


def _deletable(snapshot: Replica, ids: Sequence[str], moment: Moment) -> list[Evaluation]:
    found = (snapshot.get(EVALUATIONS, eval_id) for eval_id in dict.fromkeys(ids))
    return [each for each in found if each is not None and not is_needed(snapshot, each, moment.now_ns)]


def _fitting(found: Sequence[Evaluation], changes_max: int) -> list[Evaluation]:
    """As many as fit in a write with what follows for their jobs."""
    taken: list[Evaluation] = []
    jobs: dict[tuple[str, str], None] = {}
    for evaluation in found:
        jobs[evaluation.namespace, evaluation.job_id] = None
        # One condition more: the scheduler's configuration.
        if len(taken) + 2 + CHANGES_A_JOB * len(jobs) > changes_max:
            break
        taken.append(evaluation)
    return taken
