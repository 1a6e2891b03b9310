"""Reconciles one group of a system or sysbatch job, which runs on every feasible node (scheduling.md 5.11, 5.12).

Includes canaries: a new version runs on some nodes first. `canary` is a percentage of the nodes here, not a count.
Until promotion the other nodes, and new nodes, keep the older version. If the deployment fails, canary nodes get the
older version back.
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
    """The canary phase of a group. `desired_canaries` nodes run the new version first; 0: there is no phase."""

    desired_canaries: int = 0
    canary_ids: tuple[str, ...] = ()
    is_active: bool = False
    """The phase continues and was not promoted yet."""
    has_failed: bool = False
    """The deployment failed before promotion."""

    def count_missing(self, allocations: Iterable[Allocation]) -> int:
        """Return how many more nodes need a canary."""
        active = sum(allocation.id in self.canary_ids and not allocation.is_terminal for allocation in allocations)
        return max(0, self.desired_canaries - active)


NO_CANARY_PHASE = CanaryPhase()


def get_canary_phase(
    update: UpdatePolicy | None, deployment: Deployment | None, group_state: DeploymentGroup | None, outdated: int
) -> CanaryPhase:
    """Return the canary phase of the group.

    `group_state` is the group's state in its deployment. `outdated` is the number of nodes whose allocation needs a
    destructive update.
    """
    if group_state is None:
        if deployment is not None or update is None or update.max_parallel <= 0:
            return NO_CANARY_PHASE
        desired = count_canaries(outdated, update)
        return CanaryPhase(desired, (), is_active=desired > 0)
    if not group_state.is_awaiting_promotion or deployment is None:
        return NO_CANARY_PHASE
    has_failed = deployment.status is DeploymentStatus.FAILED
    return CanaryPhase(
        group_state.desired_canaries, group_state.placed_canaries or (), is_active=not has_failed, has_failed=has_failed
    )


def count_canaries(nodes: int, update: UpdatePolicy) -> int:
    """Return the percentage of nodes, rounded up, but at most `max_parallel`."""
    percent = min(100, max(0, update.canary))
    return min(math.ceil(nodes * percent / 100), update.max_parallel)


NODE_TAINTED_TEXT: Final = "alloc not needed as node is tainted"


class NodePlacementRequest(msgspec.Struct, frozen=True):
    """A placement on this node only."""

    node: Node
    placement: PlacementRequest


class SystemGroupOutcome(msgspec.Struct):
    """The outcome of one group. Placements and replacements name their nodes."""

    outcome: GroupOutcome
    placements: list[NodePlacementRequest] = []
    replacements: list[tuple[Node, ReplacementRequest]] = []
    infeasible_count: int = 0
    """Missing allocations on nodes that can never run the group. They do not count as required."""


class SystemNodes(msgspec.Struct, frozen=True):
    """The nodes of a system job.

    `eligible` are the nodes in pool and datacenters that accept placements. `is_in_pool_and_datacenter` also accepts
    nodes without placements. `can_run` returns whether a node could ever run the group.
    """

    eligible: Mapping[str, Node]
    is_in_pool_and_datacenter: Callable[[Node], bool]
    find_node: Callable[[str], Node | None]
    can_run: Callable[[Node], bool] = lambda _node: True


def reconcile_system_group(
    reconcile_input: ReconcileInput, group: TaskGroup, allocations: Sequence[Allocation], nodes: SystemNodes
) -> SystemGroupOutcome:
    """Return what the group needs.

    Classifies its allocations, places missing ones, and replaces outdated ones within the rollout limits.
    """
    result = SystemGroupOutcome(GroupOutcome(group.name))
    counts = dict.fromkeys(DesiredUpdates.__struct_fields__, 0)
    names = [format_name(reconcile_input.job.id, group.name, index) for index in range(group.count)]
    occupied_slots: set[tuple[str, str]] = set()
    destructive: list[Allocation] = []
    for allocation in allocations:
        key = (allocation.node_id, allocation.name)
        decider = _AllocationDecider(reconcile_input, group, nodes)
        decision = decider.decide(allocation, is_name_requested=allocation.name in names)
        if isinstance(decision, Allocation) and decision.client_status is not ClientStatus.UNKNOWN:
            result.outcome.reconnects.append(decision)
            counts["reconnect"] += 1
            decision = decider.decide_connected(allocation)  # The job may have a new version since the disconnect.
        match decision:
            case AllocationStop():
                result.outcome.stops.append(decision)
                counts["stop"] += 1
                if decision.client_status is None and decision.reason == NODE_TAINTED_TEXT:
                    occupied_slots.add(key)
            case Allocation():
                occupied_slots.add(key)
                result.outcome.disconnects.append(decision)
                counts["disconnect"] += 1
            case "destructive":
                occupied_slots.add(key)
                destructive.append(allocation)
            case "in place":
                occupied_slots.add(key)
                result.outcome.in_place_updates.append(allocation)
                counts["in_place_update"] += 1
            case "stays":
                occupied_slots.add(key)
                counts["ignore"] += 1
    node_by_allocation_id = {
        allocation.id: node for allocation in allocations if (node := nodes.find_node(allocation.node_id)) is not None
    }
    obsolete_canaries = [
        allocation
        for allocation in destructive
        if allocation.id in node_by_allocation_id and _is_obsolete_canary(reconcile_input, allocation)
    ]
    destructive = [allocation for allocation in destructive if allocation not in obsolete_canaries]
    replaceable = [
        allocation
        for allocation in destructive
        if allocation.id in node_by_allocation_id and nodes.can_run(node_by_allocation_id[allocation.id])
    ]
    is_halted = (
        reconcile_input.deployment is not None and reconcile_input.deployment.status is not DeploymentStatus.RUNNING
    )
    canary_phase = get_canary_phase(
        group.update, reconcile_input.deployment, _get_group_state(reconcile_input, group), len(replaceable)
    )
    stable_version = (
        reconcile_input.find_stable_version(group.name) if canary_phase.is_active or canary_phase.has_failed else None
    )
    down_slots = _find_down_slots(reconcile_input, allocations)
    missing_canaries = canary_phase.count_missing(allocations) if canary_phase.is_active and not is_halted else 0
    for node in nodes.eligible.values():
        for name in names:
            if (node.id, name) in occupied_slots:
                continue
            if not nodes.can_run(node):
                result.infeasible_count += 1
                continue
            previous_in_slot = down_slots.get((node.id, name))
            # The rollout already took this node down, so it gets a canary before another node loses its allocation.
            if previous_in_slot is not None and missing_canaries > 0:
                placement = PlacementRequest(name, reconcile_input.job, group, previous_in_slot, is_canary=True)
                missing_canaries -= 1
                counts["canary"] += 1
            else:
                placement = replace(
                    _make_placement(reconcile_input, group, name, stable_version), previous=previous_in_slot
                )
            result.placements.append(NodePlacementRequest(node, placement))
    counts["place"] = len(result.placements)
    budget = _count_allowed_replacements(reconcile_input, group, allocations, result, replaceable, down_slots)
    # Replacing an allocation on a node that is already down takes no further node down.
    replaced = sorted(replaceable, key=lambda allocation: _get_slot(allocation) not in down_slots)[:budget]
    if canary_phase.is_active:
        replaced = replaced[:missing_canaries]
        counts["canary"] += len(replaced)
    else:
        counts["destructive_update"] = len(replaced)
        # A node that cannot run the new version gets no replacement, so the stop does not wait for a healthy one.
        for allocation in destructive if not is_halted else ():
            if allocation not in replaceable:
                result.outcome.stops.append(AllocationStop(allocation, NOT_NEEDED_TEXT))
                counts["stop"] += 1
                counts["ignore"] -= 1
    for allocation in replaced:
        placement = PlacementRequest(
            allocation.name, reconcile_input.job, group, allocation, is_canary=canary_phase.is_active
        )
        result.replacements.append(
            (
                node_by_allocation_id[allocation.id],
                ReplacementRequest(AllocationStop(allocation, UPDATING_TEXT), placement),
            )
        )
    if canary_phase.has_failed and stable_version is not None:
        obsolete_canaries += [
            allocation
            for allocation in allocations
            if allocation.id in canary_phase.canary_ids and allocation.id in node_by_allocation_id
        ]
    for canary in obsolete_canaries:
        if not canary.is_terminal:
            placement = replace(_make_placement(reconcile_input, group, canary.name, stable_version), previous=canary)
            result.replacements.append(
                (
                    node_by_allocation_id[canary.id],
                    ReplacementRequest(AllocationStop(canary, NOT_NEEDED_TEXT), placement),
                )
            )
    counts["ignore"] += len(destructive) - len(replaced)
    _set_deployment_state(reconcile_input, group, result, [*replaceable, *obsolete_canaries], canary_phase, allocations)
    result.outcome.update_counts = DesiredUpdates(**counts)
    return result


Slot = tuple[str, str]
"""A node id and an allocation name. A system job has at most one running allocation in each slot."""


def _get_slot(allocation: Allocation) -> Slot:
    return allocation.node_id, allocation.name


def _find_down_slots(reconcile_input: ReconcileInput, allocations: Iterable[Allocation]) -> dict[Slot, Allocation]:
    """Return the slots that the rollout took down and that are not up again, each with its newest allocation.

    A slot goes down when its allocation is stopped for the update or when an allocation of the rollout fails in it. It
    is up again when a later allocation in it is healthy, whichever version that allocation has. `allocations` must be
    in order of creation.
    """
    deployment_id = reconcile_input.deployment.id if reconcile_input.deployment is not None else None
    replaced = {
        allocation.previous_allocation for allocation in allocations if allocation.deployment_id == deployment_id
    }
    down: dict[Slot, Allocation] = {}
    for allocation in allocations:
        slot, status = _get_slot(allocation), allocation.deployment_status
        is_replaced = allocation.desired_description == UPDATING_TEXT and allocation.id in replaced
        goes_down = (
            is_replaced or is_replacement_owed(allocation) or _has_failed_in_deployment(reconcile_input, allocation)
        )
        is_healthy = status is not None and status.healthy is True
        if goes_down or (slot in down and not is_healthy):
            down[slot] = allocation
        else:
            down.pop(slot, None)
    return down


def _has_failed_in_deployment(reconcile_input: ReconcileInput, allocation: Allocation) -> bool:
    """Return whether the allocation failed in this deployment and was not replaced.

    Its node is retried before other nodes.
    """
    has_failed = allocation.client_status is ClientStatus.FAILED and not allocation.next_allocation
    return (
        has_failed
        and reconcile_input.deployment is not None
        and allocation.deployment_id == reconcile_input.deployment.id
    )


def _is_obsolete_canary(reconcile_input: ReconcileInput, allocation: Allocation) -> bool:
    """Return whether the allocation is an unpromoted canary of an earlier deployment."""
    status, deployment = allocation.deployment_status, reconcile_input.deployment
    is_canary = status is not None and status.canary
    return is_canary and (deployment is None or allocation.deployment_id != deployment.id)


def _get_group_state(reconcile_input: ReconcileInput, group: TaskGroup) -> DeploymentGroup | None:
    """Return the group's state in the deployment, or `None`."""
    return (
        (reconcile_input.deployment.task_groups or {}).get(group.name)
        if reconcile_input.deployment is not None
        else None
    )


