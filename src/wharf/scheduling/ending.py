"""How an evaluation ends, and which evaluations it leaves behind (scheduling.md 1.5, 5.7)."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.model.allocation import ClientStatus
from wharf.model.changes import THIS
from wharf.model.evaluation import Evaluation, EvaluationStatus, EvaluationTrigger
from wharf.model.metric import AllocMetric
from wharf.model.moment import Moment, to_ns, to_time
from wharf.model.plan import PlanAnnotations
from wharf.scheduling.reconcile.outcome import LookAgain
from wharf.scheduling.reconcile.rescheduling import SECOND_NS
from wharf.state import Replica
from wharf.state.tables import ALLOCATIONS_OF_JOB, EVALUATIONS_OF_JOB, JOBS, NAMESPACES, SUMMARIES

EXISTS: Final = 'existing blocked evaluation exists for job "{}"'
SUCCESSFUL: Final = 'evaluation "{}" successful'
MORE_RECENT: Final = "canceled after more recent eval was processed"
BACK_IN_CONTACT: Final = "canceled because nothing that it was to give up is out of contact any more"
UNPLACED: Final = "created to place remaining allocations"
LATER: Final = {
    EvaluationTrigger.MAX_DISCONNECT_TIMEOUT: "created for delayed disconnect timeout",
    EvaluationTrigger.ALLOC_RESCHEDULE: "created for delayed rescheduling",
    EvaluationTrigger.ALLOC_FAILURE: "created for delayed rescheduling",
}
CANCELED_AT_ONCE: Final = 2
"""So that the end of an evaluation fits the smallest write; those beyond are canceled by the next."""

MICROSECOND_NS: Final = 1_000
"""Times of evaluations are told as exactly as that."""

WINDOW_NS: Final = 5 * SECOND_NS
"""What is due within one window of another is looked at together with it."""

BLOCKED_BEFORE: Final = (EvaluationTrigger.QUEUED_ALLOCS, EvaluationTrigger.MAX_PLAN_ATTEMPTS)


class MoreToSay(msgspec.Struct, frozen=True):
    """What the evaluation came to. `later`: what must be looked at again, and when."""

    failed: dict[str, AllocMetric]
    queued: dict[str, int]
    annotations: PlanAnnotations
    deployment_id: str
    later: tuple[LookAgain, ...]
    has_escaped: bool = False
    has_placed: bool = False
    waits_behind: str = ""
    eligibility: dict[str, bool] | None = None
    """By class of nodes, whether such could take what is left; None: nobody asked, or kinds of nodes say nothing."""


class Ended(msgspec.Struct, frozen=True):
    """`marks`: allocation id to the evaluation that will look at it again."""

    finished: Evaluation
    follow_ups: tuple[Evaluation, ...]
    marks: dict[str, str]


class Ending:
    def __init__(self, snapshot: Replica, evaluation: Evaluation, moment: Moment) -> None:
        self._snapshot = snapshot
        self._evaluation = evaluation
        self._moment = moment

    def end(self, more: MoreToSay) -> Ended:
        evaluation, failed = self._evaluation, more.failed
        was_blocked = evaluation.triggered_by in BLOCKED_BEFORE
        delayed, marks = self._delayed(more.later)
        finished = replace(
            evaluation,
            status=EvaluationStatus.BLOCKED if failed and was_blocked else EvaluationStatus.COMPLETE,
            failed_tg_allocs=failed or None,
            queued_allocations=self._queued(more) or None,
            plan_annotations=more.annotations,
            deployment_id=more.deployment_id or evaluation.deployment_id,
            next_eval=delayed[0].id if delayed else evaluation.next_eval,
            class_eligibility=more.eligibility,
            escaped_computed_class=more.has_escaped,
            quota_limit_reached="" if more.waits_behind else self._quota_reached(failed),
            waits_behind=more.waits_behind if failed else "",
            snapshot_index=self._snapshot.index,
            # What was kept for it is kept until it is used, or is of use no more.
            reserved_node_id=evaluation.reserved_node_id if failed and not more.has_placed else "",
            modify_time=max(self._moment.now_ns, evaluation.create_time + 1),
        )
        follow_ups: tuple[Evaluation, ...] = ()
        if failed and not was_blocked:
            blocked = self._new(EvaluationTrigger.QUEUED_ALLOCS, EvaluationStatus.BLOCKED, UNPLACED)
            blocked = replace(
                blocked,
                failed_tg_allocs=failed,
                class_eligibility=more.eligibility,
                escaped_computed_class=more.has_escaped,
                quota_limit_reached=finished.quota_limit_reached,
                waits_behind=finished.waits_behind,
                snapshot_index=self._snapshot.index,
                waiting_since=self._waiting_since(),
            )
            finished = replace(finished, blocked_eval=blocked.id)
            follow_ups = (blocked, *self._canceled(EvaluationStatus.BLOCKED, EXISTS.format(evaluation.job_id)))
        elif not failed:
            follow_ups = self._canceled(EvaluationStatus.BLOCKED, SUCCESSFUL.format(evaluation.id))
        redundant = self._canceled(EvaluationStatus.PENDING, MORE_RECENT)
        vain = self._timeouts_of_nobody([each.id for each in (*follow_ups, *redundant)])
        return Ended(finished, (*delayed, *follow_ups, *redundant, *vain), marks)

    def _waiting_since(self) -> int:
        """A job keeps its place in the line, though it is looked at again for another reason."""
        mine = self._snapshot.those_by_key(EVALUATIONS_OF_JOB, self._evaluation.namespace, self._evaluation.job_id)
        waiting = [
            each.waits_since_ns
            for each in mine
            if each.status is EvaluationStatus.BLOCKED
            or (each.status is EvaluationStatus.PENDING and each.triggered_by in BLOCKED_BEFORE)
        ]
        return min(waiting, default=self._moment.now_ns)

    def _quota_reached(self, failed: dict[str, AllocMetric]) -> str:
        """The quota that left no room, whatever else was missing."""
        if not any(metric.quota_exhausted for metric in failed.values()):
            return ""
        namespace = self._snapshot.get(NAMESPACES, self._evaluation.namespace)
        return namespace.quota if namespace is not None else ""

    def _queued(self, more: MoreToSay) -> dict[str, int]:
        """A group that is gone, or stopped, waits for nothing."""
        summary = self._snapshot.get(SUMMARIES, self._evaluation.namespace, self._evaluation.job_id)
        known = dict.fromkeys(summary.summary, 0) if summary is not None else {}
        return {**known, **more.queued}

    def _delayed(self, later: tuple[LookAgain, ...]) -> tuple[list[Evaluation], dict[str, str]]:
        """One evaluation for each window of time in which something is due."""
        delayed: list[Evaluation] = []
        marks: dict[str, str] = {}
        standing: dict[EvaluationTrigger, tuple[int, str]] = {}
        later = tuple(each for each in later if each.marks or not self._is_coming(each))
        for each in sorted(later, key=lambda each: (each.at_ns, each.allocation.id)):
            window = standing.get(each.trigger)
            if window is None or each.at_ns - window[0] > WINDOW_NS:
                trigger = each.trigger
                if window is not None and trigger is EvaluationTrigger.ALLOC_RESCHEDULE:
                    trigger = EvaluationTrigger.ALLOC_FAILURE  # As the reference names all windows but the first.
                again = self._new(trigger, EvaluationStatus.PENDING, LATER[trigger])
                delayed.append(replace(again, wait_until=to_time(each.at_ns)))
                window = standing[each.trigger] = (each.at_ns, again.id)
            if each.marks:
                marks[each.allocation.id] = window[1]
        return delayed, marks

    def _is_coming(self, again: LookAgain) -> bool:
        """Whether an evaluation waits for about that time already."""
        mine = self._snapshot.those_by_key(EVALUATIONS_OF_JOB, self._evaluation.namespace, self._evaluation.job_id)
        return any(
            other.status is EvaluationStatus.PENDING
            and other.id != self._evaluation.id
            and other.wait_until is not None
            and 0 <= to_ns(other.wait_until) + MICROSECOND_NS - again.at_ns <= WINDOW_NS
            for other in mine
        )

    def _canceled(self, status: EvaluationStatus, why: str) -> tuple[Evaluation, ...]:
        """The job's other evaluations of that status: this one has seen all that they could see (1.3)."""
        mine = self._snapshot.those_by_key(EVALUATIONS_OF_JOB, self._evaluation.namespace, self._evaluation.job_id)
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
            for each in islice(evaluations, CANCELED_AT_ONCE)
        )

    def _timeouts_of_nobody(self, canceled: Sequence[str]) -> tuple[Evaluation, ...]:
        """Those at which work out of contact was to be given up, and all of it is in contact again, or over."""
        key = self._evaluation.namespace, self._evaluation.job_id
        timeouts = [
            other
            for other in self._snapshot.those_by_key(EVALUATIONS_OF_JOB, *key)
            if other.triggered_by is EvaluationTrigger.MAX_DISCONNECT_TIMEOUT
            and other.status is EvaluationStatus.PENDING
            and other.id not in (self._evaluation.id, *canceled)
        ]
        if not timeouts:
            return ()
        awaited = {
            each.followup_eval_id
            for each in self._snapshot.those(ALLOCATIONS_OF_JOB, *key)
            if each.client_status is ClientStatus.UNKNOWN and not each.is_server_terminal
        }
        return self._as_canceled((each for each in timeouts if each.id not in awaited), BACK_IN_CONTACT)

    def _is_for_later(self, evaluation: Evaluation) -> bool:
        """It waits for its time, at which there will be something to see that nobody sees now. Of a job that is stopped or
        gone nobody will see anything.
        """
        job = self._snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
        if job is None or job.stop:
            return False
        return evaluation.wait_until is not None and evaluation.wait_until > to_time(self._moment.now_ns)

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
            create_index=THIS,
            create_time=now_ns,
            modify_time=now_ns,
        )
