"""What people ask of a node's drain: that it begins, goes on by other rules, or is called off.

Only the wish is recorded here, with everything that can be seen of it at once: the node gets nothing new from then on. To
move what runs there, step by step and within the groups' limits, is the drainer's work.

What a drain does to records: allocations are marked to be moved away, and a node that is empty enough is told so.

Which of them, and when, is decided by `controllers.drainer`. Here is only how it is written.
"""

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.decision import Decision, DecisionContext
from wharf.cluster.operations.evaluations import make_evaluation
from wharf.cluster.operations.nodes.writes import (
    NodeWriteResult,
    add_node_message,
    build_node_decision,
    get_node,
    make_node_evaluations,
)
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS, NODES
from wharf.contract.model.allocations.allocation import Allocation, DesiredTransition
from wharf.contract.model.evaluations import Evaluation, EvaluationTrigger
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.nodes.node import (
    DrainMetadata,
    DrainStatus,
    DrainStrategy,
    Node,
    NodeEvent,
    NodeEventSubsystem,
    SchedulingEligibility,
    add_node_event,
    set_drain_strategy,
)
from wharf.contract.model.times import to_datetime

MAX_DRAIN_DEADLINE_NS = 100 * 365 * 24 * 3_600 * 1_000_000_000
"""Beyond this a calendar has no place for the moment; it is as good as none."""


class DrainOptions(msgspec.Struct, frozen=True):
    """How a node is to be emptied. `deadline_ns`: above 0 a bound, 0 none, below 0 everything moves at once."""

    deadline_ns: int = 0
    ignore_system_jobs: bool = False


class DrainRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Without an order the drain is called off. `mark_eligible` counts only then."""

    node_id: str
    order: DrainOptions | None = None
    mark_eligible: bool = False
    meta: Mapping[str, str] = msgspec.field(default_factory=dict)
    accessor_id: str = ""
    cause: str = ""


def update_drain(
    snapshot: Replica, request: DrainRequest, context: DecisionContext, *, max_evaluations: int
) -> Decision[NodeWriteResult]:
    node = get_node(snapshot, request.node_id)
    evaluations: list[Evaluation] = []
    if request.order is not None:
        changed = _start_drain(node, request, request.order, context)
    else:
        changed = _cancel_drain(node, request, context)
        is_back = node.scheduling_eligibility is not changed.scheduling_eligibility
        evaluations = make_node_evaluations(snapshot, changed, context, max_evaluations) if is_back else []
    if changed == node:
        return Decision(None, lambda _index: NodeWriteResult(0))
    cause = Cause(CauseKind.REQUEST, request.cause)
    return build_node_decision("node-drain", snapshot, changed, evaluations, (), cause=cause)


def _start_drain(node: Node, request: DrainRequest, options: DrainOptions, context: DecisionContext) -> Node:
    """A drain that is under way keeps its beginning; its deadline counts from now."""
    now = to_datetime(context.now_ns)
    before = node.drain_strategy
    has_bound = 0 < options.deadline_ns <= MAX_DRAIN_DEADLINE_NS
    strategy = DrainStrategy(
        deadline=options.deadline_ns,
        ignore_system_jobs=options.ignore_system_jobs,
        force_deadline=to_datetime(context.now_ns + options.deadline_ns) if has_bound else None,
        started_at=now if before is None else before.started_at,
    )
    last = node.last_drain if before is not None else None
    told = DrainMetadata(
        started_at=_whole_seconds(now) if last is None else last.started_at,
        updated_at=_whole_seconds(now),
        status=DrainStatus.DRAINING,
        accessor_id=request.accessor_id,
        meta=_merge_meta(request, last),
    )
    drained = replace(
        set_drain_strategy(node, strategy), scheduling_eligibility=SchedulingEligibility.INELIGIBLE, last_drain=told
    )
    message = "Node drain strategy set" if before is None else "Node drain strategy updated"
    return add_node_message(drained, message, context, subsystem=NodeEventSubsystem.DRAIN)


def _cancel_drain(node: Node, request: DrainRequest, context: DecisionContext) -> Node:
    """Without a strategy. The node stays ineligible unless it is told otherwise."""
    was_draining = node.drain_strategy is not None
    left = node
    if was_draining:
        last = node.last_drain or DrainMetadata()
        told = replace(
            last,
            status=DrainStatus.CANCELED,
            updated_at=_whole_seconds(to_datetime(context.now_ns)),
            accessor_id=request.accessor_id,
            meta=_merge_meta(request, last),
        )
        left = replace(set_drain_strategy(node, None), last_drain=told)
        left = add_node_message(left, "Node drain disabled", context, subsystem=NodeEventSubsystem.DRAIN)
    if not request.mark_eligible or node.scheduling_eligibility is SchedulingEligibility.ELIGIBLE:
        return left
    left = replace(left, scheduling_eligibility=SchedulingEligibility.ELIGIBLE)
    return left if was_draining else add_node_message(left, "Node marked as eligible for scheduling", context)


def _merge_meta(request: DrainRequest, last: DrainMetadata | None) -> dict[str, str] | None:
    """What was told before stays where nothing is told now."""
    return dict(request.meta) or (last.meta if last is not None else None)


def _whole_seconds(time: datetime.datetime) -> datetime.datetime:
    return time.replace(microsecond=0)


MIGRATION_WRITE_KIND: Final = "allocations-moved"
DRAIN_COMPLETE_MESSAGE: Final = "Node drain complete"
BATCH_JOB_TYPES: Final = (JobType.BATCH, JobType.SYSBATCH)


class MigrationResult(msgspec.Struct, frozen=True):
    """How many allocations were marked."""

    index: int
    marked_count: int


def migrate_allocations(
    snapshot: Replica, allocations_by_job: Sequence[tuple[Job, Sequence[Allocation]]], context: DecisionContext
) -> Decision[MigrationResult] | None:
    """Mark these to be moved away, each job with an evaluation. None: there is none."""
    marked = [_mark_for_migration(each, job, context) for job, those in allocations_by_job for each in those]
    if not marked:
        return None
    nodes = {each.node_id: None for each in marked}
    evaluations = [
        make_evaluation(job, context, EvaluationTrigger.NODE_DRAIN) for job, those in allocations_by_job if those
    ]
    write = Write(
        MIGRATION_WRITE_KIND,
        Cause(CauseKind.TIMER, "drain"),
        [*map(ALLOCATIONS.build_put, marked), *map(EVALUATIONS.build_put, evaluations)],
        # A drain that is called off meanwhile moves nothing more.
        [
            *(snapshot.build_key_condition(NODES, node_id) for node_id in nodes),
            *(snapshot.build_record_condition(ALLOCATIONS, each) for _, those in allocations_by_job for each in those),
        ],
    )
    return Decision(write, lambda index: MigrationResult(index, len(marked)))


def _mark_for_migration(allocation: Allocation, job: Job, context: DecisionContext) -> Allocation:
    """Work that ends is stopped and not begun again elsewhere: it had its time."""
    transition = replace(allocation.desired_transition or DesiredTransition(), migrate=True)
    if job.type in BATCH_JOB_TYPES:
        transition = replace(transition, migrate_disable_placement=True)
    return replace(
        allocation, desired_transition=transition, alloc_modify_index=WRITE_INDEX, modify_time=context.now_ns
    )


def complete_drain(
    snapshot: Replica, node: Node, context: DecisionContext, *, is_deadline_reached: bool
) -> Decision[NodeWriteResult]:
    """The drain is over. The node gets nothing new until somebody makes it eligible."""
    now = to_datetime(context.now_ns)
    details = {"deadline_reached": "true"} if is_deadline_reached else None
    event = NodeEvent(
        message=DRAIN_COMPLETE_MESSAGE, subsystem=NodeEventSubsystem.DRAIN, details=details, timestamp=now
    )
    last = replace(
        node.last_drain or DrainMetadata(), status=DrainStatus.COMPLETE, updated_at=now.replace(microsecond=0)
    )
    done = add_node_event(replace(set_drain_strategy(node, None), last_drain=last), event)
    return build_node_decision("node-drain", snapshot, done, [], (), cause=Cause(CauseKind.TIMER, "drain"))


def count_write_items(allocations: Iterable[Allocation], known_nodes: Mapping[str, None]) -> int:
    """How much of a write these take: each a change, and each node that is new to it a condition."""
    those = list(allocations)
    return len(those) + len({each.node_id: None for each in those if each.node_id not in known_nodes})