def _make_placement(
    reconcile_input: ReconcileInput, group: TaskGroup, name: str, stable_version: tuple[Job, str] | None
) -> PlacementRequest:
    """Return a placement of the older version during the canary phase, else of the current one."""
    if stable_version is not None:
        job, deployment_id = stable_version
        old_group = job.find_group(group.name)
        if old_group is not None:
            return PlacementRequest(name, job, old_group, deployment_id=deployment_id)
    return PlacementRequest(name, reconcile_input.job, group)


class _AllocationDecider:
    """Decides what happens to each allocation of the group."""

    def __init__(self, reconcile_input: ReconcileInput, group: TaskGroup, nodes: SystemNodes) -> None:
        self._input = reconcile_input
        self._group = group
        self._nodes = nodes

    def decide(self, allocation: Allocation, *, is_name_requested: bool) -> AllocationStop | Allocation | str:
        """Return a stop, a changed record, or one of "destructive", "in place" and "stays".

        Empty: the allocation no longer counts.
        """
        reconcile_input = self._input
        if allocation.is_terminal and not should_reconnect(allocation):
            return self._decide_terminal(allocation)
        node = self._nodes.find_node(allocation.node_id)
        allocation_class = classify_allocation(
            allocation, self._group, reconcile_input.tainted_nodes, reconcile_input.now_ns
        )
        if allocation_class in (AllocationClass.EXPIRING, AllocationClass.LOST) and not self._is_disconnecting(
            allocation, node
        ):
            return AllocationStop(allocation, LOST_TEXT, ClientStatus.LOST)
        if allocation.should_migrate:
            return AllocationStop(allocation, NODE_TAINTED_TEXT)
        if not is_name_requested or node is None or not self._nodes.is_in_pool_and_datacenter(node):
            return AllocationStop(allocation, NOT_NEEDED_TEXT)
        if self._is_disconnecting(allocation, node):
            return replace(
                add_state(allocation, ClientStatus.UNKNOWN, reconcile_input.now_ns),
                client_status=ClientStatus.UNKNOWN,
                client_description=UNKNOWN_TEXT,
            )
        if allocation_class is AllocationClass.RECONNECTING and allocation.client_status is not ClientStatus.UNKNOWN:
            return add_state(allocation, allocation.client_status, reconcile_input.now_ns)
        if allocation.client_status is ClientStatus.UNKNOWN:
            return "stays"
        return self.decide_connected(allocation)

    def decide_connected(self, allocation: Allocation) -> AllocationStop | str:
        """Return what happens to an allocation that is not disconnected."""
        if allocation.is_terminal:
            return ""  # An ended allocation is replaced.
        if allocation.node_id in self._input.tainted_nodes:
            return "stays"
        if allocation.node_id not in self._nodes.eligible:
            # The node accepts no placements, so an old version cannot be replaced there.
            return "stays" if self._is_current(allocation) else AllocationStop(allocation, NOT_NEEDED_TEXT)
        return self._decide_by_version(allocation)

    def _decide_terminal(self, allocation: Allocation) -> str:
        """Return "stays" if an ended sysbatch allocation of this version is done on its node, else an empty text.

        A lost allocation does not count as done, because its result is unknown.
        """
        if not self._input.is_batch or allocation.client_status is ClientStatus.LOST:
            return ""
        return "stays" if self._is_current(allocation) else ""

    def _is_disconnecting(self, allocation: Allocation, node: Node | None) -> bool:
        """Return whether the allocation runs on a disconnected node."""
        is_disconnected = node is not None and node.status is NodeStatus.DISCONNECTED
        return is_disconnected and allocation.client_status is ClientStatus.RUNNING

    def _decide_by_version(self, allocation: Allocation) -> str:
        """Return whether the version is current or needs an update, in place or destructive."""
        if self._is_current(allocation):
            return "stays"
        job = self._input.job
        old_job = self._input.find_job_version(allocation)
        old_group = old_job.find_group(allocation.task_group) if old_job is not None else None
        if old_job is None or old_group is None or is_destructive_update(old_job, old_group, job, self._group):
            return "destructive"
        return "in place" if self._input.can_update_in_place(allocation, self._group) else "destructive"

    def _is_current(self, allocation: Allocation) -> bool:
        """Return whether the allocation runs the current job version."""
        job = self._input.job
        return (allocation.job_version, allocation.job_create_index) == (job.version, job.create_index)


