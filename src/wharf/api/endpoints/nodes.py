"""Endpoints of nodes, for those who look after them."""

from typing import Any, Final

import msgspec

from wharf.api.answers import Act, Done, Missing, Reading, by_creation, one
from wharf.api.endpoints.allocations import shown_allocation
from wharf.api.ids import read_id
from wharf.api.listing import Listing, by_name, read_id_prefix
from wharf.api.request import ReadOptions, Request
from wharf.model.need import READ_JOB
from wharf.model.node import Node, SchedulingEligibility
from wharf.model.refusal import invalid
from wharf.operations.drains import DrainOrder, DrainWish
from wharf.operations.node_writes import NodeWritten
from wharf.server.answering.nodes import DRAIN_NODE, EVALUATE_NODE, PURGE_NODE, AboutNode
from wharf.server.asking import SET_ELIGIBILITY, Eligibility
from wharf.server.reading import Found
from wharf.server.server import Server
from wharf.state import Replica
from wharf.state import watches as watch
from wharf.state.tables import ALLOCATIONS, ALLOCATIONS_ON_NODE, NODES
from wharf.wire import shapes
from wharf.wire.node_shapes import NodeChangeResponse, NodeDrainRequest, NodeListStub, shown_node

LOOKUP_FAILED: Final = "node lookup failed: index error: "

VERSION_ATTRIBUTES: Final = ("wharf.version", "nomad.version")
"""Where a node says which program it runs; the second is the name that the peer's tools know."""


def node_list(replica: Replica, request: Request, options: ReadOptions) -> Listing[Node]:
    return by_name(replica, NODES, with_id_prefix(options), **stubs(request))


def stubs(request: Request) -> dict[str, Any]:
    """How nodes are shown in lists: what is left out or added makes another text of the same record."""
    form = f"node.list{' resources' * request.flag('resources')}{' os' * request.flag('os')}"
    return {"shown": lambda node: node_stub(node, request), "form": form}


def with_id_prefix(options: ReadOptions) -> ReadOptions:
    if not options.prefix:
        return options
    return msgspec.structs.replace(options, prefix=read_id_prefix(options.prefix, where=LOOKUP_FAILED))


def node_stub(node: Node, request: Request) -> NodeListStub:
    """The node as lists show it, with what the request's `resources` and `os` ask for."""
    attributes = node.attributes or {}
    more: dict[str, Any] = {}
    if request.flag("os"):
        more["attributes"] = {"os.name": attributes.get("os.name", "")}
    if request.flag("resources"):
        more |= {"node_resources": node.node_resources, "reserved_resources": node.reserved_resources}
    return NodeListStub(
        address=node.http_addr.rpartition(":")[0] or node.http_addr,
        version=next((attributes[name] for name in VERSION_ATTRIBUTES if name in attributes), ""),
        **{name: getattr(node, name) for name in STUB_FIELDS},
        **more,
    )


STUB_FIELDS: Final = tuple(
    name
    for name in NodeListStub.__struct_fields__
    if name not in ("address", "version", "attributes", "node_resources", "reserved_resources")
)


def node_read(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    node_id = request.value("node_id")
    found, index, watched = one(replica, NODES, node_id, missing="node not found")
    if isinstance(found, Missing):
        read_id(node_id, where=LOOKUP_FAILED)  # One that could be none is told as such: mostly a short form.
    return Found(shown_node(found) if isinstance(found, Node) else found, index, watched)


def node_allocations(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    node_id = request.value("node_id")
    readable = [a for a in replica.those(ALLOCATIONS_ON_NODE, node_id) if request.may(READ_JOB, namespace=a.namespace)]
    index = replica.last_change(ALLOCATIONS)
    shown = [shown_allocation(replica, allocation) for allocation in by_creation(readable)]
    return Found(shown, index, [watch.those(ALLOCATIONS_ON_NODE, node_id)])


READS: Final[dict[str, Reading]] = {
    "node.list": node_list,
    "node.read": node_read,
    "node.allocations": node_allocations,
}


class NodeWrites:
    """What is asked of the leader's brain."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def drain(self, request: Request) -> Done:
        asked = request.read_body(NodeDrainRequest)
        spec = asked.drain_spec
        wish = DrainWish(
            node_id=request.value("node_id"),
            order=None if spec is None else DrainOrder(spec.deadline, spec.ignore_system_jobs),
            mark_eligible=asked.mark_eligible,
            meta=asked.meta or {},
            accessor_id=f"token:{request.caller.accessor_id or 'acls-disabled'}",
            cause=request.id,
        )
        written = await self._server.leader.ask(DRAIN_NODE, wish)
        return changed(written, node_modify_index=written.index)

    async def eligibility(self, request: Request) -> Done:
        asked = request.read_body(shapes.EligibilityRequest)
        if asked.eligibility not in tuple(SchedulingEligibility):
            raise invalid(f'invalid scheduling eligibility "{asked.eligibility}"')
        wanted = Eligibility(request.value("node_id"), asked.eligibility == SchedulingEligibility.ELIGIBLE)
        return changed(await self._server.leader.ask(SET_ELIGIBILITY, wanted))

    async def evaluate(self, request: Request) -> Done:
        about = AboutNode(request.value("node_id"), request.id)
        return self._updated(await self._server.leader.ask(EVALUATE_NODE, about), node_modify_index=0)

    async def purge(self, request: Request) -> Done:
        about = AboutNode(request.value("node_id"), request.id)
        written = await self._server.leader.ask(PURGE_NODE, about)
        return self._updated(written, node_modify_index=written.index)

    def _updated(self, written: NodeWritten, *, node_modify_index: int) -> Done:
        reply = shapes.NodeUpdateResponse(
            eval_ids=written.eval_ids or None,
            eval_create_index=written.index if written.eval_ids else 0,
            node_modify_index=node_modify_index,
            index=written.index,
        )
        return Done(reply, written.index)


def changed(written: NodeWritten, *, node_modify_index: int = 0) -> Done:
    reply = NodeChangeResponse(
        node_modify_index=node_modify_index,
        eval_ids=written.eval_ids or None,
        eval_create_index=written.index if written.eval_ids else 0,
        index=written.index,
    )
    return Done(reply, written.index)


def acts_of(server: Server) -> dict[str, Act]:
    writes = NodeWrites(server)
    return {
        "node.drain": writes.drain,
        "node.eligibility": writes.eligibility,
        "node.evaluate": writes.evaluate,
        "node.purge": writes.purge,
    }
