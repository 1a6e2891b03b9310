"""A plan: what one evaluation wants to change. The brain checks it against the newest state and commits it part by part."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.model.allocation import Allocation
from wharf.model.changes import Cause, CauseKind, Condition, Drop, Put, Write
from wharf.model.deployment import Deployment
from wharf.model.evaluation import Evaluation
from wharf.model.job import Job
from wharf.scheduling import room_marks
from wharf.scheduling.ground import Ground
from wharf.scheduling.holdings import Holdings, cores_in, devices_in, holds_anything, ports_in
from wharf.scheduling.quota import allowance_of, fits_quota
from wharf.scheduling.usage import Usage, room_of, usage_of
from wharf.state import Replica
from wharf.state.tables import (
    ALLOCATIONS,
    DEPLOYMENTS,
    EVALUATIONS,
    JOB_VERSIONS,
    JOBS,
    NODES,
)

SPOKEN_FOR: Final = 3
"""Conditions of every part: the evaluation, the job, and the mark of all nodes."""


class Change(msgspec.Struct, frozen=True):
    """An allocation that is there already, as it shall be. A stop holds whatever its node has said of it meanwhile."""

    shall: Allocation
    is_stop: bool = True


class Plan(msgspec.Struct, frozen=True):
    """`changes` are of allocations that are there, `placements` new ones by node."""

    evaluation: Evaluation
    job: Job | None = None
    """As the plan found it; None: there was none."""
    changes: tuple[Change, ...] = ()
    placements: dict[str, tuple[Allocation, ...]] = {}
    finished: Evaluation | None = None
    """The evaluation as it ends; None: it must run again."""
    follow_ups: tuple[Evaluation, ...] = ()
    deployments: tuple[Deployment, ...] = ()
    """As they shall be. They come first: what is placed counts in them."""
    stable: Job | None = None
    """The version that its deployment has proven."""
    all_at_once: bool = False

    @property
    def stops(self) -> tuple[Allocation, ...]:
        return tuple(change.shall for change in self.changes if change.is_stop)


class Checked(msgspec.Struct, frozen=True):
    """What is to be committed next, what is left for after that, and the nodes left out by now. `refused`: why nothing of
    the plan can ever be committed, though everything of it holds.
    """

    write: Write | None
    rest: Plan | None = None
    dropped_nodes: Sequence[str] = ()
    refused: str = ""


class _Part:
    """Changes and conditions up to the bound."""

    def __init__(self, changes_max: int) -> None:
        self.changes: list[Put | Drop] = []
        self.conditions: list[Condition] = []
        self._max = changes_max

    def has_room_for(self, changes: int, conditions: int) -> bool:
        return len(self.changes) + changes <= self._max and len(self.conditions) + conditions + SPOKEN_FOR <= self._max

    def room(self) -> int:
        return self._max - len(self.changes)


def check(plan: Plan, snapshot: Replica, *, changes_max: int, ground: Ground | None = None) -> Checked:
    """The next part of the plan, in one write that fits the log, checked against the newest state.

    The deployment first, then stops, for they make room; then node by node, leaving out each that can no longer take its
    part; last the evaluation's own record, and only if nothing was left out. Each part is valid alone. A crash between
    two leaves the evaluation pending: when it runs again it finds what is placed already. Where the evaluation or the
    job has moved on, nothing of the plan holds. A plan that is all or nothing is one part, or is not carried out at all.
    """
    if not _still_holds(plan, snapshot):
        return Checked(None)
    ground = Ground.of(snapshot) if ground is None else ground
    part = _Part(changes_max)
    if not _take_deployments(plan, snapshot, part):
        return Checked(None)
    changes = _take_changes(plan.changes, snapshot, part)
    if changes is None:
        return Checked(None)
    placements, dropped = ({**plan.placements}, []) if changes else _take_placements(plan, snapshot, ground, part)
    if plan.all_at_once and dropped:
        return Checked(None, None, dropped)
    if plan.all_at_once and (changes or placements):
        return Checked(None, refused=_too_large_at_once(plan, changes_max))
    finished = None if dropped else plan.finished
    is_last = not changes and not placements
    ends = _ends(plan, snapshot) if is_last and finished is not None else None
    if ends is not None and part.has_room_for(len(ends[0]), len(ends[1])):
        part.changes += ends[0]
        part.conditions += ends[1]
        ends = None
    is_done = is_last and (ends is None)
    rest = None
    if not is_done:
        rest = replace(plan, changes=changes, placements=placements, finished=finished, deployments=(), stable=None)
    if not part.changes:
        return Checked(None, None, dropped)
    cause = Cause(CauseKind.EVALUATION, plan.evaluation.id)
    write = Write("plan", cause, part.changes, [*part.conditions, *_rests_on(plan, snapshot, part)])
    return Checked(write, rest, dropped)


def _too_large_at_once(plan: Plan, changes_max: int) -> str:
    number = len(plan.changes) + sum(map(len, plan.placements.values()))
    return (
        f"AllAtOnce asks for {number} allocations in one write, and the log takes {changes_max} changes in one: "
        "lower the counts, make several jobs of it, or leave AllAtOnce out"
    )


def _still_holds(plan: Plan, snapshot: Replica) -> bool:
    """The evaluation is as it was, and the job's specification too. The job's status may move: the plan itself does it."""
    if snapshot.version(EVALUATIONS, plan.evaluation.id) != plan.evaluation.modify_index:
        return False
    job = snapshot.get(JOBS, plan.evaluation.namespace, plan.evaluation.job_id)
    if job is None or plan.job is None:
        return job is plan.job
    return (job.create_index, job.job_modify_index) == (plan.job.create_index, plan.job.job_modify_index)


def _rests_on(plan: Plan, snapshot: Replica, part: _Part) -> list[Condition]:
    """Nothing of what `_still_holds` looked at may move before the part is committed."""
    evaluation = plan.evaluation
    resting = [
        snapshot.as_seen(EVALUATIONS, evaluation.id),
        snapshot.as_seen(JOBS, evaluation.namespace, evaluation.job_id),
    ]
    return [condition for condition in resting if condition not in part.conditions]


def _take_deployments(plan: Plan, snapshot: Replica, part: _Part) -> bool:
    """False: a deployment has moved on, so what was decided about it holds no more."""
    for deployment in plan.deployments:
        condition = snapshot.as_seen(DEPLOYMENTS, deployment.id)
        if condition.version != deployment.modify_index:
            return False
        part.changes.append(DEPLOYMENTS.put(deployment))
        part.conditions.append(condition)
    stable = plan.stable
    if stable is not None:
        version = snapshot.get(JOB_VERSIONS, stable.namespace, stable.id, stable.version)
        if version is not None:
            part.changes.append(JOB_VERSIONS.put(replace(version, stable=True)))
            part.conditions.append(snapshot.unchanged(JOB_VERSIONS, version))
        job = snapshot.get(JOBS, stable.namespace, stable.id)
        if job is not None:
            part.changes.append(JOBS.put(replace(job, stable=True)))
    return True


def _take_changes(changes: tuple[Change, ...], snapshot: Replica, part: _Part) -> tuple[Change, ...] | None:
    """Put as many into the part as fit; answers those that are left. None: one of them holds no more."""
    for position, change in enumerate(changes):
        if not part.has_room_for(1, 1):
            return changes[position:]
        shall = change.shall
        stands = snapshot.get(ALLOCATIONS, shall.id)
        if stands is None:
            continue
        if stands.modify_index != shall.modify_index:
            if not change.is_stop:
                return None
            # It was reported on while an earlier part was on its way: what the node said stays.
            shall = _stopped_as_it_stands(stands, shall)
        part.changes.append(ALLOCATIONS.put(shall))
        part.conditions.append(snapshot.unchanged(ALLOCATIONS, stands))
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
    plan: Plan, snapshot: Replica, ground: Ground, part: _Part
) -> tuple[dict[str, tuple[Allocation, ...]], list[str]]:
    """Put nodes into the part as long as they fit; answers what is left, and the nodes that cannot take theirs.

    A node with more than a part takes comes in several. Each of them is checked anew. Whatever is placed moves the mark
    of all nodes, and rests on that of its own.
    """
    dropped: list[str] = []
    job = plan.job
    allowance = None
    if job is not None and plan.placements:
        allowance = allowance_of(snapshot, job.namespace, job.region, ground.quota_use.of_quota)
    roomy = _with_room(ground, islice(plan.placements.items(), part.room() + 1))
    standing, rests_on = snapshot.rows(ALLOCATIONS).records, room_marks.resting_on(snapshot)
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
        if not fits or is_known or not (allowance is None or fits_quota(allowance, taken)):
            dropped.append(node_id)
            continue
        if not has_placed:
            has_placed = True
            part.changes.append(room_marks.moves_for_all())
            part.conditions.append(room_marks.rests_on_all(snapshot))
        part.changes += [Put(ALLOCATIONS.name, each.id, each) for each in taken]
        part.conditions.append(rests_on(node_id))
        if later:
            left[node_id] = later
            break
    left.update(waiting)
    return left, dropped


def _with_room(ground: Ground, placements: Iterable[tuple[str, Sequence[Allocation]]]) -> set[str]:
    """Nodes that surely take all of theirs, looked at in one step: of amounts only, so those with more are left out."""
    fleet = ground.fleet
    asked = fleet.amounts(placements)
    rows, most = asked.rows, fleet.count_most[asked.rows]
    fits = fleet.is_ready[rows] & ((most == 0) | (fleet.count[rows] + asked.number <= most))
    fits &= fleet.cpu_used[rows] + asked.cpu <= fleet.cpu[rows]
    fits &= fleet.memory_used[rows] + asked.memory_mb <= fleet.memory[rows]
    fits &= fleet.disk_used[rows] + asked.disk_mb <= fleet.disk[rows]
    return {fleet.node(row).id for row in rows[fits].tolist() if row not in asked.holding}


def _fits(snapshot: Replica, ground: Ground, node_id: str, placed: Sequence[Allocation]) -> bool:
    node = snapshot.get(NODES, node_id)
    fleet = ground.fleet
    row = fleet.row_of.get(node_id)
    if node is None or row is None or not node.is_ready_for_placements:
        return False
    if node.node_max_allocs and fleet.count[row] + len(placed) > node.node_max_allocs:
        return False
    if not (fleet.used(row) + Usage.total(map(usage_of, placed))).fits_in(room_of(node)):
        return False
    if any(each.allocated_resources is not None and holds_anything(each.allocated_resources) for each in placed):
        return _has_one_owner_each(fleet.holdings.get(row) or Holdings(), placed)
    return True


def _has_one_owner_each(standing: Holdings, placed: Sequence[Allocation]) -> bool:
    """Nothing of what these hold one by one is held by anybody else."""
    held = standing.copy()
    for allocation in placed:
        resources = allocation.allocated_resources
        if resources is None:
            continue
        if any(port in held.ports for port in ports_in(resources)):
            return False
        if any(core in held.cores for core in cores_in(resources)):
            return False
        if any(device in held.devices for device in devices_in(resources)):
            return False
        held.take(resources)
    return True


def _ends(plan: Plan, snapshot: Replica) -> tuple[list[Put | Drop], list[Condition]]:
    """The evaluation's end and what follows from it; an evaluation that stood before is changed as it stands."""
    assert plan.finished is not None, "only a plan of which nothing was left out ends its evaluation"
    changes: list[Put | Drop] = [EVALUATIONS.put(plan.finished)]
    conditions = []
    for follow_up in plan.follow_ups:
        changes.append(EVALUATIONS.put(follow_up))
        conditions.append(snapshot.as_seen(EVALUATIONS, follow_up.id))
    return changes, conditions
