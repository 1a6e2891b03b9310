"""The leader's mind: evaluations become plans, silent nodes are given up, statuses are kept true.

Every server has a brain; only the leader's acts. It decides with the pure packages, commits, and sees what it did come
back through the log like everybody else.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from wharf.controllers.blocked import Blocked
from wharf.controllers.broker import Broker
from wharf.controllers.heartbeats import Heartbeats, HeartbeatSettings
from wharf.engines.port import Batch, Behind, Committed, Conflict, Engine, Unavailable
from wharf.model.allocation import Allocation
from wharf.model.autopilot import ServerStanding
from wharf.model.changes import Cause, CauseKind, Write
from wharf.model.cluster import Member
from wharf.model.deployment import Deployment
from wharf.model.durations import SECOND
from wharf.model.evaluation import Evaluation, EvaluationStatus
from wharf.model.job import Job
from wharf.model.machine import TransitionRefused
from wharf.model.moment import Moment
from wharf.model.namespace import Namespace
from wharf.model.node import Node, NodeStatus
from wharf.model.node_pool import NodePool
from wharf.model.quota import Quota
from wharf.model.refusal import Code, Refusal, no_leader
from wharf.model.scheduler_configuration import SchedulerConfiguration
from wharf.operations import evaluations, nodes
from wharf.operations.decision import Decision
from wharf.operations.derived import JobKey, settling, with_derived
from wharf.operations.formats import raise_format
from wharf.scheduling.plan import Plan, check
from wharf.scheduling.schedule import attempts_of, schedule
from wharf.server.follower import Follower
from wharf.server.founder import Founder
from wharf.server.ground_keeper import GroundKeeper
from wharf.server.leadership import Election, Leadership
from wharf.server.writer import ATTEMPTS_MAX, Writer
from wharf.state import Replica
from wharf.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_ON_NODE,
    DEPLOYMENTS,
    EVALUATIONS,
    EVALUATIONS_BY_STATUS,
    JOBS,
    LEADER,
    MEMBERS,
    NAMESPACES,
    NODE_POOLS,
    NODES,
    QUOTAS,
    SCHEDULER_CONFIGURATION,
)
from wharf.world import World

log = logging.getLogger(__name__)

T = TypeVar("T")

ROOM_FOR_DERIVED: Final = 8
"""Changes and conditions kept free in each part of a plan: statuses, summaries, the leader's condition."""

CHANGES_A_JOB: Final = 3
CHANGES_AN_EVALUATION: Final = 4
CHANGES_A_NODE: Final = 2
"""What settling a job, making an evaluation, moving a node changes at most, with all that follows."""

CHANGES_LEAST: Final = 4
UNBLOCKED_AT_ONCE: Final = 50
FOLLOW_UP_NS: Final = 60 * SECOND
FOLLOW_UP_SPREAD_NS: Final = 300 * SECOND
"""When something that could not be processed is tried anew: after this, and by chance up to so much later."""

