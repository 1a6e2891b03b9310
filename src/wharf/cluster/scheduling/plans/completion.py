"""How an evaluation ends: final record, follow-ups, blocked evaluation and cancellations (scheduling.md 1.5, 5.7)."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.scheduling.plans.allocation_changes import AllocationChanges
from wharf.cluster.scheduling.reconcile.outcome import FollowUp
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, EVALUATIONS_OF_JOB, JOB_SUMMARIES, JOBS, NAMESPACES
from wharf.contract.model.allocations.allocation import Allocation, AllocationStub, ClientStatus
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.evaluations import ELEMENT_TRIGGERS, Evaluation, EvaluationStatus, EvaluationTrigger
from wharf.contract.model.jobs.lock_waits import LockWait
from wharf.contract.model.jobs.plan import DesiredUpdates, PlanAnnotations
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.times import SECOND, DecisionContext, to_datetime, to_ns

EXISTING_BLOCKED_TEXT: Final = 'existing blocked evaluation exists for job "{}"'
"""The description of a canceled blocked evaluation: the job has a newer one."""
SUCCESSFUL_TEXT: Final = 'evaluation "{}" successful'
"""The description of a canceled blocked evaluation: nothing is missing any more."""
SUPERSEDED_TEXT: Final = "canceled after more recent eval was processed"
RECONNECTED_TEXT: Final = "canceled because the allocations that it waited for are no longer disconnected"
UNPLACED_TEXT: Final = "created to place remaining allocations"
MORE_ELEMENTS_TEXT: Final = "created to begin further elements of an array"
FOLLOW_UP_TEXTS: Final = {
    EvaluationTrigger.MAX_DISCONNECT_TIMEOUT: "created for delayed disconnect timeout",
    EvaluationTrigger.ALLOC_RESCHEDULE: "created for delayed rescheduling",
    EvaluationTrigger.ALLOC_FAILURE: "created for delayed rescheduling",
}
"""The descriptions of evaluations that are due later, by trigger."""
MAX_CANCELED_EVALUATIONS: Final = 2
"""Limits the size of the write that ends an evaluation. The next evaluation cancels the rest."""

TIME_PRECISION_NS: Final = 1_000
"""The precision of times in stored evaluations: one microsecond."""

FOLLOW_UP_WINDOW_NS: Final = 5 * SECOND
"""Follow-ups that are due within this time after the first one share its evaluation."""

BLOCKED_TRIGGERS: Final = (EvaluationTrigger.QUEUED_ALLOCS, EvaluationTrigger.MAX_PLAN_ATTEMPTS)
"""Triggers of evaluations that wait for resources: they were blocked once, or are blocked now."""


class EvaluationResult(msgspec.Struct):
    """What one evaluation decided. The steps of the evaluation fill it."""

    placements: dict[str, list[Allocation]] = {}
    """New allocations by node id."""
    failed_groups: dict[str, AllocMetric] = {}
    """By group that could not be placed, the metric that says why."""
    queued_counts: dict[str, int] = {}
    """How many allocations wait for resources, by group."""
    update_counts: dict[str, DesiredUpdates] = {}  # By group, how many allocations are placed, stopped and updated.
    victims: list[Allocation] = []
    """Preempted allocations of other jobs as they will be written."""
    follow_ups: list[FollowUp] = []  # Evaluations that must be created for a later time.
    deployment_id: str = ""  # The job's deployment; empty if it has none.
    has_more_elements: bool = False
    """Further elements of an array may begin, which another evaluation requests."""
    has_unique_constraints: bool = False
    """A constraint uses a value that differs from node to node, so node classes do not help."""
    waits_behind: str = ""
    """The parent job whose child limit refuses placements."""
    lock_waits: tuple[LockWait, ...] = ()
    """The failed groups that have a lock."""
    class_eligibility: dict[str, bool] | None = None
    """By computed node class, whether nodes of the class could run what is still missing.

    `None`: not computed, or node classes cannot tell.
    """

    def add_placement(self, allocation: Allocation) -> None:
        """Add a new allocation to the placements on its node."""
        self.placements.setdefault(allocation.node_id, []).append(allocation)


class EvaluationCompletion:
    """Builds the final record of one evaluation and the evaluations that follow from it."""

    def __init__(self, snapshot: Replica, evaluation: Evaluation, context: DecisionContext) -> None:
        self._snapshot = snapshot
        self._evaluation = evaluation
        self._context = context
        self._job_evaluations = snapshot.list_by_index_sorted(
            EVALUATIONS_OF_JOB, evaluation.namespace, evaluation.job_id
        )
        """All evaluations of the job, sorted by id."""

    def complete_evaluation(
        self, result: EvaluationResult, changes: AllocationChanges
    ) -> tuple[Evaluation, tuple[Evaluation, ...]]:
        """Return the evaluation as it ends, and the evaluations that are written with it.

        These are new delayed ones, a new blocked one, and canceled ones. Record in `changes` on each allocation that is
        retried later which evaluation will do it.
        """
        evaluation, failed = self._evaluation, result.failed_groups
        was_blocked = evaluation.triggered_by in BLOCKED_TRIGGERS
        delayed = self._build_delayed(result.follow_ups, changes)
        finished = replace(
            evaluation,
            status=EvaluationStatus.BLOCKED if failed and was_blocked else EvaluationStatus.COMPLETE,
            failed_tg_allocs=failed or None,
            queued_allocations=self._count_queued(result) or None,
            plan_annotations=PlanAnnotations(
                desired_tg_updates=result.update_counts or None,
                preempted_allocs=tuple(map(_make_stub, result.victims)) or None,
            ),
            deployment_id=result.deployment_id or evaluation.deployment_id,
            next_eval=delayed[0].id if delayed else evaluation.next_eval,
            class_eligibility=result.class_eligibility,
            escaped_computed_class=result.has_unique_constraints,
            quota_limit_reached="" if result.waits_behind else self._get_reached_quota(result),
            waits_behind=result.waits_behind if failed else "",
            lock_waits=result.lock_waits or None,
            snapshot_index=self._snapshot.index,
            # A reserved node stays reserved until it is used or no longer needed.
            reserved_node_id=evaluation.reserved_node_id if failed and not result.placements else "",
            modify_time=max(self._context.now_ns, evaluation.create_time + 1),
        )
        if finished.waits_only_for_locks:
            finished = replace(finished, reserved_node_id="")  # A step that waits for others must not keep a node free.
        follow_ups: tuple[Evaluation, ...] = ()
        if failed and not was_blocked:
            blocked = self._new_evaluation(EvaluationTrigger.QUEUED_ALLOCS, EvaluationStatus.BLOCKED, UNPLACED_TEXT)
            blocked = replace(
                blocked,
                failed_tg_allocs=failed,
                class_eligibility=result.class_eligibility,
                escaped_computed_class=result.has_unique_constraints,
                quota_limit_reached=finished.quota_limit_reached,
                waits_behind=finished.waits_behind,
                lock_waits=finished.lock_waits,
                snapshot_index=self._snapshot.index,
                waiting_since=self._get_waiting_since(),
            )
            finished = replace(finished, blocked_eval=blocked.id)
            follow_ups = (
                blocked,
                *self._cancel_others(EvaluationStatus.BLOCKED, EXISTING_BLOCKED_TEXT.format(evaluation.job_id)),
            )
        elif not failed:
            follow_ups = self._cancel_others(EvaluationStatus.BLOCKED, SUCCESSFUL_TEXT.format(evaluation.id))
        if result.has_more_elements and not failed:
            follow_ups = (*self._request_more_elements(), *follow_ups)
        redundant = self._cancel_others(EvaluationStatus.PENDING, SUPERSEDED_TEXT)
        obsolete_timeouts = self._cancel_obsolete_timeouts([follow_up.id for follow_up in (*follow_ups, *redundant)])
        return finished, (*delayed, *follow_ups, *redundant, *obsolete_timeouts)

    def _request_more_elements(self) -> tuple[Evaluation, ...]:
        """Return the evaluation that begins the next elements of arrays; none if one is pending already."""
        if any(
            evaluation.triggered_by in ELEMENT_TRIGGERS
            and evaluation.status is EvaluationStatus.PENDING
            and evaluation.id != self._evaluation.id
            for evaluation in self._job_evaluations
        ):
            return ()
        return (self._new_evaluation(EvaluationTrigger.ARRAY_ELEMENT, EvaluationStatus.PENDING, MORE_ELEMENTS_TEXT),)

    def _get_waiting_since(self) -> int:
        """Return since when the job waits for resources, in Unix nanoseconds.

        This is the time of its oldest waiting evaluation, so that a new one keeps the position in the queue; else it is
        now.
        """
        waiting_times = [
            evaluation.waiting_since_ns
            for evaluation in self._job_evaluations
            if evaluation.status is EvaluationStatus.BLOCKED
            or (evaluation.status is EvaluationStatus.PENDING and evaluation.triggered_by in BLOCKED_TRIGGERS)
        ]
        return min(waiting_times, default=self._context.now_ns)

    def _get_reached_quota(self, result: EvaluationResult) -> str:
        """Return the name of the quota that refused a placement, or an empty text."""
        locked = {wait.step for wait in result.lock_waits if not wait.lacks_capacity}
        if not any(metric.quota_exhausted and name not in locked for name, metric in result.failed_groups.items()):
            return ""
        namespace = self._snapshot.get(NAMESPACES, self._evaluation.namespace)
        return namespace.quota if namespace is not None else ""

    def _count_queued(self, result: EvaluationResult) -> dict[str, int]:
        """Return how many allocations wait for resources, by group.

        Every group of the job summary has an entry, so that the count of a deleted or stopped group becomes 0.
        """
        summary = self._snapshot.get(JOB_SUMMARIES, self._evaluation.namespace, self._evaluation.job_id)
        known = dict.fromkeys(summary.summary, 0) if summary is not None else {}
        return {**known, **result.queued_counts}

    def _build_delayed(self, follow_ups: Iterable[FollowUp], changes: AllocationChanges) -> list[Evaluation]:
        """Return new evaluations for these follow-ups: one for all that are due within `FOLLOW_UP_WINDOW_NS`.

        Record in `changes` the id of the evaluation on the allocations that require it. Follow-ups that an existing
        evaluation covers are left out.
        """
        delayed: list[Evaluation] = []
        windows: dict[EvaluationTrigger, tuple[int, str]] = {}
        needed = (
            follow_up for follow_up in follow_ups if follow_up.is_linked or not self._has_evaluation_due(follow_up)
        )
        for follow_up in sorted(needed, key=lambda follow_up: (follow_up.due_at_ns, follow_up.allocation.id)):
            window = windows.get(follow_up.trigger)
            if window is None or follow_up.due_at_ns - window[0] > FOLLOW_UP_WINDOW_NS:
                trigger = follow_up.trigger
                if window is not None and trigger is EvaluationTrigger.ALLOC_RESCHEDULE:
                    trigger = EvaluationTrigger.ALLOC_FAILURE  # Nomad uses this trigger for all windows but the first.
                evaluation = self._new_evaluation(trigger, EvaluationStatus.PENDING, FOLLOW_UP_TEXTS[trigger])
                delayed.append(replace(evaluation, wait_until=to_datetime(follow_up.due_at_ns)))
                window = windows[follow_up.trigger] = (follow_up.due_at_ns, evaluation.id)
            if follow_up.is_linked:
                changes.update_allocation(follow_up.allocation, followup_eval_id=window[1])
        return delayed

    def _has_evaluation_due(self, follow_up: FollowUp) -> bool:
        """Return whether a pending evaluation of the job is due at the same time or shortly after."""
        return any(
            evaluation.status is EvaluationStatus.PENDING
            and evaluation.id != self._evaluation.id
            and evaluation.wait_until is not None
            and 0 <= to_ns(evaluation.wait_until) + TIME_PRECISION_NS - follow_up.due_at_ns <= FOLLOW_UP_WINDOW_NS
            for evaluation in self._job_evaluations
        )

    def _cancel_others(self, status: EvaluationStatus, description: str) -> tuple[Evaluation, ...]:
        """Return canceled copies of the job's other evaluations with this status.

        At most `MAX_CANCELED_EVALUATIONS` are returned. Evaluations that are due later are left out.
        """
        others = (
            evaluation
            for evaluation in self._job_evaluations
            if evaluation.status is status
            and evaluation.id != self._evaluation.id
            and not self._is_due_later(evaluation)
            # It may have been created for an element that ended after the state of this evaluation (record 0296).
            and evaluation.triggered_by not in ELEMENT_TRIGGERS
        )
        return self._cancel(others, description)

    def _cancel(self, evaluations: Iterable[Evaluation], description: str) -> tuple[Evaluation, ...]:
        """Return canceled copies of the first `MAX_CANCELED_EVALUATIONS` of these evaluations, with this description."""
        now_ns = self._context.now_ns
        return tuple(
            replace(
                evaluation,
                status=EvaluationStatus.CANCELED,
                status_description=description,
                modify_time=max(now_ns, evaluation.create_time + 1),
            )
            for evaluation in islice(evaluations, MAX_CANCELED_EVALUATIONS)
        )

    def _cancel_obsolete_timeouts(self, canceled: Sequence[str]) -> tuple[Evaluation, ...]:
        """Return canceled copies of pending disconnect timeouts that no disconnected allocation waits for any more.

        Such an evaluation would mark an allocation as lost if it were still disconnected. Evaluations with ids in
        `canceled` are left out, and at most `MAX_CANCELED_EVALUATIONS` are returned.
        """
        key = self._evaluation.namespace, self._evaluation.job_id
        timeouts = [
            evaluation
            for evaluation in self._job_evaluations
            if evaluation.triggered_by is EvaluationTrigger.MAX_DISCONNECT_TIMEOUT
            and evaluation.status is EvaluationStatus.PENDING
            and evaluation.id not in (self._evaluation.id, *canceled)
        ]
        if not timeouts:
            return ()
        awaited = {
            allocation.followup_eval_id
            for allocation in self._snapshot.list_by_index(ALLOCATIONS_OF_JOB, *key)
            if allocation.client_status is ClientStatus.UNKNOWN and not allocation.is_server_terminal
        }
        return self._cancel((timeout for timeout in timeouts if timeout.id not in awaited), RECONNECTED_TEXT)

    def _is_due_later(self, evaluation: Evaluation) -> bool:
        """Return whether the evaluation is due in the future and must not be canceled.

        False if its job is stopped or deleted, because it would find nothing to do.
        """
        job = self._snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
        if job is None or job.stop:
            return False
        return evaluation.wait_until is not None and evaluation.wait_until > to_datetime(self._context.now_ns)

    def _new_evaluation(self, trigger: EvaluationTrigger, status: EvaluationStatus, description: str) -> Evaluation:
        """Return a new evaluation of the same job with this trigger, status and description."""
        evaluation, now_ns = self._evaluation, self._context.now_ns
        return Evaluation(
            id=self._context.new_id(),
            namespace=evaluation.namespace,
            priority=evaluation.priority,
            type=evaluation.type,
            triggered_by=trigger,
            job_id=evaluation.job_id,
            job_modify_index=evaluation.job_modify_index,
            status=status,
            status_description=description,
            previous_eval=evaluation.id,
            create_index=WRITE_INDEX,
            create_time=now_ns,
            modify_time=now_ns,
        )


def _make_stub(allocation: Allocation) -> AllocationStub:
    """Return the short form of a preempted allocation for lists."""
    names = ("id", "name", "namespace", "node_id", "node_name", "job_id", "job_version", "task_group", "client_status")
    return AllocationStub(
        **{name: getattr(allocation, name) for name in names},
        desired_status=allocation.desired_status,
        desired_description=allocation.desired_description,
        preempted_by_allocation=allocation.preempted_by_allocation,
    )
