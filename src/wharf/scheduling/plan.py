"""A plan: what one evaluation wants to change. The brain checks it against the newest state and commits it."""

from collections.abc import Iterator, Sequence

import msgspec

from wharf.model.allocation import Allocation
from wharf.model.changes import Cause, CauseKind, Condition, Drop, Put, Write, join_key
from wharf.model.cluster import NodePlacement
from wharf.model.evaluation import Evaluation
from wharf.scheduling.usage import Usage, room_of, usage_of
from wharf.state import Replica
from wharf.state.table import key_part
from wharf.state.tables import ALLOCATIONS, ALLOCATIONS_ON_NODE, EVALUATIONS, JOB_VERSIONS, JOBS, NODE_PLACEMENTS, NODES


class Plan(msgspec.Struct, frozen=True):
    """`stops` are allocations as they shall be, `placements` new ones by node."""

    evaluation: Evaluation
    stops: tuple[Allocation, ...] = ()
    placements: dict[str, tuple[Allocation, ...]] = {}
    finished: Evaluation | None = None
    """The evaluation as it ends; None: it must run again."""
    follow_ups: tuple[Evaluation, ...] = ()


class Checked(msgspec.Struct, frozen=True):
    """The parts of a plan that still hold, in the order in which they are to be committed, and the nodes left out."""

    parts: Sequence[Write]
    dropped_nodes: Sequence[str]


def check(plan: Plan, snapshot: Replica, *, changes_max: int) -> Checked:
    """Leave out each node that can no longer take its part, and cut the rest into batches that fit the log.

    Each part is valid alone. A crash between two leaves the evaluation pending: when it runs again it finds what is
    placed already. The evaluation's own record comes last, and only if nothing was left out.
    """
    dropped = [
        node_id for node_id, placed in plan.placements.items() if not _fits(snapshot, node_id, placed, plan.stops)
    ]
    kept = {node_id: placed for node_id, placed in plan.placements.items() if node_id not in dropped}
    evaluation = plan.evaluation
    cause = Cause(CauseKind.EVALUATION, evaluation.id)
    rests_on = _rests_on(snapshot, evaluation)
    parts = [
        Write("plan", cause, changes, [*rests_on, *conditions])
        for changes, conditions in _cut(_by_node(snapshot, plan.stops, kept), changes_max)
    ]
    if plan.finished is not None and not dropped:
        ends = [EVALUATIONS.put(record) for record in (plan.finished, *plan.follow_ups)]
        parts.append(Write("evaluation-finished", cause, ends, rests_on))
    return Checked(_joined(parts, changes_max), dropped)


def _rests_on(snapshot: Replica, evaluation: Evaluation) -> list[Condition]:
    """What must not have moved while the plan was made and committed.

    The evaluation is still open, and the job has no newer version. The job's own record will not do: its status changes
    with the first part of the plan.
    """
    conditions = [snapshot.unchanged(EVALUATIONS, evaluation)]
    job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
    if job is not None:
        next_version = join_key(job.namespace, job.id, key_part(job.version + 1))
        conditions.append(Condition(JOB_VERSIONS.name, next_version, 0))
    return conditions


def _fits(snapshot: Replica, node_id: str, placed: Sequence[Allocation], stops: Sequence[Allocation]) -> bool:
    node = snapshot.get(NODES, node_id)
    if node is None or not node.is_ready_for_placements:
        return False
    stopped = {allocation.id for allocation in stops if not allocation.is_occupying}
    here = [a for a in snapshot.those(ALLOCATIONS_ON_NODE, node_id) if a.is_occupying and a.id not in stopped]
    used = Usage.total(usage_of(allocation) for allocation in (*here, *placed))
    return used.fits_in(room_of(node))


Piece = tuple[list[Put | Drop], list[Condition]]


def _by_node(
    snapshot: Replica, stops: Sequence[Allocation], placements: dict[str, tuple[Allocation, ...]]
) -> Iterator[Piece]:
    """Stops first, for they make room; then node by node, each with its placement record."""
    for allocation in stops:
        yield [ALLOCATIONS.put(allocation)], [snapshot.unchanged(ALLOCATIONS, allocation)]
    for node_id, placed in placements.items():
        changes: list[Put | Drop] = [NODE_PLACEMENTS.put(NodePlacement(node_id=node_id))]
        changes += [ALLOCATIONS.put(allocation) for allocation in placed]
        yield changes, [snapshot.as_seen(NODE_PLACEMENTS, node_id)]


def _cut(pieces: Iterator[Piece], changes_max: int) -> Iterator[Piece]:
    """Pieces together up to the bound. One node's placements may themselves be too many: then in several."""
    changes: list[Put | Drop] = []
    conditions: list[Condition] = []
    for more, needed in pieces:
        if changes and (len(changes) + len(more) > changes_max or len(conditions) + len(needed) >= changes_max):
            yield changes, conditions
            changes, conditions = [], []
        changes = changes + more
        conditions = conditions + needed
        while len(changes) > changes_max:
            yield changes[:changes_max], conditions
            changes, conditions = changes[changes_max:], []
    if changes:
        yield changes, conditions


def _joined(parts: list[Write], changes_max: int) -> list[Write]:
    """The end of the evaluation travels with the last part where both fit: one commit less."""
    if len(parts) < 2 or parts[-1].kind != "evaluation-finished":
        return parts
    last, end = parts[-2], parts[-1]
    if len(last.changes) + len(end.changes) > changes_max:
        return parts
    both = Write("plan", last.cause, [*last.changes, *end.changes], last.conditions)
    return [*parts[:-2], both]