REPORTS_REMEMBERED: Final = 8
RETRY_S: Final = 0.5
NAMES_SAID: Final = 10
"""In one line of the log. A whole rack that falls silent is one line too."""
SECOND_NS: Final = 1_000_000_000
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
    ) -> None:
        self._world = world
        self._bounds = engine.bounds
        self._follower = follower
        self._writer = writer
        self._election = election
        self._founder = Founder(follower, writer)
        self._heartbeat_settings = heartbeats or HeartbeatSettings()
        self._leadership: Leadership | None = None
        self._wake = asyncio.Event()
        self._writing = asyncio.Lock()
        """The leader writes one thing after the other, each decided when it is its turn: its own writes touch the same
        statuses and summaries all the time, and would only conflict with each other."""
        self._broker = Broker()
        self._heartbeats = Heartbeats(self._heartbeat_settings, world.random)
        self._silent: dict[str, None] = {}
        """Nodes that are to be given up."""
        self._unsettled: dict[JobKey, None] = {}
        self._nodes_changed: dict[str, None] = {}
        self._blocked = Blocked()
        self._attempts: dict[str, int] = {}
        """How often plans of an evaluation came to nothing, one after the other."""
        self._members_changed = True
        self._reports_taken: dict[str, OrderedDict[str, nodes.NodeWritten]] = {}
        self._epoch = 0
        """The epoch of the log that reports were taken in."""
        self._told_all: dict[str, None] = {}
        """Nodes that told of all their work in this term and epoch."""
        self.duties: list[Callable[[], Awaitable[None]]] = []
        """What else a leader does, each in a task of its own for as long as it leads."""
        self._keeper = GroundKeeper(follower)
        follower.listeners.append(self._hear)
        follower.on_load.append(self._on_load)

    # -- leading ---------------------------------------------------------------------------------------------------

    @property
    def world(self) -> World:
        return self._world

    @property
    def follower(self) -> Follower:
        return self._follower

    @property
    def is_leading(self) -> bool:
        """Held as far as we know, and the leader's record is still ours as far as the replica has come."""
        leadership = self._leadership
        if leadership is None or not leadership.is_held():
            return False
        return self._follower.replica.version(LEADER) == leadership.condition().version

    async def run(self) -> None:
        """Until cancelled: be elected, lead, lose, and again."""
        await self._follower.loaded.wait()
        while True:
            leadership = await self._be_elected()
            log.info("elected leader")
            # What was committed before the election must be known before anything is decided.
            await self._reach(leadership)
            await self._found(leadership)
            self._leadership = leadership
            self._heartbeats = Heartbeats(self._heartbeat_settings, self._world.random)
            self._silent.clear()
            self._told_all.clear()
            try:
                while self.is_leading:
                    await self._lead(leadership)
            finally:
                self._leadership = None
            log.warning("no longer leader")

    async def _reach(self, leadership: Leadership) -> None:
        while leadership.is_held():
            try:
                await self._follower.reached(leadership.condition().version)
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
        self._rebuild()
        thinking = self._world.start(self._think(), name="brain")
        losing = self._world.start(leadership.lost(), name="leadership")
        duties = [self._world.start(self._do(duty), name="duty") for duty in self.duties]
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
            self._leadership = None

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

    def _on_load(self) -> None:
        if self._leadership is not None:
            self._rebuild()

    def _rebuild(self) -> None:
        """Queues and timers from the state: a new leader knows nothing else. What was heard of nodes stays."""
        if self._epoch != self._follower.replica.epoch:
            self._epoch = self._follower.replica.epoch
            self._reports_taken.clear()
            self._told_all.clear()
        self._broker, self._blocked = Broker(), Blocked()
        self._attempts.clear()
        self._keeper.take_freed()
        replica, now_s = self._follower.replica, self._world.monotonic_s()
        for evaluation in replica.those_by_key(EVALUATIONS_BY_STATUS, EvaluationStatus.PENDING):
            self._broker.hear(evaluation)
        for evaluation in replica.those_by_key(EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED):
            self._blocked.hear(evaluation)
        self._blocked.try_all()  # Nobody knows what came free before.
        for node in replica.all(NODES):
            if node.status is not NodeStatus.DOWN and not self._heartbeats.is_expected(node.id):
                self._heartbeats.inherit(node.id, now_s)
        self._unsettled = {(job.namespace, job.id): None for job in replica.all(JOBS)}
        # Nodes that are gone too, where something still counts as running on them.
        self._nodes_changed = {node.id: None for node in replica.all(NODES)}
        self._nodes_changed |= {str(node_id): None for node_id in replica.values_of(ALLOCATIONS_ON_NODE)}
        self._members_changed = True
        self._wake.set()

    def _hear(self, batch: Batch) -> None:
        """Take note of what a batch changed. Called for every batch, so it only looks and remembers."""
        if self._leadership is None:
            return
        replica = self._follower.replica
        self._blocked.room_came(self._keeper.take_freed(), batch.index)
        for change in batch.changes:
            if change.table not in HEARD:
                continue
            record: Any = replica.get(replica.tables[change.table], change.key)
            match record:
                case Evaluation():
                    self._broker.hear(record)
                    self._blocked.hear(record)
                    self._unsettled[record.namespace, record.job_id] = None
                case Node():
                    self._nodes_changed[record.id] = None
                case Allocation():
                    self._unsettled[record.namespace, record.job_id] = None
                case SchedulerConfiguration() | NodePool() | Namespace() | Quota():
                    self._blocked.try_all()
                case Job():
                    self._unsettled[record.namespace, record.id] = None
                case Deployment():
                    self._unsettled[record.namespace, record.job_id] = None
                case None if change.table == EVALUATIONS.name:
                    self._broker.forget(change.key)
                    self._blocked.forget(change.key)
                case None if change.table == NODES.name:
                    self._heartbeats.forget(change.key)
                    self._nodes_changed[change.key] = None  # Perhaps not all of its jobs were looked at.
                case None | Member():
                    self._members_changed = self._members_changed or change.table == MEMBERS.name
                case _:
                    pass
        self._wake.set()

    # -- thinking --------------------------------------------------------------------------------------------------

    async def _think(self) -> None:
        while self.is_leading:
            self._wake.clear()
            try:
                busy = await self._think_once()
            except (Refusal, TransitionRefused) as refusal:
                if isinstance(refusal, TransitionRefused):
                    self._writer.refusal_of_step(refusal)
                else:
                    log.warning("the log took no write: %s", refusal.text)
                busy = False
                asyncio.get_running_loop().call_later(RETRY_S, self._wake.set)
            if not busy:
                await self._wait()

    async def _think_once(self) -> bool:
        """One thing that is to be done, the most urgent first; False when there is nothing."""
        late = self._heartbeats.late(self._world.monotonic_s())
        if late:
            self._silent |= dict.fromkeys(late)
            log.warning("silent for longer than their heartbeats may take: %s", self._names_of(late))
        if self._silent:
            await self._give_up_node(next(iter(self._silent)))
        elif self._unsettled:
            await self._settle()
        elif self._members_changed:
            await self._raise_format()
        elif self._nodes_changed:
            await self._look_at_node(next(iter(self._nodes_changed)))
        elif self._is_paused():
            return False
        elif self._is_anything_to_unblock():
            await self._unblock()
        else:
            self._broker.wake(self._world.now_ns())
            evaluation = self._broker.next()
            if evaluation is None:
                return False
            is_done = True
            try:
                is_done = await self._process(evaluation)
            finally:
                if is_done:
                    self._broker.done(evaluation)
        return True

    def _is_anything_to_unblock(self) -> bool:
        self._blocked.try_after_conflicts(self._world.now_ns())
        return self._blocked.is_anything_to_try

    def _is_paused(self) -> bool:
        """An operator has the scheduler rest: evaluations are kept, and nothing is made of them."""
        configuration = self._follower.replica.get(SCHEDULER_CONFIGURATION)
        return configuration is not None and configuration.pause_eval_broker

    def _names_of(self, node_ids: Sequence[str]) -> str:
        """For people: names, and ids where there is no name."""
        nodes = [self._follower.replica.get(NODES, node_id) for node_id in node_ids[:NAMES_SAID]]
        names = [node.name if node is not None and node.name else i for node, i in zip(nodes, node_ids, strict=False)]
        more = len(node_ids) - len(names)
        return ", ".join(names) + (f" and {more} more nodes" if more else "")

    async def _give_up_node(self, node_id: str) -> None:
        """Mark a silent node down, unless it is heard of in the last moment. Whatever fails, it is tried again."""
        # To the end of the row, so that one that cannot be marked does not stand before all others.
        del self._silent[node_id]
        self._silent[node_id] = None

        def miss(snapshot: Replica, moment: Moment) -> Decision[nodes.NodeWritten]:
            if self._heartbeats.is_expected(node_id):
                return Decision(None, nodes.NodeWritten)
            return nodes.miss_heartbeat(snapshot, node_id, moment, evaluations_max=self.evaluations_max)

        await self.decide(miss)
        self._silent.pop(node_id, None)
        if self._heartbeats.is_expected(node_id):  # It was heard of while that was on its way.
            await self.decide(partial(_come_back, node_id, self.evaluations_max))
            return
        node = self._follower.replica.get(NODES, node_id)
        if node is not None and node.status is NodeStatus.DISCONNECTED:
            # What it runs may go on for a while only: when its time is over once more, that is decided again.
            self._heard(node_id)

    async def _settle(self) -> None:
        """Make statuses and summaries true where somebody else's write left them behind."""
        jobs = list(islice(self._unsettled, max(1, self.changes_max // CHANGES_A_JOB)))
        for job in jobs:
            del self._unsettled[job]
        is_settled = False
        try:
            async with self._writing:
                write = settling(self._follower.replica, jobs, Cause(CauseKind.TIMER, "settle"))
                is_settled = write is None or not isinstance(await self._commit(write), Conflict)
        finally:
            if not is_settled:
                self._unsettled |= dict.fromkeys(jobs)

    async def _raise_format(self) -> None:
        """Write newer forms of records as soon as every member reads them."""
        self._members_changed = False
        is_done = False
        try:
            async with self._writing:
                write = raise_format(self._follower.replica)
                is_done = write is None or not isinstance(await self._commit(write), Conflict)
        finally:
            self._members_changed = self._members_changed or not is_done

    async def _look_at_node(self, node_id: str) -> None:
        """Evaluations that did not fit in the node's own write."""
        del self._nodes_changed[node_id]
        is_done = False
        try:
            async with self._writing:
                decision = nodes.look_at_the_rest(
                    self._follower.replica, node_id, self._writer.moment(), evaluations_max=self.evaluations_max
                )
                is_done = decision is None
                if decision is not None and decision.write is not None:
                    await self._commit(decision.write)
        finally:
            if not is_done:
                self._nodes_changed[node_id] = None

    async def _unblock(self) -> None:
        """Room came free: what waits for such room is tried again."""
        async with self._writing:
            replica = self._follower.replica
            waiting = self._blocked.to_try(min(UNBLOCKED_AT_ONCE, self.evaluations_max))
            blocked = [
                stands
                for each in waiting
                if (stands := replica.get(EVALUATIONS, each.id)) is not None
                and stands.status is EvaluationStatus.BLOCKED
            ]
            for evaluation in waiting:
                if evaluation not in blocked:
                    self._blocked.forget(evaluation.id)
            if blocked:
                await self._commit(evaluations.unblock(replica, blocked, self._writer.moment()))

    async def _process(self, evaluation: Evaluation) -> bool:
        """One evaluation. An error of our own has it tried again later, and stops nobody else. False: it is not done."""
        try:
            await self._plan_and_commit(evaluation)
        except Refusal:
            raise
        except TransitionRefused as illegal:
            await self._fail(evaluation, self._writer.refusal_of_step(illegal).text)
        except Exception as error:  # The top of a task: what one evaluation does must not stop all others.
            log.exception("evaluation %s of job %s failed", evaluation.id, evaluation.job_id)
            if self._broker.give_back(evaluation, self._world.now_ns()):
                return False
            why = f"the scheduler failed: {type(error).__name__}; the leader's log tells of it"
            wait_ns = FOLLOW_UP_NS + self._world.random.randrange(FOLLOW_UP_SPREAD_NS)
            await self._end_as_failed(evaluation, partial(evaluations.reach_delivery_limit, why=why, wait_ns=wait_ns))
        return True

    async def _fail(self, evaluation: Evaluation, why: str) -> None:
        await self._end_as_failed(evaluation, partial(evaluations.fail, why=why))

    async def _end_as_failed(self, evaluation: Evaluation, ending: Callable[..., Write]) -> None:
        """`ending` makes the write of the state, the evaluation as it stands, and the moment."""
        async with self._writing:
            replica = self._follower.replica
            current = replica.get(EVALUATIONS, evaluation.id)
            if current is not None and current.status is EvaluationStatus.PENDING:
                await self._commit(ending(replica, current, moment=self._writer.moment()))

    async def _plan_and_commit(self, evaluation: Evaluation) -> None:
        """Plan, check, commit part by part. Where it does not come to its end it stays pending, and runs again; but not
        for ever, if none of its plans changes anything.
        """
        replica = self._follower.replica
        current = replica.get(EVALUATIONS, evaluation.id)
        if current is None or current.status is not EvaluationStatus.PENDING:
            self._attempts.pop(evaluation.id, None)
            return
        has_come_on = await self._carry_out(schedule(self._keeper.ground, replica, current, self._writer.moment()))
        attempts = 0 if has_come_on else self._attempts.get(evaluation.id, 0) + 1
        stands = replica.get(EVALUATIONS, evaluation.id)
        if stands is None or stands.status is not EvaluationStatus.PENDING:
            self._attempts.pop(evaluation.id, None)
        elif attempts >= attempts_of(evaluation):
            self._attempts.pop(evaluation.id, None)
            await self._end_as_failed(evaluation, partial(evaluations.give_up_trying, attempts=attempts))
        else:
            self._attempts[evaluation.id] = attempts

    async def _carry_out(self, plan: Plan) -> bool:
        """Whether anything of the plan was committed."""
        rest: Plan | None = plan
        changes_max, conflicts, has_come_on = self.changes_max, 0, False
        while rest is not None and conflicts < ATTEMPTS_MAX:
            try:
                async with self._writing:
                    checked = check(rest, self._follower.replica, changes_max=changes_max, ground=self._keeper.ground)
                    if checked.write is None:
                        return has_come_on
                    outcome = await self._commit(checked.write)
            except Refusal as refusal:
                if refusal.code is not Code.TOO_LARGE or changes_max <= CHANGES_LEAST:
                    raise
                changes_max = max(CHANGES_LEAST, changes_max // 2)  # Few, but large.
                continue
            if isinstance(outcome, Conflict):
                conflicts += 1
            else:
                rest, has_come_on = checked.rest, True
        return has_come_on

    @property
    def changes_max(self) -> int:
        """How many changes, each with a condition, a write may have beside what follows from it."""
        return min(self._bounds.changes, self._bounds.conditions) - ROOM_FOR_DERIVED

    @property
    def evaluations_max(self) -> int:
        """How many evaluations, each with what follows from it, fit in a write beside a node's own records."""
        return max(1, (self.changes_max - CHANGES_A_NODE) // CHANGES_AN_EVALUATION)

    async def _wait(self) -> None:
        """Until something happens or the next node may be late."""
        until_s = self._heartbeats.next_deadline() - self._world.monotonic_s()
        due = [] if self._is_paused() else [self._broker.next_wake_ns(), self._blocked.next_wake_ns()]
        for due_ns in filter(None, due):
            until_s = min(until_s, max(0.0, (due_ns - self._world.now_ns()) / SECOND_NS))
        try:
            async with asyncio.timeout(until_s if until_s < float("inf") else None):
                await self._wake.wait()
        except TimeoutError:
            pass

    # -- writing ---------------------------------------------------------------------------------------------------

    def _as_leader(self, write: Write) -> Write:
        """The write with all that follows from it, good only while this election lasts."""
        if self._leadership is None or not self.is_leading:
            raise no_leader()
        derived = with_derived(self._follower.replica, write)
        return replace(derived, conditions=[*derived.conditions, self._leadership.condition()])

    async def _commit(self, write: Write) -> Committed | Conflict:
        """Commit as leader; afterwards the replica shows what was committed, or what stood in the way. It is decided and
        committed under `_writing`.
        """
        assert self._writing.locked(), "the leader writes one thing after the other"
        outcome = await self._writer.commit(self._as_leader(write))
        if isinstance(outcome, Committed):
            await self._follower.reached(outcome.index)
        else:
            await self._writer.catch_up()
        return outcome

    async def decide(self, decide: Callable[[Replica, Moment], Decision[T]]) -> T:
        """Write what is decided as soon as it is its turn, with all that follows from it. For those who answer what is
        asked of the leader (`server.answering`).
        """

        def as_leader(snapshot: Replica, moment: Moment) -> Decision[T]:
            if not self.is_leading:
                raise no_leader()
            decision = decide(snapshot, moment)
            return decision if decision.write is None else replace(decision, write=self._as_leader(decision.write))

        async with self._writing:
            return await self._writer.write(as_leader)

    # -- leadership by request -------------------------------------------------------------------------------------

    async def hand_over(self, heir: str) -> None:
        """End this leadership in favour of another member. What is being written is written first."""
        async with self._writing:
            leadership = self._leadership
            if leadership is None or not self.is_leading:
                raise no_leader()
            try:
                is_offered = await leadership.hand_over(heir)
            except (Behind, Unavailable) as away:
                raise Refusal(Code.UNDECIDED, f"nobody can tell whether {heir} was made leader: {away}") from away
        self._wake.set()
        if not is_offered:
            raise no_leader()
        log.info("the leadership was handed over", extra={"to": heir})

    async def standing(self) -> ServerStanding:
        """Where this server stands in the log, and how long the log takes to prove that it is there."""
        replica, began_s = self._follower.replica, self._world.monotonic_s()
        try:
            async with asyncio.timeout(CONTACT_WITHIN_S):
                await self._writer.catch_up()
        except (Refusal, TimeoutError):
            return ServerStanding(replica.index, replica.epoch, None)
        took_s = self._world.monotonic_s() - began_s
        return ServerStanding(replica.index, replica.epoch, round(took_s * SECOND))

    def figures(self) -> BrainFigures:
        """How much there is to do. Of who does not lead nothing is expected."""
        if not self.is_leading:
            return BrainFigures(is_leading=False)
        ready, behind, busy = self._broker.counts()
        return BrainFigures(
            is_leading=True,
            ready=ready,
            behind=behind,
            busy=busy,
            unsettled_jobs=len(self._unsettled),
            silent_nodes=len(self._silent),
            nodes_expected=self._heartbeats.expected,
        )

    # -- what others ask -------------------------------------------------------------------------------------------

    async def register_node(self, node: Node) -> tuple[nodes.NodeWritten, float]:
        """A node says what it is; answers for how many seconds it is believed to be alive."""
        most = self.evaluations_max
        written = await self.decide(
            lambda snapshot, moment: nodes.register(snapshot, node, moment, evaluations_max=most)
        )
        return self._asked_for_all(node.id, written), self._heard(node.id)

    async def heartbeat(self, node_id: str) -> tuple[nodes.NodeWritten, float]:
        """A node is alive; answers for how many seconds it is believed so."""
        if not self.is_leading:
            raise no_leader()
        node = self._follower.replica.get(NODES, node_id)
        written = nodes.NodeWritten(0)
        if node is None or node.status is not NodeStatus.READY:
            written = await self.decide(partial(_come_back, node_id, self.evaluations_max))
        return self._asked_for_all(node_id, written), self._heard(node_id)

    def _asked_for_all(self, node_id: str, written: nodes.NodeWritten) -> nodes.NodeWritten:
        """A log that was replaced by an older copy has lost reports that were answered, and nodes say nothing twice by
        themselves: in a later epoch each is asked once a term for all that it knows.
        """
        is_asked = bool(self._epoch) and node_id not in self._told_all
        return replace(written, must_report=True) if is_asked else written

    def _heard(self, node_id: str) -> float:
        self._wake.set()  # The next deadline may be sooner than the one that is waited for.
        return self._heartbeats.heard(node_id, self._world.monotonic_s())

    async def report(
        self,
        node_id: str,
        reports: Sequence[nodes.AllocationReport],
        *,
        report_id: str = "",
        is_whole: bool = False,
    ) -> nodes.NodeWritten:
        """A node says what its allocations do; answers when that is committed. The same report again changes nothing."""
        taken = self._reports_taken.setdefault(node_id, OrderedDict())
        if report_id in taken:
            return taken[report_id]
        if is_whole:
            named = {told.id: None for told in reports}
            reports = [*reports, *nodes.forgotten(self._follower.replica, node_id, named)]
        written = await self._report_in_parts(node_id, reports, is_whole=is_whole)
        if is_whole:
            self._told_all[node_id] = None
        written = self._asked_for_all(node_id, written)
        if report_id:
            taken[report_id] = written
            if len(taken) > REPORTS_REMEMBERED:
                taken.popitem(last=False)
        return written

    async def _report_in_parts(
        self, node_id: str, reports: Sequence[nodes.AllocationReport], *, is_whole: bool
    ) -> nodes.NodeWritten:
        """Each allocation's report stands alone, so what does not fit in one write goes in several."""
        most = self.evaluations_max
        try:
            return await self.decide(
                lambda snapshot, moment: nodes.report(
                    snapshot, node_id, reports, moment, is_whole=is_whole, evaluations_max=most
                )
            )
        except Refusal as refusal:
            if refusal.code is not Code.TOO_LARGE or len(reports) < 2:
                raise
        half = len(reports) // 2
        await self._report_in_parts(node_id, reports[:half], is_whole=False)
        return await self._report_in_parts(node_id, reports[half:], is_whole=is_whole)

    async def set_eligibility(self, node_id: str, eligible: bool) -> nodes.NodeWritten:
        most = self.evaluations_max
        return await self.decide(
            lambda snapshot, moment: nodes.set_eligibility(snapshot, node_id, eligible, moment, evaluations_max=most)
        )


def _come_back(node_id: str, evaluations_max: int, snapshot: Replica, moment: Moment) -> Decision[nodes.NodeWritten]:
    return nodes.come_back(snapshot, node_id, moment, evaluations_max=evaluations_max)


HEARD: Final = frozenset({
    MEMBERS.name, EVALUATIONS.name, NODES.name, ALLOCATIONS.name, JOBS.name, DEPLOYMENTS.name,
    SCHEDULER_CONFIGURATION.name, NODE_POOLS.name, NAMESPACES.name, QUOTAS.name,
})  # fmt: skip
