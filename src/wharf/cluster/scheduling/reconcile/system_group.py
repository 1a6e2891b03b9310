"""The first part of a system job's rollout: a new version is tried on some of its nodes before the others (scheduling.md 5.11).

`canary` is a part of the nodes in percent there, not a number. Until the canaries are promoted the other nodes keep the version
that they have, and so does a node that joins. Where the trial fails, its nodes get that version back.

A system or sysbatch job: one of each of its groups' allocations on every node that can (scheduling.md 5.11, 5.12).
"""

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.scheduling.reconcile.classification import AllocationClass, classify_allocation, should_reconnect
from wharf.cluster.scheduling.reconcile.input import (
    LOST_TEXT,
    NOT_NEEDED_TEXT,
    UNKNOWN_TEXT,
    UPDATING_TEXT,
    ReconcileInput,
    add_state,
    is_replacement_owed,
)
from wharf.cluster.scheduling.reconcile.names import format_name
from wharf.cluster.scheduling.reconcile.outcome import (
    AllocationStop,
    GroupOutcome,
    PlacementRequest,
    ReplacementRequest,
)
from wharf.cluster.scheduling.reconcile.updates import is_destructive_update
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.deployments import Deployment, DeploymentGroup, DeploymentStatus
from wharf.contract.model.jobs.group_policies import UpdatePolicy
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.plan import DesiredUpdates
from wharf.contract.model.nodes.node import Node, NodeStatus


class CanaryPhase(msgspec.Struct, frozen=True):
    """`canaries`: how many nodes try the version; 0: nothing is tried. `tried`: where it is, or was."""

    desired_canaries: int = 0
    canary_ids: tuple[str, ...] = ()
    is_active: bool = False
    """Nobody has promoted it yet, and it goes on."""
    has_failed: bool = False
    """Nobody will: its deployment failed before."""

    def count_missing(self, allocations: Iterable[Allocation]) -> int:
        """How many nodes are still to try it."""
        going_on = sum(each.id in self.canary_ids and not each.is_terminal for each in allocations)
        return max(0, self.desired_canaries - going_on)


NO_CANARY_PHASE = CanaryPhase()


def get_canary_phase(
    update: UpdatePolicy | None, deployment: Deployment | None, known: DeploymentGroup | None, outdated: int
) -> CanaryPhase:
    """`known`: the group in its deployment; `outdated`: how many nodes have another version of what must start anew."""
    if known is None:
        if deployment is not None or update is None or update.max_parallel <= 0:
            return NO_CANARY_PHASE
        wanted = count_canaries(outdated, update)
        return CanaryPhase(wanted, (), is_active=wanted > 0)
    if not known.is_awaiting_promotion or deployment is None:
        return NO_CANARY_PHASE
    has_failed = deployment.status is DeploymentStatus.FAILED
    return CanaryPhase(
        known.desired_canaries, known.placed_canaries or (), is_active=not has_failed, has_failed=has_failed
    )


def count_canaries(nodes: int, update: UpdatePolicy) -> int:
    """So many percent of the nodes, of a part of a node all of it; never more than are exchanged at once."""
    percent = min(100, max(0, update.canary))
    return min(math.ceil(nodes * percent / 100), update.max_parallel)


NODE_TAINTED_TEXT: Final = "alloc not needed as node is tainted"


class NodePlacementRequest(msgspec.Struct, frozen=True):
    """A placement on that node and no other."""

    node: Node
    placement: PlacementRequest


class SystemGroupOutcome(msgspec.Struct):
    """What one group comes to. `places` and replacements know their nodes."""

    outcome: GroupOutcome
    placements: list[NodePlacementRequest] = []
    replacements: list[tuple[Node, ReplacementRequest]] = []
    infeasible_count: int = 0
    """Nodes on which it is missing, and that can never run it: they are none of those that it is to be on."""


class SystemNodes(msgspec.Struct, frozen=True):
    """`wanted`: those in the job's pool and datacenters that take placements. `is_in_reach`: also those that take none.
    `can_run`: those that could ever run the group.
    """

    eligible: Mapping[str, Node]
    is_in_pool_and_datacenter: Callable[[Node], bool]
    find_node: Callable[[str], Node | None]
    can_run: Callable[[Node], bool] = lambda _node: True


