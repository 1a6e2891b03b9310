"""Reports the use of the cluster: the fullest nodes, the largest jobs, and what waits. Reads the scheduler's view of nodes."""

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from wharf.cluster.operations.waiting_counts import count_waiting
from wharf.cluster.scheduling.explanation.examination import get_node_state
from wharf.cluster.scheduling.fleet.columns import Ints
from wharf.cluster.scheduling.fleet.fleet import Fleet
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS_BY_STATUS, JOBS
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.allocations.placement_reasons import list_placement_failures
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus
from wharf.contract.model.nodes.node import Node, NodeStatus
from wharf.contract.model.resource_usage import get_allocation_usage
from wharf.contract.model.usage import ClusterUsage, JobUsage, NodeUsage, UsageOrder, WaitingJob

MAX_ENTRIES: Final = 500
"""Limit of each list of a report. Protects the size of the reply in a cluster with thousands of nodes and jobs."""


def report_usage(
    snapshot: Replica, fleet: Fleet, *, order: UsageOrder, limit: int, namespaces: Iterable[str] | None
) -> ClusterUsage:
    """Return the use of the cluster, with at most `limit` nodes, jobs and waiting jobs.

    Only jobs of `namespaces` are listed and counted; None stands for all. Nodes count the allocations of all jobs.
    """
    visible = None if namespaces is None else frozenset(namespaces)

    def is_visible(namespace: str) -> bool:
        return visible is None or namespace in visible

    limit = min(max(0, limit), MAX_ENTRIES)
    nodes = list(fleet.iter_nodes())
    up_rows = [row for row, node in nodes if node.status is not NodeStatus.DOWN]
    jobs = _sum_jobs(snapshot, is_visible)
    waiting = sorted(
        (
            each
            for each in snapshot.list_by_index(EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED)
            if is_visible(each.namespace)
        ),
        key=lambda each: (each.waiting_since_ns, each.create_index, each.id),
    )
    return ClusterUsage(
        node_count=len(nodes),
        ready_count=sum(bool(fleet.is_ready[row]) for row, _ in nodes),
        cpu=_sum_rows(fleet.cpu_used, up_rows),
        cpu_capacity=_sum_rows(fleet.cpu, up_rows),
        memory_mb=_sum_rows(fleet.memory_used, up_rows),
        memory_capacity_mb=_sum_rows(fleet.memory, up_rows),
        nodes=tuple(_make_node_usage(fleet, row, node) for row, node in _sort_nodes(fleet, nodes, order)[:limit]),
        job_count=len(jobs),
        jobs=tuple(_sort_jobs(jobs, order)[:limit]),
        waiting_count=len(waiting),
        waiting=tuple(_make_waiting_job(snapshot, each) for each in waiting[:limit]),
    )


def _sum_rows(column: Ints, rows: list[int]) -> int:
    return int(column[rows].sum()) if rows else 0


def _sort_nodes(fleet: Fleet, nodes: list[tuple[int, Node]], order: UsageOrder) -> list[tuple[int, Node]]:
    """Return the nodes by the share of their capacity that allocations request, or by another order."""
    if order is UsageOrder.NAME:
        return sorted(nodes, key=lambda each: (each[1].name, each[1].id))
    match order:
        case UsageOrder.MEMORY:
            shares = fleet.memory_used / np.maximum(1, fleet.memory)
        case UsageOrder.ALLOCATIONS:
            shares = fleet.count.astype(np.float64)
        case _:
            shares = fleet.cpu_used / np.maximum(1, fleet.cpu)
    return sorted(nodes, key=lambda each: (-shares[each[0]], each[1].name, each[1].id))


def _make_node_usage(fleet: Fleet, row: int, node: Node) -> NodeUsage:
    return NodeUsage(
        id=node.id,
        name=node.name,
        node_pool=node.node_pool,
        datacenter=node.datacenter,
        status="ready" if node.is_ready_for_placements else get_node_state(node),
        allocations=int(fleet.count[row]),
        cpu=int(fleet.cpu_used[row]),
        cpu_capacity=int(fleet.cpu[row]),
        memory_mb=int(fleet.memory_used[row]),
        memory_capacity_mb=int(fleet.memory[row]),
        disk_mb=int(fleet.disk_used[row]),
        disk_capacity_mb=int(fleet.disk[row]),
    )


def _sum_jobs(snapshot: Replica, is_visible: Callable[[str], bool]) -> list[JobUsage]:
    """Return what the allocations of each job request, for the jobs with allocations that are not ended."""
    sums: dict[tuple[str, str], list[int]] = {}
    for allocation in snapshot.iter_all(ALLOCATIONS):
        if not allocation.is_occupying or not is_visible(allocation.namespace):
            continue
        usage = get_allocation_usage(allocation)
        counts = sums.setdefault((allocation.namespace, allocation.job_id), [0, 0, 0, 0])
        counts[0] += 1
        counts[1] += allocation.client_status is ClientStatus.RUNNING
        counts[2] += usage.cpu
        counts[3] += usage.memory_mb
    found: list[JobUsage] = []
    for (namespace, job_id), (count, running, cpu, memory_mb) in sums.items():
        job = snapshot.get(JOBS, namespace, job_id)
        found.append(
            JobUsage(
                id=job_id,
                namespace=namespace,
                type=job.type if job is not None else "",
                priority=job.priority if job is not None else 0,
                allocations=count,
                running=running,
                cpu=cpu,
                memory_mb=memory_mb,
            )
        )
    return found


def _sort_jobs(jobs: list[JobUsage], order: UsageOrder) -> list[JobUsage]:
    match order:
        case UsageOrder.NAME:
            return sorted(jobs, key=lambda job: (job.id, job.namespace))
        case UsageOrder.MEMORY:
            return sorted(jobs, key=lambda job: (-job.memory_mb, job.id, job.namespace))
        case UsageOrder.ALLOCATIONS:
            return sorted(jobs, key=lambda job: (-job.allocations, job.id, job.namespace))
    return sorted(jobs, key=lambda job: (-job.cpu, job.id, job.namespace))


def _make_waiting_job(snapshot: Replica, evaluation: Evaluation) -> WaitingJob:
    counts = count_waiting(snapshot, evaluation)
    return WaitingJob(
        job_id=evaluation.job_id,
        namespace=evaluation.namespace,
        eval_id=evaluation.id,
        unplaced=counts.unplaced,
        elements=counts.elements,
        since=evaluation.waiting_since_ns,
        reason=_describe_reason(evaluation),
    )


def _describe_reason(evaluation: Evaluation) -> str:
    """Return what an evaluation waits for: the first reason of its first group, and how many others there are."""
    if evaluation.waits_behind:
        return f"a slot of {evaluation.waits_behind}"
    if evaluation.waits_only_for_locks:
        return f"the lock {' and the lock '.join(dict.fromkeys(wait.key for wait in evaluation.lock_waits or ()))}"
    if evaluation.quota_limit_reached:
        return f"the quota {evaluation.quota_limit_reached}"
    reasons = [
        reason
        for _, metric in sorted((evaluation.failed_tg_allocs or {}).items())
        for reason in list_placement_failures(metric)
    ]
    if not reasons:
        return evaluation.status_description or "its placement is retried"
    return reasons[0] + (f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else "")
