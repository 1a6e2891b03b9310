"""The brain: gets elected, leads until leadership is lost, and starts over.

Every server has a brain; only the leader's brain schedules. What the leader does is in `server.leader` and
`server.duties`. The brain sees its own commits in the replica, like every other follower.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec

from wharf.cluster.controllers.heartbeats import HeartbeatSettings
from wharf.cluster.engines.election import Election, Leadership
from wharf.cluster.engines.port import FollowerBehind, LogEngine, LogUnavailable
from wharf.cluster.operations.decision import Decision
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.server.leader.deadline_restarts import DeadlineRestarts
from wharf.cluster.server.leader.evaluation_processor import EvaluationProcessor
from wharf.cluster.server.leader.loop import LeaderLoop
from wharf.cluster.server.leader.node_monitor import NodeMonitor
from wharf.cluster.server.leader.queues import LeaderQueues
from wharf.cluster.server.leader.term import LeaderTerm
from wharf.cluster.server.log.bootstrap import ClusterBootstrap
from wharf.cluster.server.log.follower import Follower
from wharf.cluster.server.log.reader import Reader
from wharf.cluster.server.log.writer import Writer
from wharf.cluster.state import Replica
from wharf.contract.model.operator.autopilot import ServerLogStatus
from wharf.contract.model.refusal import Refusal, RefusalCode, no_leader
from wharf.contract.model.times import MILLISECOND, SECOND, DecisionContext
from wharf.world import World
from wharf.world.tasks import cancel_tasks

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_DELAY_S: Final = 0.5
"""How long to wait before a failed election, bootstrap or duty is tried again."""
MAX_CHANGES_PER_STEP: Final = 400
"""The largest part of an operation that changes many records, such as a purge: it holds the loop for about 8 ms."""
CONTACT_TIMEOUT_S: Final = 1.5
"""How long the log may take to answer before the server counts as out of contact."""


class BrainMetrics(msgspec.Struct, frozen=True):
    """Queue lengths of the leader. All are 0 on a server that does not lead."""

    is_leading: bool
    ready: int = 0
    """Evaluations that can be processed now."""
    behind: int = 0
    """Evaluations that wait for another evaluation of the same job."""
    busy: int = 0
    """Evaluations in process."""
    unsettled_jobs: int = 0
    """Jobs whose derived state, such as their status, must be recomputed."""
    silent_nodes: int = 0
    """Nodes that missed their heartbeat and must be marked down."""
    nodes_expected: int = 0
    """Nodes whose next heartbeat is expected."""


class Brain:
    """Campaigns for leadership and runs the leader's work while this server leads.

    RPC handlers and duties write as leader through it.
    """

    def __init__(
        self,
        world: World,
        engine: LogEngine,
        follower: Follower,
        writer: Writer,
        election: Election,
        *,
        heartbeats: HeartbeatSettings,
        bootstrap: ClusterBootstrap,
    ) -> None:
        self.world = world
        self.follower = follower
        self._engine = engine
        self.reader = Reader(world, engine, follower)
        """Measures the contact with the log, for the status of this server."""
        self._election = election
        self._bootstrap = bootstrap
        self.term = LeaderTerm(engine.limits, follower, writer)
        self.node_monitor = NodeMonitor(
            world,
            follower,
            writer,
            self.term,
            heartbeats,
            on_heartbeat=lambda: self._queues.wake_event.set(),
        )
        self._deadline_restarts = DeadlineRestarts(world, follower, self.term)
        self._queues = LeaderQueues(follower, self.term, self.node_monitor)
        self._processor = EvaluationProcessor(world, follower, writer, self.term, self._queues)
        self._leader_loop = LeaderLoop(
            world,
            follower,
            writer,
            term=self.term,
            queues=self._queues,
            node_monitor=self.node_monitor,
            processor=self._processor,
        )
        self.duties: list[Callable[[], Awaitable[None]]] = [
            self.node_monitor.write_batcher.run,
            self.node_monitor.run_reception_clock,
            self.node_monitor.run_longest_ttl,
        ]
        """Background tasks of the leader. Each runs in its own task while this server leads."""

    @property
    def is_leading(self) -> bool:
        """Whether this server leads now."""
        return self.term.is_leading

    @property
    def replica(self) -> Replica:
        """The replica of this server."""
        return self.follower.replica

    @property
    def cache(self) -> SchedulerCache:
        """The scheduler's cache of nodes and their used resources.

        It matches the replica except while a batch is applied.
        """
        return self._queues.fleet_updater.cache

    @property
    def max_changes(self) -> int:
        """How many changes one write of a duty or a large operation may have, without derived changes."""
        return min(self.term.max_changes, MAX_CHANGES_PER_STEP)

    @property
    def max_evaluations(self) -> int:
        """How many evaluations fit in one write."""
        return self.term.max_evaluations

    async def execute(
        self, operation: Callable[[Replica, DecisionContext], Decision[T]], *, is_long: bool = False
    ) -> T:
        """Run an operation as leader, commit its decision and return its reply.

        `is_long`: the operation takes milliseconds, so it runs on the thread for long computations. Raises `Refusal` if
        this server does not lead.
        """
        return await self.term.execute(operation, is_long=is_long)

    async def execute_if_due(
        self, operation: Callable[[Replica, DecisionContext], Decision[T] | None], *, is_long: bool = False
    ) -> T | None:
        """Run an operation as leader and commit its decision. Return its reply, or `None` if it has nothing to do now.

        `is_long`: the operation reads many records, so it runs on the thread for long computations.
        """
        return await self.term.execute_if_due(operation, is_long=is_long)

    # -- leading ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Wait for election, lead until leadership is lost, and start over, until cancelled."""
        await self.follower.loaded_event.wait()
        while True:
            leadership = await self._wait_until_elected()
            log.info("elected leader")
            # The replica must contain everything committed before the election before the leader decides anything.
            await self._wait_for_election_record(leadership)
            await self._bootstrap_cluster(leadership)
            self.term.leadership = leadership
            self.node_monitor.start_term()
            try:
                await self._deadline_restarts.run()
                while self.is_leading:
                    await self._lead(leadership)
            finally:
                self.term.leadership = None
            log.warning("no longer leader reason=%s", leadership.get_end_reason())

    async def _wait_for_election_record(self, leadership: Leadership) -> None:
        """Wait until the replica contains the leader record of this election, or the leadership is lost."""
        while leadership.is_held():
            try:
                await self.follower.wait_until_applied(leadership.build_condition().version)
                return
            except Refusal as refusal:
                log.warning("leader waits for its replica reason=%s", refusal.text)

    async def _bootstrap_cluster(self, leadership: Leadership) -> None:
        """Write the first records of the cluster if the log has none; retry until that succeeds or leadership is lost.

        The log can become empty while the cluster runs. A replaced log has no leader record, so it ends the term. One
        check at the start of each term is therefore enough.
        """
        while leadership.is_held():
            try:
                await self._bootstrap.bootstrap()
                await self._bootstrap.add_cluster_id()
                break
            except Refusal as refusal:
                log.warning("cluster bootstrap failed, will retry reason=%s", refusal.text)
                await asyncio.sleep(RETRY_DELAY_S)

    async def _lead(self, leadership: Leadership) -> None:
        """Rebuild the queues from the replica, then run the leader loop and the duties until leadership is lost.

        An unexpected error stops all of them; this then returns, and the caller calls it again.
        """
        for _ in self._queues.rebuild_in_steps():
            await asyncio.sleep(0)
        self._processor.reset()
        loop_task = self.world.start_task(self._leader_loop.run(), name="brain")
        lost_task = self.world.start_task(leadership.wait_lost(), name="leadership")
        duties = [self.world.start_task(self._run_duty(duty), name="duty") for duty in self.duties]
        try:
            await asyncio.wait([loop_task, lost_task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_tasks(loop_task, lost_task, *duties)
        for task in (loop_task, lost_task, *duties):
            error = None if task.cancelled() else task.exception()
            if isinstance(error, Exception):
                log.error("leader loop failed", exc_info=error)
                await asyncio.sleep(RETRY_DELAY_S)  # Limits the rate of an error that repeats at once.
                return
        if lost_task.done() and not lost_task.cancelled():
            self.term.leadership = None

    async def _run_duty(self, duty: Callable[[], Awaitable[None]]) -> None:
        """Run a duty again and again while this server leads. It starts from the replica each time."""
        while self.is_leading:
            try:
                await duty()
            except (Refusal, LogUnavailable) as refusal:
                log.warning("leader duty will be retried reason=%s", refusal)
            except Exception:  # One failed duty must not stop the others.
                log.exception("leader duty failed")
            await asyncio.sleep(RETRY_DELAY_S)

    async def _wait_until_elected(self) -> Leadership:
        """Campaign until this server is elected and return the leadership."""
        while True:
            try:
                return await self._election.campaign()
            except (Refusal, LogUnavailable) as error:
                log.warning("election failed, will retry reason=%s", error)
                await asyncio.sleep(RETRY_DELAY_S)

    # -- leadership by request -------------------------------------------------------------------------------------

    async def transfer_leadership(self, successor: str) -> None:
        """Offer the leadership to the member with the id `successor`, and stop leading. Writes in progress finish
        first.

        Raises `Refusal` if this server does not lead or the outcome is unknown.
        """
        async with self.term.write_lock:
            leadership = self.term.leadership
            if leadership is None or not self.is_leading:
                raise no_leader()
            try:
                is_offered = await leadership.transfer(successor)
            except (FollowerBehind, LogUnavailable) as error:
                raise Refusal(
                    RefusalCode.OUTCOME_UNKNOWN,
                    f"it is unknown whether leadership was transferred to {successor}: {error}",
                ) from error
        self._queues.wake_event.set()
        if not is_offered:
            raise no_leader()
        log.info("transferred leadership member=%s", successor)

    async def measure_status(self) -> ServerLogStatus:
        """Return this server's log position and how long the log took to reply.

        If it does not reply in time: the time since the last contact, and since when and why it does not reply. If it
        accepts no writes: why not.
        """
        began_s = self.world.monotonic_s()
        try:
            async with asyncio.timeout(CONTACT_TIMEOUT_S):
                index = await self.reader.read_newest_index()
                if index is None:
                    return self._build_outage_status()
                await self.follower.wait_until_applied(index)
                took_s = self.world.monotonic_s() - began_s
                log_health = await self._engine.read_health()
        except (LogUnavailable, Refusal, TimeoutError):
            return self._build_outage_status()
        replica = self.follower.replica
        # A log that is nearly full has a reason too, but it still works.
        problem = "" if log_health.writable else log_health.why
        return ServerLogStatus(replica.index, replica.epoch, round(took_s * SECOND), problem)

    def count_queued_evaluations(self, namespace: str) -> int:
        """Return how many evaluations of the namespace wait for the scheduler."""
        return self._queues.broker.count_queued_in(namespace)

    def _build_outage_status(self) -> ServerLogStatus:
        """Return the status of a server whose log did not reply in time, or that did not catch up with it."""
        replica, contact_ms = self.follower.replica, self.reader.last_contact_ms()
        return ServerLogStatus(
            replica.index,
            replica.epoch,
            None if contact_ms is None else contact_ms * MILLISECOND,
            self.reader.describe_outage(for_operators=True)
            or f"the server did not catch up with the log within {CONTACT_TIMEOUT_S:g} s",
        )

    def collect_metrics(self) -> BrainMetrics:
        """Return the leader's queue lengths; all zero if this server does not lead."""
        if not self.is_leading:
            return BrainMetrics(is_leading=False)
        ready, behind, busy = self._queues.broker.count_queues()
        return BrainMetrics(
            is_leading=True,
            ready=ready,
            behind=behind,
            busy=busy,
            unsettled_jobs=len(self._queues.unsettled_jobs),
            silent_nodes=len(self.node_monitor.silent_nodes),
            nodes_expected=self.node_monitor.heartbeats.expected_count,
        )
