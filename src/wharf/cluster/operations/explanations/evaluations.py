"""Why one evaluation or one allocation stands as it does: what it came from, what it waits for, and what came of it.

Of a job see `operations.explaining`, of which this makes use: what an evaluation waits for its job waits for too.
"""

from collections.abc import Iterator

from wharf.cluster.operations.explanations.jobs import SchedulerCacheFactory, explain_job
from wharf.cluster.operations.explanations.text import TRIGGER_REASONS, describe_quota_shortage, format_allocation_count
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS_OF_EVALUATION, EVALUATIONS, JOBS
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus
from wharf.contract.model.explanations import (
    EvaluationExplanation,
    Exclusion,
    GroupExplanation,
    JobExplanation,
    Shortage,
    WaitCondition,
    WaitReason,
)
from wharf.contract.model.refusal import not_found


def explain_evaluation(snapshot: Replica, eval_id: str, get_cache: SchedulerCacheFactory) -> EvaluationExplanation:
    evaluation = snapshot.get(EVALUATIONS, eval_id)
    if evaluation is None:
        raise not_found("eval not found")
    has_job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id) is not None
    job = explain_job(snapshot, evaluation.namespace, evaluation.job_id, get_cache) if has_job else None
    waits = tuple(_waits_of(evaluation, job))
    groups = tuple(_unplaced(name, metric) for name, metric in sorted((evaluation.failed_tg_allocs or {}).items()))
    placed = sum(1 for _ in snapshot.list_by_index(ALLOCATIONS_OF_EVALUATION, eval_id))
    came_to = waits[0].text if waits else _came_to(evaluation, placed, groups)
    because = TRIGGER_REASONS.get(evaluation.triggered_by, evaluation.triggered_by.value)
    return EvaluationExplanation(
        eval_id=eval_id,
        job_id=evaluation.job_id,
        namespace=evaluation.namespace,
        status=evaluation.status.value,
        triggered_by=evaluation.triggered_by.value,
        text=f"{evaluation.job_id} is looked at because {because}: it {came_to}"
        if waits
        else f"{evaluation.job_id} was looked at because {because}: it {came_to}",
        waits=waits,
        before=tuple(_relatives(snapshot, evaluation.previous_eval)),
        after=tuple(_relatives(snapshot, evaluation.next_eval, evaluation.blocked_eval)),
        placed=placed,
        groups=groups,
        job=job,
    )


def _waits_of(evaluation: Evaluation, job: JobExplanation | None) -> Iterator[WaitCondition]:
    if evaluation.status.is_terminal:
        return
    if job is None:
        text = "waits for nothing: there is no such job any more, and it is cancelled when it is looked at"
        yield WaitCondition(waits_for=WaitReason.QUEUE, text=text, eval_id=evaluation.id)
        return
    mine = [each for each in job.waits if each.eval_id == evaluation.id]
    paused = [each for each in job.waits if each.waits_for is WaitReason.PAUSED_SCHEDULER]
    yield from paused if evaluation.status is EvaluationStatus.PENDING else ()
    yield from mine
    if not mine and not paused:
        text = "waits until another evaluation of the same job is through: one at a time is looked at"
        yield WaitCondition(waits_for=WaitReason.QUEUE, text=text, eval_id=evaluation.id)


def _came_to(evaluation: Evaluation, placed: int, groups: tuple[GroupExplanation, ...]) -> str:
    said = evaluation.status_description
    match evaluation.status:
        case EvaluationStatus.FAILED:
            return f"could not be decided ({said or 'no reason was kept'})"
        case EvaluationStatus.CANCELED:
            return f"needed no look any more ({said or 'another one stands for it'})"
    done = (
        f"placed or last changed {format_allocation_count(placed)}" if placed else "changed nothing that still stands"
    )
    if not groups:
        return done
    words = "; ".join(each.text for each in groups)
    if evaluation.quota_limit_reached:
        words = f'the quota "{evaluation.quota_limit_reached}" is used up: {describe_quota_shortage(evaluation)}'
    return f"{done}, and not all found room: {words}"


def _unplaced(group: str, metric: AllocMetric) -> GroupExplanation:
    """As the evaluation found it. What would help now is told with the job."""
    unplaced = metric.coalesced_failures + 1
    excluded = tuple(Exclusion(rule=rule.rstrip(), nodes=nodes) for rule, nodes in _largest(metric.constraint_filtered))
    exhausted = tuple(Shortage(dimension=what, nodes=nodes) for what, nodes in _largest(metric.dimension_exhausted))
    parts = [f'{each.nodes} by "{each.rule}"' for each in excluded]
    parts += [f"{each.nodes} had too little {each.dimension}" for each in exhausted]
    why = f" ({', '.join(parts)})" if parts else ""
    looked_at = f"none of {metric.nodes_evaluated} nodes could" if metric.nodes_evaluated else "there was no node to"
    return GroupExplanation(
        group=group,
        unplaced=unplaced,
        text=f"{group} lacked {format_allocation_count(unplaced)}: {looked_at} take one{why}",
        nodes=metric.nodes_evaluated,
        excluded=excluded,
        exhausted=exhausted,
    )


def _largest(figures: dict[str, int] | None) -> list[tuple[str, int]]:
    return sorted((figures or {}).items(), key=lambda entry: (-entry[1], entry[0]))


def _relatives(snapshot: Replica, *eval_ids: str) -> Iterator[str]:
    for eval_id in eval_ids:
        other = snapshot.get(EVALUATIONS, eval_id) if eval_id else None
        if other is not None:
            because = TRIGGER_REASONS.get(other.triggered_by, other.triggered_by.value)
            yield f"{eval_id} ({other.status.value}): looked at because {because}"


# -- allocations -----------------------------------------------------------------------------------------------------
