"""RPC to the leader's brain: methods of nodes, the dispatcher, the transport ports and the client.

Other methods are declared in `rpc.handlers`, by noun.
"""

import logging
from typing import Final, Protocol, TypeVar

import msgspec

from wharf.cluster.operations.nodes.reports import AllocationReport
from wharf.cluster.operations.nodes.writes import NodeWriteResult
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.log.preview import forbid_in_preview
from wharf.cluster.server.rpc.handlers import RpcRoute, build_routes
from wharf.cluster.server.rpc.method import RpcMethod
from wharf.cluster.server.worker_process import InlineWorker, WorkerProcess
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import LEADER, MEMBERS
from wharf.contract.model.cluster import Member
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.refusal import Refusal, RefusalCode, no_leader

log = logging.getLogger(__name__)

RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")


class HeartbeatRequest(msgspec.Struct, frozen=True):
    """A node is alive."""

    node_id: str


class NodeLease(msgspec.Struct, frozen=True):
    """`ttl_s`: the heartbeat TTL in seconds. `index`: the index of the write, 0 if nothing was written."""

    ttl_s: float
    index: int = 0
    must_report: bool = False
    reports_from: int = 0


class RecordNodeReportRequest(msgspec.Struct, frozen=True):
    """A node's report. `is_whole`: it covers all allocations of the node. A repeated `report_id` changes nothing."""

    node_id: str
    reports: tuple[AllocationReport, ...]
    report_id: str = ""
    is_whole: bool = False
    number: int = 0


class SetEligibilityRequest(msgspec.Struct, frozen=True):
    """Sets the scheduling eligibility of a node."""

    node_id: str
    eligible: bool


REGISTER_NODE: Final = RpcMethod("register-node", Node, NodeLease)
RECORD_HEARTBEAT: Final = RpcMethod("heartbeat", HeartbeatRequest, NodeLease)
RECORD_NODE_REPORT: Final = RpcMethod("report", RecordNodeReportRequest, NodeWriteResult)
SET_ELIGIBILITY: Final = RpcMethod("set-eligibility", SetEligibilityRequest, NodeWriteResult)

_encode = msgspec.msgpack.Encoder().encode


class RpcReply(msgspec.Struct, frozen=True):
    """The encoded reply or a refusal."""

    body: bytes = b""
    code: RefusalCode | None = None
    text: str = ""


class RpcDispatcher:
    """The brain's side: decodes a request, calls its handler and encodes the reply. Always returns a reply."""

    def __init__(self, brain: Brain, *, worker: WorkerProcess | None = None) -> None:
        """`worker`: runs long computations; without it they run in the brain's loop."""
        self._brain = brain
        routes: tuple[RpcRoute, ...] = (
            (REGISTER_NODE, self._register),
            (RECORD_HEARTBEAT, self._heartbeat),
            (RECORD_NODE_REPORT, self._report),
            (SET_ELIGIBILITY, self._set_eligibility),
            *build_routes(brain, worker or InlineWorker()),
        )
        self._by_name = {method.name: (method, handler) for method, handler in routes}

    async def call(self, name: str, body: bytes) -> RpcReply:
        """Handle one call. Errors become refusals."""
        if name not in self._by_name:
            return RpcReply(
                code=RefusalCode.INVALID, text=f"unknown RPC method {name!r}: this server may run an older version"
            )
        method, handler = self._by_name[name]
        try:
            request = method.decode_request(body)
        except msgspec.MsgspecError as error:
            return RpcReply(code=RefusalCode.INVALID, text=f"cannot decode the request of RPC method {name!r}: {error}")
        try:
            return RpcReply(_encode(await handler(request)))
        except Refusal as refusal:
            return RpcReply(code=refusal.code, text=refusal.text)
        except Exception:  # The caller must get a reply, or it waits until its timeout.
            log.exception("RPC call failed method=%s", name)
            return RpcReply(
                code=RefusalCode.OUTCOME_UNKNOWN, text=f"internal error in RPC method {name!r}; see the leader's log"
            )

    async def _register(self, node: Node) -> NodeLease:
        written, ttl_s = await self._brain.node_monitor.register_node(node)
        return NodeLease(ttl_s, written.index, written.must_report, written.reports_from)

    async def _heartbeat(self, request: HeartbeatRequest) -> NodeLease:
        written, ttl_s = await self._brain.node_monitor.record_heartbeat(request.node_id)
        return NodeLease(ttl_s, 0, written.must_report, written.reports_from)

    async def _report(self, request: RecordNodeReportRequest) -> NodeWriteResult:
        return await self._brain.node_monitor.record_reports(
            request.node_id,
            request.reports,
            report_id=request.report_id,
            is_complete=request.is_whole,
            number=request.number,
        )

    async def _set_eligibility(self, request: SetEligibilityRequest) -> NodeWriteResult:
        return await self._brain.node_monitor.set_eligibility(request.node_id, request.eligible)


class RpcTransport(Protocol):
    """Carries calls to one brain: in this process, over a socket, or over HTTP to another member."""

    async def call(self, name: str, body: bytes) -> RpcReply:
        """Send a request and return the reply.

        Raises `Refusal` with UNAVAILABLE if the brain cannot be reached (nothing was executed), OUTCOME_UNKNOWN if
        the reply was lost.
        """
        ...


class PeerTransports(Protocol):
    """Transports to the brains of other members."""

    def transport_to(self, member: Member) -> RpcTransport:
        """Return the transport to this member's brain."""
        ...


class LeaderClient:
    """Calls the leader's brain: this server's own one, or that of the member in the leader record."""

    def __init__(
        self, replica: Replica, member_id: str, own_transport: RpcTransport, peers: PeerTransports | None
    ) -> None:
        self._replica = replica
        self._member_id = member_id
        self._own_transport = own_transport
        self._peers = peers

    async def call(self, method: RpcMethod[RequestT, ReplyT], request: RequestT) -> ReplyT:
        """Call the leader and return its reply. Raises `Refusal`."""
        forbid_in_preview()
        reply = await self._leader_transport().call(method.name, _encode(request))
        if reply.code is not None:
            raise Refusal(reply.code, reply.text)
        return method.decode_reply(reply.body)

    async def call_member(self, member_id: str, method: RpcMethod[RequestT, ReplyT], request: RequestT) -> ReplyT:
        """Call the brain of one member, for methods that need no leader. Raises `Refusal`."""
        transport = self._own_transport
        if member_id != self._member_id and self._peers is not None:
            member = self._replica.get(MEMBERS, member_id)
            if member is None:
                raise Refusal(RefusalCode.UNAVAILABLE, f"{member_id} is not a member of this cluster")
            transport = self._peers.transport_to(member)
        reply = await transport.call(method.name, _encode(request))
        if reply.code is not None:
            raise Refusal(reply.code, reply.text)
        return method.decode_reply(reply.body)

    def _leader_transport(self) -> RpcTransport:
        """Return the transport to the leader. Raises `Refusal` if there is no leader."""
        leader = self._replica.get(LEADER)
        if leader is None:
            raise no_leader()
        if leader.member_id == self._member_id or self._peers is None:
            return self._own_transport
        member = self._replica.get(MEMBERS, leader.member_id)
        if member is None:
            raise no_leader()
        return self._peers.transport_to(member)
