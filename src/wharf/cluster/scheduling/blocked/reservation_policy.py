"""Decides which blocked evaluations get a reserved node, so that small jobs do not keep large ones waiting forever.

A node is reserved for one allocation at a time. Its running allocations continue, but resources that become free there
are not used by jobs of the same or a lower priority until there is enough for the waiting allocation. So the allocation
is placed at the latest when the finite jobs of the node have ended. This module writes nothing.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.capacity.reservation import (
    Reservation,
    count_requested_cores,
    find_largest_waiting_group,
)
from wharf.cluster.scheduling.feasibility.distinct import DistinctConstraints, list_placed_siblings
from wharf.cluster.scheduling.feasibility.volumes import NamespaceVolumes
from wharf.cluster.scheduling.fleet.columns import Ints
from wharf.cluster.scheduling.resources.assignment import get_core_mhz, list_usable_cores
from wharf.cluster.scheduling.resources.devices import has_free_devices, list_device_requests
from wharf.cluster.scheduling.resources.exclusive import ExclusiveResources
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, JOBS, NODES, UNFINISHED_ALLOCATIONS_ON_NODE
from wharf.contract.model.evaluations import Evaluation, EvaluationTrigger
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.jobs.resources import RequestedDevice
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.resource_usage import Usage, get_allocation_usage, get_group_demand
from wharf.contract.model.times import SECOND

RESERVATION_DELAY_NS: Final = 120 * SECOND
"""An evaluation that has waited this long for resources may get a reserved node."""

NODES_PER_RESERVATION: Final = 10
"""Limits reservations: one of this many nodes may be reserved, and at least one in any cluster."""

MAX_SCANNED_NODES: Final = 64
"""Limits the time of a search for a node: only this many nodes are examined, those that miss the smallest share of the demand."""

MAX_SEARCHES: Final = 50
"""Limits the time of a check: it searches nodes for only this many evaluations. The next check goes on with others."""


def can_reserve_node(snapshot: Replica, evaluation: Evaluation) -> bool:
    """Return whether a reserved node would help the blocked evaluation.

    It does not help system jobs, all-at-once jobs, or evaluations that wait for a quota, for a slot of their parent
    job or of a lock, or after plan conflicts.
    """
    if (
        evaluation.quota_limit_reached
        or evaluation.waits_behind
        or evaluation.waits_only_for_locks
        or evaluation.triggered_by is EvaluationTrigger.MAX_PLAN_ATTEMPTS
    ):
        return False
    job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
    if job is None or job.stop or job.all_at_once:
        return False
    return job.type in (JobType.SERVICE, JobType.BATCH) and find_largest_waiting_group(job, evaluation) is not None


def get_max_reservations(cache: SchedulerCache) -> int:
    """Return how many nodes of the cluster may be reserved at the same time."""
    return max(1, len(cache.fleet.row_by_node_id) // NODES_PER_RESERVATION)


def choose_reservations(
    snapshot: Replica,
    cache: SchedulerCache,
    waiting: Iterable[Evaluation],
    reserved: Iterable[Reservation],
    now_ns: int,
    tried: set[str],
) -> Iterator[tuple[Evaluation, str]]:
    """Yield the blocked evaluations whose turn it is, by priority, then waiting time, each with the node to reserve for it.

    They have waited for `RESERVATION_DELAY_NS`. The node is an empty text if none would help now: then others of the
    namespace have their turn. `reserved` are the existing reservations; each namespace has at most one.

    `tried` has the ids of evaluations without a node, and is changed here. They have their next turn after all others, so
    jobs that fit on no node keep no other job waiting.
    """
    reservations = list(reserved)
    namespaces = {reservation.namespace for reservation in reservations}
    node_ids = {reservation.node_id for reservation in reservations}
    left, searches = get_max_reservations(cache) - len(reservations), 0
    due = (evaluation for evaluation in waiting if evaluation.waiting_since_ns + RESERVATION_DELAY_NS <= now_ns)
    for evaluation in sorted(due, key=lambda each: (-each.priority, each.waiting_since_ns, each.create_index, each.id)):
        if left <= 0:
            return
        if evaluation.id in tried or evaluation.namespace in namespaces or not can_reserve_node(snapshot, evaluation):
            continue
        if searches == MAX_SEARCHES:
            return
        searches += 1
        node_id = find_node_to_reserve(snapshot, cache, evaluation, node_ids)
        if node_id:
            namespaces.add(evaluation.namespace)
            node_ids.add(node_id)
            left -= 1
        else:
            tried.add(evaluation.id)
        yield evaluation, node_id
    tried.clear()  # All others have had their turn.


def find_node_to_reserve(
    snapshot: Replica, cache: SchedulerCache, evaluation: Evaluation, reserved_node_ids: Collection[str]
) -> str:
    """Return the id of the node to reserve for the evaluation, or an empty text.

    It is the node that misses the smallest share of what one allocation requests, among those where enough resources
    become free when finite jobs end. Nodes in `reserved_node_ids` are left out.
    """
    job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
    group = None if job is None else find_largest_waiting_group(job, evaluation)
    if job is None or group is None:
        return ""
    demand, cores = get_group_demand(group), count_requested_cores(group)
    devices = [request for _, request in list_device_requests(group)]
    rows = _find_feasible_rows(snapshot, cache, job, group)
    if cores:
        rows = _select_rows_with_cores(cache, rows, cores)
    for row in _order_by_missing_share(cache, rows, demand, cores):
        node = cache.fleet.get_node(row)
        if node.id not in reserved_node_ids and _can_become_free(snapshot, cache, row, demand, cores, devices):
            return node.id
    return ""


def is_reservation_useful(snapshot: Replica, cache: SchedulerCache, reservation: Reservation) -> bool:
    """Return whether the reserved node still accepts placements and enough resources can become free there."""
    node = snapshot.get(NODES, reservation.node_id)
    row = cache.fleet.row_by_node_id.get(reservation.node_id)
    if node is None or row is None or not node.is_ready_for_placements:
        return False
    return _can_become_free(snapshot, cache, row, reservation.demand, reservation.cores, reservation.devices)


def _find_feasible_rows(snapshot: Replica, cache: SchedulerCache, job: Job, group: TaskGroup) -> Ints:
    """Return the rows of the nodes on which one more allocation of the group could run, whether or not they are full
    now.
    """
    feasibility, fleet = cache.feasibility, cache.fleet
    screened = feasibility.screen_nodes(
        feasibility.select_ready_nodes(job), job, group, NamespaceVolumes(snapshot, job.namespace)
    )
    rows: Ints = np.flatnonzero(screened.feasible)
    distinct_constraints = DistinctConstraints(fleet, job, group, should_check_hosts=True)
    if distinct_constraints and len(rows):
        job_allocations = snapshot.list_by_index(ALLOCATIONS_OF_JOB, job.namespace, job.id)
        distinct_constraints.count_siblings(list_placed_siblings(job_allocations, fleet.row_by_node_id))
        rows = rows[distinct_constraints.mask_allowed(rows)]
    return rows


def _select_rows_with_cores(cache: SchedulerCache, rows: Ints, cores: int) -> Ints:
    """Return the rows of the nodes that have this many cores, whether or not tasks may reserve all of them."""
    counts = (_count_cores(cache.fleet.get_node(int(row))) for row in rows)
    return rows[np.fromiter(counts, dtype=np.int64, count=len(rows)) >= cores]


def _count_cores(node: Node) -> int:
    """Return the number of cores of a node in total. A node reports them in up to three ways."""
    resources = node.node_resources
    if resources is None:
        return 0
    topology = resources.processors.topology
    reported = topology.cores if topology is not None else None
    return max(resources.cpu.total_cpu_cores, len(resources.cpu.reservable_cpu_cores or ()), len(reported or ()))


def _order_by_missing_share(cache: SchedulerCache, rows: Ints, demand: Usage, cores: int) -> Sequence[int]:
    """Return the rows of the nodes whose total capacity is enough for the demand, at most `MAX_SCANNED_NODES`.

    Nodes that miss the smallest share of the demand come first. Of CPU, memory and disk the largest missing share
    counts: a node that lacks 100 of 400 requested MHz and no memory or disk misses 0.25. The MHz of `cores` whole cores are
    those of average cores of each node.
    """
    fleet = cache.fleet
    cpu_demand: Ints = np.full(len(rows), demand.cpu, dtype=np.int64)
    if cores:
        core_counts = (max(1, _count_cores(fleet.get_node(int(row)))) for row in rows)
        cpu_demand += cores * fleet.cpu[rows] // np.fromiter(core_counts, dtype=np.int64, count=len(rows))
    is_large_enough = (
        (fleet.cpu[rows] >= cpu_demand)
        & (fleet.memory[rows] >= demand.memory_mb)
        & (fleet.disk[rows] >= demand.disk_mb)
    )
    rows, cpu_demand = rows[is_large_enough], cpu_demand[is_large_enough]
    if not len(rows):
        return []
    missing_cpu = fleet.cpu_used[rows] + cpu_demand - fleet.cpu[rows]
    missing_share = np.maximum(0.0, missing_cpu / np.maximum(cpu_demand, 1))
    missing_share[cpu_demand == 0] = 0.0
    for capacity, used, requested in (
        (fleet.memory, fleet.memory_used, demand.memory_mb),
        (fleet.disk, fleet.disk_used, demand.disk_mb),
    ):
        if requested:
            missing_share = np.maximum(missing_share, (used[rows] + requested - capacity[rows]) / requested)
    order = np.argsort(missing_share, kind="stable")[:MAX_SCANNED_NODES]
    return [int(row) for row in rows[order]]


def _can_become_free(
    snapshot: Replica,
    cache: SchedulerCache,
    row: int,
    demand: Usage,
    cores: int,
    devices: Sequence[RequestedDevice],
) -> bool:
    """Return whether the demand, this many whole cores and these devices are free on the node in this row once all finite
    or stopping allocations there have ended.
    """
    fleet = cache.fleet
    node = fleet.get_node(row)
    staying = [
        allocation
        for allocation in snapshot.list_by_index(UNFINISHED_ALLOCATIONS_ON_NODE, node.id)
        if allocation.is_occupying
        and not allocation.is_server_terminal
        and not _will_end(snapshot, allocation.namespace, allocation.job_id)
    ]
    remaining = Usage.sum_usages(get_allocation_usage(allocation) for allocation in staying)
    if cores or devices:
        in_use = ExclusiveResources()
        for allocation in staying:
            if allocation.allocated_resources is not None:
                in_use.add_resources(allocation.allocated_resources)
        free = [core for core in list_usable_cores(node) if core not in in_use.cores][:cores]
        if len(free) < cores or not has_free_devices(node, devices, in_use):
            return False
        demand += Usage(cpu=sum(get_core_mhz(node, core) for core in free))
    capacity = Usage(int(fleet.cpu[row]), int(fleet.memory[row]), int(fleet.disk[row]))
    return (remaining + demand).fits_in(capacity)


def _will_end(snapshot: Replica, namespace: str, job_id: str) -> bool:
    """Return whether the allocations of the job end at some time: the job is finite, stopped or deleted."""
    job = snapshot.get(JOBS, namespace, job_id)
    return job is None or job.stop or job.is_finite


def list_missed_reservations(
    snapshot: Replica, cache: SchedulerCache, waiting: Iterable[Evaluation], now_ns: int, slack_ns: int
) -> list[str]:
    """Return a text for each evaluation that should have a reserved node and has none, for checks of invariants.

    `slack_ns` is how much later than due the reservation may come.
    """
    late = choose_reservations(snapshot, cache, waiting, cache.reservations.values(), now_ns - slack_ns, set())
    return [
        f"{evaluation.namespace}/{evaluation.job_id} has waited since {evaluation.waiting_since_ns} ns"
        " without a reserved node"
        for evaluation, node_id in late
        if node_id and not evaluation.reserved_node_id
    ]
