"""Tracks heartbeats and reports of nodes, and marks silent nodes down.

Heartbeats and the results of recent reports are in the leader's memory only, not in the log. Deadlines are times of the
`ReceptionClock`, which pauses while this server cannot receive heartbeats.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.controllers.heartbeats import HeartbeatDeadlines, HeartbeatSettings
from wharf.cluster.controllers.reception import PULSE_INTERVAL_S, ReceptionClock
from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.nodes import registration, reports, status
from wharf.cluster.operations.nodes.introductions import NodeAdmission
from wharf.cluster.operations.nodes.reports import AllocationReport
from wharf.cluster.server.leader.longest_ttl import LongestTtl
from wharf.cluster.server.leader.node_write_batcher import NodeOperation, NodeWriteBatcher, NodeWriteKind
from wharf.cluster.server.leader.term import LeaderTerm
from wharf.cluster.server.log.follower import Follower
from wharf.cluster.server.log.preview import get_current_preview
from wharf.cluster.server.log.writer import Writer
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import HIGH_REPORT_NUMBERS_ON_NODE, LEADER, MEMBERS, NODES
from wharf.contract.model.nodes.node import Node, NodeStatus
from wharf.contract.model.refusal import Refusal, RefusalCode, no_leader
from wharf.contract.model.times import DecisionContext
from wharf.world import World

log = logging.getLogger(__name__)

MAX_CACHED_REPORTS: Final = 8
"""How many report results are cached per node, to answer a repeated report."""
MAX_REPORTS_PER_WRITE: Final = 250
"""How many allocations of a report are decided and written at once. Limits how long this holds the loop: a few milliseconds."""
MAX_REPORT_NUMBERS_ON_LOOP: Final = 500
"""With more allocations of a node whose report numbers are too high, the node's next number is found off the event loop."""
MAX_LOGGED_NAMES: Final = 10
"""How many node names one log line contains, for example if a whole rack becomes silent."""
MIN_HEARTBEAT_WAIT_S: Final = 0.1
"""The shortest wait for a heartbeat deadline. While the reception clock pauses, no deadline comes closer; this limits how
often the leader checks."""


class _NodeReport(msgspec.Struct, frozen=True):
    """One report of a node about its allocations."""

    node_id: str
    reports: tuple[AllocationReport, ...]
    is_complete: bool
    """Whether the report covers all allocations of the node."""
    number: int
    """Its position in the node's sequence of reports; 0 if the node does not number them."""

    def decide(
        self, max_evaluations: int, snapshot: Replica, context: DecisionContext
    ) -> Decision[status.NodeWriteResult]:
        """Return the decision of what this report changes, with at most `max_evaluations` new evaluations."""
        return reports.apply_reports(
            snapshot,
            self.node_id,
            self.reports,
            context,
            is_complete=self.is_complete,
            max_evaluations=max_evaluations,
            report_number=self.number,
        )


