"""What nodes themselves say and ask. Whoever speaks as a node shows the node's secret."""

from typing import Final

import msgspec

from wharf.api.answers import Act, Done, Missing, Reading, one
from wharf.api.endpoints.allocations import version_key
from wharf.api.endpoints.nodes import changed
from wharf.api.gate import token_of
from wharf.api.request import ReadOptions, Request
from wharf.model.allocation import Allocation
from wharf.model.node import Node
from wharf.model.refusal import Code, Refusal, invalid, unknown
from wharf.model.secret import migrate_token, secret_digest
from wharf.operations import node_pools
from wharf.operations.drains import DrainOrder, DrainWish
from wharf.operations.introductions import admit
from wharf.operations.node_writes import NodeWritten
from wharf.operations.nodes import refuse_pool
from wharf.operations.reports import AllocationReport
from wharf.server.answering.nodes import DRAIN_NODE
from wharf.server.asking import HEARTBEAT, REGISTER_NODE, REPORT, NodeAlive, NodeBelieved, NodeReport
from wharf.server.reading import Found
from wharf.server.server import Server
from wharf.state import Replica
from wharf.state import watches as watch
from wharf.state.tables import ALLOCATIONS, ALLOCATIONS_ON_NODE, JOB_VERSIONS, NODE_POOLS, NODES
from wharf.wire import shapes
from wharf.wire.node_shapes import NodeDrainRequest

SECOND_NS: Final = 1_000_000_000
IDS_AT_ONCE: Final = 10_000
LEAVES: Final = "the node shuts down"
IS_BACK: Final = "the node is back"


def node_desired(replica: Replica, request: Request, options: ReadOptions) -> Found:
    """Allocation id to AllocModifyIndex, of all that the node must know: it fetches those that are new to it.

    The index is the greatest of them, so that other nodes' work wakes nobody here. It does not fall when an allocation
    is collected: nothing newer than what the node has seen is there then.
    """
    _authenticated(replica, request)
    node_id = request.value("node_id")
    found = {a.id: _order_index(replica, a) for a in replica.those(ALLOCATIONS_ON_NODE, node_id)}
    index = max(found.values(), default=1)
    return Found(found, max(index, min(options.index, replica.index)), [watch.those(ALLOCATIONS_ON_NODE, node_id)])


