"""Plans the next evaluation while the log commits the plan before it.

Such a plan assumes that the plan before it is committed completely. Like every plan it is checked before it is
committed. It is discarded if the earlier plan fails or a record that it relies on has changed. Only evaluations that
depend on other jobs through free capacity alone are planned ahead.
"""

import logging
from collections.abc import Sequence

from wharf.cluster.scheduling.plans.plan import Plan
from wharf.cluster.scheduling.scheduler import can_plan_ahead
from wharf.cluster.server.leader.planner import LeaderPlanner
from wharf.cluster.server.leader.queues import LeaderQueues
from wharf.cluster.server.log.follower import Follower
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS, EVALUATIONS, JOBS
from wharf.contract.model.evaluations import Evaluation

log = logging.getLogger(__name__)


class PrePlanner:
    """Plans the next evaluation while the log commits the plan before it, and holds the evaluation and its plan.

    The evaluation broker counts the held evaluation as in process.
    """

    def __init__(self, follower: Follower, queues: LeaderQueues, planner: LeaderPlanner) -> None:
        self._follower = follower
        self._queues = queues
        self._planner = planner
        self._evaluation: Evaluation | None = None
        self._plan: Plan | None = None

    def reset(self) -> None:
        """Drop the held evaluation and plan, because the rebuilt evaluation broker contains the evaluation again."""
        self._evaluation = self._plan = None

    def discard_plan(self) -> None:
        """Drop the plan, because the plan before it was not committed as assumed. The evaluation is held further."""
        self._plan = None

    def take(self) -> tuple[Evaluation, Plan | None] | None:
        """Return and clear the held evaluation, with its plan, or `None` instead of a plan that is no longer valid.

        Returns `None` if no evaluation is held.
        """
        evaluation, plan = self._evaluation, self._plan
        self._evaluation = self._plan = None
        if evaluation is None:
            return None
        return evaluation, plan if plan is not None and self._is_still_valid(plan) else None

    async def plan_next(self, *current_plans: Plan) -> None:
        """Take the next evaluation and plan it, as if all of `current_plans` were committed.

        It is held without a plan if it cannot be planned ahead.
        """
        broker = self._queues.broker
        # The order of retried evaluations depends on the result of the one before, so they are not planned ahead.
        if self._evaluation is not None or broker.remaining_slots:
            return
        self._evaluation = evaluation = broker.take_next()
        replica = self._follower.replica
        if evaluation is None or not self._can_plan(evaluation, current_plans):
            return
        current = replica.get(EVALUATIONS, evaluation.id)
        if current is None or current.modify_index != evaluation.modify_index:
            return
        try:
            plan = await self._planner.plan(current, committing=current_plans)
        except Exception:  # The evaluation fails when it is processed; the plan being committed must not.
            log.debug("pre-planning failed evaluation=%s", evaluation.id, exc_info=True)
            return
        if self._evaluation is evaluation:  # Else the queues were rebuilt meanwhile.
            self._plan = plan

    def _can_plan(self, evaluation: Evaluation, current_plans: Sequence[Plan]) -> bool:
        """Whether the result of this evaluation depends on `current_plans` only through free capacity."""
        for plan in current_plans:
            job_key = (plan.evaluation.namespace, plan.evaluation.job_id)
            if any((record.allocation.namespace, record.allocation.job_id) != job_key for record in plan.changes):
                return False  # The plan preempts allocations of other jobs.
        return can_plan_ahead(self._follower.replica, evaluation)

    def _is_still_valid(self, plan: Plan) -> bool:
        """Whether the job and all records that the plan changes are still as they were when it was made."""
        replica, evaluation = self._follower.replica, plan.evaluation
        job = replica.get(JOBS, evaluation.namespace, evaluation.job_id)
        if job is None or plan.job is None:
            return job is plan.job
        versions = [(replica.get_version(EVALUATIONS, evaluation.id), evaluation.modify_index)]
        versions += [(replica.get_version(DEPLOYMENTS, record.id), record.modify_index) for record in plan.deployments]
        versions += [
            (replica.get_version(ALLOCATIONS, record.allocation.id), record.allocation.modify_index)
            for record in plan.changes
        ]
        is_same_job = (job.create_index, job.job_modify_index) == (plan.job.create_index, plan.job.job_modify_index)
        return is_same_job and all(stored_version == planned_version for stored_version, planned_version in versions)
