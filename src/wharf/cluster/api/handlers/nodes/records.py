"""Endpoints about nodes for operators: lists, drains, eligibility and purges. Node agents use those of `protocol`."""

from functools import partial
from typing import Any, Final

import msgspec

from wharf.cluster.api.handlers.allocations.records import build_allocation_view
from wharf.cluster.api.handlers.nodes.orders import NodeUseReader, show_use, sort_nodes
from wharf.cluster.api.index_lists import build_index_list
from wharf.cluster.api.lists.listing import Listing, list_by_name
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.requests.values import parse_id_prefix, parse_uuid
from wharf.cluster.api.results import (
    ActionHandler,
    ActionResult,
    MissingRecord,
    ReadHandler,
    find_record,
)
from wharf.cluster.operations.nodes.drains import DrainOptions, DrainRequest
from wharf.cluster.operations.nodes.writes import NodeWriteResult
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.rpc.handlers.nodes import (
    DRAIN_NODE,
    EVALUATE_NODE,
    PURGE_NODE,
    SET_ELIGIBILITY,
    NodeRequest,
    SetEligibilityRequest,
)
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS, ALLOCATIONS_ON_NODE, NODES
from wharf.cluster.state.watches import watch_index
from wharf.contract.model.acl.permissions import READ_JOB
from wharf.contract.model.nodes.node import Node, SchedulingEligibility
from wharf.contract.model.refusal import invalid_request
from wharf.contract.wire.nodes import messages
from wharf.contract.wire.nodes.messages import NodeChangeResponse, NodeDrainRequest, NodeListStub, build_node_view
from wharf.contract.wire.nodes.use import NodeOrder

LOOKUP_ERROR_PREFIX: Final = "node lookup failed: index error: "

VERSION_ATTRIBUTES: Final = ("wharf.version", "nomad.version")
"""Attributes that hold the version of the node agent. The second is Nomad's name."""


def list_nodes(replica: Replica, request: Request, options: QueryOptions) -> Listing[Node]:
    """List nodes by ID, or in the order that the request names. Raises `Refusal` for an unknown order."""
    options, order = parse_node_prefix(options), request.get_text("sort")
    if order and order not in tuple(NodeOrder):
        raise invalid_request(f'sort is "{order[:40]}"; it must be one of {", ".join(NodeOrder)}, or be left out')
    listing = list_by_name(replica, NODES, options, **build_stub_options(replica, request))
    use = NodeUseReader(replica)
    if order:
        listing = sort_nodes(listing, replica, NodeOrder(order), options, use)
    if request.get_flag("use"):
        listing = show_use(listing, replica, use, lambda node: build_node_stub(node, request))
    return listing


def build_stub_options(replica: Replica, request: Request) -> dict[str, Any]:
    """Return the `Listing` arguments that show nodes in a list: `build_view`, `large_records` and `cache_name`.

    The cache name names the optional fields that the request selects, so lists with other fields are cached apart.
    """
    cache_name = f"node.list{' resources' * request.get_flag('resources')}{' os' * request.get_flag('os')}"
    return {
        "build_view": lambda node: build_node_stub(node, request),
        "large_records": replica.get_table_records(NODES).large_records,
        "cache_name": cache_name,
    }


def parse_node_prefix(options: QueryOptions) -> QueryOptions:
    """Return the options with the id prefix in lower case. Raises `Refusal` if the prefix is invalid."""
    if not options.prefix:
        return options
    return msgspec.structs.replace(options, prefix=parse_id_prefix(options.prefix, error_prefix=LOOKUP_ERROR_PREFIX))


def build_node_stub(node: Node, request: Request) -> NodeListStub:
    """Return the node as lists show it, with the fields that the parameters `resources` and `os` request."""
    attributes = node.attributes or {}
    extra_fields: dict[str, Any] = {}
    if request.get_flag("os"):
        extra_fields["attributes"] = {"os.name": attributes.get("os.name", "")}
    if request.get_flag("resources"):
        extra_fields |= {"node_resources": node.node_resources, "reserved_resources": node.reserved_resources}
    return NodeListStub(
        address=node.http_addr.rpartition(":")[0] or node.http_addr,
        version=next((attributes[name] for name in VERSION_ATTRIBUTES if name in attributes), ""),
        **{name: getattr(node, name) for name in NODE_STUB_FIELDS},
        **extra_fields,
    )


