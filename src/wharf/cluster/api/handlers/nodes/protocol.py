"""What nodes themselves say and ask. Whoever speaks as a node shows the node's secret.

Identities that nodes have signed: of the tasks that they run, and their own. Whoever asks shows the node's secret.
"""

import asyncio
from typing import Final

import msgspec

from wharf.cluster.api.access_control import get_request_token
from wharf.cluster.api.handlers.allocations.records import get_job_version_key
from wharf.cluster.api.handlers.nodes.records import build_node_change_result
from wharf.cluster.api.requests.request import QueryOptions, Request
from wharf.cluster.api.results import ActionHandler, ActionResult, MissingRecord, ReadHandler, find_record
from wharf.cluster.operations import node_pools
from wharf.cluster.operations.nodes.drains import DrainOptions, DrainRequest
from wharf.cluster.operations.nodes.introductions import check_node_admission
from wharf.cluster.operations.nodes.registration import check_node_pool_name
from wharf.cluster.operations.nodes.reports import AllocationReport
from wharf.cluster.operations.nodes.writes import NodeWriteResult
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.rpc.handlers.nodes import DRAIN_NODE
from wharf.cluster.server.rpc.leader import (
    RECORD_HEARTBEAT,
    RECORD_NODE_REPORT,
    REGISTER_NODE,
    HeartbeatRequest,
    NodeLease,
    RecordNodeReportRequest,
)
from wharf.cluster.server.security.identities import build_node_spec, build_workload_specs
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state import watches as watch
from wharf.cluster.state.tables import ALLOCATIONS, ALLOCATIONS_ON_NODE, JOB_VERSIONS, NODE_POOLS, NODES
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request, not_found
from wharf.contract.model.secrets import hash_secret, make_migrate_token
from wharf.contract.model.times import SECOND
from wharf.contract.wire.nodes import messages
from wharf.contract.wire.nodes.messages import (
    IdentitiesReply,
    IdentitiesRequest,
    NodeDrainRequest,
    NodeIdentityReply,
    SignedIdentity,
)

MAX_FETCHED_IDS: Final = 10_000
SHUTDOWN_DRAIN_MESSAGE: Final = "the node shuts down"
RETURN_DRAIN_MESSAGE: Final = "the node is back"


