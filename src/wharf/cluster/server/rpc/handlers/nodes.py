"""RPC handlers of nodes: registration, heartbeats and reports of a node, and actions of operators."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.nodes import drains, evaluations, registration
from wharf.cluster.operations.nodes.drains import DrainRequest
from wharf.cluster.operations.nodes.introductions import NodeAdmission
from wharf.cluster.operations.nodes.reports import AllocationReport
from wharf.cluster.operations.nodes.writes import NodeWriteResult
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.cpu_budget import SLICE_S
from wharf.cluster.server.rpc.method import EmptyMessage, RpcMethod, RpcRoute
from wharf.cluster.state import Replica
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.times import DecisionContext


class HeartbeatRequest(msgspec.Struct, frozen=True):
    """The message by which a node shows that it is alive."""

    node_id: str


class NodeLease(msgspec.Struct, frozen=True):
    """The reply to a registration or heartbeat: how long the node counts as alive, and what it must report."""

    ttl_s: float
    """Seconds until the next heartbeat is due."""
    index: int = 0
    """Log index of the write; 0 if nothing was written."""
    must_report: bool = False
    """Whether the node must send a report about all its allocations."""
    reports_from: int = 0
    """The number for the node's next report, unless the node is already beyond it; 0 if reports are not numbered."""


class RecordNodeReportRequest(msgspec.Struct, frozen=True):
    """A node's report about the state of its allocations."""

    node_id: str
    reports: tuple[AllocationReport, ...]
    report_id: str = ""
    """Identifies a repeated report, which changes nothing. Empty: repeats are not recognized."""
    is_whole: bool = False
    """Whether the report covers all allocations of the node."""
    number: int = 0
    """The position of this report in the node's sequence; 0 if the node does not number its reports."""


class ReceivedNodeReport(msgspec.Struct, frozen=True):
    """A `RecordNodeReportRequest` as the leader receives it: a large one has 100,000 reports, which are decoded in slices."""

    node_id: str
    reports: tuple[msgspec.Raw, ...]
    """Each is an encoded `AllocationReport`."""
    report_id: str = ""
    is_whole: bool = False
    number: int = 0


class RegistrationRequest(Node):
    """The record of a node that registers, as the node sent it."""

    admission: NodeAdmission | None = None
    """What admits the node; `None` if any node may register, or from servers of an older version."""

    def to_node(self) -> Node:
        """Return only the record of the node."""
        return Node(**{name: getattr(self, name) for name in Node.__struct_fields__})


class SetEligibilityRequest(msgspec.Struct, frozen=True):
    """A request to set whether new allocations may be placed on a node."""

    node_id: str
    eligible: bool


class NodeRequest(msgspec.Struct, frozen=True):
    """A request that names only a node. `cause`: the id of the HTTP request."""

    node_id: str
    cause: str = ""


class Pulse(msgspec.Struct, frozen=True):
    """The message by which an api process shows its own brain that it can receive heartbeats of nodes."""

    process: str
    """The name of the api process, such as `api-2`."""
    delay_s: float = 0.0
    """All heartbeats that arrived at the process until this time ago have been passed on."""
    member_id: str = ""
    """The server of the process, if the pulse goes to the brain of another server."""


class HeartbeatsRequest(msgspec.Struct, frozen=True):
    """The heartbeats of many nodes, which one api process received."""

    node_ids: tuple[str, ...]


class NodeLeases(msgspec.Struct, frozen=True):
    """The replies to the heartbeats of many nodes, in their order."""

    leases: tuple[NodeLease | None, ...]
    """`None`: the node needs a call of its own, because something must be written or requested."""


REPORTS_PER_CLOCK_CHECK: Final = 8
"""Reports that are decoded before the CPU time is checked: a few milliseconds if each is as large as permitted on the loop."""
MAX_REPORT_BYTES_ON_LOOP: Final = 64 * 1024
"""A report about one allocation that is larger is decoded off the event loop. Usual ones have some hundred bytes."""
_decode_report = msgspec.msgpack.Decoder(AllocationReport).decode

REGISTER_NODE: Final = RpcMethod("register-node", RegistrationRequest, NodeLease, is_repeatable=True)
RECORD_HEARTBEAT: Final = RpcMethod("heartbeat", HeartbeatRequest, NodeLease, is_repeatable=True)
RECORD_HEARTBEATS: Final = RpcMethod("heartbeats", HeartbeatsRequest, NodeLeases, is_repeatable=True)
RECORD_NODE_REPORT: Final = RpcMethod(
    "report", RecordNodeReportRequest, NodeWriteResult, is_repeatable=True, received_type=ReceivedNodeReport
)
SET_ELIGIBILITY: Final = RpcMethod("set-eligibility", SetEligibilityRequest, NodeWriteResult)
DRAIN_NODE: Final = RpcMethod("drain-node", DrainRequest, NodeWriteResult)
EVALUATE_NODE: Final = RpcMethod("evaluate-node", NodeRequest, NodeWriteResult)
PURGE_NODE: Final = RpcMethod("purge-node", NodeRequest, NodeWriteResult)
RECORD_PULSE: Final = RpcMethod("pulse", Pulse, EmptyMessage, is_repeatable=True)