def reconcile_system_group(
    sight: ReconcileInput, group: TaskGroup, allocations: Sequence[Allocation], nodes: SystemNodes
) -> SystemGroupOutcome:
    result = SystemGroupOutcome(GroupOutcome(group.name))
    counts = dict.fromkeys(DesiredUpdates.__struct_fields__, 0)
    names = [format_name(sight.job.id, group.name, index) for index in range(group.count)]
    there: set[tuple[str, str]] = set()
    destructive: list[Allocation] = []
    for allocation in allocations:
        key = (allocation.node_id, allocation.name)
        judge = _Verdict(sight, group, nodes)
        verdict = judge.of(allocation, is_name_wanted=allocation.name in names)
        if isinstance(verdict, Allocation) and verdict.client_status is not ClientStatus.UNKNOWN:
            result.outcome.reconnects.append(verdict)
            counts["reconnect"] += 1
            verdict = judge.of_one_in_contact(allocation)  # The job may have moved on meanwhile.
        match verdict:
            case AllocationStop():
                result.outcome.stops.append(verdict)
                counts["stop"] += 1
                if verdict.client_status is None and verdict.reason == NODE_TAINTED_TEXT:
                    there.add(key)
            case Allocation():
                there.add(key)
                result.outcome.disconnects.append(verdict)
                counts["disconnect"] += 1
            case "destructive":
                there.add(key)
                destructive.append(allocation)
            case "in place":
                there.add(key)
                result.outcome.in_place_updates.append(allocation)
                counts["in_place_update"] += 1
            case "stays":
                there.add(key)
                counts["ignore"] += 1
    where = {each.id: node for each in allocations if (node := nodes.find_node(each.node_id)) is not None}
    left_over = [each for each in destructive if each.id in where and _is_of_another_trial(sight, each)]
    destructive = [each for each in destructive if each not in left_over]
    able = [each for each in destructive if each.id in where and nodes.can_run(where[each.id])]
    is_halted = sight.deployment is not None and sight.deployment.status is not DeploymentStatus.RUNNING
    trial = get_canary_phase(group.update, sight.deployment, _known(sight, group), len(able))
    older = sight.find_stable_version(group.name) if trial.is_active or trial.has_failed else None
    down = _down_for_update(sight, allocations)
    to_try = trial.count_missing(allocations) if trial.is_active and not is_halted else 0
    for node in nodes.eligible.values():
        for name in names:
            if (node.id, name) in there:
                continue
            if not nodes.can_run(node):
                result.infeasible_count += 1
                continue
            gone = down.get((node.id, name))
            # The rollout already took this node down, so the node gets a canary before any other node loses its allocation.
            if gone is not None and to_try > 0:
                placement = PlacementRequest(name, sight.job, group, gone, is_canary=True)
                to_try -= 1
                counts["canary"] += 1
            else:
                placement = replace(_missing(sight, group, name, older), previous=gone)
            result.placements.append(NodePlacementRequest(node, placement))
    counts["place"] = len(result.placements)
    budget = _budget(sight, group, allocations, result, able, down)
    # Replacing an allocation on a node that is already down takes no further node down.
    exchanged = sorted(able, key=lambda each: _slot(each) not in down)[:budget]
    if trial.is_active:
        exchanged = exchanged[:to_try]
        counts["canary"] += len(exchanged)
    else:
        counts["destructive_update"] = len(exchanged)
        # Where the new version cannot be nothing takes its place, so nobody waits for that to be well.
        for allocation in destructive if not is_halted else ():
            if allocation not in able:
                result.outcome.stops.append(AllocationStop(allocation, NOT_NEEDED_TEXT))
                counts["stop"] += 1
                counts["ignore"] -= 1
    for allocation in exchanged:
        placement = PlacementRequest(allocation.name, sight.job, group, allocation, is_canary=trial.is_active)
        result.replacements.append(
            (where[allocation.id], ReplacementRequest(AllocationStop(allocation, UPDATING_TEXT), placement))
        )
    if trial.has_failed and older is not None:
        left_over += [each for each in allocations if each.id in trial.canary_ids and each.id in where]
    for canary in left_over:
        if not canary.is_terminal:
            placement = replace(_missing(sight, group, canary.name, older), previous=canary)
            result.replacements.append(
                (where[canary.id], ReplacementRequest(AllocationStop(canary, NOT_NEEDED_TEXT), placement))
            )
    counts["ignore"] += len(destructive) - len(exchanged)
    _tell_deployment(sight, group, result, [*able, *left_over], trial, allocations)
    result.outcome.update_counts = DesiredUpdates(**counts)
    return result


