"""A node whose room is kept for an evaluation that has waited too long, as the state has it. Nothing is decided here."""

import msgspec

from wharf.model.evaluation import Evaluation
from wharf.model.group import TaskGroup
from wharf.model.job import Job
from wharf.scheduling.usage import Usage, demand_of


class Reservation(msgspec.Struct, frozen=True):
    """`demand`: of one allocation of what waits."""

    evaluation_id: str
    namespace: str
    job_id: str
    priority: int
    node_id: str
    demand: Usage


def reservation_of(evaluation: Evaluation, job: Job | None) -> Reservation | None:
    """None: nothing is kept for it. What waits keeps its node while it is tried."""
    if job is None or evaluation.status.is_terminal or not evaluation.reserved_node_id:
        return None
    group = group_that_waits(job, evaluation)
    if group is None:
        return None
    return Reservation(
        evaluation.id,
        evaluation.namespace,
        evaluation.job_id,
        evaluation.priority,
        evaluation.reserved_node_id,
        demand_of(group),
    )


def group_that_waits(job: Job, evaluation: Evaluation) -> TaskGroup | None:
    """The one whose allocation is the largest: where that has room the others have too."""
    groups = [group for name in evaluation.failed_tg_allocs or {} if (group := job.group(name)) is not None]
    return max(groups, key=_size, default=None)


def _size(group: TaskGroup) -> tuple[int, int, str]:
    demand = demand_of(group)
    return demand.memory_mb, demand.cpu, group.name
