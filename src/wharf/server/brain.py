"""The leader's mind: evaluations become plans, silent nodes are given up, statuses are kept true.

Every server has a brain; only the leader's acts. It decides with the pure packages, commits, and sees what it did come
back through the log like everybody else.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from wharf.controllers.broker import Broker
from wharf.controllers.heartbeats import Heartbeats, HeartbeatSettings
from wharf.engines.port import Batch, Conflict, Engine
from wharf.model.allocation import Allocation
from wharf.model.changes import Cause, CauseKind, Write
from wharf.model.cluster import Member
from wharf.model.evaluation import Evaluation, EvaluationStatus
from wharf.model.moment import Moment
from wharf.model.node import Node, NodeStatus
from wharf.model.refusal import Refusal, no_leader
from wharf.operations import evaluations, nodes
from wharf.operations.decision import Decision
from wharf.operations.derived import JobKey, settling, with_derived
from wharf.operations.formats import raise_format
from wharf.scheduling.evaluate import evaluate
from wharf.scheduling.plan import check
from wharf.server.follower import Follower
from wharf.server.leadership import Election, Leadership
from wharf.server.writer import Writer
from wharf.state import Replica
from wharf.state.tables import ALLOCATIONS, DEPLOYMENTS, EVALUATIONS, EVALUATIONS_BY_STATUS, JOBS, MEMBERS, NODES
from wharf.world import World

log = logging.getLogger(__name__)

T = TypeVar("T")

ROOM_FOR_DERIVED: Final = 8
"""Changes and conditions kept free in each part of a plan: statuses, summaries, the leader's condition."""

