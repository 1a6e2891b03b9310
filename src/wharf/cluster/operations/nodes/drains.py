"""Drains of nodes: start, change or cancel a drain, mark allocations for migration, and complete a drain.

`controllers.drains` decides which allocations migrate and when; this module only builds the records.
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
from wharf.contract.model.jobs.job import Job
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
from wharf.contract.model.times import SECOND, to_datetime

MAX_DRAIN_DEADLINE_NS = 100 * 365 * 24 * 3_600 * SECOND
"""Longer deadlines exceed the range of calendar dates and are treated as no deadline."""


class DrainOptions(msgspec.Struct, frozen=True):
    """The options of a drain."""

    deadline_ns: int = 0  # Above 0 a time limit, 0 no limit, below 0 all allocations migrate at once.
    ignore_system_jobs: bool = False  # Allocations of system jobs stay on the node.


class DrainRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to start or change a drain, or to cancel it."""

    node_id: str
    order: DrainOptions | None = None  # The options of the drain; `None`: cancel it.
    mark_eligible: bool = False  # After a cancellation, placements on the node are allowed again.
    meta: Mapping[str, str] = msgspec.field(default_factory=dict)  # Names and values that are stored with the drain.
    accessor_id: str = ""  # The accessor id of the caller's ACL token.
    cause: str = ""  # The origin of the request, for the log.


def update_drain(
    snapshot: Replica, request: DrainRequest, context: DecisionContext, *, max_evaluations: int
) -> Decision[NodeWriteResult]:
    """Return the decision that starts, changes or cancels the drain of a node, as requested.

    If the node becomes eligible again, up to `max_evaluations` of its jobs are evaluated. Raises not-found if the node
    does not exist.
    """
    node = get_node(snapshot, request.node_id)
    evaluations: list[Evaluation] = []
    if request.order is not None:
        changed = _start_drain(node, request, request.order, context)
    else:
        changed = _cancel_drain(node, request, context)
        is_eligible_again = node.scheduling_eligibility is not changed.scheduling_eligibility
        evaluations = make_node_evaluations(snapshot, changed, context, max_evaluations) if is_eligible_again else []
    if changed == node:
        return Decision(None, lambda _index: NodeWriteResult(0))
    cause = Cause(CauseKind.REQUEST, request.cause)
    return build_node_decision("node-drain", snapshot, changed, evaluations, (), cause=cause)


def _start_drain(node: Node, request: DrainRequest, options: DrainOptions, context: DecisionContext) -> Node:
    """Return the node with a drain of these options, ineligible for placements.

    A drain in progress keeps its start time; its deadline counts from now.
    """
    now = to_datetime(context.now_ns)
    previous_strategy = node.drain_strategy
    has_force_deadline = 0 < options.deadline_ns <= MAX_DRAIN_DEADLINE_NS
    strategy = DrainStrategy(
        deadline=options.deadline_ns,
        ignore_system_jobs=options.ignore_system_jobs,
        force_deadline=to_datetime(context.now_ns + options.deadline_ns) if has_force_deadline else None,
        started_at=now if previous_strategy is None else previous_strategy.started_at,
    )
    last_metadata = node.last_drain if previous_strategy is not None else None
    metadata = DrainMetadata(
        started_at=_whole_seconds(now) if last_metadata is None else last_metadata.started_at,
        updated_at=_whole_seconds(now),
        status=DrainStatus.DRAINING,
        accessor_id=request.accessor_id,
        meta=_merge_meta(request, last_metadata),
    )
    drained = replace(
        set_drain_strategy(node, strategy), scheduling_eligibility=SchedulingEligibility.INELIGIBLE, last_drain=metadata
    )
    message = "Node drain strategy set" if previous_strategy is None else "Node drain strategy updated"
    return add_node_message(drained, message, context, subsystem=NodeEventSubsystem.DRAIN)


def restart_force_deadline(
    snapshot: Replica, context: DecisionContext, *, node_id: str
) -> Decision[NodeWriteResult] | None:
    """Return the decision that counts the deadline of the node's drain from now; `None` if it has no such deadline."""
    node = snapshot.get(NODES, node_id)
    if node is None or node.drain_strategy is None or node.drain_strategy.force_deadline is None:
        return None
    deadline = to_datetime(context.now_ns + node.drain_strategy.deadline)
    restarted = set_drain_strategy(node, replace(node.drain_strategy, force_deadline=deadline))
    restarted = add_node_message(
        restarted, "Node drain deadline restarted", context, subsystem=NodeEventSubsystem.DRAIN
    )
    return build_node_decision("node-drain", snapshot, restarted, [], (), cause=Cause(CauseKind.TIMER, "drain"))