class NodeHandlers:
    """Handles the calls of other servers and processes that concern nodes."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def register_node(self, request: RegistrationRequest) -> NodeLease:
        """Store the node's registration and start its heartbeat TTL. Return the TTL and what the node must report."""
        written, ttl_s = await self._brain.node_monitor.register_node(request.to_node(), request.admission)
        return NodeLease(ttl_s, written.index, written.must_report, written.reports_from)

    async def record_heartbeat(self, request: HeartbeatRequest) -> NodeLease:
        """Restart the heartbeat TTL of the node. Return the TTL and what the node must report."""
        written, ttl_s = await self._brain.node_monitor.record_heartbeat(request.node_id)
        return NodeLease(ttl_s, 0, written.must_report, written.reports_from)

    async def record_heartbeats(self, request: HeartbeatsRequest) -> NodeLeases:
        """Restart the heartbeat TTLs of many nodes and return their leases."""
        results = self._brain.node_monitor.record_heartbeats(request.node_ids)
        return NodeLeases(
            tuple(
                None if result is None else NodeLease(result[1], reports_from=result[0].reports_from)
                for result in results
            )
        )

    async def record_pulse(self, request: Pulse) -> EmptyMessage:
        """Record that an api process can receive heartbeats, and how far it is behind."""
        self._brain.node_monitor.record_pulse(request.process, delay_s=request.delay_s, member_id=request.member_id)
        return EmptyMessage()

    async def record_report(self, request: ReceivedNodeReport) -> NodeWriteResult:
        """Apply a report about the node's allocations."""
        return await self._brain.node_monitor.record_reports(
            request.node_id,
            await self._decode_reports(request.reports),
            report_id=request.report_id,
            is_complete=request.is_whole,
            number=request.number,
        )

    async def _decode_reports(self, encoded_reports: Sequence[msgspec.Raw]) -> list[AllocationReport]:
        """Return the decoded reports. Other tasks run between two slices, and large reports are decoded off the loop.

        Raises `Refusal`.
        """
        world, reports = self._brain.world, []
        began_s = world.cpu_s()
        try:
            for encoded in encoded_reports:
                if len(memoryview(encoded)) <= MAX_REPORT_BYTES_ON_LOOP:
                    reports.append(_decode_report(encoded))
                else:
                    reports.append(await world.run_off_loop(partial(_decode_report, encoded)))
                    began_s = world.cpu_s()
                if not len(reports) % REPORTS_PER_CLOCK_CHECK and world.cpu_s() - began_s >= SLICE_S:
                    await asyncio.sleep(0)
                    began_s = world.cpu_s()
        except msgspec.MsgspecError as error:
            text = f"cannot decode report {len(reports)} of RPC method {RECORD_NODE_REPORT.name!r}: {error}"
            raise Refusal(RefusalCode.INVALID, text) from error
        return reports

    async def set_eligibility(self, request: SetEligibilityRequest) -> NodeWriteResult:
        """Set whether new allocations may be placed on the node."""
        return await self._brain.node_monitor.set_eligibility(request.node_id, request.eligible)

    async def drain_node(self, request: DrainRequest) -> NodeWriteResult:
        """Start, change or cancel a drain."""
        limit = self._brain.max_evaluations
        return await self._brain.execute(
            lambda snapshot, context: drains.update_drain(snapshot, request, context, max_evaluations=limit)
        )

    async def evaluate_node(self, request: NodeRequest) -> NodeWriteResult:
        """Create evaluations of all jobs on the node, in as many writes as needed.

        Return the ids of all evaluations.
        """
        ids: tuple[str, ...] = ()
        evaluated: dict[tuple[str, str], None] = {}

        def evaluate_some(snapshot: Replica, context: DecisionContext) -> Decision[evaluations.NodeEvaluationResult]:
            limit = self._brain.max_evaluations
            return evaluations.evaluate_node(
                snapshot, request.node_id, context, evaluated_jobs=evaluated, max_evaluations=limit, cause=request.cause
            )

        while True:
            result = await self._brain.execute(evaluate_some)
            ids += result.eval_ids
            evaluated |= dict.fromkeys(result.job_keys)
            if result.is_complete:
                return NodeWriteResult(result.index, ids)

    async def purge_node(self, request: NodeRequest) -> NodeWriteResult:
        """Delete a node and create evaluations for the jobs that it ran, as many as fit in one write."""
        limit = self._brain.max_evaluations
        return await self._brain.execute(
            lambda snapshot, context: registration.purge_node(
                snapshot, request.node_id, context, max_evaluations=limit, cause=request.cause
            )
        )


def build_routes(brain: Brain) -> tuple[RpcRoute, ...]:
    """Return the RPC methods of nodes with their handlers."""
    handlers = NodeHandlers(brain)
    return (
        (REGISTER_NODE, handlers.register_node),
        (RECORD_HEARTBEAT, handlers.record_heartbeat),
        (RECORD_HEARTBEATS, handlers.record_heartbeats),
        (RECORD_NODE_REPORT, handlers.record_report),
        (SET_ELIGIBILITY, handlers.set_eligibility),
        (DRAIN_NODE, handlers.drain_node),
        (EVALUATE_NODE, handlers.evaluate_node),
        (PURGE_NODE, handlers.purge_node),
        (RECORD_PULSE, handlers.record_pulse),
    )
