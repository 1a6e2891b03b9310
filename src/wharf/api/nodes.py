"""Endpoints of nodes, for those who look after them."""

from typing import Final

import msgspec

from wharf.api.answers import Act, Done, Reading, by_creation, one
from wharf.api.listing import Listing, by_name
from wharf.api.request import ReadOptions, Request
from wharf.model.need import READ_JOB
from wharf.model.node import Node, SchedulingEligibility
from wharf.model.refusal import invalid
from wharf.server.asking import SET_ELIGIBILITY, Eligibility
from wharf.server.reading import Found
from wharf.server.server import Server
from wharf.state import Replica
from wharf.state import watches as watch
from wharf.state.tables import ALLOCATIONS, ALLOCATIONS_ON_NODE, NODES
from wharf.wire import shapes


def node_list(replica: Replica, _request: Request, options: ReadOptions) -> Listing[Node]:
    return by_name(replica, NODES, options, shown=_shown)


def node_read(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    found, index, watched = one(replica, NODES, request.value("node_id"), missing="node not found")
    return Found(_shown(found) if isinstance(found, Node) else found, index, watched)


def _shown(node: Node) -> Node:
    return msgspec.structs.replace(node, secret_digest="")


def node_allocations(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    node_id = request.value("node_id")
    readable = [a for a in replica.those(ALLOCATIONS_ON_NODE, node_id) if request.may(READ_JOB, namespace=a.namespace)]
    index = replica.last_change(ALLOCATIONS)
    return Found(by_creation(readable), index, [watch.those(ALLOCATIONS_ON_NODE, node_id)])


READS: Final[dict[str, Reading]] = {
    "node.list": node_list,
    "node.read": node_read,
    "node.allocations": node_allocations,
}


class NodeWrites:
    """What is asked of the leader's brain."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def eligibility(self, request: Request) -> Done:
        asked = request.read_body(shapes.EligibilityRequest)
        if asked.eligibility not in tuple(SchedulingEligibility):
            raise invalid(f'invalid scheduling eligibility "{asked.eligibility}"')
        wanted = Eligibility(request.value("node_id"), asked.eligibility == SchedulingEligibility.ELIGIBLE)
        written = await self._server.leader.ask(SET_ELIGIBILITY, wanted)
        reply = shapes.NodeUpdateResponse(
            eval_ids=written.eval_ids or None,
            eval_create_index=written.index if written.eval_ids else 0,
            index=written.index,
        )
        return Done(reply, written.index)


def acts_of(server: Server) -> dict[str, Act]:
    return {"node.eligibility": NodeWrites(server).eligibility}
