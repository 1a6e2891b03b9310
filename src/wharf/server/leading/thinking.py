"""A leader's work: one thing after the other, the most urgent first, for as long as it leads.

What there is to do is on the `agenda`. An error of the log's has the same tried again; whatever is not done stays there.
"""

import asyncio
import logging
from itertools import islice
from typing import Final

from wharf.engines.port import Conflict
from wharf.model.changes import Cause, CauseKind
from wharf.model.evaluation import EvaluationStatus
from wharf.model.machine import TransitionRefused
from wharf.model.refusal import Refusal
from wharf.operations import evaluations, nodes
from wharf.operations.derived import settling
from wharf.operations.formats import raise_format
from wharf.scheduling.line import Line
from wharf.scheduling.reserving import is_still_of_use, node_for, who_is_next
from wharf.server.follower import Follower
from wharf.server.leading.agenda import Agenda
from wharf.server.leading.applier import Applier
from wharf.server.leading.node_care import NodeCare
from wharf.server.leading.term import CHANGES_A_JOB, Term
from wharf.server.writer import Writer
from wharf.state.tables import EVALUATIONS, SCHEDULER_CONFIGURATION
from wharf.world import World

log = logging.getLogger(__name__)

UNBLOCKED_AT_ONCE: Final = 50
RETRIED_IN_A_ROW: Final = 500
"""After so many that waited, and were tried again, as many new ones get their turn as are tried at once."""

RETRY_S: Final = 0.5
SECOND_NS: Final = 1_000_000_000


