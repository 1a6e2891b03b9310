"""Explain an evaluation: its trigger, what it waits for, and its result.

What the job of an evaluation waits for, the evaluation waits for too, so this module uses the explanation of the job.
"""

from collections.abc import Iterator

from wharf.cluster.operations.explanations.job_facts import SchedulerCacheFactory
from wharf.cluster.operations.explanations.jobs import explain_job
from wharf.cluster.operations.explanations.past_shortages import describe_past_shortages, explain_past_shortage
from wharf.cluster.operations.explanations.text import TRIGGER_REASONS, format_allocation_count
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS_OF_EVALUATION, EVALUATIONS, JOBS
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus
from wharf.contract.model.explanations import (
    EvaluationExplanation,
    GroupExplanation,
    JobExplanation,
    WaitCondition,
    WaitReason,
)
from wharf.contract.model.refusal import not_found


def explain_evaluation(
    snapshot: Replica, eval_id: str, get_cache: SchedulerCacheFactory, *, now_ns: int | None = None
) -> EvaluationExplanation:
    """Return the explanation of an evaluation: its trigger, what it waits for, and its result.

    `get_cache` returns the scheduler's cache of nodes; it is called only if an allocation cannot be placed. Raises
    not-found if the evaluation does not exist.
    """
    evaluation = snapshot.get(EVALUATIONS, eval_id)
    if evaluation is None:
        raise not_found("eval not found")
    has_job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id) is not None
    job = explain_job(snapshot, evaluation.namespace, evaluation.job_id, get_cache, now_ns=now_ns) if has_job else None
    waits = tuple(_iter_wait_conditions(evaluation, job))
    groups = tuple(
        explain_past_shortage(evaluation, name, metric)
        for name, metric in sorted((evaluation.failed_tg_allocs or {}).items())
    )
    placed = sum(1 for _ in snapshot.list_by_index(ALLOCATIONS_OF_EVALUATION, eval_id))
    outcome = waits[0].text if waits else _describe_outcome(evaluation, placed, groups)
    reason = TRIGGER_REASONS.get(evaluation.triggered_by, evaluation.triggered_by.value)
    return EvaluationExplanation(
        eval_id=eval_id,
        job_id=evaluation.job_id,
        namespace=evaluation.namespace,
        status=evaluation.status.value,
        triggered_by=evaluation.triggered_by.value,
        text=f"{evaluation.job_id} is evaluated because {reason}: it {outcome}"
        if waits
        else f"{evaluation.job_id} was evaluated because {reason}: it {outcome}",
        waits=waits,
        before=tuple(_describe_linked_evaluations(snapshot, evaluation.previous_eval)),
        after=tuple(_describe_linked_evaluations(snapshot, evaluation.next_eval, evaluation.blocked_eval)),
        placed=placed,
        groups=groups,
        job=job,
    )


def _iter_wait_conditions(evaluation: Evaluation, job: JobExplanation | None) -> Iterator[WaitCondition]:
    """Yield what the evaluation waits for. Nothing if it is terminal.

    `job` is the explanation of its job, or `None` if the job no longer exists.
    """
    if evaluation.status.is_terminal:
        return
    if job is None:
        text = "waits for nothing: its job no longer exists, so the scheduler will cancel it"
        yield WaitCondition(waits_for=WaitReason.QUEUE, text=text, eval_id=evaluation.id)
        return
    own_waits = [each for each in job.waits if each.eval_id == evaluation.id]
    pause_waits = [each for each in job.waits if each.waits_for is WaitReason.PAUSED_SCHEDULER]
    yield from pause_waits if evaluation.status is EvaluationStatus.PENDING else ()
    yield from own_waits
    if not own_waits and not pause_waits:
        text = "waits for another evaluation of the same job: a job's evaluations are processed one at a time"
        yield WaitCondition(waits_for=WaitReason.QUEUE, text=text, eval_id=evaluation.id)


def _describe_outcome(evaluation: Evaluation, placed: int, groups: tuple[GroupExplanation, ...]) -> str:
    """Return what a finished evaluation did: how many allocations it placed, and the groups that it could not place.

    For a failed or canceled evaluation, return the reason.
    """
    description = evaluation.status_description
    match evaluation.status:
        case EvaluationStatus.FAILED:
            return f"failed ({description or 'no reason was stored'})"
        case EvaluationStatus.CANCELED:
            return f"was canceled ({description or 'another evaluation replaces it'})"
    placement_text = (
        f"placed or last changed {format_allocation_count(placed)}"
        if placed
        else "changed no allocation that still exists"
    )
    if not groups:
        return placement_text
    return f"{placement_text}, but could not place all: {describe_past_shortages(evaluation)}"


def _describe_linked_evaluations(snapshot: Replica, *eval_ids: str) -> Iterator[str]:
    """Yield a description of each of these evaluations that still exists."""
    for eval_id in eval_ids:
        linked = snapshot.get(EVALUATIONS, eval_id) if eval_id else None
        if linked is not None:
            reason = TRIGGER_REASONS.get(linked.triggered_by, linked.triggered_by.value)
            yield f"{eval_id} ({linked.status.value}): evaluated because {reason}"