def node_former(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    """Only of those whose place an allocation of the node takes: its data are the other's business alone."""
    _authenticated(replica, request)
    allocation_id = request.value("alloc_id")
    former, index, watched = one(replica, ALLOCATIONS, allocation_id, missing="alloc not found")
    if isinstance(former, Missing):
        return Found(former, index, watched)
    own = replica.those(ALLOCATIONS_ON_NODE, request.value("node_id"))
    if not any(allocation.previous_allocation == allocation_id for allocation in own):
        raise unknown("alloc not found")
    node = replica.get(NODES, former.node_id)
    told = shapes.FormerAllocation(
        id=former.id,
        node_id=former.node_id,
        client_status=former.client_status,
        migrate_token=migrate_token(former.id, node.secret_digest) if node is not None else "",
    )
    return Found(told, index, watched)


def _order_index(replica: Replica, allocation: Allocation) -> int:
    """The allocation's AllocModifyIndex; after a restore of the log at least the index at which its epoch began.

    A record that was written twice before the copy was made keeps the old number, and the node may have been told a
    greater one by a state that is no more: it must look again at all that it has.
    """
    return max(allocation.alloc_modify_index, replica.epoch_since)


READS: Final[dict[str, Reading]] = {"node.desired": node_desired, "node.former": node_former}


class NodeSpeech:
    """What is asked of the leader's brain, and whole allocations from the replica."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def register(self, request: Request) -> Done:
        asked = request.read_body(shapes.NodeRegistration)
        if asked.node.id != request.value("node_id"):
            raise invalid("Node ID does not match request path")
        node = msgspec.structs.replace(asked.node, secret_digest=secret_digest(asked.secret_id))
        await self._admit(request, node)
        await self._make_pool(node, request)
        return _told(await self._server.leader.ask(REGISTER_NODE, node))

    async def _make_pool(self, node: Node, request: Request) -> None:
        """A pool that nobody has made is made for its first node, in the region whose pools count."""
        refuse_pool(node.node_pool)
        here, authoritative = self._server.identity.region, self._server.access.settings.authoritative_region
        if authoritative in ("", here) and self._server.replica.get(NODE_POOLS, node.node_pool) is None:
            await self._server.writer.write(
                lambda snapshot, _moment: node_pools.appear(snapshot, node, cause=request.id)
            )

    async def _admit(self, request: Request, node: Node) -> None:
        """While access control is on, a node that is not known needs an introduction."""
        access = self._server.access
        if not access.settings.enabled:
            return
        await self._server.reader.catch_up()
        given, moment = token_of(request.headers), self._server.writer.moment()
        introduction = access.identities.introduction(self._server.replica, given, moment) if given else None
        admit(self._server.replica, node, introduction)

    async def heartbeat(self, request: Request) -> Done:
        node = await self.authenticated_now(request)
        return _told(await self._server.leader.ask(HEARTBEAT, NodeAlive(node.id)))

    async def fetch(self, request: Request) -> Done:
        """Whole allocations, with their jobs, for the ids that the node asks for."""
        node = await self.authenticated_now(request)
        replica = self._server.replica
        ids = request.read_body(shapes.DesiredRequest).ids
        if len(ids) > IDS_AT_ONCE:
            raise invalid(f"{len(ids)} ids are too many; ask for {IDS_AT_ONCE} at a time")
        found = []
        for allocation_id in ids:
            allocation = replica.get(ALLOCATIONS, allocation_id)
            if allocation is not None and allocation.node_id == node.id:
                job = replica.get(JOB_VERSIONS, *version_key(allocation))
                given = {name: getattr(allocation, name) for name in shapes.DesiredWork.__struct_fields__}
                given["alloc_modify_index"] = _order_index(replica, allocation)
                found.append(shapes.DesiredAllocation(allocation=shapes.DesiredWork(**given), job=job))
        return Done(found)

    async def report(self, request: Request) -> Done:
        node = await self.authenticated_now(request)
        asked = request.read_body(shapes.NodeReportRequest)
        reports = tuple(
            AllocationReport(
                id=told.id,
                client_status=told.client_status,
                client_description=told.client_description,
                task_states=told.task_states,
                deployment_status=told.deployment_status,
                network_status=told.network_status,
                services=told.services,
                log_tails=told.log_tails,
            )
            for told in asked.allocations
        )
        question = NodeReport(node.id, reports, asked.report_id, asked.is_whole, asked.number)
        written = await self._server.leader.ask(REPORT, question)
        return Done(shapes.NodeReportResponse(index=written.index, must_report=written.must_report), written.index)

    async def leave(self, request: Request) -> Done:
        """The node ends and has its work moved away; or it is back, and what it said then holds no more."""
        node = await self.authenticated_now(request)
        asked = request.read_body(NodeDrainRequest)
        spec, last = asked.drain_spec, node.last_drain
        if spec is None and (last is None or (last.meta or {}).get("message") != LEAVES):
            # Somebody else has had it drained meanwhile: that is left as it is.
            return changed(NodeWritten(node.modify_index))
        wish = DrainWish(
            node_id=node.id,
            order=None if spec is None else DrainOrder(spec.deadline, spec.ignore_system_jobs),
            mark_eligible=spec is None,
            meta={"message": LEAVES if spec is not None else IS_BACK},
            accessor_id=f"node:{node.id}",
            cause=request.id,
        )
        return changed(await self._server.leader.ask(DRAIN_NODE, wish))

    async def channel(self, request: Request) -> Done:
        await self.authenticated_now(request)
        raise invalid("a node's channel is a websocket: ask with an upgrade")

    async def authenticated_now(self, request: Request) -> Node:
        """The node that the path names, if the request carries its secret. It may have registered elsewhere just now."""
        try:
            return _authenticated(self._server.replica, request)
        except Refusal:
            await self._server.reader.catch_up()
            return _authenticated(self._server.replica, request)


def acts_of(server: Server) -> dict[str, Act]:
    speech = NodeSpeech(server)
    return {
        "node.register": speech.register,
        "node.heartbeat": speech.heartbeat,
        "node.fetch": speech.fetch,
        "node.report": speech.report,
        "node.leave": speech.leave,
        "node.channel": speech.channel,
    }


def _authenticated(replica: Replica, request: Request) -> Node:
    node = replica.get(NODES, request.value("node_id"))
    if node is None:
        raise unknown("node not found")
    given = request.headers.get(b"x-cluster-node-secret", b"").decode("latin-1")
    if secret_digest(given) != node.secret_digest:
        raise Refusal(Code.FORBIDDEN, "Permission denied")
    return node


def _told(believed: NodeBelieved) -> Done:
    reply = shapes.NodeUpdateResponse(
        heartbeat_ttl=round(believed.ttl_s * SECOND_NS),
        node_modify_index=believed.index,
        index=believed.index,
        must_report=believed.must_report,
        reports_from=believed.reports_from,
    )
    return Done(reply, believed.index)
