"""Plans evaluations for the leader: small ones on the event loop, all others on a thread, so that heartbeats are received.

While a plan is made on the thread, the replica and the scheduler cache do not change: batches of the log wait. The plan is
therefore the same as one made on the event loop, and like every plan it is checked before it is committed (ADR 113).
"""

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Final

from wharf.cluster.scheduling.plans.plan import Plan
from wharf.cluster.scheduling.scheduler import is_small_evaluation, plan_evaluation
from wharf.cluster.server.leader.plan_group import merge_placements
from wharf.cluster.server.leader.queues import LeaderQueues
from wharf.cluster.server.log.follower import Follower
from wharf.cluster.server.log.writer import Writer
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus
from wharf.world import World

MAX_PLAN_ON_LOOP_S: Final = 0.008
"""The CPU time of a plan after which further plans of the same job are made on the thread, although the job looks small."""
MAX_REMEMBERED_JOBS: Final = 1_000
"""Limits the memory for jobs that look small and are not."""


class LeaderPlanner:
    """Plans evaluations, one at a time, without holding the event loop for long."""

    def __init__(self, world: World, follower: Follower, writer: Writer, queues: LeaderQueues) -> None:
        self._world = world
        self._follower = follower
        self._writer = writer
        self._queues = queues
        self._slow_jobs: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Jobs whose last plan on the event loop took too long."""

    async def plan(self, evaluation: Evaluation, *, committing: Sequence[Plan] = ()) -> Plan | None:
        """Return the plan of the evaluation; `None` if it is no longer pending.

        `committing`: plans that the log commits at this moment. Their placements count as used.
        """
        plan = self.plan_small(evaluation, committing=committing)
        if plan is not None:
            return plan
        async with self._follower.apply_lock:
            current = self._find_pending(evaluation)  # A batch may have been applied before the lock was free.
            if current is None:
                return None
            return await self._world.run_off_loop(partial(self._make_plan, current, committing))

    def plan_small(self, evaluation: Evaluation, *, committing: Sequence[Plan] = ()) -> Plan | None:
        """Return the plan of a small evaluation, made on the event loop; `None` if it is not small or no longer pending.

        `committing`: plans that will be committed before. Their placements count as used.
        """
        current = self._find_pending(evaluation)
        job_key = (evaluation.namespace, evaluation.job_id)
        cache = self._queues.fleet_updater.cache
        if (
            current is None
            or job_key in self._slow_jobs
            or not is_small_evaluation(cache, self._follower.replica, current)
        ):
            return None
        began_s = self._world.cpu_s()
        plan = self._make_plan(current, committing)
        if self._world.cpu_s() - began_s > MAX_PLAN_ON_LOOP_S:
            self._remember_slow_job(job_key)
        return plan

    def _find_pending(self, evaluation: Evaluation) -> Evaluation | None:
        """Return the stored record of the evaluation, or `None` if it is no longer pending."""
        current = self._follower.replica.get(EVALUATIONS, evaluation.id)
        return current if current is not None and current.status is EvaluationStatus.PENDING else None

    def _make_plan(self, evaluation: Evaluation, committing: Sequence[Plan]) -> Plan:
        """Return the plan of the evaluation. Runs on the event loop or on the thread."""
        cache, replica = self._queues.fleet_updater.cache, self._follower.replica
        expected: AbstractContextManager[None] = nullcontext()
        if committing:
            # New allocations of the other plans that the replica does not contain yet, by node id.
            expected = cache.fleet.expect_placements(
                {
                    node_id: placed
                    for node_id, placed in merge_placements(*committing).items()
                    if replica.get(ALLOCATIONS, placed[0].id) is None
                }
            )
        with expected:
            return plan_evaluation(cache, replica, evaluation, self._writer.read_clock())

    def _remember_slow_job(self, job_key: tuple[str, str]) -> None:
        """Make further plans of this job on the thread."""
        self._slow_jobs[job_key] = None
        if len(self._slow_jobs) > MAX_REMEMBERED_JOBS:
            self._slow_jobs.popitem(last=False)
