"""What many nodes say at the same time becomes one write: while one is on its way to the log, the next are gathered.

Each report is decided as if it were alone, and answered when it is committed. Whatever is not plain (nothing to write, a
step that no table has, a refusal, a write that is too large, a conflict) is left to be decided and written alone.
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


class _Report:
    """`done`: what is answered; None: it goes alone."""

    __slots__ = ("decide", "done", "node_id")

    def __init__(self, node_id: str, decide: ReportOperation, done: "asyncio.Future[NodeWriteResult | None]") -> None:
        self.node_id = node_id
        self.decide = decide
        self.done = done


class ReportBatcher:
    """One of the leader's duties."""

    def __init__(self, follower: Follower, writer: Writer, term: LeaderTerm) -> None:
        self._follower = follower
        self._writer = writer
        self._term = term
        self._waiting: list[_Report] = []
        self._has_come = asyncio.Event()
        self._is_running = False

    async def add_report(self, node_id: str, decide: ReportOperation) -> NodeWriteResult | None:
        """The answer once it is committed with others; None: it has to be decided and written alone."""
        if not self._is_running:
            return None
        report = _Report(node_id, decide, asyncio.get_running_loop().create_future())
        self._waiting.append(report)
        self._has_come.set()
        return await report.done

    async def run(self) -> None:
        """As long as this server leads."""
        self._is_running = True
        try:
            while self._term.is_leading:
                self._has_come.clear()
                while self._waiting:
                    await self._write_some()
                await self._has_come.wait()
        finally:
            self._is_running = False
            those, self._waiting = self._waiting, []
            for report in those:
                _answer(report, None)

    async def _write_some(self) -> None:
        those: list[_Report] = []
        try:
            async with self._term.write_lock:
                those, self._waiting = _one_a_node(self._waiting)
                await self._write(those)
        finally:
            # Decided again, what was written nevertheless is found to be there.
            for report in those:
                _answer(report, None)

    async def _write(self, those: Sequence[_Report]) -> None:
        """Those that fit are answered here. Nobody decides in between: the leader writes one thing after the other."""
        if not those or not self._term.is_leading:
            return
        part = _Part(self._term.max_changes)
        for report in those:
            try:
                decision = report.decide(self._follower.replica, self._writer.read_clock())
            except (Refusal, InvalidTransition):
                continue
            if decision.write is not None and not decision.invalid_transitions:
                part.add(report, decision.write, decision)
        if not part.taken:
            return
        try:
            outcome = await self._term.commit(part.write())
        except Refusal as refusal:
            log.debug("reports of nodes go alone: %s", refusal.text)
            return
        if isinstance(outcome, Committed):
            for report, decision in part.taken:
                _answer(report, decision.build_reply(outcome.index))


class _Part:
    """The write that grows report by report, as long as it and what follows from it surely fit."""

    def __init__(self, changes_max: int) -> None:
        self.taken: list[tuple[_Report, Decision[NodeWriteResult]]] = []
        self._changes: list[PutRecord | DeleteRecord] = []
        self._conditions: list[Condition] = []
        self._looked_at: dict[tuple[str, str], None] = {}
        self._follows: dict[object, int] = {}
        """What settles with it, and how many changes that takes: jobs, deployments."""
        self._most = changes_max

    def add(self, report: _Report, write: Write, decision: Decision[NodeWriteResult]) -> None:
        """Unless it has no room, or has a job looked at that another has looked at already."""
        follows: dict[object, int] = {}
        looked_at: dict[tuple[str, str], None] = {}
        for change in write.changes:
            record = change.record if isinstance(change, PutRecord) else None
            if isinstance(record, Allocation | Evaluation):
                job = (record.namespace, record.job_id)
                follows["job", job] = CHANGES_PER_JOB
                if record.deployment_id:
                    follows["deployment", record.deployment_id] = CHANGES_PER_DEPLOYMENT
                if isinstance(record, Evaluation):
                    looked_at[job] = None
        if looked_at.keys() & self._looked_at.keys():
            return
        all_follows = {**self._follows, **follows}
        derived = sum(all_follows.values())
        changes, conditions = len(self._changes) + len(write.changes), len(self._conditions) + len(write.conditions)
        if max(changes, conditions) + derived > self._most:
            return
        self._follows = all_follows
        self._looked_at |= looked_at
        self._changes += write.changes
        self._conditions += write.conditions
        self.taken.append((report, decision))

    def write(self) -> Write:
        """One write, in the name of the first node."""
        first, more = self.taken[0][0].node_id, len(self.taken) - 1
        cause = Cause(CauseKind.NODE, f"{first} and {more} more" if more else first)
        return Write("node-reported", cause, self._changes, self._conditions)


def _one_a_node(waiting: Sequence[_Report]) -> tuple[list[_Report], list[_Report]]:
    """The first of each node, and those that wait for what comes of it."""
    first: dict[str, _Report] = {}
    later: list[_Report] = []
    for report in waiting:
        if report.done.done():  # Whoever asked has gone before it was its turn.
            continue
        if first.setdefault(report.node_id, report) is not report:
            later.append(report)
    return list(first.values()), later


def _answer(report: _Report, written: NodeWriteResult | None) -> None:
    if not report.done.done():
        report.done.set_result(written)
