"""What people ask of a node's drain: that it begins, goes on by other rules, or is called off.

Only the wish is recorded here, with everything that can be seen of it at once: the node gets nothing new from then on. To
move what runs there, step by step and within the groups' limits, is the drainer's work.
"""

import datetime
from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from wharf.model.changes import Cause, CauseKind
from wharf.model.evaluation import Evaluation
from wharf.model.moment import to_time
from wharf.model.node import (
    DrainMetadata,
    DrainStatus,
    DrainStrategy,
    Node,
    NodeEventSubsystem,
    SchedulingEligibility,
    draining,
)
from wharf.operations.decision import Decision, Moment
from wharf.operations.node_writes import NodeWritten, evaluations_of, known_node, node_write, with_message
from wharf.state import Replica

DEADLINE_MOST_NS = 100 * 365 * 24 * 3_600 * 1_000_000_000
"""Beyond this a calendar has no place for the moment; it is as good as none."""


class DrainOrder(msgspec.Struct, frozen=True):
    """How a node is to be emptied. `deadline_ns`: above 0 a bound, 0 none, below 0 everything moves at once."""

    deadline_ns: int = 0
    ignore_system_jobs: bool = False


class DrainWish(msgspec.Struct, frozen=True, kw_only=True):
    """Without an order the drain is called off. `mark_eligible` counts only then."""

    node_id: str
    order: DrainOrder | None = None
    mark_eligible: bool = False
    meta: Mapping[str, str] = msgspec.field(default_factory=dict)
    accessor_id: str = ""
    cause: str = ""


def drain(snapshot: Replica, wish: DrainWish, moment: Moment, *, evaluations_max: int) -> Decision[NodeWritten]:
    node = known_node(snapshot, wish.node_id)
    evaluations: list[Evaluation] = []
    if wish.order is not None:
        changed = _ordered(node, wish, wish.order, moment)
    else:
        changed = _called_off(node, wish, moment)
        is_back = node.scheduling_eligibility is not changed.scheduling_eligibility
        evaluations = evaluations_of(snapshot, changed, moment, evaluations_max) if is_back else []
    if changed == node:
        return Decision(None, lambda _index: NodeWritten(0))
    cause = Cause(CauseKind.REQUEST, wish.cause)
    return node_write("node-drain", snapshot, changed, evaluations, (), cause=cause)


def _ordered(node: Node, wish: DrainWish, order: DrainOrder, moment: Moment) -> Node:
    """A drain that is under way keeps its beginning; its deadline counts from now."""
    now = to_time(moment.now_ns)
    before = node.drain_strategy
    has_bound = 0 < order.deadline_ns <= DEADLINE_MOST_NS
    strategy = DrainStrategy(
        deadline=order.deadline_ns,
        ignore_system_jobs=order.ignore_system_jobs,
        force_deadline=to_time(moment.now_ns + order.deadline_ns) if has_bound else None,
        started_at=now if before is None else before.started_at,
    )
    last = node.last_drain if before is not None else None
    told = DrainMetadata(
        started_at=_whole_seconds(now) if last is None else last.started_at,
        updated_at=_whole_seconds(now),
        status=DrainStatus.DRAINING,
        accessor_id=wish.accessor_id,
        meta=_meta(wish, last),
    )
    drained = replace(
        draining(node, strategy), scheduling_eligibility=SchedulingEligibility.INELIGIBLE, last_drain=told
    )
    message = "Node drain strategy set" if before is None else "Node drain strategy updated"
    return with_message(drained, message, moment, subsystem=NodeEventSubsystem.DRAIN)


def _called_off(node: Node, wish: DrainWish, moment: Moment) -> Node:
    """Without a strategy. The node stays ineligible unless it is told otherwise."""
    was_draining = node.drain_strategy is not None
    left = node
    if was_draining:
        last = node.last_drain or DrainMetadata()
        told = replace(
            last,
            status=DrainStatus.CANCELED,
            updated_at=_whole_seconds(to_time(moment.now_ns)),
            accessor_id=wish.accessor_id,
            meta=_meta(wish, last),
        )
        left = replace(draining(node, None), last_drain=told)
        left = with_message(left, "Node drain disabled", moment, subsystem=NodeEventSubsystem.DRAIN)
    if not wish.mark_eligible or node.scheduling_eligibility is SchedulingEligibility.ELIGIBLE:
        return left
    left = replace(left, scheduling_eligibility=SchedulingEligibility.ELIGIBLE)
    return left if was_draining else with_message(left, "Node marked as eligible for scheduling", moment)


def _meta(wish: DrainWish, last: DrainMetadata | None) -> dict[str, str] | None:
    """What was told before stays where nothing is told now."""
    return dict(wish.meta) or (last.meta if last is not None else None)


def _whole_seconds(time: datetime.datetime) -> datetime.datetime:
    return time.replace(microsecond=0)
