"""Reads of node agents: the assignments of a node, and the predecessor of one.

The caller proves that it is the node by the node's secret. Few allocations are read in one step, many in slices (0205).
"""

from wharf.cluster.api.index_lists import has_many_records, visit_in_slices
from wharf.cluster.api.newest_assignments import NewestAssignments, get_assignments_on_node
from wharf.cluster.api.node_callers import require_node
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import MissingRecord, ReadHandler, SlicedValue, find_record
from wharf.cluster.server.cpu_budget import SlicedWork
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.state import Replica, WatchTarget
from wharf.cluster.state.table import Index
from wharf.cluster.state.tables import ALLOCATIONS, ALLOCATIONS_ON_NODE, NODES
from wharf.cluster.state.watches import watch_index_field
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.refusal import not_found
from wharf.contract.model.secrets import make_migrate_token
from wharf.contract.wire.nodes import messages


class AssignmentReads:
    """Answers the blocking queries of nodes for their assignments."""

    def __init__(self) -> None:
        self._newest = NewestAssignments()

    def list_assignment_indexes(self, replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
        """Return the AllocModifyIndex of each allocation of the node, by allocation id.

        The node uses it to fetch only allocations that changed. The index of the result is the greatest of them, so that
        neither changes of other nodes nor reports of this node wake this node. It does not fall when an allocation is
        garbage-collected.

        With `without_ended`, allocations are left out if the node has reported their end. A lost allocation is not: only
        servers have declared that it ended.
        """
        require_node(replica, request)
        node_id, without_ended = request.get_path_value("node_id"), request.get_flag("without_ended")
        assignments = get_assignments_on_node(without_ended=without_ended)
        value: object
        if has_many_records(replica, assignments, node_id):
            index = self._newest.get_index(
                replica, node_id, without_ended=without_ended, must_be_exact=options.index == 0
            )
            index = max(index, replica.epoch_since) if index else 1
            value = _build_assignment_indexes(replica, assignments, node_id)
        else:
            since = replica.epoch_since
            allocations = replica.list_by_index(assignments, node_id)
            index = max([each.alloc_modify_index for each in allocations], default=0)
            index = max(index, since) if allocations else 1
            if index > options.index:
                value = {each.id: max(each.alloc_modify_index, since) for each in allocations}
            else:  # Nearly always a blocking query waits now, and this value is not sent.
                value = _build_assignment_indexes(replica, assignments, node_id)
        return ReadResult(value, max(index, min(options.index, replica.index)), [watch_assignments(node_id)])


def _build_assignment_indexes(replica: Replica, assignments: Index[Allocation], node_id: str) -> SlicedValue:
    """Return the AllocModifyIndex of each of the many allocations that `assignments` has for the node."""
    since = replica.epoch_since

    async def build(work: SlicedWork) -> dict[str, int]:
        indexes: dict[str, int] = {}

        def add(allocation: Allocation) -> None:
            indexes[allocation.id] = max(allocation.alloc_modify_index, since)

        await visit_in_slices(replica, assignments, node_id, visit=add, work=work)
        return indexes

    return SlicedValue(build)


def watch_assignments(node_id: str) -> WatchTarget:
    """Return a target for changes of the assignments of a node.

    Its own reports about them are no such changes. They would wake it twice for each task, and use up paced replies (record 0333).
    """
    return watch_index_field(ALLOCATIONS_ON_NODE, "alloc_modify_index", node_id)


def read_predecessor(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    """Return the state of an allocation that one of the node's own allocations replaces; other allocations are not
    found.

    The reply contains the token with which the node downloads the predecessor's data.
    """
    require_node(replica, request)
    node_id, allocation_id = request.get_path_value("node_id"), request.get_path_value("alloc_id")
    predecessor, index, watched = find_record(replica, ALLOCATIONS, allocation_id, missing_text="alloc not found")
    if isinstance(predecessor, MissingRecord):
        return ReadResult(predecessor, index, watched)
    node = replica.get(NODES, predecessor.node_id)
    view = messages.PredecessorView(
        id=predecessor.id,
        node_id=predecessor.node_id,
        client_status=predecessor.client_status,
        migrate_token=make_migrate_token(predecessor.id, node.secret_digest) if node is not None else "",
    )
    if has_many_records(replica, ALLOCATIONS_ON_NODE, node_id):
        return ReadResult(_check_replaced(replica, node_id, view), index, watched)
    own = replica.list_by_index(ALLOCATIONS_ON_NODE, node_id)
    if not any(allocation.previous_allocation == allocation_id for allocation in own):
        raise not_found("alloc not found")
    return ReadResult(view, index, watched)


def _check_replaced(replica: Replica, node_id: str, view: messages.PredecessorView) -> SlicedValue:
    """Return the view, which is shown only if one of the many allocations of the node replaces the viewed one."""

    async def build(work: SlicedWork) -> messages.PredecessorView:
        is_replaced = False

        def check(allocation: Allocation) -> None:
            nonlocal is_replaced
            is_replaced = is_replaced or allocation.previous_allocation == view.id

        await visit_in_slices(replica, ALLOCATIONS_ON_NODE, node_id, visit=check, work=work)
        if not is_replaced:
            raise not_found("alloc not found")
        return view

    return SlicedValue(build)


def get_assignment_index(replica: Replica, allocation: Allocation) -> int:
    """Return the AllocModifyIndex that the node sees for the allocation.

    If the log was restored from a snapshot, this is at least the first index after that. Before it, the node may have
    seen a greater index of a state that no longer exists; the higher index makes it fetch all allocations again.
    """
    return max(allocation.alloc_modify_index, replica.epoch_since)


def build_read_handlers() -> dict[str, ReadHandler]:
    """Return the handlers of one server process."""
    return {"node.desired": AssignmentReads().list_assignment_indexes, "node.former": read_predecessor}
