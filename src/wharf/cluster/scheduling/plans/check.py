"""Checks a plan against the newest state and builds the write of its next part. It does not commit."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.capacity.locks import LockCheck
from wharf.cluster.scheduling.capacity.quotas import get_remaining_quota, try_consume_quota
from wharf.cluster.scheduling.feasibility.volumes import find_requested_volumes, has_requested_volumes
from wharf.cluster.scheduling.plans import capacity_versions
from wharf.cluster.scheduling.plans.plan import AllocationChange, Plan
from wharf.cluster.scheduling.resources.exclusive import (
    ExclusiveResources,
    has_exclusive_resources,
    iter_cores,
    iter_devices,
    iter_ports,
)
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS, EVALUATIONS, JOB_VERSIONS, JOBS, NODES
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.jobs.volumes import VolumeRequest
from wharf.contract.model.log import Cause, CauseKind, Condition, DeleteRecord, PutRecord, Write
from wharf.contract.model.resource_usage import Usage, get_allocation_usage, get_node_capacity

NO_PLACEMENTS: Final[Mapping[str, tuple[Allocation, ...]]] = MappingProxyType({})
PLAN_WRITE_KIND: Final = "plan"
"""The kind of every write that contains a part of a plan, or several plans."""
COMMON_CONDITION_COUNT: Final = 3
"""How many conditions every part of a plan needs: the evaluation, the job, and the cluster version."""


class PlanCheck(msgspec.Struct, frozen=True):
    """The result of checking a plan: the write of its next part, and what remains."""

    write: Write | None  # `None`: nothing can be committed now.
    remaining_plan: Plan | None = None  # The plan without this part; `None`: nothing remains.
    dropped_nodes: Sequence[str] = ()  # Ids of nodes that can no longer take their placements.
    rejection: str = ""  # Why no part of the plan can ever be committed, although its conditions hold; or empty.


class _WritePart:
    """The changes and conditions of the write for one part of a plan, with a limit of its size."""

    def __init__(self, max_changes: int) -> None:
        self.changes: list[PutRecord | DeleteRecord] = []
        self.conditions: list[Condition] = []
        self.nodes_out_of_contact: dict[str, None] = {}
        """Nodes that this part requires not to return before the commit."""
        self._max_changes = max_changes

    def can_add(self, changes: int, conditions: int) -> bool:
        """Return whether this part of the plan can take this many more changes and conditions."""
        return (
            len(self.changes) + changes <= self._max_changes
            and len(self.conditions) + conditions + COMMON_CONDITION_COUNT <= self._max_changes
        )

    def count_free_changes(self) -> int:
        """Return how many more changes this part of the plan can take."""
        return self._max_changes - len(self.changes)


def check_plan(
    plan: Plan,
    snapshot: Replica,
    *,
    max_changes: int,
    cache: SchedulerCache | None = None,
    earlier_placements: Mapping[str, tuple[Allocation, ...]] = NO_PLACEMENTS,
) -> PlanCheck:
    """Check the plan against the newest state and return its next part, as one write of at most `max_changes` changes.

    The order is: deployments; stops, because they free resources; placements node by node, without nodes that can no
    longer take theirs; last the evaluation itself, if no node was dropped.

    Each part is valid alone. After a crash between two parts the evaluation is still pending, and its next run finds
    what was placed. If the evaluation or the job has changed, nothing of the plan is committed. An all-at-once plan is
    committed in one part or not at all. `earlier_placements` are new allocations by node id that the same write
    contains: they use capacity of their nodes.
    """
    if not _is_current(plan, snapshot):
        return PlanCheck(None)
    cache = SchedulerCache.from_snapshot(snapshot) if cache is None else cache
    part = _WritePart(max_changes)
    if not _add_deployments(plan, snapshot, part):
        return PlanCheck(None)
    changes = _add_changes(plan.changes, snapshot, part)
    if changes is None:
        return PlanCheck(None)
    placements, dropped = (
        ({**plan.placements}, []) if changes else _add_placements(plan, snapshot, cache, part, earlier_placements)
    )
    if plan.all_at_once and dropped:
        return PlanCheck(None, None, dropped)
    if plan.all_at_once and (changes or placements):
        return PlanCheck(None, rejection=_describe_too_large_plan(plan, max_changes))
    completed = None if dropped else plan.completed_evaluation
    is_last = not changes and not placements
    end_items = _build_end(plan, snapshot) if is_last and completed is not None else None
    if end_items is not None and part.can_add(len(end_items[0]), len(end_items[1])):
        part.changes += end_items[0]
        part.conditions += end_items[1]
        end_items = None
    is_finished = is_last and (end_items is None)
    remaining = None
    if not is_finished:
        remaining = replace(
            plan,
            changes=changes,
            placements=placements,
            completed_evaluation=completed,
            deployments=(),
            stable_job=None,
        )
    if not part.changes:
        return PlanCheck(None, None, dropped)
    cause = Cause(CauseKind.EVALUATION, plan.evaluation.id)
    write = Write(
        PLAN_WRITE_KIND, cause, part.changes, [*part.conditions, *_build_common_conditions(plan, snapshot, part)]
    )
    return PlanCheck(write, remaining, dropped)


def _describe_too_large_plan(plan: Plan, max_changes: int) -> str:
    """Return the error for an all-at-once plan that does not fit in one write."""
    change_count = len(plan.changes) + sum(map(len, plan.placements.values()))
    return (
        f"AllAtOnce requires {change_count} allocations in one write: the log accepts at most {max_changes} changes. "
        "Lower the counts, split the job, or remove AllAtOnce"
    )


def _is_current(plan: Plan, snapshot: Replica) -> bool:
    """Return whether the evaluation and the specification of its job are unchanged since the plan was made.

    The job's status may differ, because the plan itself changes it.
    """
    if snapshot.get_version(EVALUATIONS, plan.evaluation.id) != plan.evaluation.modify_index:
        return False
    job = snapshot.get(JOBS, plan.evaluation.namespace, plan.evaluation.job_id)
    if job is None or plan.job is None:
        return job is plan.job
    return (job.create_index, job.job_modify_index) == (plan.job.create_index, plan.job.job_modify_index)


def _build_common_conditions(plan: Plan, snapshot: Replica, part: _WritePart) -> list[Condition]:
    """Return the conditions that evaluation and job do not change before the commit, as far as the part lacks them."""
    evaluation = plan.evaluation
    conditions = [
        snapshot.build_key_condition(EVALUATIONS, evaluation.id),
        snapshot.build_key_condition(JOBS, evaluation.namespace, evaluation.job_id),
    ]
    return [condition for condition in conditions if condition not in part.conditions]


def _add_deployments(plan: Plan, snapshot: Replica, part: _WritePart) -> bool:
    """Add the plan's deployments to the part, and mark the job version that has become stable.

    Return False if a deployment has changed since the plan was made.
    """
    for deployment in plan.deployments:
        condition = snapshot.build_key_condition(DEPLOYMENTS, deployment.id)
        if condition.version != deployment.modify_index:
            return False
        part.changes.append(DEPLOYMENTS.build_put(deployment))
        part.conditions.append(condition)
    stable = plan.stable_job
    if stable is not None:
        version = snapshot.get(JOB_VERSIONS, stable.namespace, stable.id, stable.version)
        if version is not None:
            part.changes.append(JOB_VERSIONS.build_put(replace(version, stable=True)))
            part.conditions.append(snapshot.build_record_condition(JOB_VERSIONS, version))
        job = snapshot.get(JOBS, stable.namespace, stable.id)
        if job is not None:
            part.changes.append(JOBS.build_put(replace(job, stable=True)))
    return True


def _add_changes(
    changes: tuple[AllocationChange, ...], snapshot: Replica, part: _WritePart
) -> tuple[AllocationChange, ...] | None:
    """Add as many of these changes of existing allocations to the part as fit, and return the rest.

    Return `None` if an allocation has changed since the plan was made, unless the change is a stop. Deleted allocations
    are skipped.
    """
    for position, change in enumerate(changes):
        if not part.can_add(1, 2):
            return changes[position:]
        desired = change.allocation
        current = snapshot.get(ALLOCATIONS, desired.id)
        if current is None:
            continue
        if current.modify_index != desired.modify_index:
            if not change.is_stop:
                return None
            # The node reported on the allocation after the plan was made: keep what it reported.
            desired = _apply_stop(current, desired)
        if current.is_occupying and not desired.is_occupying:
            desired = _keep_reported_by_node(current, desired, snapshot, part)
        part.changes.append(ALLOCATIONS.build_put(desired))
        part.conditions.append(snapshot.build_record_condition(ALLOCATIONS, current))
    return ()


def _keep_reported_by_node(current: Allocation, desired: Allocation, snapshot: Replica, part: _WritePart) -> Allocation:
    """Return the record of an allocation that the plan makes lost, which frees its resources (ADR 82).

    If its node is in contact, the allocation only stops: it may run until the node reports its end. Otherwise the part
    requires that the node does not return before the commit.
    """
    node = snapshot.get(NODES, current.node_id)
    if node is not None and node.status.is_in_contact:
        return replace(desired, client_status=current.client_status, alloc_states=current.alloc_states)
    if current.node_id not in part.nodes_out_of_contact:
        part.nodes_out_of_contact[current.node_id] = None
        part.conditions.append(capacity_versions.expect_node_version(snapshot, current.node_id))
    return desired


def _apply_stop(current: Allocation, desired: Allocation) -> Allocation:
    """Return the current record of an allocation that the plan stops, with the stop applied to it.

    `desired` is the record in the plan. It is outdated, because the node has reported on the allocation since.
    """
    is_lost = not desired.is_occupying and current.is_occupying
    return replace(
        current,
        desired_status=desired.desired_status,
        desired_description=desired.desired_description,
        next_allocation=desired.next_allocation or current.next_allocation,
        preempted_by_allocation=desired.preempted_by_allocation or current.preempted_by_allocation,
        followup_eval_id=desired.followup_eval_id,
        reschedule_tracker=desired.reschedule_tracker,
        alloc_states=desired.alloc_states if is_lost else current.alloc_states,
        client_status=desired.client_status if is_lost else current.client_status,
        alloc_modify_index=desired.alloc_modify_index,
        modify_time=desired.modify_time,
    )


def _add_placements(
    plan: Plan,
    snapshot: Replica,
    cache: SchedulerCache,
    part: _WritePart,
    earlier: Mapping[str, tuple[Allocation, ...]],
) -> tuple[dict[str, tuple[Allocation, ...]], list[str]]:
    """Add new allocations to the part, node by node.

    Return those that remain, by node id, and the ids of dropped nodes.

    A node is dropped if it cannot take its allocations, if it lacks a host volume, if the quota or a lock does not allow
    them, or if one exists already. A node with more allocations than fit in one part is split over several parts. The part
    writes the cluster version and requires an unchanged version of each node.
    """
    if not plan.placements:
        return {}, []
    dropped: list[str] = []
    job = plan.job
    remaining_quota = None
    if job is not None and plan.placements:
        remaining_quota = get_remaining_quota(snapshot, job.namespace, job.region, cache.quota_usage.get_quota_usage)
    locks = LockCheck(snapshot, job, earlier.values())
    checked_placements = islice(plan.placements.items(), part.count_free_changes() + 1)
    fitting_nodes = _find_fitting_nodes(
        cache, ((node_id, (*earlier.get(node_id, ()), *placed)) for node_id, placed in checked_placements)
    )
    existing, expect_version = (
        snapshot.get_table_records(ALLOCATIONS).records,
        capacity_versions.make_node_version_lookup(snapshot),
    )
    pending = iter(plan.placements.items())
    has_volumes = _make_volume_check(snapshot)
    rest: dict[str, tuple[Allocation, ...]] = {}
    has_placed = False
    for node_id, placed in pending:
        free_changes = part.count_free_changes() - (not has_placed)
        if (part.changes and len(placed) > free_changes) or free_changes < 1 or not part.can_add(1, 1):
            rest[node_id] = placed
            break
        fitting, postponed = (
            (placed, ()) if len(placed) <= free_changes else (placed[:free_changes], placed[free_changes:])
        )
        fits = node_id in fitting_nodes or _can_place_on_node(
            snapshot, cache, node_id, (*earlier.get(node_id, ()), *fitting)
        )
        # Two plans may use the id that was promised to the allocation that preempted others. The second plan is
        # dropped.
        already_exists = any(allocation.id in existing for allocation in fitting)
        if (
            not fits
            or already_exists
            or not has_volumes(node_id, fitting)
            or not locks.try_take_slots(fitting)
            or not (remaining_quota is None or try_consume_quota(remaining_quota, fitting))
        ):
            dropped.append(node_id)
            continue
        if not has_placed:
            has_placed = True
            part.changes.append(capacity_versions.write_cluster_version())
            part.conditions.append(capacity_versions.expect_cluster_version(snapshot))
        part.changes += [PutRecord(ALLOCATIONS.name, allocation.id, allocation) for allocation in fitting]
        part.conditions.append(expect_version(node_id))
        if postponed:
            rest[node_id] = postponed
            break
    rest.update(pending)
    return rest, dropped


def _make_volume_check(snapshot: Replica) -> Callable[[str, Sequence[Allocation]], bool]:
    """Return a function that returns whether a node still has the host volumes of new allocations.

    The deletion of a volume may have begun after the plan was made.
    """
    requests_by_group: dict[tuple[int, str], list[VolumeRequest]] = {}

    def has_volumes(node_id: str, placed: Sequence[Allocation]) -> bool:
        """Return whether the node has the volumes of these allocations of the plan's job."""
        for allocation in placed:
            key = allocation.job_version, allocation.task_group
            requests = requests_by_group.get(key)
            if requests is None:
                requests = requests_by_group[key] = find_requested_volumes(snapshot, allocation)
            if requests:
                node = snapshot.get(NODES, node_id)
                if node is None or not has_requested_volumes(snapshot, node, allocation, requests):
                    return False
        return True

    return has_volumes


