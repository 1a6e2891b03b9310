"""Endpoints of nodes, for those who look after them."""

from typing import Any, Final

import msgspec

from wharf.cluster.api.handlers.allocations.records import build_allocation_view
from wharf.cluster.api.lists.listing import Listing, list_by_name
from wharf.cluster.api.requests.request import QueryOptions, Request
from wharf.cluster.api.requests.values import parse_id_prefix, parse_uuid
from wharf.cluster.api.results import (
    ActionHandler,
    ActionResult,
    MissingRecord,
    ReadHandler,
    find_record,
    sort_by_creation,
)
from wharf.cluster.operations.nodes.drains import DrainOptions, DrainRequest
from wharf.cluster.operations.nodes.writes import NodeWriteResult
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.rpc.handlers.nodes import DRAIN_NODE, EVALUATE_NODE, PURGE_NODE, NodeRequest
from wharf.cluster.server.rpc.leader import SET_ELIGIBILITY, SetEligibilityRequest
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state import watches as watch
from wharf.cluster.state.tables import ALLOCATIONS, ALLOCATIONS_ON_NODE, NODES
from wharf.contract.model.acl.permissions import READ_JOB
from wharf.contract.model.nodes.node import Node, SchedulingEligibility
from wharf.contract.model.refusal import invalid_request
from wharf.contract.wire.nodes import messages
from wharf.contract.wire.nodes.messages import NodeChangeResponse, NodeDrainRequest, NodeListStub, build_node_view

LOOKUP_ERROR_PREFIX: Final = "node lookup failed: index error: "

VERSION_ATTRIBUTES: Final = ("wharf.version", "nomad.version")
"""Where a node says which program it runs; the second is the name that the peer's tools know."""


def list_nodes(replica: Replica, request: Request, options: QueryOptions) -> Listing[Node]:
    return list_by_name(replica, NODES, parse_node_prefix(options), **build_stub_options(request))


def build_stub_options(request: Request) -> dict[str, Any]:
    """How nodes are shown in lists: what is left out or added makes another text of the same record."""
    form = f"node.list{' resources' * request.get_flag('resources')}{' os' * request.get_flag('os')}"
    return {"build_view": lambda node: build_node_stub(node, request), "cache_name": form}


def parse_node_prefix(options: QueryOptions) -> QueryOptions:
    if not options.prefix:
        return options
    return msgspec.structs.replace(options, prefix=parse_id_prefix(options.prefix, error_prefix=LOOKUP_ERROR_PREFIX))


def build_node_stub(node: Node, request: Request) -> NodeListStub:
    """The node as lists show it, with what the request's `resources` and `os` ask for."""
    attributes = node.attributes or {}
    more: dict[str, Any] = {}
    if request.get_flag("os"):
        more["attributes"] = {"os.name": attributes.get("os.name", "")}
    if request.get_flag("resources"):
        more |= {"node_resources": node.node_resources, "reserved_resources": node.reserved_resources}
    return NodeListStub(
        address=node.http_addr.rpartition(":")[0] or node.http_addr,
        version=next((attributes[name] for name in VERSION_ATTRIBUTES if name in attributes), ""),
        **{name: getattr(node, name) for name in NODE_STUB_FIELDS},
        **more,
    )


NODE_STUB_FIELDS: Final = tuple(
    name
    for name in NodeListStub.__struct_fields__
    if name not in ("address", "version", "attributes", "node_resources", "reserved_resources")
)


def read_node(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    node_id = request.get_path_value("node_id")
    found, index, watched = find_record(replica, NODES, node_id, missing_text="node not found")
    if isinstance(found, MissingRecord):
        parse_uuid(
            node_id, error_prefix=LOOKUP_ERROR_PREFIX
        )  # One that could be none is told as such: mostly a short form.
    return ReadResult(build_node_view(found) if isinstance(found, Node) else found, index, watched)


def list_node_allocations(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    node_id = request.get_path_value("node_id")
    readable = [
        a
        for a in replica.list_by_index(ALLOCATIONS_ON_NODE, node_id)
        if request.has_permission(READ_JOB, namespace=a.namespace)
    ]
    index = replica.get_last_change(ALLOCATIONS)
    shown = [build_allocation_view(replica, allocation) for allocation in sort_by_creation(readable)]
    return ReadResult(shown, index, [watch.watch_index(ALLOCATIONS_ON_NODE, node_id)])


READ_HANDLERS: Final[dict[str, ReadHandler]] = {
    "node.list": list_nodes,
    "node.read": read_node,
    "node.allocations": list_node_allocations,
}


class NodeActions:
    """What is asked of the leader's brain."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def drain_node(self, request: Request) -> ActionResult:
        asked = request.decode_body(NodeDrainRequest)
        spec = asked.drain_spec
        wish = DrainRequest(
            node_id=request.get_path_value("node_id"),
            order=None if spec is None else DrainOptions(spec.deadline, spec.ignore_system_jobs),
            mark_eligible=asked.mark_eligible,
            meta=asked.meta or {},
            accessor_id=f"token:{request.caller.accessor_id or 'acls-disabled'}",
            cause=request.id,
        )
        written = await self._server.leader.call(DRAIN_NODE, wish)
        return build_node_change_result(written, node_modify_index=written.index)

    async def set_eligibility(self, request: Request) -> ActionResult:
        asked = request.decode_body(messages.EligibilityRequest)
        if asked.eligibility not in tuple(SchedulingEligibility):
            raise invalid_request(f'invalid scheduling eligibility "{asked.eligibility}"')
        wanted = SetEligibilityRequest(
            request.get_path_value("node_id"), asked.eligibility == SchedulingEligibility.ELIGIBLE
        )
        return build_node_change_result(await self._server.leader.call(SET_ELIGIBILITY, wanted))

    async def evaluate_node(self, request: Request) -> ActionResult:
        about = NodeRequest(request.get_path_value("node_id"), request.id)
        return self._updated(await self._server.leader.call(EVALUATE_NODE, about), node_modify_index=0)

    async def purge_node(self, request: Request) -> ActionResult:
        about = NodeRequest(request.get_path_value("node_id"), request.id)
        written = await self._server.leader.call(PURGE_NODE, about)
        return self._updated(written, node_modify_index=written.index)

    def _updated(self, written: NodeWriteResult, *, node_modify_index: int) -> ActionResult:
        reply = messages.NodeUpdateResponse(
            eval_ids=written.eval_ids or None,
            eval_create_index=written.index if written.eval_ids else 0,
            node_modify_index=node_modify_index,
            index=written.index,
        )
        return ActionResult(reply, written.index)


def build_node_change_result(written: NodeWriteResult, *, node_modify_index: int = 0) -> ActionResult:
    reply = NodeChangeResponse(
        node_modify_index=node_modify_index,
        eval_ids=written.eval_ids or None,
        eval_create_index=written.index if written.eval_ids else 0,
        index=written.index,
    )
    return ActionResult(reply, written.index)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    writes = NodeActions(server)
    return {
        "node.drain": writes.drain_node,
        "node.eligibility": writes.set_eligibility,
        "node.evaluate": writes.evaluate_node,
        "node.purge": writes.purge_node,
    }
