"""Which identities a node may have signed: those that jobs declare for tasks which the node runs now, and its own."""

from collections.abc import Sequence
from typing import Final

from wharf.model.allocation import Allocation
from wharf.model.durations import HOUR
from wharf.model.identity import DEFAULT_IDENTITY_NAME, WorkloadIdentity
from wharf.model.job import Job
from wharf.model.node import Node
from wharf.model.node_pool import DEFAULT
from wharf.model.refusal import Code, Refusal, invalid, unknown
from wharf.model.task import Task
from wharf.server.identities import NodeToSign, WorkloadToSign
from wharf.state import Replica
from wharf.state.tables import ALLOCATIONS, JOB_VERSIONS, NODE_POOLS

NODE_TTL_NS: Final = 24 * HOUR


def workloads_to_sign(
    snapshot: Replica, node: Node, alloc_id: str, task_name: str, names: Sequence[str], *, region: str
) -> list[WorkloadToSign]:
    """One for each name. Raises Refusal: a node gets identities of its own work, and only while that is wanted."""
    allocation = snapshot.get(ALLOCATIONS, alloc_id)
    if allocation is None:
        raise unknown(f'Unknown allocation "{alloc_id}"')
    if allocation.node_id != node.id:
        raise Refusal(Code.FORBIDDEN, "Permission denied")
    if allocation.is_terminal:
        raise invalid(f"allocation {alloc_id} is over: its tasks are nobody any more")
    job = snapshot.get(JOB_VERSIONS, allocation.namespace, allocation.job_id, allocation.job_version)
    task = _task(allocation, job, task_name)
    if job is None or task is None:
        raise invalid(f'unknown task name "{task_name}"')
    declared = {each.name: each for each in (task.identity or WorkloadIdentity(), *(task.identities or ()))}
    missing = [name for name in names if name not in declared]
    if missing:
        raise invalid(f'task "{task_name}" declares no identity "{missing[0]}"')
    return [_workload(allocation, job, task, declared[name], region=region) for name in names]


def _task(allocation: Allocation, job: Job | None, name: str) -> Task | None:
    group = job.group(allocation.task_group) if job is not None else None
    return next((task for task in (group.tasks if group else None) or () if task.name == name), None)


def _workload(
    allocation: Allocation, job: Job, task: Task, identity: WorkloadIdentity, *, region: str
) -> WorkloadToSign:
    return WorkloadToSign(
        region=region,
        namespace=allocation.namespace,
        job_id=job.parent_id or job.id,
        group=allocation.task_group,
        alloc_id=allocation.id,
        task=task.name,
        name=identity.name or DEFAULT_IDENTITY_NAME,
        audience=identity.audience or (),
        ttl_ns=identity.ttl,
    )


def node_to_sign(snapshot: Replica, node: Node, *, region: str) -> NodeToSign:
    """The node as it is known, for as long as its pool says."""
    pool = snapshot.get(NODE_POOLS, node.node_pool or DEFAULT)
    return NodeToSign(
        region=region,
        node_id=node.id,
        node_class=node.node_class,
        node_pool=node.node_pool or DEFAULT,
        datacenter=node.datacenter,
        ttl_ns=pool.node_identity_ttl if pool is not None else NODE_TTL_NS,
    )