Slot = tuple[str, str]
"""A node id and an allocation name. A system job has at most one running allocation in each slot."""


def _slot(allocation: Allocation) -> Slot:
    return allocation.node_id, allocation.name


def _down_for_update(sight: ReconcileInput, allocations: Iterable[Allocation]) -> dict[Slot, Allocation]:
    """Return the slots that the rollout took down and that are not up again, with the newest allocation in each.

    A slot goes down when its allocation is stopped for the update or when an allocation of the rollout fails in it. It is
    up again when a later allocation in it is healthy, whichever version that allocation has. `allocations` must be in
    order of creation.
    """
    deployment_id = sight.deployment.id if sight.deployment is not None else None
    replaced = {each.previous_allocation for each in allocations if each.deployment_id == deployment_id}
    down: dict[Slot, Allocation] = {}
    for each in allocations:
        slot, status = _slot(each), each.deployment_status
        is_replaced = each.desired_description == UPDATING_TEXT and each.id in replaced
        goes_down = is_replaced or is_replacement_owed(each) or _failed_here(sight, each)
        is_healthy = status is not None and status.healthy is True
        if goes_down or (slot in down and not is_healthy):
            down[slot] = each
        else:
            down.pop(slot, None)
    return down


def _failed_here(sight: ReconcileInput, allocation: Allocation) -> bool:
    """It came by the rollout that goes on and failed, and nobody came after it: its node is tried again before others."""
    has_failed = allocation.client_status is ClientStatus.FAILED and not allocation.next_allocation
    return has_failed and sight.deployment is not None and allocation.deployment_id == sight.deployment.id


def _is_of_another_trial(sight: ReconcileInput, allocation: Allocation) -> bool:
    """A canary that nobody promoted, of a version that is no longer tried."""
    status, deployment = allocation.deployment_status, sight.deployment
    is_canary = status is not None and status.canary
    return is_canary and (deployment is None or allocation.deployment_id != deployment.id)


def _known(sight: ReconcileInput, group: TaskGroup) -> DeploymentGroup | None:
    return (sight.deployment.task_groups or {}).get(group.name) if sight.deployment is not None else None


def _missing(sight: ReconcileInput, group: TaskGroup, name: str, older: tuple[Job, str] | None) -> PlacementRequest:
    """Of the version that is tried nothing is placed but canaries."""
    if older is not None:
        job, deployment_id = older
        group_before = job.find_group(group.name)
        if group_before is not None:
            return PlacementRequest(name, job, group_before, deployment_id=deployment_id)
    return PlacementRequest(name, sight.job, group)


