"""A leader's work: one thing after the other, the most urgent first, for as long as it leads.

What there is to do is on the `agenda`. An error of the log's has the same tried again; whatever is not done stays there.
"""

import asyncio
import logging
from itertools import islice
from typing import Final

from wharf.cluster.engines.port import WriteConflict
from wharf.cluster.operations import evaluations
from wharf.cluster.operations.agents import upgrade_record_format
from wharf.cluster.operations.derived_state import build_derived_write
from wharf.cluster.operations.nodes import evaluations as nodes_to_cluster_operations_nodes_evaluations
from wharf.cluster.scheduling.blocked.reservation_policy import (
    find_node_to_reserve,
    is_reservation_useful,
    select_evaluations_to_reserve,
)
from wharf.cluster.scheduling.blocked.retry_order import RetryOrder
from wharf.cluster.server.leader.evaluation_processor import EvaluationProcessor
from wharf.cluster.server.leader.node_monitor import NodeMonitor
from wharf.cluster.server.leader.queues import LeaderQueues
from wharf.cluster.server.leader.term import CHANGES_PER_JOB, LeaderTerm
from wharf.cluster.server.log.follower import Follower
from wharf.cluster.server.log.writer import Writer
from wharf.cluster.state.tables import EVALUATIONS, SCHEDULER_CONFIGURATION
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.log import Cause, CauseKind
from wharf.contract.model.refusal import Refusal
from wharf.contract.model.state_machines.machine import InvalidTransition
from wharf.world import World

log = logging.getLogger(__name__)

MAX_UNBLOCKED_PER_PASS: Final = 50
MAX_CONSECUTIVE_RETRIES: Final = 500
"""After so many that waited, and were tried again, as many new ones get their turn as are tried at once."""

RETRY_DELAY_S: Final = 0.5
SECOND_NS: Final = 1_000_000_000


