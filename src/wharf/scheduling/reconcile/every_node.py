"""A system or sysbatch job: one of each of its groups' allocations on every node that can (scheduling.md 5.11, 5.12)."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.model.allocation import Allocation, ClientStatus
from wharf.model.deployment import DeploymentGroup, DeploymentStatus
from wharf.model.group import TaskGroup
from wharf.model.job import Job
from wharf.model.node import Node, NodeStatus
from wharf.model.plan import DesiredUpdates
from wharf.scheduling.reconcile.classes import Class, class_of, should_reconnect
from wharf.scheduling.reconcile.names import name_of
from wharf.scheduling.reconcile.outcome import GroupOutcome, Placement, Replacement, Stop
from wharf.scheduling.reconcile.sight import LOST, NOT_NEEDED, UNKNOWN, UPDATING, Sight, is_owed, with_state
from wharf.scheduling.reconcile.trial import Trial, trial_of
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
    filtered: int = 0
    """Nodes on which it is missing, and that can never run it: they are none of those that it is to be on."""


class Nodes(msgspec.Struct, frozen=True):
    """`wanted`: those in the job's pool and datacenters that take placements. `is_in_reach`: also those that take none.
    `can_run`: those that could ever run the group.
    """

    wanted: Mapping[str, Node]
    is_in_reach: Callable[[Node], bool]
    node_of: Callable[[str], Node | None]
    can_run: Callable[[Node], bool] = lambda _node: True


def run(sight: Sight, group: TaskGroup, allocations: Sequence[Allocation], nodes: Nodes) -> EveryNode:
    result = EveryNode(GroupOutcome(group.name))
    counts = dict.fromkeys(DesiredUpdates.__struct_fields__, 0)
    names = [name_of(sight.job.id, group.name, index) for index in range(group.count)]
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
            case Stop():
                result.outcome.stops.append(verdict)
                counts["stop"] += 1
                if verdict.client_status is None and verdict.why == TAINTED:
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
                result.outcome.in_place.append(allocation)
                counts["in_place_update"] += 1
            case "stays":
                there.add(key)
                counts["ignore"] += 1
    where = {each.id: node for each in allocations if (node := nodes.node_of(each.node_id)) is not None}
    left_over = [each for each in destructive if each.id in where and _is_of_another_trial(sight, each)]
    destructive = [each for each in destructive if each not in left_over]
    able = [each for each in destructive if each.id in where and nodes.can_run(where[each.id])]
    is_halted = sight.deployment is not None and sight.deployment.status is not DeploymentStatus.RUNNING
    trial = trial_of(group.update, sight.deployment, _known(sight, group), len(able))
    older = sight.stable_version(group.name) if trial.is_open or trial.has_failed else None
    down = _down_for_update(sight, allocations)
    to_try = trial.missing(allocations) if trial.is_open and not is_halted else 0
    for node in nodes.wanted.values():
        for name in names:
            if (node.id, name) in there:
                continue
            if not nodes.can_run(node):
                result.filtered += 1
                continue
            gone = down.get((node.id, name))
            # The rollout already took this node down, so the node gets a canary before any other node loses its allocation.
            if gone is not None and to_try > 0:
                placement = Placement(name, sight.job, group, gone, is_canary=True)
                to_try -= 1
                counts["canary"] += 1
            else:
                placement = replace(_missing(sight, group, name, older), previous=gone)
            result.places.append(NodePlacement(node, placement))
    counts["place"] = len(result.places)
    budget = _budget(sight, group, allocations, result, able, down)
    # Replacing an allocation on a node that is already down takes no further node down.
    exchanged = sorted(able, key=lambda each: _slot(each) not in down)[:budget]
    if trial.is_open:
        exchanged = exchanged[:to_try]
        counts["canary"] += len(exchanged)
    else:
        counts["destructive_update"] = len(exchanged)
        # Where the new version cannot be nothing takes its place, so nobody waits for that to be well.
        for allocation in destructive if not is_halted else ():
            if allocation not in able:
                result.outcome.stops.append(Stop(allocation, NOT_NEEDED))
                counts["stop"] += 1
                counts["ignore"] -= 1
    for allocation in exchanged:
        placement = Placement(allocation.name, sight.job, group, allocation, is_canary=trial.is_open)
        result.replacements.append((where[allocation.id], Replacement(Stop(allocation, UPDATING), placement)))
    if trial.has_failed and older is not None:
        left_over += [each for each in allocations if each.id in trial.tried and each.id in where]
    for canary in left_over:
        if not canary.is_terminal:
            placement = replace(_missing(sight, group, canary.name, older), previous=canary)
            result.replacements.append((where[canary.id], Replacement(Stop(canary, NOT_NEEDED), placement)))
    counts["ignore"] += len(destructive) - len(exchanged)
    _tell_deployment(sight, group, result, [*able, *left_over], trial, allocations)
    result.outcome.updates = DesiredUpdates(**counts)
    return result


Slot = tuple[str, str]
"""A node id and an allocation name. A system job has at most one running allocation in each slot."""


def _slot(allocation: Allocation) -> Slot:
    return allocation.node_id, allocation.name


def _down_for_update(sight: Sight, allocations: Iterable[Allocation]) -> dict[Slot, Allocation]:
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
        is_replaced = each.desired_description == UPDATING and each.id in replaced
        goes_down = is_replaced or is_owed(each) or _failed_here(sight, each)
        is_healthy = status is not None and status.healthy is True
        if goes_down or (slot in down and not is_healthy):
            down[slot] = each
        else:
            down.pop(slot, None)
    return down


def _failed_here(sight: Sight, allocation: Allocation) -> bool:
    """It came by the rollout that goes on and failed, and nobody came after it: its node is tried again before others."""
    has_failed = allocation.client_status is ClientStatus.FAILED and not allocation.next_allocation
    return has_failed and sight.deployment is not None and allocation.deployment_id == sight.deployment.id


def _is_of_another_trial(sight: Sight, allocation: Allocation) -> bool:
    """A canary that nobody promoted, of a version that is no longer tried."""
    status, deployment = allocation.deployment_status, sight.deployment
    is_canary = status is not None and status.canary
    return is_canary and (deployment is None or allocation.deployment_id != deployment.id)


def _known(sight: Sight, group: TaskGroup) -> DeploymentGroup | None:
    return (sight.deployment.task_groups or {}).get(group.name) if sight.deployment is not None else None


def _missing(sight: Sight, group: TaskGroup, name: str, older: tuple[Job, str] | None) -> Placement:
    """Of the version that is tried nothing is placed but canaries."""
    if older is not None:
        job, deployment_id = older
        group_before = job.group(group.name)
        if group_before is not None:
            return Placement(name, job, group_before, deployment_id=deployment_id)
    return Placement(name, sight.job, group)


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
        if allocation.client_status is ClientStatus.UNKNOWN:
            return "stays"
        return self.of_one_in_contact(allocation)

    def of_one_in_contact(self, allocation: Allocation) -> Stop | str:
        if allocation.is_terminal:
            return ""  # What is over leaves its place to another.
        if allocation.node_id in self._sight.tainted:
            return "stays"
        if allocation.node_id not in self._nodes.wanted:
            # It takes nothing new, so what is old cannot be exchanged there.
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


def _budget(
    sight: Sight,
    group: TaskGroup,
    allocations: Iterable[Allocation],
    result: EveryNode,
    able: Sequence[Allocation],
    down: Container[Slot],
) -> int:
    """Return how many of `able` may be replaced now, if those in slots that are already down are replaced first."""
    update, deployment = group.update, sight.deployment
    if update is None or update.max_parallel <= 0:
        return len(able)
    placed = ((each.node.id, each.placement.name) for each in result.places)
    undecided = {slot for slot in (*placed, *map(_slot, (*able, *result.outcome.in_place))) if slot in down}
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
    sight: Sight,
    group: TaskGroup,
    result: EveryNode,
    destructive: list[Allocation],
    trial: Trial,
    allocations: Iterable[Allocation],
) -> None:
    outcome, update = result.outcome, group.update
    total = len(result.places) + len(destructive) + len(outcome.in_place)
    known = _known(sight, group)
    # What only stops is followed by nothing that would have the job looked at once more.
    is_idle = not (total or outcome.disconnects)
    outcome.is_complete = is_idle and (known is None or is_rolled_out(known))
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
        desired_canaries=trial.canaries,
    )


def is_rolled_out(group: DeploymentGroup) -> bool:
    return group.healthy_allocs >= group.desired_total and not group.awaits_promotion