def _find_fitting_nodes(cache: SchedulerCache, placements: Iterable[tuple[str, Sequence[Allocation]]]) -> set[str]:
    """Return the ids of nodes that can take all their placements, computed for all nodes at once with columns.

    Nodes where a placement needs ports, cores or devices are left out; they must be checked one by one.
    """
    fleet = cache.fleet
    amounts = fleet.sum_placements(placements)
    rows, max_counts = amounts.rows, fleet.max_allocations[amounts.rows]
    fits = fleet.is_ready[rows] & ((max_counts == 0) | (fleet.count[rows] + amounts.counts <= max_counts))
    fits &= fleet.cpu_used[rows] + amounts.cpu <= fleet.cpu[rows]
    fits &= fleet.memory_used[rows] + amounts.memory_mb <= fleet.memory[rows]
    fits &= fleet.disk_used[rows] + amounts.disk_mb <= fleet.disk[rows]
    return {fleet.get_node(row).id for row in rows[fits].tolist() if row not in amounts.exclusive_rows}


def _can_place_on_node(snapshot: Replica, cache: SchedulerCache, node_id: str, placed: Sequence[Allocation]) -> bool:
    """Return whether the node can take these new allocations now, including their ports, cores and devices."""
    node = snapshot.get(NODES, node_id)
    fleet = cache.fleet
    row = fleet.row_by_node_id.get(node_id)
    if node is None or row is None or not node.is_ready_for_placements:
        return False
    if node.node_max_allocs and fleet.count[row] + len(placed) > node.node_max_allocs:
        return False
    if not (fleet.get_usage(row) + Usage.sum_usages(map(get_allocation_usage, placed))).fits_in(
        get_node_capacity(node)
    ):
        return False
    if any(
        allocation.allocated_resources is not None and has_exclusive_resources(allocation.allocated_resources)
        for allocation in placed
    ):
        return _is_free_of_collisions(fleet.exclusive_resources.get(row) or ExclusiveResources(), placed)
    return True


def _is_free_of_collisions(in_use: ExclusiveResources, placed: Sequence[Allocation]) -> bool:
    """Return whether no port, core or device of these allocations is in use on the node or assigned to two of them."""
    used = in_use.copy()
    for allocation in placed:
        resources = allocation.allocated_resources
        if resources is None:
            continue
        if any(port in used.ports for port in iter_ports(resources)):
            return False
        if any(core in used.cores for core in iter_cores(resources)):
            return False
        if any(device in used.devices for device in iter_devices(resources)):
            return False
        used.add_resources(resources)
    return True


def _build_end(plan: Plan, snapshot: Replica) -> tuple[list[PutRecord | DeleteRecord], list[Condition]]:
    """Return the changes and conditions that store the evaluation as it ends, and its follow-up evaluations."""
    assert plan.completed_evaluation is not None, "only a plan of which nothing was left out ends its evaluation"
    changes: list[PutRecord | DeleteRecord] = [EVALUATIONS.build_put(plan.completed_evaluation)]
    conditions = []
    for follow_up in plan.follow_ups:
        changes.append(EVALUATIONS.build_put(follow_up))
        conditions.append(snapshot.build_key_condition(EVALUATIONS, follow_up.id))
    return changes, conditions
