"""The plan of the evaluation whose turn is next, made while the plan before it is on its way to the log.

Such a plan counts what is on its way as if it stood. It is a proposal like every plan: it is checked against the state
before anything of it is committed. Where the plan before it did not come true, or what it rests on has moved on, it is
made again. Only what rests on nothing of other jobs but the room they leave is planned ahead.
"""

import logging

from wharf.model.allocation import Allocation
from wharf.model.evaluation import Evaluation
from wharf.scheduling.plan import Plan
from wharf.scheduling.schedule import schedule
from wharf.scheduling.standing_alone import rests_on_room_alone
from wharf.server.follower import Follower
from wharf.server.leading.agenda import Agenda
from wharf.server.writer import Writer
from wharf.state.tables import ALLOCATIONS, DEPLOYMENTS, EVALUATIONS, JOBS

log = logging.getLogger(__name__)


class Foresight:
    """Holds at most one evaluation, which the broker counts as being processed."""

    def __init__(self, follower: Follower, writer: Writer, agenda: Agenda) -> None:
        self._follower = follower
        self._writer = writer
        self._agenda = agenda
        self._next: Evaluation | None = None
        self._plan: Plan | None = None

    def begin_anew(self) -> None:
        """The queue was filled anew: it holds the evaluation again."""
        self._next = self._plan = None

    def forget_plan(self) -> None:
        """What it counted on did not come true."""
        self._plan = None

    def take(self) -> tuple[Evaluation, Plan | None] | None:
        """The evaluation that was foreseen, with its plan if that still rests on what stands."""
        evaluation, plan = self._next, self._plan
        self._next = self._plan = None
        if evaluation is None:
            return None
        return evaluation, plan if plan is not None and self._still_rests(plan) else None

    def look(self, on_its_way: Plan) -> None:
        """Plan what is next, on the room that is left when this plan has come true."""
        broker = self._agenda.broker
        # Those that waited for room are tried in an order that follows from how the one before ended.
        if self._next is not None or broker.turns_left:
            return
        self._next = evaluation = broker.next()
        replica = self._follower.replica
        if evaluation is None or not self._may_be_planned(evaluation, on_its_way):
            return
        current = replica.get(EVALUATIONS, evaluation.id)
        if current is None or current.modify_index != evaluation.modify_index:
            return
        ground = self._agenda.keeper.ground
        try:
            with ground.fleet.expecting(self._still_to_come(on_its_way)):
                self._plan = schedule(ground, replica, current, self._writer.moment())
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
        if any((each.shall.namespace, each.shall.job_id) != of for each in on_its_way.changes):
            return False  # It pushes others aside.
        return rests_on_room_alone(self._follower.replica, evaluation)

    def _still_rests(self, plan: Plan) -> bool:
        replica, evaluation = self._follower.replica, plan.evaluation
        job = replica.get(JOBS, evaluation.namespace, evaluation.job_id)
        if job is None or plan.job is None:
            return job is plan.job
        seen = [(replica.version(EVALUATIONS, evaluation.id), evaluation.modify_index)]
        seen += [(replica.version(DEPLOYMENTS, each.id), each.modify_index) for each in plan.deployments]
        seen += [(replica.version(ALLOCATIONS, each.shall.id), each.shall.modify_index) for each in plan.changes]
        is_same_job = (job.create_index, job.job_modify_index) == (plan.job.create_index, plan.job.job_modify_index)
        return is_same_job and all(stands == was for stands, was in seen)
