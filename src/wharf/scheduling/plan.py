"""A plan: what one evaluation wants to change. The brain checks it against the newest state and commits it part by part."""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.model.allocation import Allocation
from wharf.model.changes import Cause, CauseKind, Condition, Drop, Put, Write
from wharf.model.cluster import NodePlacement
from wharf.model.evaluation import Evaluation
from wharf.model.job import Job
from wharf.scheduling.usage import Usage, room_of, usage_of
from wharf.state import Replica
from wharf.state.tables import ALLOCATIONS, ALLOCATIONS_ON_NODE, EVALUATIONS, JOBS, NODE_PLACEMENTS, NODES

SPOKEN_FOR: Final = 2
"""Conditions of every part: the evaluation and the job."""


class Plan(msgspec.Struct, frozen=True):
    """`stops` are allocations as they shall be, `placements` new ones by node."""

    evaluation: Evaluation
    job: Job | None = None
    """As the plan found it; None: there was none."""
    stops: tuple[Allocation, ...] = ()
    placements: dict[str, tuple[Allocation, ...]] = {}
    finished: Evaluation | None = None
    """The evaluation as it ends; None: it must run again."""
    follow_ups: tuple[Evaluation, ...] = ()


class Checked(msgspec.Struct, frozen=True):
    """What is to be committed next, what is left for after that, and the nodes left out by now."""

    write: Write | None
    rest: Plan | None = None
    dropped_nodes: Sequence[str] = ()


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


def check(plan: Plan, snapshot: Replica, *, changes_max: int) -> Checked:
    """The next part of the plan, in one write that fits the log, checked against the newest state.

    Stops first, for they make room; then node by node, leaving out each that can no longer take its part; last the
    evaluation's own record, and only if nothing was left out. Each part is valid alone. A crash between two leaves the
    evaluation pending: when it runs again it finds what is placed already. Where the evaluation or the job has moved
    on, nothing of the plan holds.
    """
    if not _still_holds(plan, snapshot):
        return Checked(None)
    part = _Part(changes_max)
    stops = _take_stops(plan.stops, snapshot, part)
    placements, dropped = ({**plan.placements}, []) if stops else _take_placements(plan, snapshot, part)
    finished = None if dropped else plan.finished
    is_last = not stops and not placements
    ends = _ends(plan, snapshot) if is_last and finished is not None else None
    if ends is not None and part.has_room_for(len(ends[0]), len(ends[1])):
        part.changes += ends[0]
        part.conditions += ends[1]
        ends = None
    is_done = is_last and (ends is None)
    rest = None if is_done else replace(plan, stops=stops, placements=placements, finished=finished)
    if not part.changes:
        return Checked(None, None, dropped)
    cause = Cause(CauseKind.EVALUATION, plan.evaluation.id)
    write = Write("plan", cause, part.changes, [*part.conditions, *_rests_on(plan, snapshot, part)])
    return Checked(write, rest, dropped)


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


def _take_stops(stops: tuple[Allocation, ...], snapshot: Replica, part: _Part) -> tuple[Allocation, ...]:
    """Put as many stops into the part as fit; answers those that are left."""
    for position, allocation in enumerate(stops):
        if not part.has_room_for(1, 1):
            return stops[position:]
        stands = snapshot.get(ALLOCATIONS, allocation.id)
        if stands is None:
            continue
        if stands.modify_index != allocation.modify_index:
            # It was reported on while an earlier part was on its way: what the node said stays.
            allocation = _stopped_as_it_stands(stands, allocation)
        part.changes.append(ALLOCATIONS.put(allocation))
        part.conditions.append(snapshot.unchanged(ALLOCATIONS, stands))
    return ()


def _stopped_as_it_stands(stands: Allocation, wanted: Allocation) -> Allocation:
    is_lost = not wanted.is_occupying and stands.is_occupying
    return replace(
        stands,
        desired_status=wanted.desired_status,
        desired_description=wanted.desired_description,
        client_status=wanted.client_status if is_lost else stands.client_status,
        alloc_modify_index=wanted.alloc_modify_index,
        modify_time=wanted.modify_time,
    )


def _take_placements(plan: Plan, snapshot: Replica, part: _Part) -> tuple[dict[str, tuple[Allocation, ...]], list[str]]:
    """Put nodes into the part as long as they fit; answers what is left, and the nodes that cannot take theirs.

    A node with more than a part takes comes in several. Each of them is checked anew and moves the placement record.
    """
    left = dict(plan.placements)
    dropped: list[str] = []
    for node_id, placed in plan.placements.items():
        room = part.room() - 1
        if (part.changes and len(placed) > room) or room < 1 or not part.has_room_for(2, 1):
            break
        taken, later = placed[:room], placed[room:]
        del left[node_id]
        if not _fits(snapshot, node_id, taken):
            dropped.append(node_id)
            continue
        part.changes.append(NODE_PLACEMENTS.put(NodePlacement(node_id=node_id)))
        part.changes += [ALLOCATIONS.put(allocation) for allocation in taken]
        part.conditions.append(snapshot.as_seen(NODE_PLACEMENTS, node_id))
        if later:
            left = {node_id: later, **left}
            break
    return left, dropped


def _fits(snapshot: Replica, node_id: str, placed: Sequence[Allocation]) -> bool:
    node = snapshot.get(NODES, node_id)
    if node is None or not node.is_ready_for_placements:
        return False
    here = (each for each in snapshot.those(ALLOCATIONS_ON_NODE, node_id) if each.is_occupying)
    return Usage.total(usage_of(allocation) for allocation in (*here, *placed)).fits_in(room_of(node))


def _ends(plan: Plan, snapshot: Replica) -> tuple[list[Put | Drop], list[Condition]]:
    """The evaluation's end and what follows from it; an evaluation that stood before is changed as it stands."""
    assert plan.finished is not None, "only a plan of which nothing was left out ends its evaluation"
    changes: list[Put | Drop] = [EVALUATIONS.put(plan.finished)]
    conditions = []
    for follow_up in plan.follow_ups:
        changes.append(EVALUATIONS.put(follow_up))
        conditions.append(snapshot.as_seen(EVALUATIONS, follow_up.id))
    return changes, conditions