class NodeMonitor:
    """Tracks which nodes are alive, marks silent nodes down, and applies reports of nodes. Used by the leader."""

    def __init__(
        self,
        world: World,
        follower: Follower,
        writer: Writer,
        term: LeaderTerm,
        settings: HeartbeatSettings,
        *,
        on_heartbeat: Callable[[], None],
    ) -> None:
        """`on_heartbeat` is called when the next deadline may have changed."""
        self._world = world
        self._follower = follower
        self._term = term
        self._settings = settings
        self._on_heartbeat = on_heartbeat
        self.write_batcher = NodeWriteBatcher(world, follower, writer, term)
        self.heartbeats = HeartbeatDeadlines(settings, world.random)
        self._longest_ttl = LongestTtl(world, follower, term, settings)
        self._reception = ReceptionClock(world.monotonic_s(), max_pause_s=settings.failover_ttl_s)
        self._outage_logged_since_s: float | None = None
        self.silent_nodes: dict[str, None] = {}
        """Nodes whose heartbeat is late and that must be marked down."""
        self._report_locks: dict[str, asyncio.Lock] = {}
        self._report_results: dict[str, OrderedDict[str, status.NodeWriteResult]] = {}
        self._cache_epoch = 0
        """The log epoch of the cached results."""
        self._fully_reported: dict[str, int] = {}
        """The log epoch in which each node sent a complete report in this term."""
        self._renumbered: dict[str, int] = {}
        """The log epoch in which the report numbers of each node restarted in this term.

        Reports with lower numbers are outdated in this epoch only: a restore of the log can undo the restart.
        """

    # -- terms -----------------------------------------------------------------------------------------------------

    def start_term(self) -> None:
        """Clear the heartbeat deadlines and the record of received reports, at the start of a term."""
        self.heartbeats = HeartbeatDeadlines(self._settings, self._world.random)
        self._longest_ttl.start_term()
        self._apply_longest_ttl()
        self._reception.restart(self._world.monotonic_s())
        self.silent_nodes.clear()
        self._fully_reported.clear()
        self._renumbered.clear()

    def expect_all(self) -> None:
        """Expect a heartbeat of every node that is not down.

        Keep the deadlines of nodes that have sent a heartbeat already.
        """
        replica, now_s = self._follower.replica, self._read_clock_ahead_s()
        failover_ttl_s = self._longest_ttl.compute_failover_ttl_s()
        for node in replica.iter_all(NODES):
            if node.status is not NodeStatus.DOWN and not self.heartbeats.is_expected(node.id):
                self.heartbeats.grant_failover_ttl(node.id, now_s, failover_ttl_s)

    async def run_longest_ttl(self) -> None:
        """Store the longest TTL that the size of the fleet requires, until cancelled."""
        await self._longest_ttl.run(lambda: self.heartbeats.expected_count, self._apply_longest_ttl)

    def _apply_longest_ttl(self) -> None:
        """Limit TTLs to the longest one that is stored. Without reception, nodes have as long as after a failover."""
        self.heartbeats.longest_ttl_s = self._longest_ttl.granted_s
        self._reception.max_pause_s = self._longest_ttl.compute_failover_ttl_s()

    def remove(self, node_id: str) -> None:
        """Stop expecting heartbeats of a deleted node, and delete what is stored about its reports."""
        self.heartbeats.remove(node_id)
        self._report_results.pop(node_id, None)
        self._fully_reported.pop(node_id, None)
        self._renumbered.pop(node_id, None)

    # -- reception of heartbeats -----------------------------------------------------------------------------------

    def record_pulse(self, process: str, *, delay_s: float = 0.0, member_id: str = "") -> None:
        """Record that all heartbeats which arrived at an api process until `delay_s` ago have been received here.

        `member_id`: the other server that the process belongs to. Pulses of this server count also while it does not lead.
        """
        now_s = self._world.monotonic_s()
        if not member_id:
            self._reception.record_pulse(process, now_s, delay_s=delay_s)
        elif self._term.is_leading:
            self._reception.record_pulse(f"{member_id}/{process}", now_s, delay_s=delay_s, member_id=member_id)

    async def run_reception_clock(self) -> None:
        """Read the clock at short intervals, until cancelled. A longer interval shows that the brain did not run."""
        while True:
            self._reception.retain_members(self._list_other_members())
            self._read_clock_s()
            await asyncio.sleep(PULSE_INTERVAL_S)

    def measure_isolation_s(self) -> float:
        """Return for how long no call could reach this brain, because all api processes of its server were silent."""
        self._read_clock_s()  # A stall of the brain itself is no silence of others.
        return self._reception.measure_isolation_s(self._world.monotonic_s())

    def measure_peer_isolation_s(self) -> float:
        """Return for how long no other server has reached this brain, although all of them are members of the cluster.

        0 if there is no other server, or one that has sent no pulse in this term, such as one of an older version.
        """
        self._read_clock_s()
        now_s = self._world.monotonic_s()
        silences_s = [
            self._reception.measure_silence_s(member_id, now_s) or 0.0 for member_id in self._list_other_members()
        ]
        return min(silences_s, default=0.0)

    def _list_other_members(self) -> list[str]:
        """Return the ids of all members of the cluster except the leader, which is this server while it leads."""
        leader = self._follower.replica.get(LEADER)
        own_id = leader.member_id if leader is not None else ""
        return [member.id for member in self._follower.replica.iter_all(MEMBERS) if member.id != own_id]

    def _read_clock_ahead_s(self) -> float:
        """Return the time from which a new heartbeat deadline counts."""
        self._read_clock_s()
        return self._reception.read_ahead_s(self._world.monotonic_s())

    def _read_clock_s(self) -> float:
        """Return the time of heartbeat deadlines. Logs the beginning and the end of an outage."""
        now_s = self._world.monotonic_s()
        clock_s, since_s = self._reception.read_s(now_s), self._reception.outage_since_s
        if since_s != self._outage_logged_since_s:
            if since_s is not None:
                silent = ", ".join(map(self._format_source, self._reception.list_silent_sources(now_s)))
                log.warning("heartbeats cannot be received; no node is marked down for it processes=%s", silent)
            elif self._outage_logged_since_s is not None:
                log.info("heartbeats can be received again outage_s=%.1f", now_s - self._outage_logged_since_s)
            self._outage_logged_since_s = since_s
        return clock_s

    def _format_source(self, source: str) -> str:
        """Return an api process for a log line, with the name of its server if that is another one."""
        member_id, _, process = source.rpartition("/")
        member = self._follower.replica.get(MEMBERS, member_id) if member_id else None
        return f"{process} of {member.name}" if member is not None and member.name else source

    def compute_deadline_wait_s(self) -> float:
        """Return the seconds until the next heartbeat deadline may have passed, or infinity if no node is expected."""
        wait_s = self.heartbeats.next_deadline_s() - self._read_clock_s()
        return max(MIN_HEARTBEAT_WAIT_S, wait_s) if wait_s > 0.0 else 0.0

    # -- silent nodes ----------------------------------------------------------------------------------------------

    def record_silent_nodes(self) -> None:
        """Add nodes whose heartbeat deadline has passed to `silent_nodes`, and log them."""
        late_nodes = self.heartbeats.take_late(self._read_clock_s())
        if late_nodes:
            self.silent_nodes |= dict.fromkeys(late_nodes)
            log.warning("nodes missed heartbeats nodes=%s", self._format_node_names(late_nodes))

    async def mark_next_silent_down(self) -> None:
        """Mark the first of `silent_nodes` down or disconnected, unless it sends a heartbeat first.

        If the write fails, the node stays in `silent_nodes`, at the end.
        """
        # Move it to the end, so that a node that cannot be marked does not block the others.
        node_id = next(iter(self.silent_nodes))
        del self.silent_nodes[node_id]
        self.silent_nodes[node_id] = None

        def mark_missed(snapshot: Replica, context: DecisionContext) -> Decision[status.NodeWriteResult]:
            """Return the decision to mark the node, or no write if its heartbeat has arrived."""
            if self.heartbeats.is_expected(node_id):
                return Decision(None, status.NodeWriteResult)
            return status.mark_heartbeat_missed(snapshot, node_id, context, max_evaluations=self._term.max_evaluations)

        await self._term.execute(mark_missed)
        self.silent_nodes.pop(node_id, None)
        if self.heartbeats.is_expected(node_id):  # A heartbeat arrived during the write.
            await self._term.execute(partial(_mark_reachable, node_id, self._term.max_evaluations))
            return
        node = self._follower.replica.get(NODES, node_id)
        if node is not None and node.status is NodeStatus.DISCONNECTED:
            # A disconnected node has a limited time: after another missed deadline it is marked down.
            self._renew_heartbeat(node_id)

    def _format_node_names(self, node_ids: Sequence[str]) -> str:
        """Return the names of the nodes for a log line, with ids for nodes without a name."""
        nodes = [self._follower.replica.get(NODES, node_id) for node_id in node_ids[:MAX_LOGGED_NAMES]]
        names = [
            node.name if node is not None and node.name else fallback
            for node, fallback in zip(nodes, node_ids, strict=False)
        ]
        remaining_count = len(node_ids) - len(names)
        return ", ".join(names) + (f" and {remaining_count} more nodes" if remaining_count else "")

    # -- messages of nodes -----------------------------------------------------------------------------------------

    async def register_node(
        self, node: Node, admission: NodeAdmission | None = None
    ) -> tuple[status.NodeWriteResult, float]:
        """Register a node and start its heartbeat deadline. Raises `Refusal` if `admission` does not admit it any more.

        Return the result of the write and the heartbeat TTL in seconds.
        """
        limit, epoch = self._term.max_evaluations, self._follower.replica.epoch
        written = await self._write(
            NodeWriteKind.REGISTRATION,
            node.id,
            lambda snapshot, context: registration.register_node(
                snapshot, node, context, max_evaluations=limit, admission=admission
            ),
        )
        if node.reports_from:
            self._renumbered[node.id] = epoch
        return await self._request_full_report(node.id, written), self._renew_heartbeat(node.id)

    async def record_heartbeat(self, node_id: str) -> tuple[status.NodeWriteResult, float]:
        """Restart the heartbeat deadline of a node; mark it ready if it was not. Return the result and the TTL in
        seconds.

        Raises `Refusal` if this server does not lead.
        """
        if not self._term.is_leading:
            raise no_leader()
        node = self._follower.replica.get(NODES, node_id)
        written = status.NodeWriteResult(0, reports_from=node.reports_from if node is not None else 0)
        if node is not None and node.status is not NodeStatus.DOWN:
            self._renew_heartbeat(node_id)  # The node is alive, however long the write takes.
        if node is None or node.status is not NodeStatus.READY:
            operation = partial(_mark_reachable, node_id, self._term.max_evaluations)
            written = await self._write(NodeWriteKind.STATUS, node_id, operation)
        return await self._request_full_report(node_id, written), self._renew_heartbeat(node_id)

    def record_heartbeats(self, node_ids: Sequence[str]) -> list[tuple[status.NodeWriteResult, float] | None]:
        """Restart the deadlines of many nodes at once. Return the result and the TTL in seconds of each.

        `None` for a node about which something must be written or requested: it needs `record_heartbeat`. Raises
        `Refusal` if this server does not lead.
        """
        if not self._term.is_leading:
            raise no_leader()
        results: list[tuple[status.NodeWriteResult, float] | None] = []
        for node_id in node_ids:
            node = self._follower.replica.get(NODES, node_id)
            if node is None or node.status is NodeStatus.DOWN:
                results.append(None)
                continue
            ttl_s = self._renew_heartbeat(node_id)
            if node.status is NodeStatus.READY and not self._must_report_all(node_id):
                results.append((status.NodeWriteResult(0, reports_from=node.reports_from), ttl_s))
            else:
                results.append(None)
        return results

    async def _write(self, kind: NodeWriteKind, node_id: str, operation: NodeOperation) -> status.NodeWriteResult:
        """Commit what the operation decides, in one write with those of other nodes if possible, else alone."""
        written, is_long = None, self._has_many_report_numbers(node_id)
        if not is_long and not get_current_preview():
            written = await self.write_batcher.add(kind, node_id, operation)
        return written if written is not None else await self._term.execute(operation, is_long=is_long)

    def _has_many_report_numbers(self, node_id: str) -> bool:
        """Return whether it takes long to find a report number that the node has not used."""
        return self._follower.replica.count_by_index(HIGH_REPORT_NUMBERS_ON_NODE, node_id) > MAX_REPORT_NUMBERS_ON_LOOP

    async def _request_full_report(self, node_id: str, written: status.NodeWriteResult) -> status.NodeWriteResult:
        """Return the result `written`, with a request for a complete report if the log was replaced by an older copy.

        Such a log has lost acknowledged reports, and nodes do not repeat those. Report numbers are lost too, so they
        restart, and copies of earlier reports are ignored.
        """
        if not self._must_report_all(node_id):
            return written
        reports_from = await self._restart_numbers(node_id)
        return replace(written, must_report=True, reports_from=reports_from or written.reports_from)

    async def _restart_numbers(self, node_id: str) -> int:
        """Restart the numbering of the node's reports and return the first number.

        Return 0 if the numbering restarted already, in this term and epoch of the log. An earlier report may describe
        allocations that were assigned again since.
        """
        epoch = self._follower.replica.epoch
        if self._renumbered.get(node_id) == epoch:
            return 0
        restarted = await self._term.execute(
            lambda snapshot, _context: status.restart_report_numbers(snapshot, node_id),
            is_long=self._has_many_report_numbers(node_id),
        )
        self._renumbered[node_id] = epoch
        return restarted.reports_from

    def _must_report_all(self, node_id: str) -> bool:
        """Whether the log was replaced by an older copy and this node has not sent a complete report since."""
        epoch = self._follower.replica.epoch
        return epoch > 0 and self._fully_reported.get(node_id) != epoch

    def _renew_heartbeat(self, node_id: str) -> float:
        """Start a new heartbeat deadline for the node and return its TTL in seconds."""
        self._on_heartbeat()
        return self.heartbeats.record_heartbeat(node_id, self._read_clock_ahead_s())

    async def record_reports(
        self,
        node_id: str,
        reports: Sequence[AllocationReport],
        *,
        report_id: str = "",
        is_complete: bool = False,
        number: int = 0,
    ) -> status.NodeWriteResult:
        """Apply a report about allocations of a node, and return the result once it is committed.

        The report `report_id` is applied once; a repeated one gets the cached result.
        """
        # One report of a node at a time: otherwise a repeated report could be applied after a newer one.
        async with self._report_locks.setdefault(node_id, asyncio.Lock()):
            self._clear_results_of_other_epochs()
            results = self._report_results.setdefault(node_id, OrderedDict())
            if report_id in results:
                return results[report_id]
            written = await self._take_report(_NodeReport(node_id, tuple(reports), is_complete, number))
            if report_id:
                results[report_id] = written
                if len(results) > MAX_CACHED_REPORTS:
                    results.popitem(last=False)
            return written

    def _clear_results_of_other_epochs(self) -> None:
        """Clear the cached results if the log was replaced, because it may not contain these reports."""
        if self._cache_epoch != self._follower.replica.epoch:
            self._cache_epoch = self._follower.replica.epoch
            self._report_results.clear()

    async def _take_report(self, report: _NodeReport) -> status.NodeWriteResult:
        """Apply a report. After a complete report, allocations that it does not mention are treated as reported too."""
        epoch = self._follower.replica.epoch
        if report.number and self._must_report_all(report.node_id):
            await self._restart_numbers(report.node_id)
        if report.is_complete:
            reported_ids = {entry.id: None for entry in report.reports}
            omitted = reports.build_omitted_reports(self._follower.replica, report.node_id, reported_ids)
            report = replace(report, reports=(*report.reports, *omitted))
        written = await self._apply_in_parts(report)
        if report.is_complete:
            self._fully_reported[report.node_id] = epoch
        return replace(written, must_report=True) if self._must_report_all(report.node_id) else written

    def _decide(
        self, report: _NodeReport, snapshot: Replica, context: DecisionContext
    ) -> Decision[status.NodeWriteResult]:
        """Decide what a report changes.

        Raises `Refusal` if the log was replaced while the report waited for this decision: the numbering that could
        show that the report is outdated has then not restarted. The node registers again and reports everything.
        """
        epochs = (self._fully_reported.get(report.node_id), self._renumbered.get(report.node_id))
        if report.number and snapshot.epoch and snapshot.epoch not in epochs:
            raise reports.make_outdated_error(report.number, "the log was replaced by an older copy")
        return report.decide(self._term.max_evaluations, snapshot, context)

    async def _apply_in_parts(self, report: _NodeReport) -> status.NodeWriteResult:
        """Apply a report in parts of `MAX_REPORTS_PER_WRITE`, and return the result of the last part.

        Only with the last part is a complete report complete.
        """
        last_start = max(0, (len(report.reports) - 1) // MAX_REPORTS_PER_WRITE * MAX_REPORTS_PER_WRITE)
        for start in range(0, last_start, MAX_REPORTS_PER_WRITE):
            part = report.reports[start : start + MAX_REPORTS_PER_WRITE]
            await self._apply_report(replace(report, reports=part, is_complete=False))
        return await self._apply_report(replace(report, reports=report.reports[last_start:]))

    async def _apply_report(self, report: _NodeReport) -> status.NodeWriteResult:
        """Apply a report, in one write with reports of other nodes if possible, else alone."""
        written = None
        if not get_current_preview():
            written = await self.write_batcher.add(NodeWriteKind.REPORT, report.node_id, partial(self._decide, report))
        return written if written is not None else await self._report_in_parts(report)

    async def _report_in_parts(self, report: _NodeReport) -> status.NodeWriteResult:
        """Apply a report without those of other nodes. If it is too large for one write, apply each half on its own."""
        try:
            return await self._term.execute(partial(self._decide, report))
        except Refusal as refusal:
            if refusal.code is not RefusalCode.TOO_LARGE or len(report.reports) < 2:
                raise
        middle = len(report.reports) // 2
        await self._report_in_parts(replace(report, reports=report.reports[:middle], is_complete=False))
        return await self._report_in_parts(replace(report, reports=report.reports[middle:]))

    async def set_eligibility(self, node_id: str, eligible: bool) -> status.NodeWriteResult:
        """Set the scheduling eligibility of a node."""
        limit = self._term.max_evaluations
        return await self._term.execute(
            lambda snapshot, context: status.set_node_eligibility(
                snapshot, node_id, eligible, context, max_evaluations=limit
            )
        )


def _mark_reachable(
    node_id: str, max_evaluations: int, snapshot: Replica, context: DecisionContext
) -> Decision[status.NodeWriteResult]:
    """Return the decision to mark a node that sent a heartbeat as ready again."""
    return status.mark_node_reachable(snapshot, node_id, context, max_evaluations=max_evaluations)
