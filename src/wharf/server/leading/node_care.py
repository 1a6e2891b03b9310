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

from wharf.controllers.heartbeats import Heartbeats, HeartbeatSettings
from wharf.model.moment import Moment
from wharf.model.node import Node, NodeStatus
from wharf.model.refusal import Code, Refusal, no_leader
from wharf.operations import nodes, reports
from wharf.operations.decision import Decision
from wharf.operations.reports import AllocationReport
from wharf.server.follower import Follower
from wharf.server.leading.report_batch import ReportBatch
from wharf.server.leading.term import Term
from wharf.server.rehearsal import current_rehearsal
from wharf.server.writer import Writer
from wharf.state import Replica
from wharf.state.tables import NODES
from wharf.world import World

log = logging.getLogger(__name__)

REPORTS_REMEMBERED: Final = 8
NAMES_SAID: Final = 10
"""In one line of the log. A whole rack that falls silent is one line too."""


class _Told(msgspec.Struct, frozen=True):
    """One report of a node."""

    node_id: str
    reports: tuple[AllocationReport, ...]
    is_whole: bool
    number: int

    def decide(self, evaluations_max: int, snapshot: Replica, moment: Moment) -> Decision[nodes.NodeWritten]:
        return reports.take(
            snapshot,
            self.node_id,
            self.reports,
            moment,
            is_whole=self.is_whole,
            evaluations_max=evaluations_max,
            number=self.number,
        )


