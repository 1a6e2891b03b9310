"""A node whose room is kept for an evaluation that has waited too long, as the state has it. Nothing is decided here."""

import msgspec

from wharf.cluster.scheduling.resources.usage import Usage, get_group_demand
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job


class Reservation(msgspec.Struct, frozen=True):
    """`demand`: of one allocation of what waits."""

    evaluation_id: str
    namespace: str
    job_id: str
    priority: int
    node_id: str
    demand: Usage


def build_reservation(evaluation: Evaluation, job: Job | None) -> Reservation | None:
    """None: nothing is kept for it. What waits keeps its node while it is tried."""
    if job is None or evaluation.status.is_terminal or not evaluation.reserved_node_id:
        return None
    group = find_largest_waiting_group(job, evaluation)
    if group is None:
        return None
    return Reservation(
        evaluation.id,
        evaluation.namespace,
        evaluation.job_id,
        evaluation.priority,
        evaluation.reserved_node_id,
        get_group_demand(group),
    )


def find_largest_waiting_group(job: Job, evaluation: Evaluation) -> TaskGroup | None:
    """The one whose allocation is the largest: where that has room the others have too."""
    groups = [group for name in evaluation.failed_tg_allocs or {} if (group := job.find_group(name)) is not None]
    return max(groups, key=_size, default=None)


def _size(group: TaskGroup) -> tuple[int, int, str]:
    demand = get_group_demand(group)
    return demand.memory_mb, demand.cpu, group.name
