"""Processes evaluations: plan, check the plan against the newest state, commit it in parts.

Only this module writes new allocations. `scheduling` makes the plan and checks it.
"""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from wharf.cluster.engines.port import WriteConflict
from wharf.cluster.operations import evaluations
from wharf.cluster.scheduling.plans.check import check_plan
from wharf.cluster.scheduling.plans.plan import Plan
from wharf.cluster.scheduling.scheduler import can_plan_ahead, get_max_plan_attempts
from wharf.cluster.server.leader.plan_group import MAX_GROUP_PLANS, PlanGroup, can_join_group
from wharf.cluster.server.leader.planner import LeaderPlanner
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
"""The fewest changes to which a part of a plan is reduced after a write was too large."""
MAX_PART_CHANGES: Final = 500
"""The largest part of a plan, unless it is all or nothing.

Limits how long a read waits while a part is applied, and lets the brain plan the next evaluation during a commit.
"""

MAX_GATHERING_S: Final = 0.005
"""The CPU time in which plans for one write are made: limits the delay of the first one, and how long the event loop is held.

Not elapsed time: on a busy machine, a write would have only one or two plans, and would cost more for each."""

FOLLOW_UP_DELAY_NS: Final = 60 * SECOND
MAX_FOLLOW_UP_JITTER_NS: Final = 300 * SECOND
"""A failed evaluation is retried after `FOLLOW_UP_DELAY_NS` plus a random time up to this."""