class LeaderLoop:
    def __init__(
        self,
        world: World,
        follower: Follower,
        writer: Writer,
        *,
        term: LeaderTerm,
        queues: LeaderQueues,
        node_monitor: NodeMonitor,
        processor: EvaluationProcessor,
    ) -> None:
        self._world = world
        self._follower = follower
        self._writer = writer
        self._term = term
        self._agenda = queues
        self._nodes = node_monitor
        self._applier = processor
        self._retried = 0
        """How many of those that waited were tried in a row: each new one that had its turn takes some off."""

    async def run(self) -> None:
        """As long as this server leads."""
        while self._term.is_leading:
            self._agenda.wake_event.clear()
            try:
                busy = await self._think_once()
            except (Refusal, InvalidTransition) as refusal:
                if isinstance(refusal, InvalidTransition):
                    self._writer.refuse_transition(refusal)
                else:
                    log.warning("the log took no write: %s", refusal.text)
                busy = False
                asyncio.get_running_loop().call_later(RETRY_DELAY_S, self._agenda.wake_event.set)
            if not busy:
                await self._wait()

    async def _think_once(self) -> bool:
        """One thing that is to be done, the most urgent first; False when there is nothing."""
        agenda = self._agenda
        self._nodes.record_silent_nodes()
        if self._nodes.silent_nodes:
            await self._nodes.mark_next_silent_down()
        elif agenda.unsettled_jobs:
            await self._settle()
        elif agenda.have_members_changed:
            await self._raise_format()
        elif agenda.changed_nodes:
            await self._look_at_node(next(iter(agenda.changed_nodes)))
        elif self._is_paused():
            return False
        elif self._is_anything_to_unblock():
            await self._unblock()
        elif agenda.blocked.start_reservation_check(self._world.now_ns()) and await self._reserve():
            return True
        else:
            turns = agenda.broker.remaining_slots
            was_any = await self._applier.process_next()
            if agenda.broker.remaining_slots == turns:  # Nobody's who waited for room before.
                self._retried = max(0, self._retried - MAX_CONSECUTIVE_RETRIES // MAX_UNBLOCKED_PER_PASS)
            return was_any
        return True

    def _is_anything_to_unblock(self) -> bool:
        """Those that are tried together come to their end first, so that the next are tried in an order that knows of it;
        and they leave new work a turn.
        """
        broker, blocked = self._agenda.broker, self._agenda.blocked
        blocked.retry_conflicted(self._world.now_ns())
        if not blocked.has_retries or broker.remaining_slots:
            return False
        return self._retried < MAX_CONSECUTIVE_RETRIES or not broker.count_queues()[0]

    def _is_paused(self) -> bool:
        """An operator has the scheduler rest: evaluations are kept, and nothing is made of them."""
        configuration = self._follower.replica.get(SCHEDULER_CONFIGURATION)
        return configuration is not None and configuration.pause_eval_broker

    async def _settle(self) -> None:
        """Make statuses and summaries true where somebody else's write left them behind."""
        unsettled = self._agenda.unsettled_jobs
        jobs = list(islice(unsettled, max(1, self._term.max_changes // CHANGES_PER_JOB)))
        for job in jobs:
            del unsettled[job]
        is_settled = False
        try:
            async with self._term.write_lock:
                write = build_derived_write(self._follower.replica, jobs, Cause(CauseKind.TIMER, "settle"))
                is_settled = write is None or not isinstance(await self._term.commit(write), WriteConflict)
        finally:
            if not is_settled:
                self._agenda.unsettled_jobs |= dict.fromkeys(jobs)

    async def _raise_format(self) -> None:
        """Write newer forms of records as soon as every member reads them."""
        agenda = self._agenda
        agenda.have_members_changed = False
        is_done = False
        try:
            async with self._term.write_lock:
                write = upgrade_record_format(self._follower.replica)
                is_done = write is None or not isinstance(await self._term.commit(write), WriteConflict)
        finally:
            agenda.have_members_changed = agenda.have_members_changed or not is_done

    async def _look_at_node(self, node_id: str) -> None:
        """Evaluations that did not fit in the node's own write."""
        del self._agenda.changed_nodes[node_id]
        is_done = False
        try:
            async with self._term.write_lock:
                most = self._term.max_evaluations
                moment = self._writer.read_clock()
                decision = nodes_to_cluster_operations_nodes_evaluations.evaluate_remaining_jobs(
                    self._follower.replica, node_id, moment, max_evaluations=most
                )
                is_done = decision is None
                if decision is not None and decision.write is not None:
                    await self._term.commit(decision.write)
        finally:
            if not is_done:
                self._agenda.changed_nodes[node_id] = None

    async def _unblock(self) -> None:
        """Room came free: what waits for such room is tried again."""
        async with self._term.write_lock:
            replica, blocked, broker = self._follower.replica, self._agenda.blocked, self._agenda.broker
            line = RetryOrder(replica, self._agenda.fleet_updater.ground)
            waiting = blocked.select_retries(
                min(MAX_UNBLOCKED_PER_PASS, self._term.max_evaluations), line.sort_evaluations
            )
            standing = [
                stands
                for each in waiting
                if (stands := replica.get(EVALUATIONS, each.id)) is not None
                and stands.status is EvaluationStatus.BLOCKED
            ]
            for evaluation in waiting:
                if evaluation not in standing:
                    blocked.remove(evaluation.id)
            if not standing:
                return
            self._retried += len(standing)
            broker.assign_slots(standing)
            is_done = False
            try:
                write = evaluations.unblock_evaluations(replica, standing, self._writer.read_clock())
                is_done = not isinstance(await self._term.commit(write), WriteConflict)
            finally:
                if not is_done:
                    broker.release_slots(standing)

    async def _reserve(self) -> bool:
        """Who has waited too long is given a node; one that is of no use any more is given back. Whether anything was done."""
        async with self._term.write_lock:
            replica, ground = self._follower.replica, self._agenda.fleet_updater.ground
            is_done = False
            for reservation in list(ground.reservations.values()):
                waits = replica.get(EVALUATIONS, reservation.evaluation_id)
                is_waiting = waits is not None and waits.status is EvaluationStatus.BLOCKED
                if waits is not None and is_waiting and not is_reservation_useful(replica, ground, reservation):
                    await self._term.commit(evaluations.reserve_node(replica, waits, ""))
                    is_done = True
            those, standing = self._agenda.blocked.list_waiting(), ground.reservations
            for evaluation in select_evaluations_to_reserve(
                replica, ground, those, standing.values(), self._world.now_ns()
            ):
                node_id = find_node_to_reserve(replica, ground, evaluation, standing.values())
                if node_id:
                    await self._term.commit(evaluations.reserve_node(replica, evaluation, node_id))
                    is_done = True
            return is_done

    async def _wait(self) -> None:
        """Until something happens or the next node may be late."""
        agenda = self._agenda
        until_s = self._nodes.heartbeats.next_deadline_s() - self._world.monotonic_s()
        due = [] if self._is_paused() else [agenda.broker.next_wake_ns(), agenda.blocked.next_wake_ns()]
        for due_ns in filter(None, due):
            until_s = min(until_s, max(0.0, (due_ns - self._world.now_ns()) / SECOND_NS))
        try:
            async with asyncio.timeout(until_s if until_s < float("inf") else None):
                await agenda.wake_event.wait()
        except TimeoutError:
            pass
