"""Reconciles one group of a system or sysbatch job, which runs on every feasible node (scheduling.md 5.11, 5.12).

Includes canaries: a new version runs on some nodes first. `canary` is a percentage of the nodes here, not a count.
Until promotion the other nodes, and new nodes, keep the older version. A free node gets a canary only if canaries are
missing and no running allocation can be replaced by one. If the deployment fails, canary nodes get the older version
back.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.scheduling.feasibility.location import is_in_pool_and_datacenter
from wharf.cluster.scheduling.reconcile.classification import AllocationClass, classify_allocation, should_reconnect
from wharf.cluster.scheduling.reconcile.deployment import list_undecided_allocations
from wharf.cluster.scheduling.reconcile.input import (
    LOST_TEXT,
    NOT_NEEDED_TEXT,
    UPDATING_TEXT,
    ReconcileInput,
    add_state,
    is_replacement_owed,
    mark_unknown,
)
from wharf.cluster.scheduling.reconcile.interruption import was_interrupted
from wharf.cluster.scheduling.reconcile.outcome import AllocationStop, GroupOutcome, PlacementRequest
from wharf.cluster.scheduling.reconcile.updates import needs_destructive_update
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.allocations.names import format_name
from wharf.contract.model.deployments import Deployment, DeploymentGroup, DeploymentStatus
from wharf.contract.model.jobs.group_policies import UpdatePolicy
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.plan import DesiredUpdates
from wharf.contract.model.nodes.node import Node, NodeStatus

NODE_TAINTED_TEXT: Final = "alloc not needed as node is tainted"

Slot = tuple[str, str]
"""A node id and an allocation name. A system job has at most one running allocation in each slot."""


class CanaryPhase(msgspec.Struct, frozen=True):
    """The time in which some nodes run a new version of a system job before the other nodes do."""

    desired_canaries: int = 0  # How many nodes run the new version first; 0: there is no such phase.
    canary_ids: tuple[str, ...] = ()  # The allocations that were placed as canaries.
    is_active: bool = False
    """The canaries were not promoted yet, and the deployment has not failed."""
    has_failed: bool = False
    """The deployment failed before promotion."""

    def count_missing(self, allocations: Iterable[Allocation]) -> int:
        """Return how many more nodes need a canary. `allocations` are those of the group."""
        active = sum(allocation.id in self.canary_ids and not allocation.is_terminal for allocation in allocations)
        return max(0, self.desired_canaries - active)


NO_CANARY_PHASE = CanaryPhase()
"""All nodes get the new version."""


def get_canary_phase(
    update: UpdatePolicy | None, deployment: Deployment | None, group_state: DeploymentGroup | None, outdated_count: int
) -> CanaryPhase:
    """Return the canary phase of a group of a system job.

    `group_state` is the group's state in its deployment. `outdated_count` is the number of nodes whose allocation needs
    a destructive update; a new deployment makes canaries on a percentage of them.
    """
    if group_state is None:
        if deployment is not None or update is None or update.max_parallel <= 0:
            return NO_CANARY_PHASE
        desired = count_canaries(outdated_count, update)
        return CanaryPhase(desired, (), is_active=desired > 0)
    if not group_state.is_awaiting_promotion or deployment is None:
        return NO_CANARY_PHASE
    has_failed = deployment.status is DeploymentStatus.FAILED
    return CanaryPhase(
        group_state.desired_canaries, group_state.placed_canaries or (), is_active=not has_failed, has_failed=has_failed
    )


def count_canaries(node_count: int, update: UpdatePolicy) -> int:
    """Return how many canaries the update policy requests: `canary` percent of the nodes, rounded up, at most
    `max_parallel`.
    """
    percent = min(100, max(0, update.canary))
    return min(math.ceil(node_count * percent / 100), update.max_parallel)


def reconcile_system_group(
    reconcile_input: ReconcileInput,
    group: TaskGroup,
    allocations: Sequence[Allocation],
    *,
    eligible: Mapping[str, Node],
    find_node: Callable[[str], Node | None],
    can_run: Callable[[Node], bool],
) -> GroupOutcome:
    """Return the stops, placements and updates that a group of a system or sysbatch job needs, each placement with its
    node.

    `allocations` are all allocations of the group, in order of creation. `eligible` are the nodes in the job's pool and
    datacenters that accept placements, by id. `find_node` finds any node. `can_run` returns whether a node could ever
    run the group.
    """
    return _SystemGroupReconciler(reconcile_input, group, eligible, find_node, can_run).run(allocations)


class _SystemGroupReconciler:
    """Decides the stops, placements and updates of one group of a system or sysbatch job."""

    def __init__(
        self,
        reconcile_input: ReconcileInput,
        group: TaskGroup,
        eligible: Mapping[str, Node],
        find_node: Callable[[str], Node | None],
        can_run: Callable[[Node], bool],
    ) -> None:
        self._input = reconcile_input
        self._job = reconcile_input.job
        self._group = group
        self._eligible = eligible
        self._find_node = find_node
        self._can_run = can_run
        self._deployment = deployment = reconcile_input.deployment
        self._is_halted = deployment is not None and deployment.status is not DeploymentStatus.RUNNING
        """A deployment exists and is not running, so nothing is updated."""
        groups = (deployment.task_groups if deployment is not None else None) or {}
        self._group_state = groups.get(group.name)
        """The group's state in the deployment, or `None`."""
        self._names = [format_name(self._job.id, group.name, index) for index in range(group.count)]
        """The names of the allocations that each node runs."""
        self._outcome = GroupOutcome(group.name)
        self._counts = dict.fromkeys(DesiredUpdates.__struct_fields__, 0)
        self._occupied_slots: set[Slot] = set()  # Slots in which no new allocation is requested.
        self._outdated: list[Allocation] = []
        """Allocations that need a destructive update."""

    def run(self, allocations: Sequence[Allocation]) -> GroupOutcome:
        """Return the outcome of the group. `allocations` are all its allocations, in order of creation."""
        outcome = self._outcome
        for allocation in allocations:
            self._classify(allocation)
        nodes = {
            allocation.id: node
            for allocation in allocations
            if (node := self._find_node(allocation.node_id)) is not None
        }
        obsolete_canaries = [
            allocation for allocation in self._outdated if allocation.id in nodes and self._is_obsolete(allocation)
        ]
        outdated = [allocation for allocation in self._outdated if allocation not in obsolete_canaries]
        replaceable = [
            allocation for allocation in outdated if allocation.id in nodes and self._can_run(nodes[allocation.id])
        ]
        phase = get_canary_phase(self._group.update, self._deployment, self._group_state, len(replaceable))
        has_older_version = phase.is_active or phase.has_failed
        stable_version = self._input.find_stable_version(self._group.name) if has_older_version else None
        down_slots = _find_down_slots(self._deployment, allocations)
        remaining = self._exclude_stopping(allocations)
        missing_canaries = phase.count_missing(remaining) if phase.is_active and not self._is_halted else 0
        canary_slots = self._request_missing(stable_version, down_slots, missing_canaries, len(replaceable))

        allowed_count = self._count_allowed_replacements(remaining, replaceable, down_slots, canary_slots)
        # Replacing an allocation on a node that is already down takes no further node down.
        replaced = sorted(replaceable, key=lambda allocation: _get_slot(allocation) not in down_slots)[:allowed_count]
        if phase.is_active:
            replaced = replaced[: missing_canaries - len(canary_slots)]
            self._counts["canary"] += len(replaced)
        else:
            self._counts["destructive_update"] = len(replaced)
            # A node that cannot run the new version gets no replacement, so the stop does not wait for a healthy one.
            for allocation in outdated if not self._is_halted else ():
                if allocation not in replaceable:
                    self._stop(allocation, NOT_NEEDED_TEXT)
                    self._counts["ignore"] -= 1
        for allocation in replaced:
            outcome.replacements.append(
                PlacementRequest(
                    allocation.name,
                    self._job,
                    self._group,
                    allocation,
                    is_canary=phase.is_active,
                    stop=AllocationStop(allocation, UPDATING_TEXT),
                    node=nodes[allocation.id],
                )
            )
        if phase.has_failed and stable_version is not None:
            obsolete_canaries += [
                allocation for allocation in allocations if allocation.id in phase.canary_ids and allocation.id in nodes
            ]
        for canary in obsolete_canaries:
            if not canary.is_terminal:
                request = self._make_request(canary.name, nodes[canary.id], canary, stable_version)
                outcome.replacements.append(replace(request, stop=AllocationStop(canary, NOT_NEEDED_TEXT)))
        self._counts["ignore"] += len(outdated) - len(replaced)
        self._set_deployment_state(remaining, len(replaceable) + len(obsolete_canaries), phase.desired_canaries)
        outcome.update_counts = DesiredUpdates(**self._counts)
        return outcome

    # -- classification ----------------------------------------------------------------------------------------------

    def _classify(self, allocation: Allocation) -> None:
        """Decide whether the allocation stops, stays or is updated, and record it in the outcome."""
        if allocation.is_terminal and not should_reconnect(allocation):
            if self._is_done(allocation):
                self._keep(allocation)
            return
        now_ns = self._input.now_ns
        node = self._find_node(allocation.node_id)
        is_disconnected = node is not None and node.status is NodeStatus.DISCONNECTED
        is_disconnecting = is_disconnected and allocation.client_status is ClientStatus.RUNNING
        allocation_class = classify_allocation(allocation, self._group, self._input.tainted_nodes, now_ns)
        if allocation_class is AllocationClass.IGNORED:
            return  # It stops, and its node reports its end.
        if allocation_class in (AllocationClass.EXPIRING, AllocationClass.LOST) and not is_disconnecting:
            self._stop(allocation, LOST_TEXT, ClientStatus.LOST)
        elif allocation.should_migrate:
            self._stop(allocation, NODE_TAINTED_TEXT)
            self._occupied_slots.add(_get_slot(allocation))
        elif allocation.name not in self._names or node is None or not is_in_pool_and_datacenter(self._job, node):
            self._stop(allocation, NOT_NEEDED_TEXT)
        elif is_disconnecting:
            self._occupied_slots.add(_get_slot(allocation))
            self._outcome.disconnects.append(mark_unknown(allocation, now_ns))
            self._counts["disconnect"] += 1
        elif allocation.client_status is ClientStatus.UNKNOWN:
            self._keep(allocation)
        else:
            if allocation_class is AllocationClass.RECONNECTING:
                self._outcome.reconnects.append(add_state(allocation, allocation.client_status, now_ns))
                self._counts["reconnect"] += 1
            self._classify_connected(allocation)

    def _classify_connected(self, allocation: Allocation) -> None:
        """Decide by job version and node whether an allocation that is not disconnected stays, stops or is updated."""
        if allocation.is_terminal:
            return  # An ended allocation is replaced.
        if allocation.is_of_version(self._job) or allocation.node_id in self._input.tainted_nodes:
            self._keep(allocation)
        elif allocation.node_id not in self._eligible:
            # The node accepts no placements, so the old version cannot be replaced there.
            self._stop(allocation, NOT_NEEDED_TEXT)
        else:
            self._occupied_slots.add(_get_slot(allocation))
            if needs_destructive_update(self._input, allocation, self._group) or not self._input.can_update_in_place(
                allocation, self._group
            ):
                self._outdated.append(allocation)
            else:
                self._outcome.in_place_updates.append(allocation)
                self._counts["in_place_update"] += 1

    def _is_done(self, allocation: Allocation) -> bool:
        """Return whether an ended allocation is the result of a sysbatch job's current version on its node.

        A lost allocation is not, because its result is unknown. One that was stopped before its end has no result.
        """
        is_known = allocation.client_status is not ClientStatus.LOST and not was_interrupted(allocation, self._group)
        return self._input.is_batch and is_known and allocation.is_of_version(self._job)

    def _is_obsolete(self, allocation: Allocation) -> bool:
        """Return whether the allocation is a canary of an earlier deployment that was never promoted."""
        status, deployment = allocation.deployment_status, self._deployment
        is_canary = status is not None and status.canary
        return is_canary and (deployment is None or allocation.deployment_id != deployment.id)

    def _keep(self, allocation: Allocation) -> None:
        """Record that the allocation stays as it is in its slot."""
        self._occupied_slots.add(_get_slot(allocation))
        self._counts["ignore"] += 1

    def _stop(self, allocation: Allocation, reason: str, client_status: ClientStatus | None = None) -> None:
        """Add a stop of the allocation to the outcome. `client_status` is set if the node cannot report."""
        self._outcome.stops.append(AllocationStop(allocation, reason, client_status))
        self._counts["stop"] += 1

    # -- placements --------------------------------------------------------------------------------------------------

    def _exclude_stopping(self, allocations: Sequence[Allocation]) -> Sequence[Allocation]:
        """Return the allocations without those that this evaluation stops, such as those on a lost node.

        The rollout continues without them at once, because the loss of a node may cause no other evaluation. A stopping
        canary counts as missing, and no health is awaited of a stopping allocation.
        """
        stopping = {stop.allocation.id for stop in self._outcome.stops}
        return [allocation for allocation in allocations if allocation.id not in stopping] if stopping else allocations

    def _request_missing(
        self,
        stable_version: tuple[Job, str] | None,
        down_slots: Mapping[Slot, Allocation],
        missing_canaries: int,
        replaceable_count: int,
    ) -> set[Slot]:
        """Request an allocation for each free slot of the eligible nodes that can run the group.

        Return the slots that get a canary. The others get `stable_version`, if there is one. `down_slots` are slots
        that the rollout took down, with their last allocation. `replaceable_count` is how many running allocations can
        become canaries.
        """
        outcome = self._outcome
        free_slots: dict[Slot, Node] = {}
        for node in self._eligible.values():
            names = [name for name in self._names if (node.id, name) not in self._occupied_slots]
            if not names:
                continue
            if self._can_run(node):
                free_slots.update({(node.id, name): node for name in names})
            else:
                outcome.infeasible_count += len(names)
        canary_slots = _select_canary_slots(free_slots, down_slots, missing_canaries, replaceable_count)
        for slot, node in free_slots.items():
            name, previous = slot[1], down_slots.get(slot)
            if slot in canary_slots:
                request = PlacementRequest(name, self._job, self._group, previous, is_canary=True, node=node)
            else:
                request = self._make_request(name, node, previous, stable_version)
            outcome.placements.append(request)
        self._counts["canary"] += len(canary_slots)
        self._counts["place"] = len(outcome.placements)
        return canary_slots

    def _make_request(
        self, name: str, node: Node, previous: Allocation | None, stable_version: tuple[Job, str] | None
    ) -> PlacementRequest:
        """Return a request to place the stable version of the group on this node, or the current version without a
        stable one.

        `previous` is the allocation that it replaces.
        """
        if stable_version is not None:
            job, deployment_id = stable_version
            group = job.find_group(self._group.name)
            if group is not None:
                return PlacementRequest(name, job, group, previous, deployment_id=deployment_id, node=node)
        return PlacementRequest(name, self._job, self._group, previous, node=node)

    def _count_allowed_replacements(
        self,
        allocations: Iterable[Allocation],
        replaceable: Sequence[Allocation],
        down_slots: Mapping[Slot, object],
        canary_slots: Collection[Slot],
    ) -> int:
        """Return how many of the outdated allocations in `replaceable` may be replaced now under `max_parallel`.

        The first to be replaced are those in `down_slots`, where no allocation runs: they take no further slot down.
        `canary_slots` are the free slots that get a canary now.
        """
        update, deployment, outcome = self._group.update, self._deployment, self._outcome
        if update is None or update.max_parallel <= 0:
            return len(replaceable)
        placed_slots = ((request.node.id, request.name) for request in outcome.placements if request.node is not None)
        updated_slots = map(_get_slot, (*replaceable, *outcome.in_place_updates))
        undecided_slots = {slot for slot in (*placed_slots, *updated_slots) if slot in down_slots}
        undecided_slots.update(canary_slots)
        already_down = sum(_get_slot(allocation) in down_slots for allocation in replaceable)
        if deployment is not None:
            active = (allocation for allocation in allocations if not allocation.is_terminal)
            undecided = list_undecided_allocations(deployment, active)
            if self._is_halted or undecided is None:
                return 0
            undecided_slots.update(map(_get_slot, undecided))
        return already_down + max(0, update.max_parallel - len(undecided_slots))

    # -- deployment --------------------------------------------------------------------------------------------------

    def _set_deployment_state(
        self, allocations: Iterable[Allocation], outdated_count: int, desired_canaries: int
    ) -> None:
        """Set in the outcome the group's state in the deployment, and whether the group is complete.

        `allocations` are those that this evaluation does not stop. `outdated_count` is how many of them need a
        replacement. While the deployment runs, its desired total follows the nodes: a node that was lost is not awaited.
        """
        outcome, update, group_state = self._outcome, self._group.update, self._group_state
        total = len(outcome.placements) + outdated_count + len(outcome.in_place_updates)
        # A stop alone causes no further evaluation, so the group counts as complete.
        is_idle = not (total or outcome.disconnects)
        if group_state is not None and self._deployment is not None and not self._is_halted:
            deployment_id = self._deployment.id
            deployed_count = sum(
                allocation.deployment_id == deployment_id and not allocation.is_terminal for allocation in allocations
            )
            group_state = replace(group_state, desired_total=deployed_count + total)
        outcome.is_complete = is_idle and (group_state is None or group_state.is_rolled_out)
        if self._input.is_batch or update is None or update.max_parallel <= 0:
            return
        if group_state is not None:
            outcome.deployment = group_state
            return
        is_updating = bool(outdated_count or outcome.in_place_updates)
        has_current_version = any(allocation.is_of_version(self._job) for allocation in allocations)
        if self._deployment is not None or not total or (has_current_version and not is_updating):
            return
        outcome.is_new_deployment = True
        outcome.deployment = DeploymentGroup(
            auto_revert=update.auto_revert,
            auto_promote=update.auto_promote,
            progress_deadline=update.progress_deadline,
            desired_total=total,
            desired_canaries=desired_canaries,
        )