class Thinking:
    def __init__(
        self,
        world: World,
        follower: Follower,
        writer: Writer,
        *,
        term: Term,
        agenda: Agenda,
        nodes: NodeCare,
        applier: Applier,
    ) -> None:
        self._world = world
        self._follower = follower
        self._writer = writer
        self._term = term
        self._agenda = agenda
        self._nodes = nodes
        self._applier = applier
        self._retried = 0
        """How many of those that waited were tried in a row: each new one that had its turn takes some off."""

    async def run(self) -> None:
        """As long as this server leads."""
        while self._term.is_leading:
            self._agenda.woken.clear()
            try:
                busy = await self._think_once()
            except (Refusal, TransitionRefused) as refusal:
                if isinstance(refusal, TransitionRefused):
                    self._writer.refusal_of_step(refusal)
                else:
                    log.warning("the log took no write: %s", refusal.text)
                busy = False
                asyncio.get_running_loop().call_later(RETRY_S, self._agenda.woken.set)
            if not busy:
                await self._wait()

    async def _think_once(self) -> bool:
        """One thing that is to be done, the most urgent first; False when there is nothing."""
        agenda = self._agenda
        self._nodes.note_silence()
        if self._nodes.silent:
            await self._nodes.give_up_next()
        elif agenda.unsettled:
            await self._settle()
        elif agenda.have_members_changed:
            await self._raise_format()
        elif agenda.nodes_changed:
            await self._look_at_node(next(iter(agenda.nodes_changed)))
        elif self._is_paused():
            return False
        elif self._is_anything_to_unblock():
            await self._unblock()
        elif agenda.blocked.is_time_to_reserve(self._world.now_ns()) and await self._reserve():
            return True
        else:
            turns = agenda.broker.turns_left
            was_any = await self._applier.process_next()
            if agenda.broker.turns_left == turns:  # Nobody's who waited for room before.
                self._retried = max(0, self._retried - RETRIED_IN_A_ROW // UNBLOCKED_AT_ONCE)
            return was_any
        return True

    def _is_anything_to_unblock(self) -> bool:
        """Those that are tried together come to their end first, so that the next are tried in an order that knows of it;
        and they leave new work a turn.
        """
        broker, blocked = self._agenda.broker, self._agenda.blocked
        blocked.try_after_conflicts(self._world.now_ns())
        if not blocked.is_anything_to_try or broker.turns_left:
            return False
        return self._retried < RETRIED_IN_A_ROW or not broker.counts()[0]

    def _is_paused(self) -> bool:
        """An operator has the scheduler rest: evaluations are kept, and nothing is made of them."""
        configuration = self._follower.replica.get(SCHEDULER_CONFIGURATION)
        return configuration is not None and configuration.pause_eval_broker

    async def _settle(self) -> None:
        """Make statuses and summaries true where somebody else's write left them behind."""
        unsettled = self._agenda.unsettled
        jobs = list(islice(unsettled, max(1, self._term.changes_max // CHANGES_A_JOB)))
        for job in jobs:
            del unsettled[job]
        is_settled = False
        try:
            async with self._term.writing:
                write = settling(self._follower.replica, jobs, Cause(CauseKind.TIMER, "settle"))
                is_settled = write is None or not isinstance(await self._term.commit(write), Conflict)
        finally:
            if not is_settled:
                self._agenda.unsettled |= dict.fromkeys(jobs)

    async def _raise_format(self) -> None:
        """Write newer forms of records as soon as every member reads them."""
        agenda = self._agenda
        agenda.have_members_changed = False
        is_done = False
        try:
            async with self._term.writing:
                write = raise_format(self._follower.replica)
                is_done = write is None or not isinstance(await self._term.commit(write), Conflict)
        finally:
            agenda.have_members_changed = agenda.have_members_changed or not is_done

    async def _look_at_node(self, node_id: str) -> None:
        """Evaluations that did not fit in the node's own write."""
        del self._agenda.nodes_changed[node_id]
        is_done = False
        try:
            async with self._term.writing:
                most = self._term.evaluations_max
                moment = self._writer.moment()
                decision = nodes.look_at_the_rest(self._follower.replica, node_id, moment, evaluations_max=most)
                is_done = decision is None
                if decision is not None and decision.write is not None:
                    await self._term.commit(decision.write)
        finally:
            if not is_done:
                self._agenda.nodes_changed[node_id] = None

    async def _unblock(self) -> None:
        """Room came free: what waits for such room is tried again."""
        async with self._term.writing:
            replica, blocked, broker = self._follower.replica, self._agenda.blocked, self._agenda.broker
            line = Line(replica, self._agenda.keeper.ground)
            waiting = blocked.to_try(min(UNBLOCKED_AT_ONCE, self._term.evaluations_max), line.order)
            standing = [
                stands
                for each in waiting
                if (stands := replica.get(EVALUATIONS, each.id)) is not None
                and stands.status is EvaluationStatus.BLOCKED
            ]
            for evaluation in waiting:
                if evaluation not in standing:
                    blocked.forget(evaluation.id)
            if not standing:
                return
            self._retried += len(standing)
            broker.give_turns(standing)
            is_done = False
            try:
                write = evaluations.unblock(replica, standing, self._writer.moment())
                is_done = not isinstance(await self._term.commit(write), Conflict)
            finally:
                if not is_done:
                    broker.take_turns_back(standing)

    async def _reserve(self) -> bool:
        """Who has waited too long is given a node; one that is of no use any more is given back. Whether anything was done."""
        async with self._term.writing:
            replica, ground = self._follower.replica, self._agenda.keeper.ground
            is_done = False
            for reservation in list(ground.reservations.values()):
                waits = replica.get(EVALUATIONS, reservation.evaluation_id)
                is_waiting = waits is not None and waits.status is EvaluationStatus.BLOCKED
                if waits is not None and is_waiting and not is_still_of_use(replica, ground, reservation):
                    await self._term.commit(evaluations.reserve(replica, waits, ""))
                    is_done = True
            those, standing = self._agenda.blocked.waiting(), ground.reservations
            for evaluation in who_is_next(replica, ground, those, standing.values(), self._world.now_ns()):
                node_id = node_for(replica, ground, evaluation, standing.values())
                if node_id:
                    await self._term.commit(evaluations.reserve(replica, evaluation, node_id))
                    is_done = True
            return is_done

    async def _wait(self) -> None:
        """Until something happens or the next node may be late."""
        agenda = self._agenda
        until_s = self._nodes.heartbeats.next_deadline() - self._world.monotonic_s()
        due = [] if self._is_paused() else [agenda.broker.next_wake_ns(), agenda.blocked.next_wake_ns()]
        for due_ns in filter(None, due):
            until_s = min(until_s, max(0.0, (due_ns - self._world.now_ns()) / SECOND_NS))
        try:
            async with asyncio.timeout(until_s if until_s < float("inf") else None):
                await agenda.woken.wait()
        except TimeoutError:
            pass
