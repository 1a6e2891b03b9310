"""What servers ask of the leader's brain, from wherever the request came in: the subjects, their forms, and the way.

One table of subjects serves the brain that answers, the link that carries, and the test that walks it.
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
    node_id: str


class NodeLease(msgspec.Struct, frozen=True):
    """For how many seconds the node is believed to be alive, and the index of what was written for it, if anything."""

    ttl_s: float
    index: int = 0
    must_report: bool = False
    reports_from: int = 0


class RecordNodeReportRequest(msgspec.Struct, frozen=True):
    """`is_whole`: with it the node has told of all that it knows. The same id again changes nothing."""

    node_id: str
    reports: tuple[AllocationReport, ...]
    report_id: str = ""
    is_whole: bool = False
    number: int = 0


class SetEligibilityRequest(msgspec.Struct, frozen=True):
    node_id: str
    eligible: bool


REGISTER_NODE: Final = RpcMethod("register-node", Node, NodeLease)
RECORD_HEARTBEAT: Final = RpcMethod("heartbeat", HeartbeatRequest, NodeLease)
RECORD_NODE_REPORT: Final = RpcMethod("report", RecordNodeReportRequest, NodeWriteResult)
SET_ELIGIBILITY: Final = RpcMethod("set-eligibility", SetEligibilityRequest, NodeWriteResult)

_encode = msgspec.msgpack.Encoder().encode


class RpcReply(msgspec.Struct, frozen=True):
    """The answer's bytes, or a refusal: what crosses a link."""

    body: bytes = b""
    code: RefusalCode | None = None
    text: str = ""


class RpcDispatcher:
    """The brain's side: takes a question as bytes and answers as bytes, whatever happens."""

    def __init__(self, brain: Brain, *, worker: WorkerProcess | None = None) -> None:
        """`sideline`: where long questions are thought about; without one, in place."""
        self._brain = brain
        answers: tuple[RpcRoute, ...] = (
            (REGISTER_NODE, self._register),
            (RECORD_HEARTBEAT, self._heartbeat),
            (RECORD_NODE_REPORT, self._report),
            (SET_ELIGIBILITY, self._set_eligibility),
            *build_routes(brain, worker or InlineWorker()),
        )
        self._by_name = {subject.name: (subject, answer) for subject, answer in answers}

    async def call(self, name: str, body: bytes) -> RpcReply:
        if name not in self._by_name:
            return RpcReply(code=RefusalCode.INVALID, text=f"no brain of this version answers {name!r}")
        subject, answer = self._by_name[name]
        try:
            question = subject.decode_request(body)
        except msgspec.MsgspecError as error:
            return RpcReply(
                code=RefusalCode.INVALID, text=f"no brain of this version understands this {name!r}: {error}"
            )
        try:
            return RpcReply(_encode(await answer(question)))
        except Refusal as refusal:
            return RpcReply(code=refusal.code, text=refusal.text)
        except Exception:  # The top of a request: whoever asks must hear something, or waits for ever.
            log.exception("the question %s failed", name)
            return RpcReply(
                code=RefusalCode.OUTCOME_UNKNOWN, text=f"an error of our own at {name!r}; the leader's log tells of it"
            )

    async def _register(self, node: Node) -> NodeLease:
        written, ttl_s = await self._brain.node_monitor.register_node(node)
        return NodeLease(ttl_s, written.index, written.must_report, written.reports_from)

    async def _heartbeat(self, alive: HeartbeatRequest) -> NodeLease:
        written, ttl_s = await self._brain.node_monitor.record_heartbeat(alive.node_id)
        return NodeLease(ttl_s, 0, written.must_report, written.reports_from)

    async def _report(self, told: RecordNodeReportRequest) -> NodeWriteResult:
        return await self._brain.node_monitor.record_reports(
            told.node_id, told.reports, report_id=told.report_id, is_complete=told.is_whole, number=told.number
        )

    async def _set_eligibility(self, wanted: SetEligibilityRequest) -> NodeWriteResult:
        return await self._brain.node_monitor.set_eligibility(wanted.node_id, wanted.eligible)


class RpcTransport(Protocol):
    """A way to one brain: in the same process, over a socket, or to another member over HTTP."""

    async def call(self, name: str, body: bytes) -> RpcReply:
        """Raises `Refusal` with UNAVAILABLE when the brain cannot be reached (nothing was asked), UNDECIDED when the
        answer was lost."""
        ...


class PeerTransports(Protocol):
    """Ways to the brains of other members."""

    def transport_to(self, member: Member) -> RpcTransport: ...


class LeaderClient:
    """Asks the leader's brain, whoever leads: our own, or that of the member whose record says so."""

    def __init__(self, replica: Replica, member_id: str, own: RpcTransport, peers: PeerTransports | None) -> None:
        self._replica = replica
        self._member_id = member_id
        self._own = own
        self._peers = peers

    async def call(self, subject: RpcMethod[RequestT, ReplyT], question: RequestT) -> ReplyT:
        forbid_in_preview()
        answered = await self._link().call(subject.name, _encode(question))
        if answered.code is not None:
            raise Refusal(answered.code, answered.text)
        return subject.decode_reply(answered.body)

    async def call_member(self, member_id: str, subject: RpcMethod[RequestT, ReplyT], question: RequestT) -> ReplyT:
        """Ask the brain of one member, whoever leads. It answers what needs no leader."""
        link = self._own
        if member_id != self._member_id and self._peers is not None:
            member = self._replica.get(MEMBERS, member_id)
            if member is None:
                raise Refusal(RefusalCode.UNAVAILABLE, f"{member_id} is no member of this cluster now")
            link = self._peers.transport_to(member)
        answered = await link.call(subject.name, _encode(question))
        if answered.code is not None:
            raise Refusal(answered.code, answered.text)
        return subject.decode_reply(answered.body)

    def _link(self) -> RpcTransport:
        leader = self._replica.get(LEADER)
        if leader is None:
            raise no_leader()
        if leader.member_id == self._member_id or self._peers is None:
            return self._own
        member = self._replica.get(MEMBERS, leader.member_id)
        if member is None:
            raise no_leader()
        return self._peers.transport_to(member)
