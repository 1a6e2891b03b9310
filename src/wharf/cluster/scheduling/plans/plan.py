"""A plan: what one evaluation wants to change. The brain checks it against the newest state and commits it part by part."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.capacity.quotas import get_remaining_quota, try_consume_quota
from wharf.cluster.scheduling.plans import capacity_versions
from wharf.cluster.scheduling.resources.exclusive import (
    ExclusiveResources,
    has_exclusive_resources,
    iter_cores,
    iter_devices,
    iter_ports,
)
from wharf.cluster.scheduling.resources.usage import Usage, get_allocation_usage, get_node_capacity
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS, EVALUATIONS, JOB_VERSIONS, JOBS, NODES
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import Cause, CauseKind, Condition, DeleteRecord, PutRecord, Write

COMMON_CONDITION_COUNT: Final = 3
"""Conditions of every part: the evaluation, the job, and the mark of all nodes."""


class AllocationChange(msgspec.Struct, frozen=True):
    """An allocation that is there already, as it shall be. A stop holds whatever its node has said of it meanwhile."""

    allocation: Allocation
    is_stop: bool = True


class Plan(msgspec.Struct, frozen=True):
    """`changes` are of allocations that are there, `placements` new ones by node."""

    evaluation: Evaluation
    job: Job | None = None
    """As the plan found it; None: there was none."""
    changes: tuple[AllocationChange, ...] = ()
    placements: dict[str, tuple[Allocation, ...]] = {}
    completed_evaluation: Evaluation | None = None
    """The evaluation as it ends; None: it must run again."""
    follow_ups: tuple[Evaluation, ...] = ()
    deployments: tuple[Deployment, ...] = ()
    """As they shall be. They come first: what is placed counts in them."""
    stable_job: Job | None = None
    """The version that its deployment has proven."""
    all_at_once: bool = False

    @property
    def stops(self) -> tuple[Allocation, ...]:
        return tuple(change.allocation for change in self.changes if change.is_stop)


class PlanCheck(msgspec.Struct, frozen=True):
    """What is to be committed next, what is left for after that, and the nodes left out by now. `refused`: why nothing of
    the plan can ever be committed, though everything of it holds.
    """

    write: Write | None
    remaining_plan: Plan | None = None
    dropped_nodes: Sequence[str] = ()
    rejection: str = ""


class _Part:
    """Changes and conditions up to the bound."""

    def __init__(self, changes_max: int) -> None:
        self.changes: list[PutRecord | DeleteRecord] = []
        self.conditions: list[Condition] = []
        self._max = changes_max

    def has_room_for(self, changes: int, conditions: int) -> bool:
        return (
            len(self.changes) + changes <= self._max
            and len(self.conditions) + conditions + COMMON_CONDITION_COUNT <= self._max
        )

    def room(self) -> int:
        return self._max - len(self.changes)


def check_plan(plan: Plan, snapshot: Replica, *, max_changes: int, cache: SchedulerCache | None = None) -> PlanCheck:
    """The next part of the plan, in one write that fits the log, checked against the newest state.

    The deployment first, then stops, for they make room; then node by node, leaving out each that can no longer take its
    part; last the evaluation's own record, and only if nothing was left out. Each part is valid alone. A crash between
    two leaves the evaluation pending: when it runs again it finds what is placed already. Where the evaluation or the
    job has moved on, nothing of the plan holds. A plan that is all or nothing is one part, or is not carried out at all.
    """
    if not _still_holds(plan, snapshot):
        return PlanCheck(None)
    cache = SchedulerCache.from_snapshot(snapshot) if cache is None else cache
    part = _Part(max_changes)
    if not _take_deployments(plan, snapshot, part):
        return PlanCheck(None)
    changes = _take_changes(plan.changes, snapshot, part)
    if changes is None:
        return PlanCheck(None)
    placements, dropped = ({**plan.placements}, []) if changes else _take_placements(plan, snapshot, cache, part)
    if plan.all_at_once and dropped:
        return PlanCheck(None, None, dropped)
    if plan.all_at_once and (changes or placements):
        return PlanCheck(None, rejection=_too_large_at_once(plan, max_changes))
    finished = None if dropped else plan.completed_evaluation
    is_last = not changes and not placements
    ends = _ends(plan, snapshot) if is_last and finished is not None else None
    if ends is not None and part.has_room_for(len(ends[0]), len(ends[1])):
        part.changes += ends[0]
        part.conditions += ends[1]
        ends = None
    is_done = is_last and (ends is None)
    rest = None
    if not is_done:
        rest = replace(
            plan, changes=changes, placements=placements, completed_evaluation=finished, deployments=(), stable_job=None
        )
    if not part.changes:
        return PlanCheck(None, None, dropped)
    cause = Cause(CauseKind.EVALUATION, plan.evaluation.id)
    write = Write("plan", cause, part.changes, [*part.conditions, *_rests_on(plan, snapshot, part)])
    return PlanCheck(write, rest, dropped)


def _too_large_at_once(plan: Plan, changes_max: int) -> str:
    number = len(plan.changes) + sum(map(len, plan.placements.values()))
    return (
        f"AllAtOnce asks for {number} allocations in one write, and the log takes {changes_max} changes in one: "
        "lower the counts, make several jobs of it, or leave AllAtOnce out"
    )


def _still_holds(plan: Plan, snapshot: Replica) -> bool:
    """The evaluation is as it was, and the job's specification too. The job's status may move: the plan itself does it."""
    if snapshot.get_version(EVALUATIONS, plan.evaluation.id) != plan.evaluation.modify_index:
        return False
    job = snapshot.get(JOBS, plan.evaluation.namespace, plan.evaluation.job_id)
    if job is None or plan.job is None:
        return job is plan.job
    return (job.create_index, job.job_modify_index) == (plan.job.create_index, plan.job.job_modify_index)


def _rests_on(plan: Plan, snapshot: Replica, part: _Part) -> list[Condition]:
    """Nothing of what `_still_holds` looked at may move before the part is committed."""
    evaluation = plan.evaluation
    resting = [
        snapshot.build_key_condition(EVALUATIONS, evaluation.id),
        snapshot.build_key_condition(JOBS, evaluation.namespace, evaluation.job_id),
    ]
    return [condition for condition in resting if condition not in part.conditions]


def _take_deployments(plan: Plan, snapshot: Replica, part: _Part) -> bool:
    """False: a deployment has moved on, so what was decided about it holds no more."""
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


def _take_changes(
    changes: tuple[AllocationChange, ...], snapshot: Replica, part: _Part
) -> tuple[AllocationChange, ...] | None:
    """Put as many into the part as fit; answers those that are left. None: one of them holds no more."""
    for position, change in enumerate(changes):
        if not part.has_room_for(1, 1):
            return changes[position:]
        shall = change.allocation
        stands = snapshot.get(ALLOCATIONS, shall.id)
        if stands is None:
            continue
        if stands.modify_index != shall.modify_index:
            if not change.is_stop:
                return None
            # It was reported on while an earlier part was on its way: what the node said stays.
            shall = _stopped_as_it_stands(stands, shall)
        part.changes.append(ALLOCATIONS.build_put(shall))
        part.conditions.append(snapshot.build_record_condition(ALLOCATIONS, stands))
    return ()


def _stopped_as_it_stands(stands: Allocation, wanted: Allocation) -> Allocation:
    is_lost = not wanted.is_occupying and stands.is_occupying
    return replace(
        stands,
        desired_status=wanted.desired_status,
        desired_description=wanted.desired_description,
        next_allocation=wanted.next_allocation or stands.next_allocation,
        preempted_by_allocation=wanted.preempted_by_allocation or stands.preempted_by_allocation,
        followup_eval_id=wanted.followup_eval_id,
        reschedule_tracker=wanted.reschedule_tracker,
        alloc_states=wanted.alloc_states if is_lost else stands.alloc_states,
        client_status=wanted.client_status if is_lost else stands.client_status,
        alloc_modify_index=wanted.alloc_modify_index,
        modify_time=wanted.modify_time,
    )


def _take_placements(
    plan: Plan, snapshot: Replica, ground: SchedulerCache, part: _Part
) -> tuple[dict[str, tuple[Allocation, ...]], list[str]]:
    """Put nodes into the part as long as they fit; answers what is left, and the nodes that cannot take theirs.

    A node with more than a part takes comes in several. Each of them is checked anew. Whatever is placed moves the mark
    of all nodes, and rests on that of its own.
    """
    dropped: list[str] = []
    job = plan.job
    allowance = None
    if job is not None and plan.placements:
        allowance = get_remaining_quota(snapshot, job.namespace, job.region, ground.quota_usage.get_quota_usage)
    roomy = _with_room(ground, islice(plan.placements.items(), part.room() + 1))
    standing, rests_on = (
        snapshot.get_table_records(ALLOCATIONS).records,
        capacity_versions.make_node_version_lookup(snapshot),
    )
    waiting = iter(plan.placements.items())
    left: dict[str, tuple[Allocation, ...]] = {}
    has_placed = False
    for node_id, placed in waiting:
        room = part.room() - (not has_placed)
        if (part.changes and len(placed) > room) or room < 1 or not part.has_room_for(1, 1):
            left[node_id] = placed
            break
        taken, later = (placed, ()) if len(placed) <= room else (placed[:room], placed[room:])
        fits = node_id in roomy or _fits(snapshot, ground, node_id, taken)
        # An id that was promised to whoever takes a room may be given out by two plans: the second comes too late.
        is_known = any(each.id in standing for each in taken)
        if not fits or is_known or not (allowance is None or try_consume_quota(allowance, taken)):
            dropped.append(node_id)
            continue
        if not has_placed:
            has_placed = True
            part.changes.append(capacity_versions.write_cluster_version())
            part.conditions.append(capacity_versions.expect_cluster_version(snapshot))
        part.changes += [PutRecord(ALLOCATIONS.name, each.id, each) for each in taken]
        part.conditions.append(rests_on(node_id))
        if later:
            left[node_id] = later
            break
    left.update(waiting)
    return left, dropped


def _with_room(ground: SchedulerCache, placements: Iterable[tuple[str, Sequence[Allocation]]]) -> set[str]:
    """Nodes that surely take all of theirs, looked at in one step: of amounts only, so those with more are left out."""
    fleet = ground.fleet
    asked = fleet.sum_placements(placements)
    rows, most = asked.rows, fleet.count_most[asked.rows]
    fits = fleet.is_ready[rows] & ((most == 0) | (fleet.count[rows] + asked.counts <= most))
    fits &= fleet.cpu_used[rows] + asked.cpu <= fleet.cpu[rows]
    fits &= fleet.memory_used[rows] + asked.memory_mb <= fleet.memory[rows]
    fits &= fleet.disk_used[rows] + asked.disk_mb <= fleet.disk[rows]
    return {fleet.get_node(row).id for row in rows[fits].tolist() if row not in asked.exclusive_rows}


def _fits(snapshot: Replica, ground: SchedulerCache, node_id: str, placed: Sequence[Allocation]) -> bool:
    node = snapshot.get(NODES, node_id)
    fleet = ground.fleet
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
        each.allocated_resources is not None and has_exclusive_resources(each.allocated_resources) for each in placed
    ):
        return _has_one_owner_each(fleet.exclusive_resources.get(row) or ExclusiveResources(), placed)
    return True


def _has_one_owner_each(standing: ExclusiveResources, placed: Sequence[Allocation]) -> bool:
    """Nothing of what these hold one by one is held by anybody else."""
    held = standing.copy()
    for allocation in placed:
        resources = allocation.allocated_resources
        if resources is None:
            continue
        if any(port in held.ports for port in iter_ports(resources)):
            return False
        if any(core in held.cores for core in iter_cores(resources)):
            return False
        if any(device in held.devices for device in iter_devices(resources)):
            return False
        held.add_resources(resources)
    return True


def _ends(plan: Plan, snapshot: Replica) -> tuple[list[PutRecord | DeleteRecord], list[Condition]]:
    """The evaluation's end and what follows from it; an evaluation that stood before is changed as it stands."""
    assert plan.completed_evaluation is not None, "only a plan of which nothing was left out ends its evaluation"
    changes: list[PutRecord | DeleteRecord] = [EVALUATIONS.build_put(plan.completed_evaluation)]
    conditions = []
    for follow_up in plan.follow_ups:
        changes.append(EVALUATIONS.build_put(follow_up))
        conditions.append(snapshot.build_key_condition(EVALUATIONS, follow_up.id))
    return changes, conditions
