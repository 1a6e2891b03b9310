"""What servers ask of the leader's brain, from wherever the request came in: the subjects, their forms, and the way.

One table of subjects serves the brain that answers, the link that carries, and the test that walks it.
"""

import logging
from typing import Final, Protocol, TypeVar

import msgspec

from wharf.model.cluster import Member
from wharf.model.node import Node
from wharf.model.refusal import Code, Refusal, no_leader
from wharf.operations.node_writes import NodeWritten
from wharf.operations.reports import AllocationReport
from wharf.server.answering import AnsweredBy, answers_of
from wharf.server.brain import Brain
from wharf.server.rehearsal import forbid_in_rehearsal
from wharf.server.sideline import InPlace, Sideline
from wharf.server.subject import Subject
from wharf.state import Replica
from wharf.state.tables import LEADER, MEMBERS

log = logging.getLogger(__name__)

Q = TypeVar("Q")
A = TypeVar("A")


class NodeAlive(msgspec.Struct, frozen=True):
    node_id: str


class NodeBelieved(msgspec.Struct, frozen=True):
    """For how many seconds the node is believed to be alive, and the index of what was written for it, if anything."""

    ttl_s: float
    index: int = 0
    must_report: bool = False
    reports_from: int = 0


class NodeReport(msgspec.Struct, frozen=True):
    """`is_whole`: with it the node has told of all that it knows. The same id again changes nothing."""

    node_id: str
    reports: tuple[AllocationReport, ...]
    report_id: str = ""
    is_whole: bool = False
    number: int = 0


class Eligibility(msgspec.Struct, frozen=True):
    node_id: str
    eligible: bool


REGISTER_NODE: Final = Subject("register-node", Node, NodeBelieved)
HEARTBEAT: Final = Subject("heartbeat", NodeAlive, NodeBelieved)
REPORT: Final = Subject("report", NodeReport, NodeWritten)
SET_ELIGIBILITY: Final = Subject("set-eligibility", Eligibility, NodeWritten)

_encode = msgspec.msgpack.Encoder().encode


class Answered(msgspec.Struct, frozen=True):
    """The answer's bytes, or a refusal: what crosses a link."""

    body: bytes = b""
    code: Code | None = None
    text: str = ""


class Answers:
    """The brain's side: takes a question as bytes and answers as bytes, whatever happens."""

    def __init__(self, brain: Brain, *, sideline: Sideline | None = None) -> None:
        """`sideline`: where long questions are thought about; without one, in place."""
        self._brain = brain
        answers: tuple[AnsweredBy, ...] = (
            (REGISTER_NODE, self._register),
            (HEARTBEAT, self._heartbeat),
            (REPORT, self._report),
            (SET_ELIGIBILITY, self._set_eligibility),
            *answers_of(brain, sideline or InPlace()),
        )
        self._by_name = {subject.name: (subject, answer) for subject, answer in answers}

    async def ask(self, name: str, body: bytes) -> Answered:
        if name not in self._by_name:
            return Answered(code=Code.INVALID, text=f"no brain of this version answers {name!r}")
        subject, answer = self._by_name[name]
        try:
            question = subject.read_question(body)
        except msgspec.MsgspecError as error:
            return Answered(code=Code.INVALID, text=f"no brain of this version understands this {name!r}: {error}")
        try:
            return Answered(_encode(await answer(question)))
        except Refusal as refusal:
            return Answered(code=refusal.code, text=refusal.text)
        except Exception:  # The top of a request: whoever asks must hear something, or waits for ever.
            log.exception("the question %s failed", name)
            return Answered(code=Code.UNDECIDED, text=f"an error of our own at {name!r}; the leader's log tells of it")

    async def _register(self, node: Node) -> NodeBelieved:
        written, ttl_s = await self._brain.nodes.register(node)
        return NodeBelieved(ttl_s, written.index, written.must_report, written.reports_from)

    async def _heartbeat(self, alive: NodeAlive) -> NodeBelieved:
        written, ttl_s = await self._brain.nodes.heartbeat(alive.node_id)
        return NodeBelieved(ttl_s, 0, written.must_report, written.reports_from)

    async def _report(self, told: NodeReport) -> NodeWritten:
        return await self._brain.nodes.report(
            told.node_id, told.reports, report_id=told.report_id, is_whole=told.is_whole, number=told.number
        )

    async def _set_eligibility(self, wanted: Eligibility) -> NodeWritten:
        return await self._brain.nodes.set_eligibility(wanted.node_id, wanted.eligible)


class Link(Protocol):
    """A way to one brain: in the same process, over a socket, or to another member over HTTP."""

    async def ask(self, name: str, body: bytes) -> Answered:
        """Raises `Refusal` with UNAVAILABLE when the brain cannot be reached (nothing was asked), UNDECIDED when the
        answer was lost."""
        ...


class Peers(Protocol):
    """Ways to the brains of other members."""

    def link(self, member: Member) -> Link: ...


class Leader:
    """Asks the leader's brain, whoever leads: our own, or that of the member whose record says so."""

    def __init__(self, replica: Replica, member_id: str, own: Link, peers: Peers | None) -> None:
        self._replica = replica
        self._member_id = member_id
        self._own = own
        self._peers = peers

    async def ask(self, subject: Subject[Q, A], question: Q) -> A:
        forbid_in_rehearsal()
        answered = await self._link().ask(subject.name, _encode(question))
        if answered.code is not None:
            raise Refusal(answered.code, answered.text)
        return subject.read_answer(answered.body)

    async def ask_member(self, member_id: str, subject: Subject[Q, A], question: Q) -> A:
        """Ask the brain of one member, whoever leads. It answers what needs no leader."""
        link = self._own
        if member_id != self._member_id and self._peers is not None:
            member = self._replica.get(MEMBERS, member_id)
            if member is None:
                raise Refusal(Code.UNAVAILABLE, f"{member_id} is no member of this cluster now")
            link = self._peers.link(member)
        answered = await link.ask(subject.name, _encode(question))
        if answered.code is not None:
            raise Refusal(answered.code, answered.text)
        return subject.read_answer(answered.body)

    def _link(self) -> Link:
        leader = self._replica.get(LEADER)
        if leader is None:
            raise no_leader()
        if leader.member_id == self._member_id or self._peers is None:
            return self._own
        member = self._replica.get(MEMBERS, leader.member_id)
        if member is None:
            raise no_leader()
        return self._peers.link(member)