def list_assignment_indexes(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    """Allocation id to AllocModifyIndex, of all that the node must know: it fetches those that are new to it.

    The index is the greatest of them, so that other nodes' work wakes nobody here. It does not fall when an allocation
    is collected: nothing newer than what the node has seen is there then.
    """
    _authenticated(replica, request)
    node_id = request.get_path_value("node_id")
    found = {a.id: _order_index(replica, a) for a in replica.list_by_index(ALLOCATIONS_ON_NODE, node_id)}
    index = max(found.values(), default=1)
    return ReadResult(
        found, max(index, min(options.index, replica.index)), [watch.watch_index(ALLOCATIONS_ON_NODE, node_id)]
    )


def read_predecessor(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    """Only of those whose place an allocation of the node takes: its data are the other's business alone."""
    _authenticated(replica, request)
    allocation_id = request.get_path_value("alloc_id")
    former, index, watched = find_record(replica, ALLOCATIONS, allocation_id, missing_text="alloc not found")
    if isinstance(former, MissingRecord):
        return ReadResult(former, index, watched)
    own = replica.list_by_index(ALLOCATIONS_ON_NODE, request.get_path_value("node_id"))
    if not any(allocation.previous_allocation == allocation_id for allocation in own):
        raise not_found("alloc not found")
    node = replica.get(NODES, former.node_id)
    told = messages.PredecessorView(
        id=former.id,
        node_id=former.node_id,
        client_status=former.client_status,
        migrate_token=make_migrate_token(former.id, node.secret_digest) if node is not None else "",
    )
    return ReadResult(told, index, watched)


def _order_index(replica: Replica, allocation: Allocation) -> int:
    """The allocation's AllocModifyIndex; after a restore of the log at least the index at which its epoch began.

    A record that was written twice before the copy was made keeps the old number, and the node may have been told a
    greater one by a state that is no more: it must look again at all that it has.
    """
    return max(allocation.alloc_modify_index, replica.epoch_since)


READ_HANDLERS: Final[dict[str, ReadHandler]] = {
    "node.desired": list_assignment_indexes,
    "node.former": read_predecessor,
}


class NodeProtocolActions:
    """What is asked of the leader's brain, and whole allocations from the replica."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def register_node(self, request: Request) -> ActionResult:
        asked = request.decode_body(messages.NodeRegistration)
        if asked.node.id != request.get_path_value("node_id"):
            raise invalid_request("Node ID does not match request path")
        node = msgspec.structs.replace(asked.node, secret_digest=hash_secret(asked.secret_id))
        await self._admit(request, node)
        await self._make_pool(node, request)
        return _told(await self._server.leader.call(REGISTER_NODE, node))

    async def _make_pool(self, node: Node, request: Request) -> None:
        """A pool that nobody has made is made for its first node, in the region whose pools count."""
        check_node_pool_name(node.node_pool)
        here, authoritative = self._server.identity.region, self._server.access.settings.authoritative_region
        if authoritative in ("", here) and self._server.replica.get(NODE_POOLS, node.node_pool) is None:
            await self._server.writer.execute(
                lambda snapshot, _moment: node_pools.ensure_node_pool(snapshot, node, cause=request.id)
            )

    async def _admit(self, request: Request, node: Node) -> None:
        """While access control is on, a node that is not known needs an introduction."""
        access = self._server.access
        if not access.settings.is_enabled:
            return
        await self._server.reader.catch_up()
        given, moment = get_request_token(request.headers), self._server.writer.read_clock()
        introduction = (
            access.identity_signer.verify_introduction(self._server.replica, given, moment) if given else None
        )
        check_node_admission(self._server.replica, node, introduction)

    async def record_heartbeat(self, request: Request) -> ActionResult:
        node = await self.authenticate_node(request)
        return _told(await self._server.leader.call(RECORD_HEARTBEAT, HeartbeatRequest(node.id)))

    async def fetch_assignments(self, request: Request) -> ActionResult:
        """Whole allocations, with their jobs, for the ids that the node asks for."""
        node = await self.authenticate_node(request)
        replica = self._server.replica
        ids = request.decode_body(messages.AssignmentsRequest).ids
        if len(ids) > MAX_FETCHED_IDS:
            raise invalid_request(f"{len(ids)} ids are too many; ask for {MAX_FETCHED_IDS} at a time")
        found = []
        for allocation_id in ids:
            allocation = replica.get(ALLOCATIONS, allocation_id)
            if allocation is not None and allocation.node_id == node.id:
                job = replica.get(JOB_VERSIONS, *get_job_version_key(allocation))
                given = {name: getattr(allocation, name) for name in messages.AssignedAllocation.__struct_fields__}
                given["alloc_modify_index"] = _order_index(replica, allocation)
                found.append(messages.Assignment(allocation=messages.AssignedAllocation(**given), job=job))
        return ActionResult(found)

    async def record_report(self, request: Request) -> ActionResult:
        node = await self.authenticate_node(request)
        asked = request.decode_body(messages.NodeReportRequest)
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
        question = RecordNodeReportRequest(node.id, reports, asked.report_id, asked.is_whole, asked.number)
        written = await self._server.leader.call(RECORD_NODE_REPORT, question)
        return ActionResult(
            messages.NodeReportResponse(index=written.index, must_report=written.must_report), written.index
        )

    async def set_shutdown_drain(self, request: Request) -> ActionResult:
        """The node ends and has its work moved away; or it is back, and what it said then holds no more."""
        node = await self.authenticate_node(request)
        asked = request.decode_body(NodeDrainRequest)
        spec, last = asked.drain_spec, node.last_drain
        if spec is None and (last is None or (last.meta or {}).get("message") != SHUTDOWN_DRAIN_MESSAGE):
            # Somebody else has had it drained meanwhile: that is left as it is.
            return build_node_change_result(NodeWriteResult(node.modify_index))
        wish = DrainRequest(
            node_id=node.id,
            order=None if spec is None else DrainOptions(spec.deadline, spec.ignore_system_jobs),
            mark_eligible=spec is None,
            meta={"message": SHUTDOWN_DRAIN_MESSAGE if spec is not None else RETURN_DRAIN_MESSAGE},
            accessor_id=f"node:{node.id}",
            cause=request.id,
        )
        return build_node_change_result(await self._server.leader.call(DRAIN_NODE, wish))

    async def reject_plain_channel(self, request: Request) -> ActionResult:
        await self.authenticate_node(request)
        raise invalid_request("a node's channel is a websocket: ask with an upgrade")

    async def authenticate_node(self, request: Request) -> Node:
        """The node that the path names, if the request carries its secret. It may have registered elsewhere just now."""
        try:
            return _authenticated(self._server.replica, request)
        except Refusal:
            await self._server.reader.catch_up()
            return _authenticated(self._server.replica, request)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    speech = NodeProtocolActions(server)
    return {
        "node.register": speech.register_node,
        "node.heartbeat": speech.record_heartbeat,
        "node.fetch": speech.fetch_assignments,
        "node.report": speech.record_report,
        "node.leave": speech.set_shutdown_drain,
        "node.channel": speech.reject_plain_channel,
    }


def _authenticated(replica: Replica, request: Request) -> Node:
    node = replica.get(NODES, request.get_path_value("node_id"))
    if node is None:
        raise not_found("node not found")
    given = request.headers.get(b"x-cluster-node-secret", b"").decode("latin-1")
    if hash_secret(given) != node.secret_digest:
        raise Refusal(RefusalCode.FORBIDDEN, "Permission denied")
    return node


def _told(believed: NodeLease) -> ActionResult:
    reply = messages.NodeUpdateResponse(
        heartbeat_ttl=round(believed.ttl_s * SECOND),
        node_modify_index=believed.index,
        index=believed.index,
        must_report=believed.must_report,
        reports_from=believed.reports_from,
    )
    return ActionResult(reply, believed.index)


MAX_IDENTITY_NAMES: Final = 100

IDENTITY_READ_HANDLERS: Final[dict[str, ReadHandler]] = {}


class NodeIdentityActions:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._speech = NodeProtocolActions(server)

    async def sign_task_identities(self, request: Request) -> ActionResult:
        node = await self._speech.authenticate_node(request)
        asked = request.decode_body(IdentitiesRequest)
        if len(asked.names) > MAX_IDENTITY_NAMES:
            raise invalid_request(f"{len(asked.names)} identities are too many; ask for {MAX_IDENTITY_NAMES} at a time")
        server = self._server
        if server.replica.get(ALLOCATIONS, asked.alloc_id) is None:
            await server.reader.catch_up()  # A server that lags: the node was told by another one.
        workloads = build_workload_specs(
            server.replica, node, asked.alloc_id, asked.task, asked.names, region=server.identity.region
        )
        await server.access.ensure_active_key(server.replica, server.leader)
        found = []
        for workload in workloads:
            moment = server.writer.read_clock()
            signed = server.access.identity_signer.sign_workload(server.replica, workload, moment)
            expires = _in_whole_seconds(moment.now_ns + workload.ttl_ns) if workload.ttl_ns else 0
            found.append(SignedIdentity(name=workload.name, jwt=signed, issued=moment.now_ns, expires=expires))
            await asyncio.sleep(0)  # Each takes a millisecond: others have their turn between two.
        return ActionResult(IdentitiesReply(identities=tuple(found)))

    async def sign_node_identity(self, request: Request) -> ActionResult:
        node = await self._speech.authenticate_node(request)
        server = self._server
        await server.access.ensure_active_key(server.replica, server.leader)
        key = server.access.keyring.find_active_key(server.replica)
        if key is None:
            raise Refusal(RefusalCode.UNAVAILABLE, "the keyring has no active key yet; ask again in a moment")
        moment = server.writer.read_clock()
        wanted = build_node_spec(server.replica, node, region=server.identity.region)
        signed = server.access.identity_signer.sign_node(server.replica, wanted, moment)
        expires = _in_whole_seconds(moment.now_ns + wanted.ttl_ns)
        identity = SignedIdentity(name="default", jwt=signed, issued=moment.now_ns, expires=expires)
        return ActionResult(NodeIdentityReply(identity=identity, signing_key_id=key.key_id))


def _in_whole_seconds(ns: int) -> int:
    """As the claim says it."""
    return ns // SECOND * SECOND


def build_identity_action_handlers(server: Server) -> dict[str, ActionHandler]:
    identities = NodeIdentityActions(server)
    return {"node.identities": identities.sign_task_identities, "node.own_identity": identities.sign_node_identity}
