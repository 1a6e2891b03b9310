"""Whether a group is just as it is wanted, told in one pass: most evaluations of most jobs find nothing to do.

It may say no where there is nothing to do, and never yes where there is something: the whole of reconciling is asked then.
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
    tainted: TaintedNodes,
    deployments: Iterable[Deployment | None],
) -> bool:
    """One allocation of this version for each of the count, each under a name of its own, all in contact and unmarked.

    `deployments`: those that still ask something of the group.
    """
    if any(each is not None and _asks(each, group.name) for each in deployments):
        return False
    run, pending, running = DesiredStatus.RUN, ClientStatus.PENDING, ClientStatus.RUNNING
    version, life = job.version, job.create_index
    names = set()
    number = 0
    for allocation in allocations:
        status = allocation.client_status
        if allocation.desired_status is not run:
            if allocation.next_allocation and status.is_terminal:
                continue  # Over, and followed.
            return False
        if status is not running and status is not pending:
            return False
        if allocation.job_version != version or allocation.job_create_index != life or allocation.alloc_states:
            return False
        if allocation.node_id in tainted or _is_marked(allocation):
            return False
        names.add(allocation.name)
        number += 1
    return number == len(names) == group.count


def _is_marked(allocation: Allocation) -> bool:
    marks = allocation.desired_transition
    return marks is not None and bool(marks.migrate or marks.reschedule or marks.force_reschedule)


def _asks(deployment: Deployment, group: str) -> bool:
    state = (deployment.task_groups or {}).get(group)
    return deployment.is_active or (state is not None and bool(state.placed_canaries) and not state.promoted)
