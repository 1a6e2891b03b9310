"""What a drain does to records: allocations are marked to be moved away, and a node that is empty enough is told so.

Which of them, and when, is decided by `controllers.drainer`. Here is only how it is written.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.model.allocation import Allocation, DesiredTransition
from wharf.model.changes import THIS, Cause, CauseKind, Write
from wharf.model.evaluation import EvaluationTrigger
from wharf.model.job import Job, JobType
from wharf.model.moment import to_time
from wharf.model.node import DrainMetadata, DrainStatus, Node, NodeEvent, NodeEventSubsystem, draining, with_event
from wharf.operations.decision import Decision, Moment
from wharf.operations.evaluations import new_evaluation
from wharf.operations.node_writes import NodeWritten, node_write
from wharf.state import Replica
from wharf.state.tables import ALLOCATIONS, EVALUATIONS, NODES

MOVED: Final = "allocations-moved"
COMPLETE: Final = "Node drain complete"
NEVER_PLACED_AGAIN: Final = (JobType.BATCH, JobType.SYSBATCH)


class Moved(msgspec.Struct, frozen=True):
    """How many allocations were marked."""

    index: int
    marked: int


def move(
    snapshot: Replica, moving: Sequence[tuple[Job, Sequence[Allocation]]], moment: Moment
) -> Decision[Moved] | None:
    """Mark these to be moved away, each job with an evaluation. None: there is none."""
    marked = [_marked(each, job, moment) for job, those in moving for each in those]
    if not marked:
        return None
    nodes = {each.node_id: None for each in marked}
    evaluations = [new_evaluation(job, moment, EvaluationTrigger.NODE_DRAIN) for job, those in moving if those]
    write = Write(
        MOVED,
        Cause(CauseKind.TIMER, "drain"),
        [*map(ALLOCATIONS.put, marked), *map(EVALUATIONS.put, evaluations)],
        # A drain that is called off meanwhile moves nothing more.
        [
            *(snapshot.as_seen(NODES, node_id) for node_id in nodes),
            *(snapshot.unchanged(ALLOCATIONS, each) for _, those in moving for each in those),
        ],
    )
    return Decision(write, lambda index: Moved(index, len(marked)))


def _marked(allocation: Allocation, job: Job, moment: Moment) -> Allocation:
    """Work that ends is stopped and not begun again elsewhere: it had its time."""
    transition = replace(allocation.desired_transition or DesiredTransition(), migrate=True)
    if job.type in NEVER_PLACED_AGAIN:
        transition = replace(transition, migrate_disable_placement=True)
    return replace(allocation, desired_transition=transition, alloc_modify_index=THIS, modify_time=moment.now_ns)


def complete(snapshot: Replica, node: Node, moment: Moment, *, is_out_of_time: bool) -> Decision[NodeWritten]:
    """The drain is over. The node gets nothing new until somebody makes it eligible."""
    now = to_time(moment.now_ns)
    details = {"deadline_reached": "true"} if is_out_of_time else None
    event = NodeEvent(message=COMPLETE, subsystem=NodeEventSubsystem.DRAIN, details=details, timestamp=now)
    last = replace(
        node.last_drain or DrainMetadata(), status=DrainStatus.COMPLETE, updated_at=now.replace(microsecond=0)
    )
    done = with_event(replace(draining(node, None), last_drain=last), event)
    return node_write("node-drain", snapshot, done, [], (), cause=Cause(CauseKind.TIMER, "drain"))


def cost_of(allocations: Iterable[Allocation], nodes_known: Mapping[str, None]) -> int:
    """How much of a write these take: each a change, and each node that is new to it a condition."""
    those = list(allocations)
    return len(those) + len({each.node_id: None for each in those if each.node_id not in nodes_known})