NODE_STUB_FIELDS: Final = tuple(
    name
    for name in NodeListStub.__struct_fields__
    if name not in ("address", "version", "attributes", "node_resources", "reserved_resources", "requested_resources")
)


def read_node(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    """Return the node of the path, or a missing record. Raises `Refusal` if the text cannot be a node id."""
    node_id = request.get_path_value("node_id")
    found, index, watched = find_record(replica, NODES, node_id, missing_text="node not found")
    if isinstance(found, MissingRecord):
        # An id that cannot be a node id gets an error that says so: it is mostly an abbreviated id.
        parse_uuid(node_id, error_prefix=LOOKUP_ERROR_PREFIX)
    return ReadResult(build_node_view(found) if isinstance(found, Node) else found, index, watched)


def list_node_allocations(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    """List the allocations of the node in namespaces that the caller may read."""
    node_id = request.get_path_value("node_id")
    index = replica.get_last_change(ALLOCATIONS)
    views = build_index_list(
        replica,
        ALLOCATIONS_ON_NODE,
        node_id,
        is_selected=request.build_namespace_test(READ_JOB),
        build_view=partial(build_allocation_view, replica),
    )
    return ReadResult(views, index, [watch_index(ALLOCATIONS_ON_NODE, node_id)])


READ_HANDLERS: Final[dict[str, ReadHandler]] = {
    "node.list": list_nodes,
    "node.read": read_node,
    "node.allocations": list_node_allocations,
}


class NodeActions:
    """Changes nodes on request of operators. The leader decides all changes."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def drain_node(self, request: Request) -> ActionResult:
        """Start or change the drain that the body describes, or cancel the drain if it describes none."""
        body = request.decode_body(NodeDrainRequest)
        spec = body.drain_spec
        drain = DrainRequest(
            node_id=request.get_path_value("node_id"),
            order=None if spec is None else DrainOptions(spec.deadline, spec.ignore_system_jobs),
            mark_eligible=body.mark_eligible,
            meta=body.meta or {},
            accessor_id=f"token:{request.caller.accessor_id or 'acls-disabled'}",
            cause=request.id,
        )
        result = await self._server.leader.call(DRAIN_NODE, drain)
        return build_node_change_result(result, node_modify_index=result.index)

    async def set_eligibility(self, request: Request) -> ActionResult:
        """Set whether new allocations may be placed on the node."""
        body = request.decode_body(messages.EligibilityRequest)
        if body.eligibility not in tuple(SchedulingEligibility):
            raise invalid_request(f'invalid scheduling eligibility "{body.eligibility}"')
        change = SetEligibilityRequest(
            request.get_path_value("node_id"), body.eligibility == SchedulingEligibility.ELIGIBLE
        )
        return build_node_change_result(await self._server.leader.call(SET_ELIGIBILITY, change))

    async def evaluate_node(self, request: Request) -> ActionResult:
        """Create evaluations of all jobs on the node. Return their ids."""
        node_request = NodeRequest(request.get_path_value("node_id"), request.id)
        return _build_update_result(await self._server.leader.call(EVALUATE_NODE, node_request), node_modify_index=0)

    async def purge_node(self, request: Request) -> ActionResult:
        """Delete the record of the node. Return the ids of the evaluations that this created."""
        node_request = NodeRequest(request.get_path_value("node_id"), request.id)
        result = await self._server.leader.call(PURGE_NODE, node_request)
        return _build_update_result(result, node_modify_index=result.index)


def _build_update_result(result: NodeWriteResult, *, node_modify_index: int) -> ActionResult:
    """Return the reply to an evaluation or purge of a node, with the evaluations that it created."""
    reply = messages.NodeUpdateResponse(
        eval_ids=result.eval_ids or None,
        eval_create_index=result.index if result.eval_ids else 0,
        node_modify_index=node_modify_index,
        index=result.index,
    )
    return ActionResult(reply, result.index)


def build_node_change_result(result: NodeWriteResult, *, node_modify_index: int = 0) -> ActionResult:
    """Return the reply to a drain or a change of eligibility, with the evaluations that it created."""
    reply = NodeChangeResponse(
        node_modify_index=node_modify_index,
        eval_ids=result.eval_ids or None,
        eval_create_index=result.index if result.eval_ids else 0,
        index=result.index,
    )
    return ActionResult(reply, result.index)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    actions = NodeActions(server)
    return {
        "node.drain": actions.drain_node,
        "node.eligibility": actions.set_eligibility,
        "node.evaluate": actions.evaluate_node,
        "node.purge": actions.purge_node,
    }