def _get_slot(allocation: Allocation) -> Slot:
    """Return the slot of the allocation: its node id and its name."""
    return allocation.node_id, allocation.name


def _select_canary_slots(
    free_slots: Iterable[Slot], down_slots: Mapping[Slot, object], missing_canaries: int, replaceable_count: int
) -> set[Slot]:
    """Return the free slots that get a canary.

    Slots that the rollout already took down come first, so that no other node loses its allocation. The other missing
    canaries replace running allocations, of which there are `replaceable_count`. A slot may be free because its node
    has no capacity, so other free slots get a canary only if there are too few allocations to replace. They get it now,
    because this may be the last evaluation before the progress deadline.
    """
    down = [slot for slot in free_slots if slot in down_slots][:missing_canaries]
    unassigned_count = max(0, missing_canaries - len(down) - replaceable_count)
    return {*down, *[slot for slot in free_slots if slot not in down_slots][:unassigned_count]}


def _find_down_slots(deployment: Deployment | None, allocations: Iterable[Allocation]) -> dict[Slot, Allocation]:
    """Return the slots that the rollout took down and that are not up again, each with its newest allocation.

    A slot goes down when its allocation is stopped for the update or when an allocation of the rollout fails in it. It
    is up again when a later allocation in it is healthy, regardless of its version. `allocations` must be in order of
    creation.
    """
    deployment_id = deployment.id if deployment is not None else None
    replaced = {
        allocation.previous_allocation for allocation in allocations if allocation.deployment_id == deployment_id
    }
    down: dict[Slot, Allocation] = {}
    for allocation in allocations:
        slot, status = _get_slot(allocation), allocation.deployment_status
        is_replaced = allocation.desired_description == UPDATING_TEXT and allocation.id in replaced
        has_failed = (
            allocation.client_status is ClientStatus.FAILED
            and not allocation.next_allocation
            and allocation.deployment_id == deployment_id
        )
        is_healthy = status is not None and status.healthy is True
        if is_replaced or is_replacement_owed(allocation) or has_failed or (slot in down and not is_healthy):
            down[slot] = allocation
        else:
            down.pop(slot, None)
    return down
