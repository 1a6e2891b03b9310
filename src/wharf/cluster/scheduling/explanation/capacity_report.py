"""Reports why nodes cannot take one more allocation of a group, and the smallest change after which one could.

Computed from the current fleet. It places nothing.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.explanation.examination import MAX_EXAMPLES, ExaminedNodes, get_node_state
from wharf.cluster.scheduling.explanation.smallest_change import DIMENSION_UNITS, ChangeSuggester
from wharf.cluster.scheduling.feasibility.location import is_in_pool_and_datacenter
from wharf.cluster.scheduling.ranking.candidates import CORES_DIMENSION
from wharf.cluster.state import Replica
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.explanations import Exclusion, Shortage
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.nodes.node import Node


class CapacityReport(msgspec.Struct, frozen=True):
    """Which nodes could take one more allocation of a group, and why the others cannot."""

    nodes: int  # How many nodes were considered: those in the job's pool and datacenters that accept placements.
    fitting: int  # How many of them could take one more allocation.
    served_nodes: int = 0  # Of a system or sysbatch job: nodes that have their allocation and so were not considered.
    unserved_nodes: int = 0  # Of a system or sysbatch job: feasible nodes without their allocation.
    excluded: tuple[Exclusion, ...] = ()  # Nodes that a rule excludes, by rule. The first are those of `unconsidered`.
    unconsidered: tuple[Exclusion, ...] = ()  # Nodes that accept no placements or are in another datacenter, by reason.
    exhausted: tuple[Shortage, ...] = ()  # Nodes that lack a resource, by resource.
    smallest_change: str = ""  # What would help; empty if nothing has to change.


def report_capacity(
    cache: SchedulerCache,
    snapshot: Replica,
    job: Job,
    group: TaskGroup,
    allocations: Iterable[Allocation],
    *,
    started: Sequence[Allocation] = (),
    stopped: Sequence[Allocation] = (),
) -> CapacityReport:
    """Return which nodes could take one more allocation of the group, and why the others cannot.

    `allocations` are all allocations of the job. `started` and `stopped` are changes of a plan that the cache does not
    contain.
    """
    examined = ExaminedNodes(cache, snapshot, job, group, allocations, started=started, stopped=stopped)
    unconsidered = tuple(_iter_unconsidered(examined))
    return CapacityReport(
        nodes=int(examined.is_considered.sum()),
        fitting=int(examined.mask_fitting().sum()),
        served_nodes=examined.served_count,
        unserved_nodes=len(examined.rows) if job.runs_on_every_node else 0,
        excluded=(
            *unconsidered,
            *examined.iter_infeasible(),
            *_iter_distinct_exclusions(examined),
        ),
        unconsidered=unconsidered,
        exhausted=tuple(_iter_shortages(examined)),
        smallest_change=ChangeSuggester(examined).suggest_change(),
    )


def _iter_unconsidered(examined: ExaminedNodes) -> Iterator[Exclusion]:
    """Yield, by reason, the nodes of the job's pool that are in another datacenter or accept no placements."""
    names_by_reason: dict[str, list[str]] = {}
    for _, node in examined.fleet.iter_nodes():
        reason = _explain_unconsidered(examined, node)
        if reason:
            names_by_reason.setdefault(reason, []).append(node.name or node.id)
    for reason, names in names_by_reason.items():
        yield Exclusion(rule=reason, nodes=len(names), examples=tuple(sorted(names)[:MAX_EXAMPLES]))


def _iter_distinct_exclusions(examined: ExaminedNodes) -> Iterator[Exclusion]:
    """Yield, by reason, the nodes that a constraint `distinct_hosts` or `distinct_property` excludes."""
    rows_by_reason: dict[str, list[int]] = {}
    for position, reason in examined.distinct_exclusions.items():
        rows_by_reason.setdefault(reason, []).append(int(examined.rows[position]))
    for reason, rows in rows_by_reason.items():
        yield Exclusion(rule=reason, nodes=len(rows), examples=examined.get_example_names(rows))


def _iter_shortages(examined: ExaminedNodes) -> Iterator[Shortage]:
    """Yield each resource that nodes lack, with the number of these nodes and the smallest missing amount."""
    for dimension, is_short in examined.missing_masks:
        positions = np.flatnonzero(is_short)
        if not len(positions):
            continue
        missing = examined.get_missing_amounts(dimension)
        if dimension == CORES_DIMENSION:
            missing = examined.assigner.requested_cores - examined.free_cores
        yield Shortage(
            dimension=dimension,
            nodes=len(positions),
            missing=int(missing[positions].min()) if missing is not None else 0,
            unit=DIMENSION_UNITS.get(dimension, CORES_DIMENSION if dimension == CORES_DIMENSION else ""),
            examples=examined.get_example_names(examined.rows[positions]),
        )


def _explain_unconsidered(examined: ExaminedNodes, node: Node) -> str:
    """Return why a node of the job's pool is not considered, or an empty text if it is, or is in another pool."""
    job = examined.job
    if job.node_pool not in ("", "all", node.node_pool):
        return ""  # Nodes of other pools are not reported.
    if not is_in_pool_and_datacenter(job, node):
        return f"datacenter {node.datacenter} is not in the job's list"
    if examined.is_full_report_due(node):
        return "node has returned but not reported its allocations yet"
    return "" if node.is_ready_for_placements else f"node is {get_node_state(node)}"