class EvaluationProcessor:
    """Processes the evaluations of the evaluation broker, one at a time: plans each and commits the plan."""

    def __init__(
        self, world: World, follower: Follower, writer: Writer, term: LeaderTerm, queues: LeaderQueues
    ) -> None:
        self._world = world
        self._follower = follower
        self._writer = writer
        self._term = term
        self._queues = queues
        self._attempts: dict[str, int] = {}
        """Consecutive plans without progress, by evaluation id."""
        self._planner = LeaderPlanner(world, follower, writer, queues)
        self._pre_planner = PrePlanner(follower, queues, self._planner)
        follower.load_listeners.append(self.reset)

    def reset(self) -> None:
        """Clear the attempt counts and the plan made ahead, for a new term or a reloaded replica."""
        self._attempts.clear()
        self._pre_planner.reset()

    async def process_next(self) -> bool:
        """Process the next evaluation of the evaluation broker, with others if their plans fit in one write.

        Return whether one was ready.
        """
        self._queues.broker.enqueue_due(self._world.now_ns())
        planned_ahead = self._pre_planner.take()
        evaluation, plan = planned_ahead if planned_ahead is not None else (self._queues.broker.take_next(), None)
        if evaluation is None:
            return False
        waiting = deque(self._gather_plans(evaluation, plan))
        is_done = True
        try:
            if len(waiting) > 1:
                await self._commit_together(waiting)
                while len(waiting) > 1:  # They return to the queue, because more urgent work may wait.
                    self._queues.broker.finish(waiting.pop()[0])
            if waiting:
                is_done = await self._process(*waiting[0])
        finally:
            if is_done:
                for evaluation, _ in waiting:
                    self._queues.broker.finish(evaluation)
        return True

    def _gather_plans(self, first: Evaluation, plan: Plan | None) -> "list[tuple[Evaluation, Plan | None]]":
        """Return the evaluation, and further queued ones that may share its write, each with its plan.

        A plan assumes that the plans before it are committed. Only the last evaluation may have no plan.
        """
        broker, replica = self._queues.broker, self._follower.replica
        members: list[tuple[Evaluation, Plan | None]] = [(first, plan)]
        # The order of retried evaluations depends on the result of the one before.
        if broker.remaining_slots or not broker.has_queued or not can_plan_ahead(replica, first):
            return members
        deadline_s = self._world.cpu_s() + MAX_GATHERING_S
        plans: list[Plan] = []
        while True:
            evaluation, plan = members[-1]
            if plan is None:
                plan = self._try_plan(evaluation, plans)
                members[-1] = (evaluation, plan)
            if plan is None or not can_join_group(plan):
                return members
            plans.append(plan)
            if len(plans) == MAX_GROUP_PLANS or self._world.cpu_s() >= deadline_s:
                return members
            following = broker.take_next()
            if following is None:
                return members
            members.append((following, None))
            if not can_plan_ahead(replica, following):
                return members

    def _try_plan(self, evaluation: Evaluation, earlier_plans: list[Plan]) -> Plan | None:
        """Plan the evaluation as if the earlier plans were committed.

        Return `None` if it must be processed alone: it is no longer pending, it is not small, or planning fails.
        """
        try:
            return self._planner.plan_small(evaluation, committing=earlier_plans)
        except Exception:  # It fails again when the evaluation is processed alone, and is then logged and counted.
            log.debug("planning for a shared write failed evaluation=%s", evaluation.id, exc_info=True)
            return None

    async def _commit_together(self, waiting: "deque[tuple[Evaluation, Plan | None]]") -> None:
        """Commit the first plans in one write, as many as can share it, and remove and finish their evaluations.

        The others stay in `waiting`. The plan of the first of them relies on committed plans only. Nothing is removed if
        fewer than two plans can share a write, or if it conflicts.
        """
        is_committed = False
        group: PlanGroup | None = None
        try:
            async with self._term.write_lock:
                group = PlanGroup(
                    self._follower.replica, self._queues.fleet_updater.cache, max_changes=self._term.max_changes
                )
                for _, plan in waiting:
                    if plan is None or not group.try_add(plan):
                        break
                if len(group.plans) > 1:
                    is_whole = len(group.plans) == len(waiting)
                    meanwhile = partial(self._pre_planner.plan_next, *group.plans) if is_whole else None
                    outcome = await self._term.commit(group.build_write(), meanwhile=meanwhile)
                    is_committed = not isinstance(outcome, WriteConflict)
        except Refusal as refusal:
            if refusal.code is not RefusalCode.TOO_LARGE:
                raise
        except Exception:  # The evaluation that causes it fails again when it is processed alone, and is then logged.
            log.debug("shared write of plans failed", exc_info=True)
        finally:
            if not is_committed:
                self._pre_planner.discard_plan()
        for _ in group.plans if group is not None and is_committed else ():
            evaluation, _ = waiting.popleft()
            self._attempts.pop(evaluation.id, None)
            self._queues.broker.finish(evaluation)

    async def _process(self, evaluation: Evaluation, plan: Plan | None) -> bool:
        """Process one evaluation, with the plan made ahead if there is one. Return whether it is finished.

        After an unexpected error, the evaluation is delivered again later; after too many errors, it fails and gets a
        follow-up evaluation.
        """
        try:
            await self._plan_and_commit(evaluation, plan)
        except Refusal as refusal:
            if refusal.code is not RefusalCode.TOO_LARGE:
                raise
            # Not even its failure fits in a write. It waits, so that others are processed meanwhile.
            log.warning(
                "evaluation not finished evaluation=%s job=%s reason=%s", evaluation.id, evaluation.job_id, refusal
            )
            return not self._queues.broker.redeliver_later(evaluation, self._world.now_ns())
        except InvalidTransition as error:
            await self._fail(evaluation, self._writer.refuse_transition(error).text)
        except Exception as error:  # One failed evaluation must not stop all others.
            log.exception("evaluation failed evaluation=%s job=%s", evaluation.id, evaluation.job_id)
            if self._queues.broker.redeliver_later(evaluation, self._world.now_ns()):
                return False
            reason = f"the scheduler failed: {type(error).__name__}; see the leader's log"
            delay_ns = FOLLOW_UP_DELAY_NS + self._world.random.randrange(MAX_FOLLOW_UP_JITTER_NS)
            await self._commit_if_pending(
                evaluation, partial(evaluations.fail_at_delivery_limit, reason=reason, delay_ns=delay_ns)
            )
        return True

    async def _fail(self, evaluation: Evaluation, reason: str) -> None:
        """Mark the evaluation as failed with this reason, if it is still pending."""
        await self._commit_if_pending(evaluation, partial(evaluations.fail_evaluation, reason=reason))

    async def _commit_if_pending(self, evaluation: Evaluation, build_write: Callable[..., Write]) -> None:
        """Commit the write that `build_write` makes for the evaluation, if the evaluation is still pending."""
        async with self._term.write_lock:
            replica = self._follower.replica
            current = replica.get(EVALUATIONS, evaluation.id)
            if current is not None and current.status is EvaluationStatus.PENDING:
                await self._term.commit(build_write(replica, current, context=self._writer.read_clock()))

    async def _plan_and_commit(self, evaluation: Evaluation, plan: Plan | None) -> None:
        """Plan the evaluation, check the plan and commit it in parts.

        `plan`: the plan made ahead, or `None`. An evaluation that is not complete stays pending and is processed again.
        After too many plans without progress it becomes blocked.
        """
        replica = self._follower.replica
        current = replica.get(EVALUATIONS, evaluation.id)
        if current is None or current.status is not EvaluationStatus.PENDING:
            self._attempts.pop(evaluation.id, None)
            return
        if plan is None:
            plan = await self._planner.plan(current)
        if plan is None:
            self._attempts.pop(evaluation.id, None)
            return
        has_progress = await self._commit_plan(plan)
        attempts = 0 if has_progress else self._attempts.get(evaluation.id, 0) + 1
        latest = replica.get(EVALUATIONS, evaluation.id)
        if latest is None or latest.status is not EvaluationStatus.PENDING:
            self._attempts.pop(evaluation.id, None)
        elif attempts >= get_max_plan_attempts(evaluation):
            self._attempts.pop(evaluation.id, None)
            await self._commit_if_pending(evaluation, partial(evaluations.block_after_conflicts, attempts=attempts))
        else:
            self._attempts[evaluation.id] = attempts

    async def _commit_plan(self, plan: Plan) -> bool:
        """Commit the plan and return whether any part of it was committed.

        Unless all of it was committed, the plan made ahead is discarded, because it relies on this one.
        """
        is_fully_committed = False
        try:
            has_progress, is_fully_committed = await self._commit_in_parts(plan)
        finally:
            if not is_fully_committed:
                self._pre_planner.discard_plan()
        return has_progress

    async def _commit_in_parts(self, plan: Plan) -> tuple[bool, bool]:
        """Commit the plan in parts. Return whether any part was committed, and whether the whole plan was.

        While the log commits a part, the next evaluation is planned. A conflict or a write that is too large is
        retried.
        """
        remaining: Plan | None = plan
        max_changes, conflicts, has_progress, is_fully_committed = self._term.max_changes, 0, False, True
        rejection = ""
        if not plan.all_at_once:
            max_changes = min(max_changes, MAX_PART_CHANGES)
        while remaining is not None and conflicts < MAX_ATTEMPTS:
            try:
                async with self._term.write_lock:
                    cache = self._queues.fleet_updater.cache
                    checked = check_plan(remaining, self._follower.replica, max_changes=max_changes, cache=cache)
                    if checked.write is None:
                        rejection = checked.rejection
                        is_fully_committed = False
                        break
                    is_fully_committed = is_fully_committed and not checked.dropped_nodes
                    meanwhile = partial(self._pre_planner.plan_next, remaining)
                    outcome = await self._term.commit(checked.write, meanwhile=meanwhile)
            except Refusal as refusal:
                if refusal.code is not RefusalCode.TOO_LARGE:
                    raise
                if plan.all_at_once:
                    rejection = f"the plan does not fit in one write, as AllAtOnce requires: {refusal.text}"
                    break
                if max_changes <= MIN_PART_CHANGES:
                    rejection = f"even a small part of the plan does not fit in one write: {refusal.text}"
                    break
                max_changes = max(
                    MIN_PART_CHANGES, max_changes // 2
                )  # Few changes, but large records: try smaller parts.
                continue
            if isinstance(outcome, WriteConflict):
                conflicts, is_fully_committed = conflicts + 1, False
            else:
                remaining, has_progress = checked.remaining_plan, True
        if rejection:
            await self._fail(plan.evaluation, rejection)
        return has_progress, is_fully_committed and remaining is None