class _Verdict:
    def __init__(self, sight: ReconcileInput, group: TaskGroup, nodes: SystemNodes) -> None:
        self._sight = sight
        self._group = group
        self._nodes = nodes

    def of(self, allocation: Allocation, *, is_name_wanted: bool) -> AllocationStop | Allocation | str:
        """A stop, the allocation as it shall be, or a word for what becomes of it; empty: it says nothing any more."""
        sight = self._sight
        if allocation.is_terminal and not should_reconnect(allocation):
            return self._of_terminal(allocation)
        node = self._nodes.find_node(allocation.node_id)
        found = classify_allocation(allocation, self._group, sight.tainted_nodes, sight.now_ns)
        if found in (AllocationClass.EXPIRING, AllocationClass.LOST) and not self._becomes_unknown(allocation, node):
            return AllocationStop(allocation, LOST_TEXT, ClientStatus.LOST)
        if allocation.should_migrate:
            return AllocationStop(allocation, NODE_TAINTED_TEXT)
        if not is_name_wanted or node is None or not self._nodes.is_in_pool_and_datacenter(node):
            return AllocationStop(allocation, NOT_NEEDED_TEXT)
        if self._becomes_unknown(allocation, node):
            return replace(
                add_state(allocation, ClientStatus.UNKNOWN, sight.now_ns),
                client_status=ClientStatus.UNKNOWN,
                client_description=UNKNOWN_TEXT,
            )
        if found is AllocationClass.RECONNECTING and allocation.client_status is not ClientStatus.UNKNOWN:
            return add_state(allocation, allocation.client_status, sight.now_ns)
        if allocation.client_status is ClientStatus.UNKNOWN:
            return "stays"
        return self.of_one_in_contact(allocation)

    def of_one_in_contact(self, allocation: Allocation) -> AllocationStop | str:
        if allocation.is_terminal:
            return ""  # What is over leaves its place to another.
        if allocation.node_id in self._sight.tainted_nodes:
            return "stays"
        if allocation.node_id not in self._nodes.eligible:
            # It takes nothing new, so what is old cannot be exchanged there.
            return "stays" if self._is_current(allocation) else AllocationStop(allocation, NOT_NEEDED_TEXT)
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
        old_job = self._sight.find_job_version(allocation)
        old = old_job.find_group(allocation.task_group) if old_job is not None else None
        if old_job is None or old is None or is_destructive_update(old_job, old, job, self._group):
            return "destructive"
        return "in place" if self._sight.can_update_in_place(allocation, self._group) else "destructive"

    def _is_current(self, allocation: Allocation) -> bool:
        job = self._sight.job
        return (allocation.job_version, allocation.job_create_index) == (job.version, job.create_index)


def _budget(
    sight: ReconcileInput,
    group: TaskGroup,
    allocations: Iterable[Allocation],
    result: SystemGroupOutcome,
    able: Sequence[Allocation],
    down: Container[Slot],
) -> int:
    """Return how many of `able` may be replaced now, if those in slots that are already down are replaced first."""
    update, deployment = group.update, sight.deployment
    if update is None or update.max_parallel <= 0:
        return len(able)
    placed = ((each.node.id, each.placement.name) for each in result.placements)
    undecided = {slot for slot in (*placed, *map(_slot, (*able, *result.outcome.in_place_updates))) if slot in down}
    already_down = sum(_slot(each) in down for each in able)
    if deployment is not None:
        if deployment.status is not DeploymentStatus.RUNNING:
            return 0
        for allocation in allocations:
            if allocation.deployment_id == deployment.id and not allocation.is_terminal:
                status = allocation.deployment_status
                if status is not None and status.healthy is False:
                    return 0
                if status is None or status.healthy is None:
                    undecided.add(_slot(allocation))
    return already_down + max(0, update.max_parallel - len(undecided))


def _tell_deployment(
    sight: ReconcileInput,
    group: TaskGroup,
    result: SystemGroupOutcome,
    destructive: list[Allocation],
    trial: CanaryPhase,
    allocations: Iterable[Allocation],
) -> None:
    outcome, update = result.outcome, group.update
    total = len(result.placements) + len(destructive) + len(outcome.in_place_updates)
    known = _known(sight, group)
    # What only stops is followed by nothing that would have the job looked at once more.
    is_idle = not (total or outcome.disconnects)
    outcome.is_complete = is_idle and (known is None or is_rolled_out(known))
    if sight.is_batch or update is None or update.max_parallel <= 0:
        return
    if known is not None:
        outcome.deployment = known
        return
    is_updating = bool(destructive or outcome.in_place_updates)
    job = sight.job
    of_version = any((a.job_version, a.job_create_index) == (job.version, job.create_index) for a in allocations)
    if sight.deployment is not None or not total or (of_version and not is_updating):
        return
    outcome.is_new_deployment = True
    outcome.deployment = DeploymentGroup(
        auto_revert=update.auto_revert,
        auto_promote=update.auto_promote,
        progress_deadline=update.progress_deadline,
        desired_total=total,
        desired_canaries=trial.desired_canaries,
    )


def is_rolled_out(group: DeploymentGroup) -> bool:
    return group.healthy_allocs >= group.desired_total and not group.is_awaiting_promotion