def _count_allowed_replacements(
    reconcile_input: ReconcileInput,
    group: TaskGroup,
    allocations: Iterable[Allocation],
    result: SystemGroupOutcome,
    replaceable: Sequence[Allocation],
    down_slots: Container[Slot],
) -> int:
    """Return how many of `replaceable` may be replaced now, if slots that are already down come first."""
    update, deployment = group.update, reconcile_input.deployment
    if update is None or update.max_parallel <= 0:
        return len(replaceable)
    placed = ((placement.node.id, placement.placement.name) for placement in result.placements)
    undecided = {
        slot
        for slot in (*placed, *map(_get_slot, (*replaceable, *result.outcome.in_place_updates)))
        if slot in down_slots
    }
    already_down = sum(_get_slot(allocation) in down_slots for allocation in replaceable)
    if deployment is not None:
        if deployment.status is not DeploymentStatus.RUNNING:
            return 0
        for allocation in allocations:
            if allocation.deployment_id == deployment.id and not allocation.is_terminal:
                status = allocation.deployment_status
                if status is not None and status.healthy is False:
                    return 0
                if status is None or status.healthy is None:
                    undecided.add(_get_slot(allocation))
    return already_down + max(0, update.max_parallel - len(undecided))


def _set_deployment_state(
    reconcile_input: ReconcileInput,
    group: TaskGroup,
    result: SystemGroupOutcome,
    destructive: list[Allocation],
    canary_phase: CanaryPhase,
    allocations: Iterable[Allocation],
) -> None:
    """Set the group's deployment state and whether the group is complete."""
    outcome, update = result.outcome, group.update
    total = len(result.placements) + len(destructive) + len(outcome.in_place_updates)
    group_state = _get_group_state(reconcile_input, group)
    # A stop alone causes no further evaluation, so the group counts as complete.
    is_idle = not (total or outcome.disconnects)
    outcome.is_complete = is_idle and (group_state is None or is_rolled_out(group_state))
    if reconcile_input.is_batch or update is None or update.max_parallel <= 0:
        return
    if group_state is not None:
        outcome.deployment = group_state
        return
    is_updating = bool(destructive or outcome.in_place_updates)
    job = reconcile_input.job
    has_current_version = any(
        (allocation.job_version, allocation.job_create_index) == (job.version, job.create_index)
        for allocation in allocations
    )
    if reconcile_input.deployment is not None or not total or (has_current_version and not is_updating):
        return
    outcome.is_new_deployment = True
    outcome.deployment = DeploymentGroup(
        auto_revert=update.auto_revert,
        auto_promote=update.auto_promote,
        progress_deadline=update.progress_deadline,
        desired_total=total,
        desired_canaries=canary_phase.desired_canaries,
    )


def is_rolled_out(group: DeploymentGroup) -> bool:
    """Return whether the group has all its healthy allocations and no unpromoted canaries."""
    return group.healthy_allocs >= group.desired_total and not group.is_awaiting_promotion
