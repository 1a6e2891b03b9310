"""The leader loop: does the most urgent piece of work, then the next, while this server leads.

The work is in `queues`. Work that fails stays there and is retried.
"""

import asyncio
import logging
from itertools import islice
from typing import Final

from wharf.cluster.engines.port import WriteConflict
from wharf.cluster.operations import evaluations
from wharf.cluster.operations.agents import upgrade_record_format
from wharf.cluster.operations.derived_state import build_derived_write
from wharf.cluster.operations.nodes import evaluations as node_evaluations
from wharf.cluster.scheduling.blocked.reservation_policy import (
    choose_reservations,
    is_reservation_useful,
)
from wharf.cluster.scheduling.blocked.retry_order import RetryOrder
from wharf.cluster.server.cpu_budget import SLICE_S
from wharf.cluster.server.leader.evaluation_processor import EvaluationProcessor
from wharf.cluster.server.leader.node_monitor import NodeMonitor
from wharf.cluster.server.leader.queues import LeaderQueues
from wharf.cluster.server.leader.term import CHANGES_PER_JOB, LeaderTerm
from wharf.cluster.server.log.follower import Follower
from wharf.cluster.server.log.writer import Writer
from wharf.cluster.state.tables import EVALUATIONS, SCHEDULER_CONFIGURATION
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus
from wharf.contract.model.log import Cause, CauseKind
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.state_machines.machine import InvalidTransition
from wharf.contract.model.times import SECOND
from wharf.world import World
from wharf.world.log_limit import LogLimit
from wharf.world.tasks import wait_for_event

log = logging.getLogger(__name__)

MAX_UNBLOCKED_PER_PASS: Final = 50
"""How many blocked evaluations are retried in one write."""
MAX_SETTLED_PER_PASS: Final = 500
"""The statuses and summaries of how many jobs are written in one write. Limits how long this holds the loop."""
MAX_CONSECUTIVE_RETRIES: Final = 500
"""After this many retries of blocked evaluations, new evaluations are processed first."""

MAX_WAIT_S: Final = 60.0
"""Limits how late a delayed evaluation is processed after a change of the wall clock."""
RETRY_DELAY_S: Final = 0.5
"""How long to wait after a write that the log did not accept."""