class NodeCare:
    def __init__(
        self,
        world: World,
        follower: Follower,
        writer: Writer,
        term: Term,
        settings: HeartbeatSettings,
        *,
        on_heard: Callable[[], None],
    ) -> None:
        """`on_heard` is called when the next deadline may be sooner than the one that is waited for."""
        self._world = world
        self._follower = follower
        self._term = term
        self._settings = settings
        self._on_heard = on_heard
        self.batch = ReportBatch(follower, writer, term)
        self.heartbeats = Heartbeats(settings, world.random)
        self.silent: dict[str, None] = {}
        """Nodes that are to be given up."""
        self._reporting: dict[str, asyncio.Lock] = {}
        self._reports_taken: dict[str, OrderedDict[str, nodes.NodeWritten]] = {}
        self._epoch = 0
        """The epoch of the log that reports were taken in."""
        self._told_all: dict[str, None] = {}
        """Nodes that told of all their work in this term and epoch."""
        self._begun_anew: dict[str, None] = {}
        """Nodes whose reports are numbered from a beginning of this term and epoch: a copy from before is known as old."""

    # -- what is kept ----------------------------------------------------------------------------------------------

    def begin_term(self) -> None:
        self.heartbeats = Heartbeats(self._settings, self._world.random)
        self.silent.clear()
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
        for node in replica.all(NODES):
            if node.status is not NodeStatus.DOWN and not self.heartbeats.is_expected(node.id):
                self.heartbeats.inherit(node.id, now_s)

    def forget(self, node_id: str) -> None:
        """The node is gone."""
        self.heartbeats.forget(node_id)

    # -- silence ---------------------------------------------------------------------------------------------------

    def note_silence(self) -> None:
        """Who is late from now on is to be given up."""
        late = self.heartbeats.late(self._world.monotonic_s())
        if late:
            self.silent |= dict.fromkeys(late)
            log.warning("silent for longer than their heartbeats may take: %s", self._names_of(late))

    async def give_up_next(self) -> None:
        """Mark a silent node down, unless it is heard of in the last moment. Whatever fails, it is tried again."""
        # To the end of the row, so that one that cannot be marked does not stand before all others.
        node_id = next(iter(self.silent))
        del self.silent[node_id]
        self.silent[node_id] = None

        def miss(snapshot: Replica, moment: Moment) -> Decision[nodes.NodeWritten]:
            if self.heartbeats.is_expected(node_id):
                return Decision(None, nodes.NodeWritten)
            return nodes.miss_heartbeat(snapshot, node_id, moment, evaluations_max=self._term.evaluations_max)

        await self._term.decide(miss)
        self.silent.pop(node_id, None)
        if self.heartbeats.is_expected(node_id):  # It was heard of while that was on its way.
            await self._term.decide(partial(_come_back, node_id, self._term.evaluations_max))
            return
        node = self._follower.replica.get(NODES, node_id)
        if node is not None and node.status is NodeStatus.DISCONNECTED:
            # What it runs may go on for a while only: when its time is over once more, that is decided again.
            self._heard(node_id)

    def _names_of(self, node_ids: Sequence[str]) -> str:
        """For people: names, and ids where there is no name."""
        nodes = [self._follower.replica.get(NODES, node_id) for node_id in node_ids[:NAMES_SAID]]
        names = [node.name if node is not None and node.name else i for node, i in zip(nodes, node_ids, strict=False)]
        more = len(node_ids) - len(names)
        return ", ".join(names) + (f" and {more} more nodes" if more else "")

    # -- what nodes say --------------------------------------------------------------------------------------------

    async def register(self, node: Node) -> tuple[nodes.NodeWritten, float]:
        """A node says what it is; answers for how many seconds it is believed to be alive."""
        most = self._term.evaluations_max
        written = await self._term.decide(
            lambda snapshot, moment: nodes.register(snapshot, node, moment, evaluations_max=most)
        )
        if node.reports_from:
            self._begun_anew[node.id] = None
        return await self._asked_for_all(node.id, written), self._heard(node.id)

    async def heartbeat(self, node_id: str) -> tuple[nodes.NodeWritten, float]:
        """A node is alive; answers for how many seconds it is believed so."""
        if not self._term.is_leading:
            raise no_leader()
        node = self._follower.replica.get(NODES, node_id)
        written = nodes.NodeWritten(0, reports_from=node.reports_from if node is not None else 0)
        if node is None or node.status is not NodeStatus.READY:
            written = await self._term.decide(partial(_come_back, node_id, self._term.evaluations_max))
        return await self._asked_for_all(node_id, written), self._heard(node_id)

    async def _asked_for_all(self, node_id: str, written: nodes.NodeWritten) -> nodes.NodeWritten:
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
        begun = await self._term.decide(lambda snapshot, _moment: nodes.begin_reports_anew(snapshot, node_id))
        self._begun_anew[node_id] = None
        return begun.reports_from

    def _has_more_to_tell(self, node_id: str) -> bool:
        return bool(self._epoch) and node_id not in self._told_all

    def _heard(self, node_id: str) -> float:
        self._on_heard()
        return self.heartbeats.heard(node_id, self._world.monotonic_s())

    async def report(
        self,
        node_id: str,
        told: Sequence[AllocationReport],
        *,
        report_id: str = "",
        is_whole: bool = False,
        number: int = 0,
    ) -> nodes.NodeWritten:
        """A node says what its allocations do; answers when that is committed. The same report again changes nothing."""
        # One after the other: of one that was said twice, the second could otherwise be taken after what was said next.
        async with self._reporting.setdefault(node_id, asyncio.Lock()):
            taken = self._reports_taken.setdefault(node_id, OrderedDict())
            if report_id in taken:
                return taken[report_id]
            written = await self._take_report(_Told(node_id, tuple(told), is_whole, number))
            if report_id:
                taken[report_id] = written
                if len(taken) > REPORTS_REMEMBERED:
                    taken.popitem(last=False)
            return written

    async def _take_report(self, told: "_Told") -> nodes.NodeWritten:
        if told.number and self._has_more_to_tell(told.node_id):
            await self._begin_anew(told.node_id)
        if told.is_whole:
            named = {each.id: None for each in told.reports}
            forgotten = reports.forgotten(self._follower.replica, told.node_id, named)
            told = replace(told, reports=(*told.reports, *forgotten))
        written = await self._report_at_once(told)
        if told.is_whole:
            self._told_all[told.node_id] = None
        return replace(written, must_report=True) if self._has_more_to_tell(told.node_id) else written

    async def _report_at_once(self, told: "_Told") -> nodes.NodeWritten:
        """With those of other nodes where that can be."""
        written = None
        if not current_rehearsal():
            written = await self.batch.take(told.node_id, partial(told.decide, self._term.evaluations_max))
        return written if written is not None else await self._report_in_parts(told)

    async def _report_in_parts(self, told: "_Told") -> nodes.NodeWritten:
        """Each allocation's report stands alone, so what does not fit in one write goes in several."""
        try:
            return await self._term.decide(partial(told.decide, self._term.evaluations_max))
        except Refusal as refusal:
            if refusal.code is not Code.TOO_LARGE or len(told.reports) < 2:
                raise
        half = len(told.reports) // 2
        await self._report_in_parts(replace(told, reports=told.reports[:half], is_whole=False))
        return await self._report_in_parts(replace(told, reports=told.reports[half:]))

    async def set_eligibility(self, node_id: str, eligible: bool) -> nodes.NodeWritten:
        most = self._term.evaluations_max
        return await self._term.decide(
            lambda snapshot, moment: nodes.set_eligibility(snapshot, node_id, eligible, moment, evaluations_max=most)
        )


def _come_back(node_id: str, evaluations_max: int, snapshot: Replica, moment: Moment) -> Decision[nodes.NodeWritten]:
    return nodes.come_back(snapshot, node_id, moment, evaluations_max=evaluations_max)
