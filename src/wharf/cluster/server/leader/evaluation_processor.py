"""Makes of an evaluation a plan, and of a plan what stands in the log: checked against the newest state, part by part.

It alone adds to what nodes hold. What a plan says is decided by `scheduling`; whether it still holds, by its `check`.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from wharf.cluster.engines.port import WriteConflict
from wharf.cluster.operations import evaluations
from wharf.cluster.scheduling.plans.plan import Plan, check_plan
from wharf.cluster.scheduling.scheduler import get_max_plan_attempts, plan_evaluation
from wharf.cluster.server.leader.pre_planning import PrePlanner
from wharf.cluster.server.leader.queues import LeaderQueues
from wharf.cluster.server.leader.term import LeaderTerm
from wharf.cluster.server.log.follower import Follower
from wharf.cluster.server.log.writer import MAX_ATTEMPTS, Writer
from wharf.cluster.state.tables import EVALUATIONS
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus
from wharf.contract.model.log import Write
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.state_machines.machine import InvalidTransition
from wharf.contract.model.times import SECOND
from wharf.world import World

log = logging.getLogger(__name__)

MIN_PART_CHANGES: Final = 4
MAX_PART_CHANGES: Final = 500
"""A part of a plan has no more, unless the plan is all or nothing: a read waits for the part that is being taken in, and
the brain plans the next while the first of two is on its way, whichever its size."""

FOLLOW_UP_DELAY_NS: Final = 60 * SECOND
MAX_FOLLOW_UP_JITTER_NS: Final = 300 * SECOND
"""When something that could not be processed is tried anew: after this, and by chance up to so much later."""


class EvaluationProcessor:
    def __init__(
        self, world: World, follower: Follower, writer: Writer, term: LeaderTerm, agenda: LeaderQueues
    ) -> None:
        self._world = world
        self._follower = follower
        self._writer = writer
        self._term = term
        self._agenda = agenda
        self._attempts: dict[str, int] = {}
        """How often plans of an evaluation came to nothing, one after the other."""
        self._foresight = PrePlanner(follower, writer, agenda)
        follower.load_listeners.append(self.reset)

    def reset(self) -> None:
        self._attempts.clear()
        self._foresight.reset()

    async def process_next(self) -> bool:
        """The evaluation whose turn it is. False: there is none."""
        self._agenda.broker.enqueue_due(self._world.now_ns())
        foreseen = self._foresight.take()
        evaluation, plan = foreseen if foreseen is not None else (self._agenda.broker.take_next(), None)
        if evaluation is None:
            return False
        is_done = True
        try:
            is_done = await self._process(evaluation, plan)
        finally:
            if is_done:
                self._agenda.broker.finish(evaluation)
        return True

    async def _process(self, evaluation: Evaluation, plan: Plan | None) -> bool:
        """One evaluation, with its plan if that was foreseen. An error of our own has it tried again later, and stops nobody else. False: it is not done."""
        try:
            await self._plan_and_commit(evaluation, plan)
        except Refusal:
            raise
        except InvalidTransition as illegal:
            await self._fail(evaluation, self._writer.refuse_transition(illegal).text)
        except Exception as error:  # The top of a task: what one evaluation does must not stop all others.
            log.exception("evaluation %s of job %s failed", evaluation.id, evaluation.job_id)
            if self._agenda.broker.redeliver_later(evaluation, self._world.now_ns()):
                return False
            why = f"the scheduler failed: {type(error).__name__}; the leader's log tells of it"
            wait_ns = FOLLOW_UP_DELAY_NS + self._world.random.randrange(MAX_FOLLOW_UP_JITTER_NS)
            await self._end_as_failed(
                evaluation, partial(evaluations.fail_at_delivery_limit, reason=why, delay_ns=wait_ns)
            )
        return True

    async def _fail(self, evaluation: Evaluation, why: str) -> None:
        await self._end_as_failed(evaluation, partial(evaluations.fail_evaluation, reason=why))

    async def _end_as_failed(self, evaluation: Evaluation, ending: Callable[..., Write]) -> None:
        """`ending` makes the write of the state, the evaluation as it stands, and the moment."""
        async with self._term.write_lock:
            replica = self._follower.replica
            current = replica.get(EVALUATIONS, evaluation.id)
            if current is not None and current.status is EvaluationStatus.PENDING:
                await self._term.commit(ending(replica, current, context=self._writer.read_clock()))

    async def _plan_and_commit(self, evaluation: Evaluation, plan: Plan | None) -> None:
        """Plan, check, commit part by part. Where it does not come to its end it stays pending, and runs again; but not
        for ever, if none of its plans changes anything.
        """
        replica = self._follower.replica
        current = replica.get(EVALUATIONS, evaluation.id)
        if current is None or current.status is not EvaluationStatus.PENDING:
            self._attempts.pop(evaluation.id, None)
            return
        if plan is None:
            plan = plan_evaluation(self._agenda.fleet_updater.ground, replica, current, self._writer.read_clock())
        has_come_on = await self._carry_out(plan)
        attempts = 0 if has_come_on else self._attempts.get(evaluation.id, 0) + 1
        stands = replica.get(EVALUATIONS, evaluation.id)
        if stands is None or stands.status is not EvaluationStatus.PENDING:
            self._attempts.pop(evaluation.id, None)
        elif attempts >= get_max_plan_attempts(evaluation):
            self._attempts.pop(evaluation.id, None)
            await self._end_as_failed(evaluation, partial(evaluations.block_after_conflicts, attempts=attempts))
        else:
            self._attempts[evaluation.id] = attempts

    async def _carry_out(self, plan: Plan) -> bool:
        """Whether anything of the plan was committed. What was planned ahead meanwhile counts on all of it."""
        is_as_planned = False
        try:
            has_come_on, is_as_planned = await self._commit_in_parts(plan)
        finally:
            if not is_as_planned:
                self._foresight.discard_plan()
        return has_come_on

    async def _commit_in_parts(self, plan: Plan) -> tuple[bool, bool]:
        """Whether anything was committed, and whether everything was as planned."""
        rest: Plan | None = plan
        changes_max, conflicts, has_come_on, is_as_planned = self._term.max_changes, 0, False, True
        refused = ""
        if not plan.all_at_once:
            changes_max = min(changes_max, MAX_PART_CHANGES)
        while rest is not None and conflicts < MAX_ATTEMPTS:
            try:
                async with self._term.write_lock:
                    ground = self._agenda.fleet_updater.ground
                    checked = check_plan(rest, self._follower.replica, max_changes=changes_max, cache=ground)
                    if checked.write is None:
                        refused = checked.rejection
                        is_as_planned = False
                        break
                    is_as_planned = is_as_planned and not checked.dropped_nodes
                    meanwhile = partial(self._foresight.plan_next, rest)
                    outcome = await self._term.commit(checked.write, meanwhile=meanwhile)
            except Refusal as refusal:
                if refusal.code is not RefusalCode.TOO_LARGE or changes_max <= MIN_PART_CHANGES:
                    raise
                if plan.all_at_once:
                    refused = f"AllAtOnce asks for more in one write than the log takes: {refusal.text}"
                    break
                changes_max = max(MIN_PART_CHANGES, changes_max // 2)  # Few, but large.
                continue
            if isinstance(outcome, WriteConflict):
                conflicts, is_as_planned = conflicts + 1, False
            else:
                rest, has_come_on = checked.remaining_plan, True
        if refused:
            await self._fail(plan.evaluation, refused)
        return has_come_on, is_as_planned and rest is None
