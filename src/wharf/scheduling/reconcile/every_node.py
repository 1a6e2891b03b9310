"""A system or sysbatch job: one of each of its groups' allocations on every node that can (scheduling.md 5.11, 5.12)."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.model.allocation import Allocation, ClientStatus
from wharf.model.deployment import DeploymentGroup, DeploymentStatus
from wharf.model.group import TaskGroup
from wharf.model.node import Node, NodeStatus
from wharf.model.plan import DesiredUpdates
from wharf.scheduling.reconcile.classes import Class, class_of, should_reconnect
from wharf.scheduling.reconcile.group import LOST, NOT_NEEDED, UNKNOWN, UPDATING, Sight, with_state
from wharf.scheduling.reconcile.names import name_of
from wharf.scheduling.reconcile.outcome import GroupOutcome, Placement, Replacement, Stop
from wharf.scheduling.reconcile.updates import is_destructive

TAINTED: Final = "alloc not needed as node is tainted"


class NodePlacement(msgspec.Struct, frozen=True):
    """A placement on that node and no other."""

    node: Node
    placement: Placement


class EveryNode(msgspec.Struct):
    """What one group comes to. `places` and replacements know their nodes."""

    outcome: GroupOutcome
    places: list[NodePlacement] = []
    replacements: list[tuple[Node, Replacement]] = []


class Nodes(msgspec.Struct, frozen=True):
    """`wanted`: those in the job's pool and datacenters that take placements. `in_reach`: also those that take none."""

    wanted: Mapping[str, Node]
    is_in_reach: Callable[[Node], bool]
    node_of: Callable[[str], Node | None]


def run(sight: Sight, group: TaskGroup, allocations: Iterable[Allocation], nodes: Nodes) -> EveryNode:
    result = EveryNode(GroupOutcome(group.name))
    counts = dict.fromkeys(DesiredUpdates.__struct_fields__, 0)
    names = [name_of(sight.job.id, group.name, index) for index in range(group.count)]
    there: set[tuple[str, str]] = set()
    destructive: list[Allocation] = []
    for allocation in allocations:
        key = (allocation.node_id, allocation.name)
        verdict = _Verdict(sight, group, nodes).of(allocation, is_name_wanted=allocation.name in names)
        match verdict:
            case Stop():
                result.outcome.stops.append(verdict)
                counts["stop"] += 1
                if verdict.client_status is None and verdict.why == TAINTED:
                    there.add(key)
            case Allocation():
                there.add(key)
                is_unknown = verdict.client_status is ClientStatus.UNKNOWN
                (result.outcome.disconnects if is_unknown else result.outcome.reconnects).append(verdict)
                counts["disconnect" if is_unknown else "reconnect"] += 1
            case "destructive":
                there.add(key)
                destructive.append(allocation)
            case "in place":
                there.add(key)
                result.outcome.in_place.append(allocation)
                counts["in_place_update"] += 1
            case "stays":
                there.add(key)
                counts["ignore"] += 1
    for node in nodes.wanted.values():
        for name in names:
            if (node.id, name) not in there:
                result.places.append(NodePlacement(node, Placement(name, sight.job, group)))
    counts["place"] = len(result.places)
    budget = _budget(sight, group, allocations, len(destructive))
    for allocation in destructive[:budget]:
        there_is = nodes.node_of(allocation.node_id)
        if there_is is not None:
            placement = Placement(allocation.name, sight.job, group, allocation)
            result.replacements.append((there_is, Replacement(Stop(allocation, UPDATING), placement)))
    counts["destructive_update"] = len(result.replacements)
    counts["ignore"] += len(destructive) - len(result.replacements)
    _tell_deployment(sight, group, result, destructive, allocations)
    result.outcome.updates = DesiredUpdates(**counts)
    return result


