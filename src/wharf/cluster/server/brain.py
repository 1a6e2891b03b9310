"""The leader's mind, wired: it is elected, leads, and loses; what it does while it leads is in `server.leading`.

Every server has a brain; only the leader's acts. It decides with the pure packages, commits, and sees what it did come
back through the log like everybody else.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec

from wharf.cluster.controllers.heartbeats import HeartbeatSettings
from wharf.cluster.engines.port import FollowerBehind, LogEngine, LogUnavailable
from wharf.cluster.operations.decision import Decision
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.server.leader.evaluation_processor import EvaluationProcessor
from wharf.cluster.server.leader.loop import LeaderLoop
from wharf.cluster.server.leader.node_monitor import NodeMonitor
from wharf.cluster.server.leader.queues import LeaderQueues
from wharf.cluster.server.leader.term import Election, Leadership, LeaderTerm
from wharf.cluster.server.log.bootstrap import ClusterBootstrap
from wharf.cluster.server.log.follower import Follower
from wharf.cluster.server.log.writer import Writer
from wharf.cluster.state import Replica
from wharf.contract.model.operator.autopilot import ServerLogStatus
from wharf.contract.model.refusal import Refusal, RefusalCode, no_leader
from wharf.contract.model.times import SECOND, DecisionContext
from wharf.world import World

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_DELAY_S: Final = 0.5
CONTACT_TIMEOUT_S: Final = 2.0


class BrainMetrics(msgspec.Struct, frozen=True):
    """What the leader's mind has before it: evaluations in the queue, behind another of their job, and being processed;
    jobs whose status is to be made true; nodes to be given up; nodes whose next heartbeat is waited for.
    """

    is_leading: bool
    ready: int = 0
    behind: int = 0
    busy: int = 0
    unsettled_jobs: int = 0
    silent_nodes: int = 0
    nodes_expected: int = 0


class Brain:
    def __init__(
        self,
        world: World,
        engine: LogEngine,
        follower: Follower,
        writer: Writer,
        election: Election,
        *,
        heartbeats: HeartbeatSettings | None = None,
        bootstrap: ClusterBootstrap | None = None,
    ) -> None:
        self.world = world
        self.follower = follower
        self._writer = writer
        self._election = election
        self._founder = bootstrap or ClusterBootstrap(follower, writer)
        self.term = LeaderTerm(engine.limits, follower, writer)
        self.node_monitor = NodeMonitor(
            world,
            follower,
            writer,
            self.term,
            heartbeats or HeartbeatSettings(),
            on_heartbeat=lambda: self._agenda.wake_event.set(),
        )
        self._agenda = LeaderQueues(follower, self.term, self.node_monitor)
        self._applier = EvaluationProcessor(world, follower, writer, self.term, self._agenda)
        self._thinking = LeaderLoop(
            world,
            follower,
            writer,
            term=self.term,
            queues=self._agenda,
            node_monitor=self.node_monitor,
            processor=self._applier,
        )
        self.duties: list[Callable[[], Awaitable[None]]] = [self.node_monitor.report_batcher.run]
        """What else a leader does, each in a task of its own for as long as it leads."""

    @property
    def is_leading(self) -> bool:
        return self.term.is_leading

    @property
    def ground(self) -> SchedulerCache:
        """The fleet as the replica has it, whenever nobody waits."""
        return self._agenda.fleet_updater.ground

    @property
    def max_changes(self) -> int:
        return self.term.max_changes

    @property
    def max_evaluations(self) -> int:
        return self.term.max_evaluations

    async def execute(self, operation: Callable[[Replica, DecisionContext], Decision[T]]) -> T:
        """As `Term.decide`: for those who answer what is asked of the leader (`server.answering`), and for its duties."""
        return await self.term.execute(operation)

    async def execute_if_due(self, operation: Callable[[Replica, DecisionContext], Decision[T] | None]) -> T | None:
        """As `Term.act`: for duties, which mostly find nothing to do."""
        return await self.term.execute_if_due(operation)

    # -- leading ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled: be elected, lead, lose, and again."""
        await self.follower.loaded_event.wait()
        while True:
            leadership = await self._be_elected()
            log.info("elected leader")
            # What was committed before the election must be known before anything is decided.
            await self._reach(leadership)
            await self._found(leadership)
            self.term.leadership = leadership
            self.node_monitor.start_term()
            try:
                while self.is_leading:
                    await self._lead(leadership)
            finally:
                self.term.leadership = None
            log.warning("no longer leader")

    async def _reach(self, leadership: Leadership) -> None:
        while leadership.is_held():
            try:
                await self.follower.wait_until_applied(leadership.build_condition().version)
                return
            except Refusal as refusal:
                log.warning("the leader cannot begin yet: %s", refusal.text)

    async def _found(self, leadership: Leadership) -> None:
        """The log may have come back empty. A log that is replaced takes the leader's record along and so ends the term:
        looking once a term is looking once after every such loss.
        """
        while leadership.is_held():
            try:
                await self._founder.bootstrap()
                break
            except Refusal as refusal:
                log.warning("the cluster could not be founded, trying again: %s", refusal.text)
                await asyncio.sleep(RETRY_DELAY_S)

    async def _lead(self, leadership: Leadership) -> None:
        """Think until the leadership is lost. An error of our own ends the thinking; then it begins again from the state."""
        self._agenda.rebuild()
        self._applier.reset()
        thinking = self.world.start_task(self._thinking.run(), name="brain")
        losing = self.world.start_task(leadership.wait_lost(), name="leadership")
        duties = [self.world.start_task(self._do(duty), name="duty") for duty in self.duties]
        try:
            await asyncio.wait([thinking, losing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (thinking, losing, *duties):
                task.cancel()
            ends = await asyncio.gather(thinking, losing, *duties, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                log.error("the leader's mind stopped by an error of our own", exc_info=end)
                await asyncio.sleep(RETRY_DELAY_S)  # So that an error which comes again at once is no storm.
                return
        if losing.done() and not losing.cancelled():
            self.term.leadership = None

    async def _do(self, duty: Callable[[], Awaitable[None]]) -> None:
        """Again and again while we lead: whatever ends a duty, the next turn begins from the state."""
        while self.is_leading:
            try:
                await duty()
            except (Refusal, LogUnavailable) as refusal:
                log.warning("a duty of the leader has to wait: %s", refusal)
            except Exception:  # The top of a task: the others must go on.
                log.exception("a duty of the leader stopped by an error of our own")
            await asyncio.sleep(RETRY_DELAY_S)

    async def _be_elected(self) -> Leadership:
        while True:
            try:
                return await self._election.campaign()
            except (Refusal, LogUnavailable) as away:
                log.warning("no election just now: %s", away)
                await asyncio.sleep(RETRY_DELAY_S)

    # -- leadership by request -------------------------------------------------------------------------------------

    async def transfer_leadership(self, heir: str) -> None:
        """End this leadership in favour of another member. What is being written is written first."""
        async with self.term.write_lock:
            leadership = self.term.leadership
            if leadership is None or not self.is_leading:
                raise no_leader()
            try:
                is_offered = await leadership.transfer(heir)
            except (FollowerBehind, LogUnavailable) as away:
                raise Refusal(
                    RefusalCode.OUTCOME_UNKNOWN, f"nobody can tell whether {heir} was made leader: {away}"
                ) from away
        self._agenda.wake_event.set()
        if not is_offered:
            raise no_leader()
        log.info("the leadership was handed over", extra={"to": heir})

    async def measure_status(self) -> ServerLogStatus:
        """Where this server stands in the log, and how long the log takes to prove that it is there."""
        replica, began_s = self.follower.replica, self.world.monotonic_s()
        try:
            async with asyncio.timeout(CONTACT_TIMEOUT_S):
                await self._writer.catch_up()
        except (Refusal, TimeoutError):
            return ServerLogStatus(replica.index, replica.epoch, None)
        took_s = self.world.monotonic_s() - began_s
        return ServerLogStatus(replica.index, replica.epoch, round(took_s * SECOND))

    def collect_metrics(self) -> BrainMetrics:
        """How much there is to do. Of who does not lead nothing is expected."""
        if not self.is_leading:
            return BrainMetrics(is_leading=False)
        ready, behind, busy = self._agenda.broker.count_queues()
        return BrainMetrics(
            is_leading=True,
            ready=ready,
            behind=behind,
            busy=busy,
            unsettled_jobs=len(self._agenda.unsettled_jobs),
            silent_nodes=len(self.node_monitor.silent_nodes),
            nodes_expected=self.node_monitor.heartbeats.expected_count,
        )
