"""How an evaluation ends, and which evaluations it leaves behind (scheduling.md 1.5, 5.7)."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.scheduling.reconcile.outcome import FollowUp
from wharf.cluster.scheduling.reconcile.rescheduling import SECOND_NS
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, EVALUATIONS_OF_JOB, JOB_SUMMARIES, JOBS, NAMESPACES
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus, EvaluationTrigger
from wharf.contract.model.jobs.plan import PlanAnnotations
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.times import DecisionContext, to_datetime, to_ns

EXISTING_BLOCKED_TEXT: Final = 'existing blocked evaluation exists for job "{}"'
SUCCESSFUL_TEXT: Final = 'evaluation "{}" successful'
SUPERSEDED_TEXT: Final = "canceled after more recent eval was processed"
RECONNECTED_TEXT: Final = "canceled because nothing that it was to give up is out of contact any more"
UNPLACED_TEXT: Final = "created to place remaining allocations"
FOLLOW_UP_TEXTS: Final = {
    EvaluationTrigger.MAX_DISCONNECT_TIMEOUT: "created for delayed disconnect timeout",
    EvaluationTrigger.ALLOC_RESCHEDULE: "created for delayed rescheduling",
    EvaluationTrigger.ALLOC_FAILURE: "created for delayed rescheduling",
}
MAX_CANCELED_EVALUATIONS: Final = 2
"""So that the end of an evaluation fits the smallest write; those beyond are canceled by the next."""

TIME_PRECISION_NS: Final = 1_000
"""Times of evaluations are told as exactly as that."""

FOLLOW_UP_WINDOW_NS: Final = 5 * SECOND_NS
"""What is due within one window of another is looked at together with it."""

BLOCKED_TRIGGERS: Final = (EvaluationTrigger.QUEUED_ALLOCS, EvaluationTrigger.MAX_PLAN_ATTEMPTS)


class EvaluationResult(msgspec.Struct, frozen=True):
    """What the evaluation came to. `later`: what must be looked at again, and when."""

    failed_groups: dict[str, AllocMetric]
    queued_counts: dict[str, int]
    annotations: PlanAnnotations
    deployment_id: str
    follow_ups: tuple[FollowUp, ...]
    has_unique_constraints: bool = False
    has_placements: bool = False
    waits_behind: str = ""
    class_eligibility: dict[str, bool] | None = None
    """By class of nodes, whether such could take what is left; None: nobody asked, or kinds of nodes say nothing."""


class CompletedEvaluation(msgspec.Struct, frozen=True):
    """`marks`: allocation id to the evaluation that will look at it again."""

    evaluation: Evaluation
    follow_ups: tuple[Evaluation, ...]
    follow_up_ids: dict[str, str]


class EvaluationCompletion:
    def __init__(self, snapshot: Replica, evaluation: Evaluation, moment: DecisionContext) -> None:
        self._snapshot = snapshot
        self._evaluation = evaluation
        self._moment = moment

    def complete_evaluation(self, more: EvaluationResult) -> CompletedEvaluation:
        evaluation, failed = self._evaluation, more.failed_groups
        was_blocked = evaluation.triggered_by in BLOCKED_TRIGGERS
        delayed, marks = self._delayed(more.follow_ups)
        finished = replace(
            evaluation,
            status=EvaluationStatus.BLOCKED if failed and was_blocked else EvaluationStatus.COMPLETE,
            failed_tg_allocs=failed or None,
            queued_allocations=self._queued(more) or None,
            plan_annotations=more.annotations,
            deployment_id=more.deployment_id or evaluation.deployment_id,
            next_eval=delayed[0].id if delayed else evaluation.next_eval,
            class_eligibility=more.class_eligibility,
            escaped_computed_class=more.has_unique_constraints,
            quota_limit_reached="" if more.waits_behind else self._quota_reached(failed),
            waits_behind=more.waits_behind if failed else "",
            snapshot_index=self._snapshot.index,
            # What was kept for it is kept until it is used, or is of use no more.
            reserved_node_id=evaluation.reserved_node_id if failed and not more.has_placements else "",
            modify_time=max(self._moment.now_ns, evaluation.create_time + 1),
        )
        follow_ups: tuple[Evaluation, ...] = ()
        if failed and not was_blocked:
            blocked = self._new(EvaluationTrigger.QUEUED_ALLOCS, EvaluationStatus.BLOCKED, UNPLACED_TEXT)
            blocked = replace(
                blocked,
                failed_tg_allocs=failed,
                class_eligibility=more.class_eligibility,
                escaped_computed_class=more.has_unique_constraints,
                quota_limit_reached=finished.quota_limit_reached,
                waits_behind=finished.waits_behind,
                snapshot_index=self._snapshot.index,
                waiting_since=self._waiting_since(),
            )
            finished = replace(finished, blocked_eval=blocked.id)
            follow_ups = (
                blocked,
                *self._canceled(EvaluationStatus.BLOCKED, EXISTING_BLOCKED_TEXT.format(evaluation.job_id)),
            )
        elif not failed:
            follow_ups = self._canceled(EvaluationStatus.BLOCKED, SUCCESSFUL_TEXT.format(evaluation.id))
        redundant = self._canceled(EvaluationStatus.PENDING, SUPERSEDED_TEXT)
        vain = self._timeouts_of_nobody([each.id for each in (*follow_ups, *redundant)])
        return CompletedEvaluation(finished, (*delayed, *follow_ups, *redundant, *vain), marks)

    def _waiting_since(self) -> int:
        """A job keeps its place in the line, though it is looked at again for another reason."""
        mine = self._snapshot.list_by_index_sorted(
            EVALUATIONS_OF_JOB, self._evaluation.namespace, self._evaluation.job_id
        )
        waiting = [
            each.waiting_since_ns
            for each in mine
            if each.status is EvaluationStatus.BLOCKED
            or (each.status is EvaluationStatus.PENDING and each.triggered_by in BLOCKED_TRIGGERS)
        ]
        return min(waiting, default=self._moment.now_ns)

    def _quota_reached(self, failed: dict[str, AllocMetric]) -> str:
        """The quota that left no room, whatever else was missing."""
        if not any(metric.quota_exhausted for metric in failed.values()):
            return ""
        namespace = self._snapshot.get(NAMESPACES, self._evaluation.namespace)
        return namespace.quota if namespace is not None else ""

    def _queued(self, more: EvaluationResult) -> dict[str, int]:
        """A group that is gone, or stopped, waits for nothing."""
        summary = self._snapshot.get(JOB_SUMMARIES, self._evaluation.namespace, self._evaluation.job_id)
        known = dict.fromkeys(summary.summary, 0) if summary is not None else {}
        return {**known, **more.queued_counts}

    def _delayed(self, later: tuple[FollowUp, ...]) -> tuple[list[Evaluation], dict[str, str]]:
        """One evaluation for each window of time in which something is due."""
        delayed: list[Evaluation] = []
        marks: dict[str, str] = {}
        standing: dict[EvaluationTrigger, tuple[int, str]] = {}
        later = tuple(each for each in later if each.is_linked or not self._is_coming(each))
        for each in sorted(later, key=lambda each: (each.due_at_ns, each.allocation.id)):
            window = standing.get(each.trigger)
            if window is None or each.due_at_ns - window[0] > FOLLOW_UP_WINDOW_NS:
                trigger = each.trigger
                if window is not None and trigger is EvaluationTrigger.ALLOC_RESCHEDULE:
                    trigger = EvaluationTrigger.ALLOC_FAILURE  # As the reference names all windows but the first.
                again = self._new(trigger, EvaluationStatus.PENDING, FOLLOW_UP_TEXTS[trigger])
                delayed.append(replace(again, wait_until=to_datetime(each.due_at_ns)))
                window = standing[each.trigger] = (each.due_at_ns, again.id)
            if each.is_linked:
                marks[each.allocation.id] = window[1]
        return delayed, marks

    def _is_coming(self, again: FollowUp) -> bool:
        """Whether an evaluation waits for about that time already."""
        mine = self._snapshot.list_by_index_sorted(
            EVALUATIONS_OF_JOB, self._evaluation.namespace, self._evaluation.job_id
        )
        return any(
            other.status is EvaluationStatus.PENDING
            and other.id != self._evaluation.id
            and other.wait_until is not None
            and 0 <= to_ns(other.wait_until) + TIME_PRECISION_NS - again.due_at_ns <= FOLLOW_UP_WINDOW_NS
            for other in mine
        )

    def _canceled(self, status: EvaluationStatus, why: str) -> tuple[Evaluation, ...]:
        """The job's other evaluations of that status: this one has seen all that they could see (1.3)."""
        mine = self._snapshot.list_by_index_sorted(
            EVALUATIONS_OF_JOB, self._evaluation.namespace, self._evaluation.job_id
        )
        others = (
            other
            for other in mine
            if other.status is status and other.id != self._evaluation.id and not self._is_for_later(other)
        )
        return self._as_canceled(others, why)

    def _as_canceled(self, evaluations: Iterable[Evaluation], why: str) -> tuple[Evaluation, ...]:
        now_ns = self._moment.now_ns
        return tuple(
            replace(
                each,
                status=EvaluationStatus.CANCELED,
                status_description=why,
                modify_time=max(now_ns, each.create_time + 1),
            )
            for each in islice(evaluations, MAX_CANCELED_EVALUATIONS)
        )

    def _timeouts_of_nobody(self, canceled: Sequence[str]) -> tuple[Evaluation, ...]:
        """Those at which work out of contact was to be given up, and all of it is in contact again, or over."""
        key = self._evaluation.namespace, self._evaluation.job_id
        timeouts = [
            other
            for other in self._snapshot.list_by_index_sorted(EVALUATIONS_OF_JOB, *key)
            if other.triggered_by is EvaluationTrigger.MAX_DISCONNECT_TIMEOUT
            and other.status is EvaluationStatus.PENDING
            and other.id not in (self._evaluation.id, *canceled)
        ]
        if not timeouts:
            return ()
        awaited = {
            each.followup_eval_id
            for each in self._snapshot.list_by_index(ALLOCATIONS_OF_JOB, *key)
            if each.client_status is ClientStatus.UNKNOWN and not each.is_server_terminal
        }
        return self._as_canceled((each for each in timeouts if each.id not in awaited), RECONNECTED_TEXT)

    def _is_for_later(self, evaluation: Evaluation) -> bool:
        """It waits for its time, at which there will be something to see that nobody sees now. Of a job that is stopped or
        gone nobody will see anything.
        """
        job = self._snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
        if job is None or job.stop:
            return False
        return evaluation.wait_until is not None and evaluation.wait_until > to_datetime(self._moment.now_ns)

    def _new(self, trigger: EvaluationTrigger, status: EvaluationStatus, why: str) -> Evaluation:
        evaluation, now_ns = self._evaluation, self._moment.now_ns
        return Evaluation(
            id=self._moment.new_id(),
            namespace=evaluation.namespace,
            priority=evaluation.priority,
            type=evaluation.type,
            triggered_by=trigger,
            job_id=evaluation.job_id,
            job_modify_index=evaluation.job_modify_index,
            status=status,
            status_description=why,
            previous_eval=evaluation.id,
            create_index=WRITE_INDEX,
            create_time=now_ns,
            modify_time=now_ns,
        )