UNBLOCKED_AT_ONCE: Final = 50
RETRY_S: Final = 0.5


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
        self._heartbeat_settings = heartbeats or HeartbeatSettings()
        self._leadership: Leadership | None = None
        self._wake = asyncio.Event()
        self._reset()
        follower.listeners.append(self._hear)
        follower.on_load.append(self._on_load)

    def _reset(self) -> None:
        self._broker = Broker()
        self._heartbeats = Heartbeats(self._heartbeat_settings, self._world.random)
        self._unsettled: dict[JobKey, None] = {}
        self._room_came_free = False
        self._members_changed = True

    # -- leading ---------------------------------------------------------------------------------------------------

    @property
    def is_leading(self) -> bool:
        return self._leadership is not None and self._leadership.is_held()

    async def run(self) -> None:
        """Until cancelled: be elected, lead, lose, and again."""
        await self._follower.loaded.wait()
        while True:
            leadership = await self._election.campaign()
            log.info("elected leader")
            # What was committed before the election must be known before anything is decided.
            await self._follower.reached(leadership.condition().version)
            self._leadership = leadership
            self._rebuild()
            thinking = self._world.start(self._think(), name="brain")
            losing = self._world.start(leadership.lost(), name="leadership")
            try:
                await asyncio.wait([thinking, losing], return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._leadership = None
                for task in (thinking, losing):
                    task.cancel()
                await asyncio.gather(thinking, losing, return_exceptions=True)
            log.warning("no longer leader")

    def _on_load(self) -> None:
        if self._leadership is not None:
            self._rebuild()

    def _rebuild(self) -> None:
        """Queues and timers from the state: a new leader knows nothing else."""
        self._reset()
        replica, now_s = self._follower.replica, self._world.monotonic_s()
        for evaluation in replica.those(EVALUATIONS_BY_STATUS, EvaluationStatus.PENDING):
            self._broker.hear(evaluation)
        for node in replica.all(NODES):
            if node.status is not NodeStatus.DOWN:
                self._heartbeats.inherit(node.id, now_s)
        self._unsettled = {(job.namespace, job.id): None for job in replica.all(JOBS)}
        self._room_came_free = True
        self._wake.set()

    def _hear(self, batch: Batch) -> None:
        """Take note of what a batch changed. Called for every batch, so it only looks and remembers."""
        if self._leadership is None:
            return
        replica = self._follower.replica
        for change in batch.changes:
            if change.table not in HEARD:
                continue
            record: Any = replica.get(replica.tables[change.table], change.key)
            match record:
                case Evaluation():
                    self._broker.hear(record)
                    self._unsettled[record.namespace, record.job_id] = None
                case Node():
                    self._room_came_free = self._room_came_free or record.is_ready_for_placements
                case Allocation():
                    self._unsettled[record.namespace, record.job_id] = None
                    self._room_came_free = self._room_came_free or not record.is_occupying
                case None | Member():
                    self._members_changed = self._members_changed or change.table == MEMBERS.name
                case _:
                    job_id = record.id if change.table == JOBS.name else record.job_id
                    self._unsettled[record.namespace, job_id] = None
        self._wake.set()

    # -- thinking --------------------------------------------------------------------------------------------------

    async def _think(self) -> None:
        while self.is_leading:
            self._wake.clear()
            try:
                busy = await self._think_once()
            except Refusal as refusal:
                log.warning("the log took no write: %s", refusal.text)
                busy = False
                self._world_wakes_soon()
            if not busy:
                await self._wait()

    async def _think_once(self) -> bool:
        """One thing that is to be done, the most urgent first; False when there is nothing."""
        replica = self._follower.replica
        late = self._heartbeats.late(self._world.monotonic_s())
        if late:
            for node_id in late:
                log.warning("node %s missed its heartbeat", node_id)
                await self._decide(partial(_miss_heartbeat, node_id))
            return True
        if self._unsettled:
            jobs, self._unsettled = (
                list(self._unsettled)[:UNBLOCKED_AT_ONCE],
                dict.fromkeys(list(self._unsettled)[UNBLOCKED_AT_ONCE:]),
            )
            write = settling(replica, jobs, Cause(CauseKind.TIMER, "settle"))
            if write is not None and isinstance(await self._commit(write), Conflict):
                self._unsettled |= dict.fromkeys(jobs)
            return True
        if self._members_changed:
            self._members_changed = False
            write = raise_format(replica)
            if write is not None:
                await self._commit(write)
            return True
        if self._room_came_free:
            self._room_came_free = False
            await self._unblock(replica)
            return True
        evaluation = self._broker.next()
        if evaluation is None:
            return False
        try:
            await self._process(evaluation)
        finally:
            self._broker.done(evaluation)
        return True

    async def _unblock(self, replica: Replica) -> None:
        blocked = replica.those(EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED)
        for start in range(0, len(blocked), UNBLOCKED_AT_ONCE):
            some = blocked[start : start + UNBLOCKED_AT_ONCE]
            await self._commit(evaluations.unblock(replica, some, self._writer.moment()))

    async def _process(self, evaluation: Evaluation) -> None:
        """Plan, check, commit part by part. On a conflict the evaluation stays pending and runs again on the new state."""
        replica = self._follower.replica
        current = replica.get(EVALUATIONS, evaluation.id)
        if current is None or current.status is not EvaluationStatus.PENDING:
            return
        plan = evaluate(replica, current, self._writer.moment())
        for part in check(plan, replica, changes_max=self._changes_max).parts:
            if isinstance(await self._commit(part), Conflict):
                return

    @property
    def _changes_max(self) -> int:
        return min(self._bounds.changes, self._bounds.conditions) - ROOM_FOR_DERIVED

    async def _wait(self) -> None:
        """Until something happens or the next node may be late."""
        until_s = self._heartbeats.next_deadline() - self._world.monotonic_s()
        try:
            async with asyncio.timeout(until_s if until_s < float("inf") else None):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _world_wakes_soon(self) -> None:
        asyncio.get_running_loop().call_later(RETRY_S, self._wake.set)

    # -- writing ---------------------------------------------------------------------------------------------------

    def _as_leader(self, write: Write) -> Write:
        """The write with all that follows from it, good only while this election lasts."""
        if self._leadership is None or not self._leadership.is_held():
            raise no_leader()
        derived = with_derived(self._follower.replica, write)
        return replace(derived, conditions=[*derived.conditions, self._leadership.condition()])

    async def _commit(self, write: Write) -> object:
        outcome = await self._writer.commit(self._as_leader(write))
        if not isinstance(outcome, Conflict):
            await self._follower.reached(outcome.index)
        return outcome

    async def _decide(self, decide: Callable[[Replica, Moment], Decision[T]]) -> T:
        def as_leader(snapshot: Replica, moment: Moment) -> Decision[T]:
            decision = decide(snapshot, moment)
            return decision if decision.write is None else replace(decision, write=self._as_leader(decision.write))

        return await self._writer.write(as_leader)

    # -- what others ask -------------------------------------------------------------------------------------------

    async def register_node(self, node: Node) -> tuple[int, float]:
        """A node says what it is; answers with the index and the seconds for which it is believed to be alive."""
        written = await self._decide(lambda snapshot, moment: nodes.register(snapshot, node, moment))
        return written.index, self._heartbeats.heard(node.id, self._world.monotonic_s())

    async def heartbeat(self, node_id: str) -> float:
        """A node is alive; answers for how many seconds it is believed so."""
        if not self.is_leading:
            raise no_leader()
        node = self._follower.replica.get(NODES, node_id)
        if node is None or node.status is not NodeStatus.READY:
            await self._decide(lambda snapshot, moment: nodes.come_back(snapshot, node_id, moment))
        self._wake.set()  # The next deadline may be sooner than the one that is waited for.
        return self._heartbeats.heard(node_id, self._world.monotonic_s())

    async def report(self, node_id: str, reports: Sequence[nodes.AllocationReport]) -> int:
        """A node says what its allocations do; answers when that is committed."""
        written = await self._decide(lambda snapshot, moment: nodes.report(snapshot, node_id, reports, moment))
        return written.index

    async def set_eligibility(self, node_id: str, eligible: bool) -> nodes.NodeWritten:
        return await self._decide(lambda snapshot, moment: nodes.set_eligibility(snapshot, node_id, eligible, moment))


def _miss_heartbeat(node_id: str, snapshot: Replica, moment: Moment) -> Decision[nodes.NodeWritten]:
    return nodes.miss_heartbeat(snapshot, node_id, moment)


HEARD: Final = frozenset({MEMBERS.name, EVALUATIONS.name, NODES.name, ALLOCATIONS.name, JOBS.name, DEPLOYMENTS.name})
