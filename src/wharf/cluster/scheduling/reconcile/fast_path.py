"""A fast check whether a group is already as requested. Most evaluations find nothing to do.

False negatives are allowed, false positives are not: after a negative answer the full reconciliation runs.
"""

from collections.abc import Iterable

from wharf.cluster.scheduling.reconcile.classification import TaintedNodes
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job


def is_up_to_date(
    job: Job,
    group: TaskGroup,
    allocations: Iterable[Allocation],
    tainted_nodes: TaintedNodes,
    deployments: Iterable[Deployment | None],
) -> bool:
    """Return whether nothing has to be done for the group, so that the full reconciliation can be skipped.

    It has exactly its count of allocations of the current version, with unique names, that are not marked, disconnected
    or on a tainted node. `deployments` are the current and the previous deployment of the job.
    """
    if any(deployment is not None and _needs_action(deployment, group.name) for deployment in deployments):
        return False
    run, pending, running = DesiredStatus.RUN, ClientStatus.PENDING, ClientStatus.RUNNING
    version, create_index = job.version, job.create_index
    names = set()
    active_count = 0
    for allocation in allocations:
        status = allocation.client_status
        if allocation.desired_status is not run:
            if allocation.next_allocation and status.is_terminal:
                continue  # It has ended and was replaced.
            return False
        if status is not running and status is not pending:
            return False
        if allocation.job_version != version or allocation.job_create_index != create_index or allocation.alloc_states:
            return False
        if allocation.node_id in tainted_nodes or _is_marked(allocation):
            return False
        names.add(allocation.name)
        active_count += 1
    return active_count == len(names) == group.count


def _is_marked(allocation: Allocation) -> bool:
    """Return whether the allocation is marked to move or to be rescheduled."""
    transition = allocation.desired_transition
    return transition is not None and bool(transition.migrate or transition.reschedule or transition.force_reschedule)


def _needs_action(deployment: Deployment, group: str) -> bool:
    """Return whether the deployment may still change allocations of the group: it is active or has canaries to promote
    or stop.
    """
    state = (deployment.task_groups or {}).get(group)
    return deployment.is_active or (state is not None and bool(state.placed_canaries) and not state.promoted)
