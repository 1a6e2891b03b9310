"""Hears what nodes say of themselves and of their work, and gives up those that fall silent.

Heartbeats and the reports that were answered last are known to the leader only; they are not in the log.
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
from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.nodes import registration, reports, status
from wharf.cluster.operations.nodes.reports import AllocationReport
from wharf.cluster.server.leader.report_batcher import ReportBatcher
from wharf.cluster.server.leader.term import LeaderTerm
from wharf.cluster.server.log.follower import Follower
from wharf.cluster.server.log.preview import get_current_preview
from wharf.cluster.server.log.writer import Writer
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import NODES
from wharf.contract.model.nodes.node import Node, NodeStatus
from wharf.contract.model.refusal import Refusal, RefusalCode, no_leader
from wharf.contract.model.times import DecisionContext
from wharf.world import World

log = logging.getLogger(__name__)

MAX_CACHED_REPORTS: Final = 8
MAX_LOGGED_NAMES: Final = 10
"""In one line of the log. A whole rack that falls silent is one line too."""


class _Told(msgspec.Struct, frozen=True):
    """One report of a node."""

    node_id: str
    reports: tuple[AllocationReport, ...]
    is_whole: bool
    number: int

    def decide(
        self, evaluations_max: int, snapshot: Replica, moment: DecisionContext
    ) -> Decision[status.NodeWriteResult]:
        return reports.apply_reports(
            snapshot,
            self.node_id,
            self.reports,
            moment,
            is_complete=self.is_whole,
            max_evaluations=evaluations_max,
            report_number=self.number,
        )


class NodeMonitor:
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
        """`on_heard` is called when the next deadline may be sooner than the one that is waited for."""
        self._world = world
        self._follower = follower
        self._term = term
        self._settings = settings
        self._on_heard = on_heartbeat
        self.report_batcher = ReportBatcher(follower, writer, term)
        self.heartbeats = HeartbeatDeadlines(settings, world.random)
        self.silent_nodes: dict[str, None] = {}
        """Nodes that are to be given up."""
        self._reporting: dict[str, asyncio.Lock] = {}
        self._reports_taken: dict[str, OrderedDict[str, status.NodeWriteResult]] = {}
        self._epoch = 0
        """The epoch of the log that reports were taken in."""
        self._told_all: dict[str, None] = {}
        """Nodes that told of all their work in this term and epoch."""
        self._begun_anew: dict[str, None] = {}
        """Nodes whose reports are numbered from a beginning of this term and epoch: a copy from before is known as old."""

    # -- what is kept ----------------------------------------------------------------------------------------------

    def start_term(self) -> None:
        self.heartbeats = HeartbeatDeadlines(self._settings, self._world.random)
        self.silent_nodes.clear()
        self._told_all.clear()
        self._begun_anew.clear()

    def expect_all(self) -> None:
        """Every node that the state believes alive; of those that were heard of already, nothing new."""
        replica, now_s = self._follower.replica, self._world.monotonic_s()
        if self._epoch != replica.epoch:
            self._epoch = replica.epoch
            self._reports_taken.clear()
            self._told_all.clear()
            self._begun_anew.clear()
        for node in replica.iter_all(NODES):
            if node.status is not NodeStatus.DOWN and not self.heartbeats.is_expected(node.id):
                self.heartbeats.grant_failover_ttl(node.id, now_s)

    def remove(self, node_id: str) -> None:
        """The node is gone."""
        self.heartbeats.remove(node_id)

    # -- silence ---------------------------------------------------------------------------------------------------

    def record_silent_nodes(self) -> None:
        """Who is late from now on is to be given up."""
        late = self.heartbeats.take_late(self._world.monotonic_s())
        if late:
            self.silent_nodes |= dict.fromkeys(late)
            log.warning("silent for longer than their heartbeats may take: %s", self._names_of(late))

    async def mark_next_silent_down(self) -> None:
        """Mark a silent node down, unless it is heard of in the last moment. Whatever fails, it is tried again."""
        # To the end of the row, so that one that cannot be marked does not stand before all others.
        node_id = next(iter(self.silent_nodes))
        del self.silent_nodes[node_id]
        self.silent_nodes[node_id] = None

        def miss(snapshot: Replica, moment: DecisionContext) -> Decision[status.NodeWriteResult]:
            if self.heartbeats.is_expected(node_id):
                return Decision(None, status.NodeWriteResult)
            return status.mark_heartbeat_missed(snapshot, node_id, moment, max_evaluations=self._term.max_evaluations)

        await self._term.execute(miss)
        self.silent_nodes.pop(node_id, None)
        if self.heartbeats.is_expected(node_id):  # It was heard of while that was on its way.
            await self._term.execute(partial(_come_back, node_id, self._term.max_evaluations))
            return
        node = self._follower.replica.get(NODES, node_id)
        if node is not None and node.status is NodeStatus.DISCONNECTED:
            # What it runs may go on for a while only: when its time is over once more, that is decided again.
            self._heard(node_id)

    def _names_of(self, node_ids: Sequence[str]) -> str:
        """For people: names, and ids where there is no name."""
        nodes = [self._follower.replica.get(NODES, node_id) for node_id in node_ids[:MAX_LOGGED_NAMES]]
        names = [node.name if node is not None and node.name else i for node, i in zip(nodes, node_ids, strict=False)]
        more = len(node_ids) - len(names)
        return ", ".join(names) + (f" and {more} more nodes" if more else "")

    # -- what nodes say --------------------------------------------------------------------------------------------

    async def register_node(self, node: Node) -> tuple[status.NodeWriteResult, float]:
        """A node says what it is; answers for how many seconds it is believed to be alive."""
        most = self._term.max_evaluations
        written = await self._term.execute(
            lambda snapshot, moment: registration.register_node(snapshot, node, moment, max_evaluations=most)
        )
        if node.reports_from:
            self._begun_anew[node.id] = None
        return await self._asked_for_all(node.id, written), self._heard(node.id)

    async def record_heartbeat(self, node_id: str) -> tuple[status.NodeWriteResult, float]:
        """A node is alive; answers for how many seconds it is believed so."""
        if not self._term.is_leading:
            raise no_leader()
        node = self._follower.replica.get(NODES, node_id)
        written = status.NodeWriteResult(0, reports_from=node.reports_from if node is not None else 0)
        if node is None or node.status is not NodeStatus.READY:
            written = await self._term.execute(partial(_come_back, node_id, self._term.max_evaluations))
        return await self._asked_for_all(node_id, written), self._heard(node_id)

    async def _asked_for_all(self, node_id: str, written: status.NodeWriteResult) -> status.NodeWriteResult:
        """A log that was replaced by an older copy has lost reports that were answered, and nodes say nothing twice by
        themselves: in a later epoch each is asked once a term for all that it knows. It has lost their numbers too: so
        what is told is numbered from a new beginning, and a copy of a report from before it is not taken for the answer.
        """
        if not self._has_more_to_tell(node_id):
            return written
        reports_from = await self._begin_anew(node_id)
        return replace(written, must_report=True, reports_from=reports_from or written.reports_from)

    async def _begin_anew(self, node_id: str) -> int:
        """0 where that was done. A report from before it may speak of work that the node was told of anew since."""
        if node_id in self._begun_anew:
            return 0
        begun = await self._term.execute(lambda snapshot, _moment: status.restart_report_numbers(snapshot, node_id))
        self._begun_anew[node_id] = None
        return begun.reports_from

    def _has_more_to_tell(self, node_id: str) -> bool:
        return bool(self._epoch) and node_id not in self._told_all

    def _heard(self, node_id: str) -> float:
        self._on_heard()
        return self.heartbeats.record_heartbeat(node_id, self._world.monotonic_s())

    async def record_reports(
        self,
        node_id: str,
        reports: Sequence[AllocationReport],
        *,
        report_id: str = "",
        is_complete: bool = False,
        number: int = 0,
    ) -> status.NodeWriteResult:
        """A node says what its allocations do; answers when that is committed. The same report again changes nothing."""
        # One after the other: of one that was said twice, the second could otherwise be taken after what was said next.
        async with self._reporting.setdefault(node_id, asyncio.Lock()):
            taken = self._reports_taken.setdefault(node_id, OrderedDict())
            if report_id in taken:
                return taken[report_id]
            written = await self._take_report(_Told(node_id, tuple(reports), is_complete, number))
            if report_id:
                taken[report_id] = written
                if len(taken) > MAX_CACHED_REPORTS:
                    taken.popitem(last=False)
            return written

    async def _take_report(self, told: "_Told") -> status.NodeWriteResult:
        if told.number and self._has_more_to_tell(told.node_id):
            await self._begin_anew(told.node_id)
        if told.is_whole:
            named = {each.id: None for each in told.reports}
            forgotten = reports.build_omitted_reports(self._follower.replica, told.node_id, named)
            told = replace(told, reports=(*told.reports, *forgotten))
        written = await self._report_at_once(told)
        if told.is_whole:
            self._told_all[told.node_id] = None
        return replace(written, must_report=True) if self._has_more_to_tell(told.node_id) else written

    async def _report_at_once(self, told: "_Told") -> status.NodeWriteResult:
        """With those of other nodes where that can be."""
        written = None
        if not get_current_preview():
            written = await self.report_batcher.add_report(
                told.node_id, partial(told.decide, self._term.max_evaluations)
            )
        return written if written is not None else await self._report_in_parts(told)

    async def _report_in_parts(self, told: "_Told") -> status.NodeWriteResult:
        """Each allocation's report stands alone, so what does not fit in one write goes in several."""
        try:
            return await self._term.execute(partial(told.decide, self._term.max_evaluations))
        except Refusal as refusal:
            if refusal.code is not RefusalCode.TOO_LARGE or len(told.reports) < 2:
                raise
        half = len(told.reports) // 2
        await self._report_in_parts(replace(told, reports=told.reports[:half], is_whole=False))
        return await self._report_in_parts(replace(told, reports=told.reports[half:]))

    async def set_eligibility(self, node_id: str, eligible: bool) -> status.NodeWriteResult:
        most = self._term.max_evaluations
        return await self._term.execute(
            lambda snapshot, moment: status.set_node_eligibility(
                snapshot, node_id, eligible, moment, max_evaluations=most
            )
        )


def _come_back(
    node_id: str, evaluations_max: int, snapshot: Replica, moment: DecisionContext
) -> Decision[status.NodeWriteResult]:
    return status.mark_node_reachable(snapshot, node_id, moment, max_evaluations=evaluations_max)