def _cancel_drain(node: Node, request: DrainRequest, context: DecisionContext) -> Node:
    """Return the node without a drain. It stays ineligible unless the request marks it as eligible."""
    was_draining = node.drain_strategy is not None
    updated = node
    if was_draining:
        last_metadata = node.last_drain or DrainMetadata()
        metadata = replace(
            last_metadata,
            status=DrainStatus.CANCELED,
            updated_at=_whole_seconds(to_datetime(context.now_ns)),
            accessor_id=request.accessor_id,
            meta=_merge_meta(request, last_metadata),
        )
        updated = replace(set_drain_strategy(node, None), last_drain=metadata)
        updated = add_node_message(updated, "Node drain disabled", context, subsystem=NodeEventSubsystem.DRAIN)
    if not request.mark_eligible or node.scheduling_eligibility is SchedulingEligibility.ELIGIBLE:
        return updated
    updated = replace(updated, scheduling_eligibility=SchedulingEligibility.ELIGIBLE)
    return updated if was_draining else add_node_message(updated, "Node marked as eligible for scheduling", context)


def _merge_meta(request: DrainRequest, last_metadata: DrainMetadata | None) -> dict[str, str] | None:
    """Return the metadata of the request, or that of the drain in progress if the request has none."""
    return dict(request.meta) or (last_metadata.meta if last_metadata is not None else None)


def _whole_seconds(time: datetime.datetime) -> datetime.datetime:
    """Return the time without fractions of a second."""
    return time.replace(microsecond=0)


MIGRATION_WRITE_KIND: Final = "allocations-moved"
"""The kind of a write that marks allocations for migration."""
DRAIN_COMPLETE_MESSAGE: Final = "Node drain complete"
"""The text of the node event that records the end of a drain."""


class MigrationResult(msgspec.Struct, frozen=True):
    """The result of one write that marks allocations for migration."""

    index: int  # The log index of the write.
    marked_count: int  # How many allocations were marked.


def migrate_allocations(
    snapshot: Replica, allocations_by_job: Sequence[tuple[Job, Sequence[Allocation]]], context: DecisionContext
) -> Decision[MigrationResult] | None:
    """Return the decision that marks these allocations for migration and creates an evaluation of each job.

    Return `None` if there are no allocations. The write conflicts if a node changes before the commit, for example
    because its drain is canceled.
    """
    marked = [
        _mark_for_migration(allocation, job, context)
        for job, allocations in allocations_by_job
        for allocation in allocations
    ]
    if not marked:
        return None
    nodes = {allocation.node_id: None for allocation in marked}
    evaluations = [
        make_evaluation(job, context, EvaluationTrigger.NODE_DRAIN)
        for job, allocations in allocations_by_job
        if allocations
    ]
    write = Write(
        MIGRATION_WRITE_KIND,
        Cause(CauseKind.TIMER, "drain"),
        [*map(ALLOCATIONS.build_put, marked), *map(EVALUATIONS.build_put, evaluations)],
        # If the drain is canceled meanwhile, the write conflicts and moves nothing.
        [
            *(snapshot.build_key_condition(NODES, node_id) for node_id in nodes),
            *(
                snapshot.build_record_condition(ALLOCATIONS, allocation)
                for _, allocations in allocations_by_job
                for allocation in allocations
            ),
        ],
    )
    return Decision(write, lambda index: MigrationResult(index, len(marked)))


def _mark_for_migration(allocation: Allocation, job: Job, context: DecisionContext) -> Allocation:
    """Return the allocation marked for migration. The mark of a batch allocation forbids a replacement."""
    transition = replace(allocation.desired_transition or DesiredTransition(), migrate=True)
    if job.is_finite:
        transition = replace(transition, migrate_disable_placement=True)
    return replace(
        allocation, desired_transition=transition, alloc_modify_index=WRITE_INDEX, modify_time=context.now_ns
    )


def complete_drain(
    snapshot: Replica, node: Node, context: DecisionContext, *, is_deadline_reached: bool
) -> Decision[NodeWriteResult]:
    """Return the decision that records the end of the node's drain.

    The node stays ineligible until an operator changes that.

    `is_deadline_reached`: the drain ended because of its deadline, which its event records.
    """
    now = to_datetime(context.now_ns)
    details = {"deadline_reached": "true"} if is_deadline_reached else None
    event = NodeEvent(
        message=DRAIN_COMPLETE_MESSAGE, subsystem=NodeEventSubsystem.DRAIN, details=details, timestamp=now
    )
    last_metadata = replace(
        node.last_drain or DrainMetadata(), status=DrainStatus.COMPLETE, updated_at=now.replace(microsecond=0)
    )
    done = add_node_event(replace(set_drain_strategy(node, None), last_drain=last_metadata), event)
    return build_node_decision("node-drain", snapshot, done, [], (), cause=Cause(CauseKind.TIMER, "drain"))


def count_write_items(allocations: Iterable[Allocation], known_nodes: Mapping[str, None]) -> int:
    """Return how much of a write's size limit these allocations take.

    Each counts as one change, and each node that is not in `known_nodes` as one condition.
    """
    allocations = list(allocations)
    return len(allocations) + len(
        {allocation.node_id: None for allocation in allocations if allocation.node_id not in known_nodes}
    )