class _Verdict:
    def __init__(self, sight: Sight, group: TaskGroup, nodes: Nodes) -> None:
        self._sight = sight
        self._group = group
        self._nodes = nodes

    def of(self, allocation: Allocation, *, is_name_wanted: bool) -> Stop | Allocation | str:
        """A stop, the allocation as it shall be, or a word for what becomes of it; empty: it says nothing any more."""
        sight = self._sight
        if allocation.is_terminal and not should_reconnect(allocation):
            return self._of_terminal(allocation)
        node = self._nodes.node_of(allocation.node_id)
        found = class_of(allocation, self._group, sight.tainted, sight.now_ns)
        if found in (Class.EXPIRING, Class.LOST) and not self._becomes_unknown(allocation, node):
            return Stop(allocation, LOST, ClientStatus.LOST)
        if allocation.is_to_migrate:
            return Stop(allocation, TAINTED)
        if not is_name_wanted or node is None or not self._nodes.is_in_reach(node):
            return Stop(allocation, NOT_NEEDED)
        if self._becomes_unknown(allocation, node):
            return replace(
                with_state(allocation, ClientStatus.UNKNOWN, sight.now_ns),
                client_status=ClientStatus.UNKNOWN,
                client_description=UNKNOWN,
            )
        if found is Class.RECONNECTING and allocation.client_status is not ClientStatus.UNKNOWN:
            return with_state(allocation, allocation.client_status, sight.now_ns)
        if allocation.client_status is ClientStatus.UNKNOWN or node.id in sight.tainted:
            return "stays"
        if node.id not in self._nodes.wanted:  # It takes nothing new, so what is old cannot be exchanged there.
            return "stays" if self._is_current(allocation) else Stop(allocation, NOT_NEEDED)
        return self._of_version(allocation)

    def _of_terminal(self, allocation: Allocation) -> str:
        """Work of a sysbatch job that ended on a node is done there, for this version. Of what was lost nobody knows."""
        if not self._sight.is_batch or allocation.client_status is ClientStatus.LOST:
            return ""
        return "stays" if self._is_current(allocation) else ""

    def _becomes_unknown(self, allocation: Allocation, node: Node | None) -> bool:
        is_away = node is not None and node.status is NodeStatus.DISCONNECTED
        return is_away and allocation.client_status is ClientStatus.RUNNING

    def _of_version(self, allocation: Allocation) -> str:
        if self._is_current(allocation):
            return "stays"
        job = self._sight.job
        old_job = self._sight.version_of(allocation)
        old = old_job.group(allocation.task_group) if old_job is not None else None
        if old_job is None or old is None or is_destructive(old_job, old, job, self._group):
            return "destructive"
        return "in place" if self._sight.fits_in_place(allocation, self._group) else "destructive"

    def _is_current(self, allocation: Allocation) -> bool:
        job = self._sight.job
        return (allocation.job_version, allocation.job_create_index) == (job.version, job.create_index)


def _budget(sight: Sight, group: TaskGroup, allocations: Iterable[Allocation], wanted: int) -> int:
    """How many may be exchanged now."""
    update, deployment = group.update, sight.deployment
    if update is None or update.max_parallel <= 0:
        return wanted
    if deployment is None:
        return update.max_parallel
    if deployment.status is not DeploymentStatus.RUNNING:
        return 0
    undecided = 0
    for allocation in allocations:
        if allocation.deployment_id == deployment.id and not allocation.is_terminal:
            status = allocation.deployment_status
            if status is not None and status.healthy is False:
                return 0
            undecided += status is None or status.healthy is None
    return max(0, update.max_parallel - undecided)


def _tell_deployment(
    sight: Sight,
    group: TaskGroup,
    result: EveryNode,
    destructive: list[Allocation],
    allocations: Iterable[Allocation],
) -> None:
    outcome, update = result.outcome, group.update
    total = len(result.places) + len(destructive) + len(outcome.in_place)
    known = (sight.deployment.task_groups or {}).get(group.name) if sight.deployment is not None else None
    is_idle = not (total or outcome.stops or outcome.disconnects)
    outcome.is_complete = is_idle and (known is None or known.healthy_allocs >= known.desired_total)
    if sight.is_batch or update is None or update.max_parallel <= 0:
        return
    if known is not None:
        outcome.deployment = known
        return
    is_updating = bool(destructive or outcome.in_place)
    job = sight.job
    of_version = any((a.job_version, a.job_create_index) == (job.version, job.create_index) for a in allocations)
    if sight.deployment is not None or not total or (of_version and not is_updating):
        return
    outcome.begins_deployment = True
    outcome.deployment = DeploymentGroup(
        auto_revert=update.auto_revert,
        auto_promote=update.auto_promote,
        progress_deadline=update.progress_deadline,
        desired_total=total,
    )
