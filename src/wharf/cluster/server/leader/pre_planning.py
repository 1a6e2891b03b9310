"""The plan of the evaluation whose turn is next, made while the plan before it is on its way to the log.

Such a plan counts what is on its way as if it stood. It is a proposal like every plan: it is checked against the state
before anything of it is committed. Where the plan before it did not come true, or what it rests on has moved on, it is
made again. Only what rests on nothing of other jobs but the room they leave is planned ahead.
"""

import logging

from wharf.cluster.scheduling.plans.plan import Plan
from wharf.cluster.scheduling.scheduler import can_plan_ahead, plan_evaluation
from wharf.cluster.server.leader.queues import LeaderQueues
from wharf.cluster.server.log.follower import Follower
from wharf.cluster.server.log.writer import Writer
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS, EVALUATIONS, JOBS
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.evaluations import Evaluation

log = logging.getLogger(__name__)


class PrePlanner:
    """Holds at most one evaluation, which the broker counts as being processed."""

    def __init__(self, follower: Follower, writer: Writer, agenda: LeaderQueues) -> None:
        self._follower = follower
        self._writer = writer
        self._agenda = agenda
        self._next: Evaluation | None = None
        self._plan: Plan | None = None

    def reset(self) -> None:
        """The queue was filled anew: it holds the evaluation again."""
        self._next = self._plan = None

    def discard_plan(self) -> None:
        """What it counted on did not come true."""
        self._plan = None

    def take(self) -> tuple[Evaluation, Plan | None] | None:
        """The evaluation that was foreseen, with its plan if that still rests on what stands."""
        evaluation, plan = self._next, self._plan
        self._next = self._plan = None
        if evaluation is None:
            return None
        return evaluation, plan if plan is not None and self._still_rests(plan) else None

    def plan_next(self, on_its_way: Plan) -> None:
        """Plan what is next, on the room that is left when this plan has come true."""
        broker = self._agenda.broker
        # Those that waited for room are tried in an order that follows from how the one before ended.
        if self._next is not None or broker.remaining_slots:
            return
        self._next = evaluation = broker.take_next()
        replica = self._follower.replica
        if evaluation is None or not self._may_be_planned(evaluation, on_its_way):
            return
        current = replica.get(EVALUATIONS, evaluation.id)
        if current is None or current.modify_index != evaluation.modify_index:
            return
        ground = self._agenda.fleet_updater.ground
        try:
            with ground.fleet.expect_placements(self._still_to_come(on_its_way)):
                self._plan = plan_evaluation(ground, replica, current, self._writer.read_clock())
        except Exception:  # It is for the evaluation's own turn to fail; the plan on its way has nothing to do with it.
            log.debug("evaluation %s could not be planned ahead", evaluation.id, exc_info=True)

    def _still_to_come(self, on_its_way: Plan) -> dict[str, tuple[Allocation, ...]]:
        """A part of it may be here already."""
        replica = self._follower.replica
        return {
            node_id: placed
            for node_id, placed in on_its_way.placements.items()
            if replica.get(ALLOCATIONS, placed[0].id) is None
        }

    def _may_be_planned(self, evaluation: Evaluation, on_its_way: Plan) -> bool:
        of = (on_its_way.evaluation.namespace, on_its_way.evaluation.job_id)
        if any((each.allocation.namespace, each.allocation.job_id) != of for each in on_its_way.changes):
            return False  # It pushes others aside.
        return can_plan_ahead(self._follower.replica, evaluation)

    def _still_rests(self, plan: Plan) -> bool:
        replica, evaluation = self._follower.replica, plan.evaluation
        job = replica.get(JOBS, evaluation.namespace, evaluation.job_id)
        if job is None or plan.job is None:
            return job is plan.job
        seen = [(replica.get_version(EVALUATIONS, evaluation.id), evaluation.modify_index)]
        seen += [(replica.get_version(DEPLOYMENTS, each.id), each.modify_index) for each in plan.deployments]
        seen += [
            (replica.get_version(ALLOCATIONS, each.allocation.id), each.allocation.modify_index)
            for each in plan.changes
        ]
        is_same_job = (job.create_index, job.job_modify_index) == (plan.job.create_index, plan.job.job_modify_index)
        return is_same_job and all(stands == was for stands, was in seen)