class BatchSize:
    """How many items to change in one write. Records differ in size, so it is found out by trying.

    Halved after a write that was too large for the log, doubled after one that was not.
    """

    def __init__(self, largest: int) -> None:
        self.current = self._largest = max(1, largest)

    def grow(self) -> None:
        self.current = min(self._largest, self.current * 2)

    def shrink(self, tried: int) -> None:
        """Continue with half of the items that were too large together."""
        self.current = max(1, tried // 2)


class LeaderLoop:
    """Does the leader's pending work, the most urgent first, one piece at a time."""

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
        self._queues = queues
        self._node_monitor = node_monitor
        self._processor = processor
        self._consecutive_retries = 0
        """How many blocked evaluations were retried in a row. Each new evaluation that is processed lowers it."""
        self._retry_size = BatchSize(min(MAX_UNBLOCKED_PER_PASS, term.max_evaluations))
        self._settle_size = BatchSize(min(MAX_SETTLED_PER_PASS, term.max_changes // CHANGES_PER_JOB))
        self._log_limit = LogLimit(world)
        self._tried_to_reserve: set[str] = set()
        """See `choose_reservations`."""

    async def run(self) -> None:
        """Do pending work, or wait for some, while this server leads.

        After a write that the log did not accept, nothing is done for `RETRY_DELAY_S`, whatever else is due.
        """
        began_s = self._world.cpu_s()
        while self._term.is_leading:
            if self._world.cpu_s() - began_s >= SLICE_S:
                await asyncio.sleep(0)  # Much work, such as checks of 5,000 nodes after an election, needs no write.
                began_s = self._world.cpu_s()
            self._queues.wake_event.clear()
            try:
                did_work = await self._do_next()
            except (Refusal, InvalidTransition) as refusal:
                if isinstance(refusal, InvalidTransition):
                    self._writer.refuse_transition(refusal)
                else:
                    log.warning("leader write failed, will retry reason=%s", refusal.text)
                await asyncio.sleep(RETRY_DELAY_S)
                did_work = True  # It is still to be done.
            if not did_work:
                await self._wait()
                began_s = self._world.cpu_s()

    async def _do_next(self) -> bool:
        """Do the most urgent pending work. Return whether there was any.

        The order: nodes without heartbeat, job statuses and summaries, record format, changed nodes, blocked
        evaluations, reservations, new evaluations.
        """
        queues = self._queues
        self._node_monitor.record_silent_nodes()
        if self._node_monitor.silent_nodes:
            await self._node_monitor.mark_next_silent_down()
        elif queues.unsettled_jobs:
            await self._write_derived_state()
        elif queues.have_members_changed:
            await self._upgrade_record_format()
        elif queues.changed_nodes:
            await self._evaluate_node(next(iter(queues.changed_nodes)))
        elif self._is_paused():
            return False
        elif self._can_retry_blocked():
            await self._retry_blocked()
        elif queues.blocked.start_reservation_check(self._world.now_ns()) and await self._update_reservations():
            return True
        else:
            slots = queues.broker.remaining_slots
            was_processed = await self._processor.process_next()
            if queues.broker.remaining_slots == slots:  # It was not a retry of a blocked evaluation.
                self._consecutive_retries = max(
                    0, self._consecutive_retries - MAX_CONSECUTIVE_RETRIES // MAX_UNBLOCKED_PER_PASS
                )
            return was_processed
        return True

    def _can_retry_blocked(self) -> bool:
        """Whether to retry blocked evaluations now.

        The previous batch must be finished, because its result affects the retry order. New evaluations come first
        after `MAX_CONSECUTIVE_RETRIES`.
        """
        broker, blocked = self._queues.broker, self._queues.blocked
        blocked.retry_conflicted(self._world.now_ns())
        self._queues.mark_freed_locks()
        if not blocked.has_retries or broker.remaining_slots:
            return False
        return self._consecutive_retries < MAX_CONSECUTIVE_RETRIES or not broker.count_queues()[0]

    def _is_paused(self) -> bool:
        """Whether an operator has paused the evaluation broker. Evaluations then stay in the queue."""
        configuration = self._follower.replica.get(SCHEDULER_CONFIGURATION)
        return configuration is not None and configuration.pause_eval_broker

    async def _write_derived_state(self) -> None:
        """Write the statuses and summaries of jobs that other processes changed; as many jobs as fit in one write.

        If that fails, the jobs stay in the queue; but not a job that is too large for a write alone.
        """
        unsettled = self._queues.unsettled_jobs
        jobs = list(islice(unsettled, self._settle_size.current))
        for job in jobs:
            del unsettled[job]
        is_done = False
        try:
            async with self._term.write_lock:
                write = build_derived_write(self._follower.replica, jobs, Cause(CauseKind.TIMER, "settle"))
                is_done = write is None or not isinstance(
                    await self._term.commit(write, is_derived=True), WriteConflict
                )
                self._settle_size.grow()
        except Refusal as refusal:
            if refusal.code is not RefusalCode.TOO_LARGE:
                raise
            self._settle_size.shrink(len(jobs))
            is_done = len(jobs) == 1
            if is_done:
                namespace, job_id = jobs[0]
                log.warning("status of job not updated namespace=%s job=%s reason=%s", namespace, job_id, refusal)
        finally:
            if not is_done:
                self._queues.unsettled_jobs |= dict.fromkeys(jobs)

    async def _upgrade_record_format(self) -> None:
        """Write the newest record format that every member can read, if it is newer than the active one."""
        queues = self._queues
        queues.have_members_changed = False
        is_done = False
        try:
            async with self._term.write_lock:
                write = upgrade_record_format(self._follower.replica)
                is_done = write is None or not isinstance(await self._term.commit(write), WriteConflict)
        finally:
            queues.have_members_changed = queues.have_members_changed or not is_done

    async def _evaluate_node(self, node_id: str) -> None:
        """Create evaluations for jobs of a changed node that have none yet, as many as fit in one write.

        If some remain, the node stays in the queue.
        """
        del self._queues.changed_nodes[node_id]
        is_done = False
        try:
            async with self._term.write_lock:
                limit = self._term.max_evaluations
                context = self._writer.read_clock()
                decision = node_evaluations.evaluate_remaining_jobs(
                    self._follower.replica, node_id, context, max_evaluations=limit
                )
                is_done = decision is None
                if decision is not None and decision.write is not None:
                    await self._term.commit(decision.write)
        finally:
            if not is_done:
                self._queues.changed_nodes[node_id] = None

    async def _retry_blocked(self) -> None:
        """Unblock evaluations that can use freed capacity, in retry order, as many as fit in one write.

        One that is too large for a write alone stays blocked until capacity is freed again.
        """
        async with self._term.write_lock:
            replica, blocked, broker = self._follower.replica, self._queues.blocked, self._queues.broker
            retry_order = RetryOrder(replica, self._queues.fleet_updater.cache)
            selected = blocked.select_retries(self._retry_size.current, retry_order.sort_evaluations)
            still_blocked = [
                latest
                for entry in selected
                if (latest := replica.get(EVALUATIONS, entry.id)) is not None
                and latest.status is EvaluationStatus.BLOCKED
            ]
            for evaluation in selected:
                if evaluation not in still_blocked:
                    blocked.remove(evaluation.id)
            if not still_blocked:
                return
            self._consecutive_retries += len(still_blocked)
            broker.assign_slots(still_blocked)
            is_done = False
            try:
                write = evaluations.unblock_evaluations(replica, still_blocked, self._writer.read_clock())
                is_done = not isinstance(await self._term.commit(write), WriteConflict)
                self._retry_size.grow()
            except Refusal as refusal:
                if refusal.code is not RefusalCode.TOO_LARGE:
                    raise
                self._retry_size.shrink(len(still_blocked))
                if len(still_blocked) == 1:
                    blocked.cancel_retry(still_blocked[0].id)
                    self._log_too_large(still_blocked[0], refusal)
            finally:
                if not is_done:
                    broker.release_slots(still_blocked)

    def _log_too_large(self, evaluation: Evaluation, refusal: Refusal) -> None:
        """Log that the evaluation cannot be retried. Freed capacity may cause this often."""
        if self._log_limit.count_event(evaluation.id) is not None:
            log.warning(
                "blocked evaluation not retried evaluation=%s job=%s reason=%s",
                evaluation.id,
                evaluation.job_id,
                refusal,
            )

    async def _update_reservations(self) -> bool:
        """Release node reservations that no longer help, and reserve nodes for evaluations that have waited too long.

        Return whether anything was written.
        """
        async with self._term.write_lock:
            replica, cache = self._follower.replica, self._queues.fleet_updater.cache
            is_done = False
            for reservation in list(cache.reservations.values()):
                evaluation_waiting = replica.get(EVALUATIONS, reservation.evaluation_id)
                is_waiting = evaluation_waiting is not None and evaluation_waiting.status is EvaluationStatus.BLOCKED
                if (
                    evaluation_waiting is not None
                    and is_waiting
                    and not is_reservation_useful(replica, cache, reservation)
                ):
                    await self._term.commit(evaluations.reserve_node(replica, evaluation_waiting, ""))
                    is_done = True
            choices = choose_reservations(
                replica,
                cache,
                self._queues.blocked.list_waiting(),
                cache.reservations.values(),
                self._world.now_ns(),
                self._tried_to_reserve,
            )
            for evaluation, node_id in choices:
                if node_id:
                    await self._term.commit(evaluations.reserve_node(replica, evaluation, node_id))
                    is_done = True
                else:
                    await asyncio.sleep(0)  # A search takes up to some milliseconds.
            return is_done

    async def _wait(self) -> None:
        """Wait for new work or the next deadline: of a queue or of a heartbeat."""
        queues = self._queues
        timeout_s = self._node_monitor.compute_deadline_wait_s()
        # The wait uses the monotonic clock: a change of the wall clock must not delay evaluations for long.
        timeout_s = min(timeout_s, MAX_WAIT_S)
        wake_times_ns = [] if self._is_paused() else [queues.broker.next_wake_ns(), queues.blocked.next_wake_ns()]
        for wake_ns in filter(None, wake_times_ns):
            timeout_s = min(timeout_s, max(0.0, (wake_ns - self._world.now_ns()) / SECOND))
        await wait_for_event(queues.wake_event, timeout_s)
