"""Reserved nodes of waiting evaluations, as recorded in the state.

Which node to reserve is decided in `blocked.reservation_policy`.
"""

import msgspec

from wharf.cluster.scheduling.resources.usage import Usage, get_group_demand
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job


class Reservation(msgspec.Struct, frozen=True):
    """A node that is reserved for a waiting evaluation. `demand` is what one of its allocations needs."""

    evaluation_id: str
    namespace: str
    job_id: str
    priority: int
    node_id: str
    demand: Usage


def build_reservation(evaluation: Evaluation, job: Job | None) -> Reservation | None:
    """Return the reservation of the evaluation, or `None`. An evaluation stays reserved while it is retried."""
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
    """Return the group with the largest waiting allocation. A node that can take it can take the others too."""
    groups = [group for name in evaluation.failed_tg_allocs or {} if (group := job.find_group(name)) is not None]
    return max(groups, key=_get_demand_key, default=None)


def _get_demand_key(group: TaskGroup) -> tuple[int, int, str]:
    """Return the sort key by demand."""
    demand = get_group_demand(group)
    return demand.memory_mb, demand.cpu, group.name
