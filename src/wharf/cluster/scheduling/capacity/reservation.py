"""Reserved nodes of waiting evaluations, as recorded in the state.

Which node to reserve is decided in `blocked.reservation_policy`.
"""

import msgspec

from wharf.cluster.scheduling.resources.devices import list_device_requests
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.resources import RequestedDevice
from wharf.contract.model.resource_usage import Usage, get_group_demand


class Reservation(msgspec.Struct, frozen=True):
    """A node whose freed capacity is held for a waiting evaluation.

    Other jobs of the same or a lower priority must leave it free.
    """

    evaluation_id: str
    namespace: str
    job_id: str
    priority: int
    """The priority of the evaluation."""
    node_id: str
    """The reserved node."""
    demand: Usage
    """What the largest waiting allocation of the job needs, without its cores: this much is held on the node."""
    cores: int = 0
    """How many whole cores the allocation needs; they are held too."""
    devices: tuple[RequestedDevice, ...] = ()
    """The devices that the allocation needs; they are held too."""


def build_reservation(evaluation: Evaluation, job: Job | None) -> Reservation | None:
    """Return the reservation of the evaluation: its reserved node with the demand of its largest waiting group.

    Return `None` if the evaluation has no reserved node or has ended, or if its job or waiting groups no longer exist.
    A reservation remains valid while its evaluation is retried.
    """
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
        count_requested_cores(group),
        tuple(request for _, request in list_device_requests(group)),
    )


def find_largest_waiting_group(job: Job, evaluation: Evaluation) -> TaskGroup | None:
    """Return the group that could not be placed and whose allocations need the most memory, then the most cores and CPU.

    The evaluation records which groups could not be placed. Those that wait for a lock are left out. Return `None` if the job
    has none of the others any more.
    """
    groups = [
        group
        for name in evaluation.failed_tg_allocs or {}
        if (group := job.find_group(name)) is not None and evaluation.find_lock_wait(name) is None
    ]
    return max(groups, key=_get_demand_key, default=None)


def count_requested_cores(group: TaskGroup) -> int:
    """Return how many whole cores one allocation of the group reserves, all tasks together."""
    return sum(task.resources.cores for task in group.tasks or () if task.resources is not None)


def _get_demand_key(group: TaskGroup) -> tuple[int, int, int, str]:
    """Return the sort key of a group by what one allocation needs: memory, cores, CPU, then the group's name."""
    demand = get_group_demand(group)
    return demand.memory_mb, count_requested_cores(group), demand.cpu, group.name
