"""Combines reports of many nodes into one write. While one write is in flight, the next reports are gathered.

Each report is decided as if it were alone and is answered when the write is committed. A report that does not fit
this scheme (nothing to write, a forbidden transition, a refusal, a conflict, too large) is left to the caller, who
writes it alone.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from wharf.cluster.engines.port import Committed
from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.nodes.writes import NodeWriteResult
from wharf.cluster.server.leader.term import CHANGES_PER_JOB, LeaderTerm
from wharf.cluster.server.log.follower import Follower
from wharf.cluster.server.log.writer import Writer
from wharf.cluster.state import Replica
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.log import Cause, CauseKind, Condition, DeleteRecord, PutRecord, Write
from wharf.contract.model.refusal import Refusal
from wharf.contract.model.state_machines.machine import InvalidTransition
from wharf.contract.model.times import DecisionContext

log = logging.getLogger(__name__)

ReportOperation = Callable[[Replica, DecisionContext], Decision[NodeWriteResult]]

CHANGES_PER_DEPLOYMENT: Final = 1
"""Derived changes of a deployment whose allocations change."""


class _PendingReport:
    """A report of a node that waits to be written.

    `future`: its result, or `None` if the caller must write it alone.
    """

    __slots__ = ("decide", "future", "node_id")

    def __init__(self, node_id: str, decide: ReportOperation, future: "asyncio.Future[NodeWriteResult | None]") -> None:
        self.node_id = node_id
        self.decide = decide
        self.future = future


class ReportBatcher:
    """Writes reports of many nodes in one write. A background task of the leader runs it."""

    def __init__(self, follower: Follower, writer: Writer, term: LeaderTerm) -> None:
        self._follower = follower
        self._writer = writer
        self._term = term
        self._pending: list[_PendingReport] = []
        self._arrival_event = asyncio.Event()
        self._is_running = False

    async def add_report(self, node_id: str, decide: ReportOperation) -> NodeWriteResult | None:
        """Write the report together with others and return its result once it is committed.

        Returns `None` if the caller must write it alone. `decide` decides what the report changes.
        """
        if not self._is_running:
            return None
        report = _PendingReport(node_id, decide, asyncio.get_running_loop().create_future())
        self._pending.append(report)
        self._arrival_event.set()
        return await report.future

    async def run(self) -> None:
        """Write pending reports in batches while this server leads.

        At the end, callers of pending reports get `None`.
        """
        self._is_running = True
        try:
            while self._term.is_leading:
                self._arrival_event.clear()
                while self._pending:
                    await self._write_pending()
                await self._arrival_event.wait()
        finally:
            self._is_running = False
            reports, self._pending = self._pending, []
            for report in reports:
                _resolve(report, None)

    async def _write_pending(self) -> None:
        """Write one batch of pending reports, at most one of each node.

        A report whose outcome is not known as committed is resolved with `None`: its sender (`add_report`'s caller) must
        write it alone.
        """
        reports: list[_PendingReport] = []
        try:
            async with self._term.write_lock:
                reports, self._pending = _split_first_per_node(self._pending)
                await self._write(reports)
        finally:
            # Has no effect on reports that have a result. The callers of the others decide them again and write them
            # alone. That is safe even if they were committed: a report that was applied changes nothing the second time.
            for report in reports:
                _resolve(report, None)

    async def _write(self, reports: Sequence[_PendingReport]) -> None:
        """Decide the reports, commit those that fit in one write, and resolve them with their results.

        The caller holds the write lock of the leader, so no other decision comes in between.
        """
        if not reports or not self._term.is_leading:
            return
        batch = _BatchWrite(self._term.max_changes)
        for report in reports:
            try:
                decision = report.decide(self._follower.replica, self._writer.read_clock())
            except (Refusal, InvalidTransition):
                continue
            if decision.write is not None and not decision.invalid_transitions:
                batch.add(report, decision.write, decision)
        if not batch.entries:
            return
        try:
            outcome = await self._term.commit(batch.write())
        except Refusal as refusal:
            log.debug("report batch failed, writing reports one by one reason=%s", refusal.text)
            return
        if isinstance(outcome, Committed):
            for report, decision in batch.entries:
                _resolve(report, decision.build_reply(outcome.index))


class _BatchWrite:
    """A write that is put together from the writes of several reports, as long as it fits with its derived changes."""

    def __init__(self, max_changes: int) -> None:
        self.entries: list[tuple[_PendingReport, Decision[NodeWriteResult]]] = []
        self._changes: list[PutRecord | DeleteRecord] = []
        self._conditions: list[Condition] = []
        self._evaluated_jobs: dict[tuple[str, str], None] = {}
        self._derived_changes: dict[object, int] = {}
        """The number of derived changes, such as job summaries, by job and by deployment."""
        self._max_changes = max_changes

    def add(self, report: _PendingReport, write: Write, decision: Decision[NodeWriteResult]) -> None:
        """Add the write of a report, unless it does not fit or evaluates a job that another report already evaluates."""
        derived_changes: dict[object, int] = {}
        evaluated_jobs: dict[tuple[str, str], None] = {}
        for change in write.changes:
            record = change.record if isinstance(change, PutRecord) else None
            if isinstance(record, Allocation | Evaluation):
                job = (record.namespace, record.job_id)
                derived_changes["job", job] = CHANGES_PER_JOB
                if record.deployment_id:
                    derived_changes["deployment", record.deployment_id] = CHANGES_PER_DEPLOYMENT
                if isinstance(record, Evaluation):
                    evaluated_jobs[job] = None
        if evaluated_jobs.keys() & self._evaluated_jobs.keys():
            return
        all_derived_changes = {**self._derived_changes, **derived_changes}
        derived_count = sum(all_derived_changes.values())
        changes, conditions = len(self._changes) + len(write.changes), len(self._conditions) + len(write.conditions)
        if max(changes, conditions) + derived_count > self._max_changes:
            return
        self._derived_changes = all_derived_changes
        self._evaluated_jobs |= evaluated_jobs
        self._changes += write.changes
        self._conditions += write.conditions
        self.entries.append((report, decision))

    def write(self) -> Write:
        """Return the combined write. Its cause names the first node and the number of others."""
        first_node, remaining_count = self.entries[0][0].node_id, len(self.entries) - 1
        cause = Cause(CauseKind.NODE, f"{first_node} and {remaining_count} more" if remaining_count else first_node)
        return Write("node-reported", cause, self._changes, self._conditions)


def _split_first_per_node(pending: Sequence[_PendingReport]) -> tuple[list[_PendingReport], list[_PendingReport]]:
    """Return the first report of each node, and the later reports, which must wait for the first to be written."""
    first_reports: dict[str, _PendingReport] = {}
    later: list[_PendingReport] = []
    for report in pending:
        if report.future.done():  # The caller was cancelled.
            continue
        if first_reports.setdefault(report.node_id, report) is not report:
            later.append(report)
    return list(first_reports.values()), later


def _resolve(report: _PendingReport, result: NodeWriteResult | None) -> None:
    """Give the waiting caller of a report its result, unless it already has one."""
    if not report.future.done():
        report.future.set_result(result)
