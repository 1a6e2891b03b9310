"""The leader's mind, wired: it is elected, leads, and loses; what it does while it leads is in `server.leading`.

Every server has a brain; only the leader's acts. It decides with the pure packages, commits, and sees what it did come
back through the log like everybody else.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec

from wharf.controllers.heartbeats import HeartbeatSettings
from wharf.engines.port import Behind, Engine, Unavailable
from wharf.model.autopilot import ServerStanding
from wharf.model.durations import SECOND
from wharf.model.moment import Moment
from wharf.model.refusal import Code, Refusal, no_leader
from wharf.operations.decision import Decision
from wharf.scheduling.ground import Ground
from wharf.server.follower import Follower
from wharf.server.founder import Founder
from wharf.server.leadership import Election, Leadership
from wharf.server.leading.agenda import Agenda
from wharf.server.leading.applier import Applier
from wharf.server.leading.node_care import NodeCare
from wharf.server.leading.term import Term
from wharf.server.leading.thinking import Thinking
from wharf.server.writer import Writer
from wharf.state import Replica
from wharf.world import World

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_S: Final = 0.5
CONTACT_WITHIN_S: Final = 2.0


class BrainFigures(msgspec.Struct, frozen=True):
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
        engine: Engine,
        follower: Follower,
        writer: Writer,
        election: Election,
        *,
        heartbeats: HeartbeatSettings | None = None,
        founder: Founder | None = None,
    ) -> None:
        self.world = world
        self.follower = follower
        self._writer = writer
        self._election = election
        self._founder = founder or Founder(follower, writer)
        self.term = Term(engine.bounds, follower, writer)
        self.nodes = NodeCare(
            world,
            follower,
            writer,
            self.term,
            heartbeats or HeartbeatSettings(),
            on_heard=lambda: self._agenda.woken.set(),
        )
        self._agenda = Agenda(follower, self.term, self.nodes)
        self._applier = Applier(world, follower, writer, self.term, self._agenda)
        self._thinking = Thinking(
            world, follower, writer, term=self.term, agenda=self._agenda, nodes=self.nodes, applier=self._applier
        )
        self.duties: list[Callable[[], Awaitable[None]]] = [self.nodes.batch.run]
        """What else a leader does, each in a task of its own for as long as it leads."""

    @property
    def is_leading(self) -> bool:
        return self.term.is_leading

    @property
    def ground(self) -> Ground:
        """The fleet as the replica has it, whenever nobody waits."""
        return self._agenda.keeper.ground

    @property
    def changes_max(self) -> int:
        return self.term.changes_max

    @property
    def evaluations_max(self) -> int:
        return self.term.evaluations_max

    async def decide(self, decide: Callable[[Replica, Moment], Decision[T]]) -> T:
        """As `Term.decide`: for those who answer what is asked of the leader (`server.answering`), and for its duties."""
        return await self.term.decide(decide)

    async def act(self, decide: Callable[[Replica, Moment], Decision[T] | None]) -> T | None:
        """As `Term.act`: for duties, which mostly find nothing to do."""
        return await self.term.act(decide)

    # -- leading ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled: be elected, lead, lose, and again."""
        await self.follower.loaded.wait()
        while True:
            leadership = await self._be_elected()
            log.info("elected leader")
            # What was committed before the election must be known before anything is decided.
            await self._reach(leadership)
            await self._found(leadership)
            self.term.leadership = leadership
            self.nodes.begin_term()
            try:
                while self.is_leading:
                    await self._lead(leadership)
            finally:
                self.term.leadership = None
            log.warning("no longer leader")

    async def _reach(self, leadership: Leadership) -> None:
        while leadership.is_held():
            try:
                await self.follower.reached(leadership.condition().version)
                return
            except Refusal as refusal:
                log.warning("the leader cannot begin yet: %s", refusal.text)

    async def _found(self, leadership: Leadership) -> None:
        """The log may have come back empty. A log that is replaced takes the leader's record along and so ends the term:
        looking once a term is looking once after every such loss.
        """
        while leadership.is_held():
            try:
                await self._founder.found()
                break
            except Refusal as refusal:
                log.warning("the cluster could not be founded, trying again: %s", refusal.text)
                await asyncio.sleep(RETRY_S)

    async def _lead(self, leadership: Leadership) -> None:
        """Think until the leadership is lost. An error of our own ends the thinking; then it begins again from the state."""
        self._agenda.rebuild()
        self._applier.begin_anew()
        thinking = self.world.start(self._thinking.run(), name="brain")
        losing = self.world.start(leadership.lost(), name="leadership")
        duties = [self.world.start(self._do(duty), name="duty") for duty in self.duties]
        try:
            await asyncio.wait([thinking, losing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (thinking, losing, *duties):
                task.cancel()
            ends = await asyncio.gather(thinking, losing, *duties, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                log.error("the leader's mind stopped by an error of our own", exc_info=end)
                await asyncio.sleep(RETRY_S)  # So that an error which comes again at once is no storm.
                return
        if losing.done() and not losing.cancelled():
            self.term.leadership = None

    async def _do(self, duty: Callable[[], Awaitable[None]]) -> None:
        """Again and again while we lead: whatever ends a duty, the next turn begins from the state."""
        while self.is_leading:
            try:
                await duty()
            except (Refusal, Unavailable) as refusal:
                log.warning("a duty of the leader has to wait: %s", refusal)
            except Exception:  # The top of a task: the others must go on.
                log.exception("a duty of the leader stopped by an error of our own")
            await asyncio.sleep(RETRY_S)

    async def _be_elected(self) -> Leadership:
        while True:
            try:
                return await self._election.campaign()
            except (Refusal, Unavailable) as away:
                log.warning("no election just now: %s", away)
                await asyncio.sleep(RETRY_S)

    # -- leadership by request -------------------------------------------------------------------------------------

    async def hand_over(self, heir: str) -> None:
        """End this leadership in favour of another member. What is being written is written first."""
        async with self.term.writing:
            leadership = self.term.leadership
            if leadership is None or not self.is_leading:
                raise no_leader()
            try:
                is_offered = await leadership.hand_over(heir)
            except (Behind, Unavailable) as away:
                raise Refusal(Code.UNDECIDED, f"nobody can tell whether {heir} was made leader: {away}") from away
        self._agenda.woken.set()
        if not is_offered:
            raise no_leader()
        log.info("the leadership was handed over", extra={"to": heir})

    async def standing(self) -> ServerStanding:
        """Where this server stands in the log, and how long the log takes to prove that it is there."""
        replica, began_s = self.follower.replica, self.world.monotonic_s()
        try:
            async with asyncio.timeout(CONTACT_WITHIN_S):
                await self._writer.catch_up()
        except (Refusal, TimeoutError):
            return ServerStanding(replica.index, replica.epoch, None)
        took_s = self.world.monotonic_s() - began_s
        return ServerStanding(replica.index, replica.epoch, round(took_s * SECOND))

    def figures(self) -> BrainFigures:
        """How much there is to do. Of who does not lead nothing is expected."""
        if not self.is_leading:
            return BrainFigures(is_leading=False)
        ready, behind, busy = self._agenda.broker.counts()
        return BrainFigures(
            is_leading=True,
            ready=ready,
            behind=behind,
            busy=busy,
            unsettled_jobs=len(self._agenda.unsettled),
            silent_nodes=len(self.nodes.silent),
            nodes_expected=self.nodes.heartbeats.expected,
        )
