"""Why one evaluation or one allocation stands as it does: what it came from, what it waits for, and what came of it.

Of a job see `operations.explaining`, of which this makes use: what an evaluation waits for its job waits for too.
"""

from collections.abc import Iterator
from typing import Final

from wharf.model.allocation import Allocation, ClientStatus
from wharf.model.evaluation import Evaluation, EvaluationStatus, EvaluationTrigger
from wharf.model.explanation import (
    AllocationExplanation,
    EvaluationExplanation,
    Exclusion,
    Explanation,
    GroupExplanation,
    PlacementExplanation,
    Shortage,
    Waiting,
    Waits,
)
from wharf.model.metric import AllocMetric
from wharf.model.node import NodeStatus
from wharf.model.refusal import unknown
from wharf.model.task_event_text import last_failure
from wharf.operations.explaining import GroundOf, explain
from wharf.operations.reasons import allocations, placement, quota_words, say_time
from wharf.state import Replica
from wharf.state.tables import ALLOCATIONS, ALLOCATIONS_OF_EVALUATION, EVALUATIONS, JOBS, NODES

BECAUSE: Final = {
    EvaluationTrigger.JOB_REGISTER: "it was registered",
    EvaluationTrigger.JOB_DEREGISTER: "it was stopped",
    EvaluationTrigger.PERIODIC_JOB: "its time had come",
    EvaluationTrigger.NODE_DRAIN: "a node of it is drained",
    EvaluationTrigger.NODE_UPDATE: "a node changed",
    EvaluationTrigger.ALLOC_STOP: "an allocation was stopped by hand",
    EvaluationTrigger.ALLOC_RESCHEDULE: "something of it failed",
    EvaluationTrigger.ALLOC_FAILURE: "something of it failed",
    EvaluationTrigger.SCHEDULED: "it was time to look again",
    EvaluationTrigger.ROLLING_UPDATE: "the next part of its update is due",
    EvaluationTrigger.DEPLOYMENT_WATCHER: "its deployment went on",
    EvaluationTrigger.FAILED_FOLLOW_UP: "the evaluation before failed",
    EvaluationTrigger.MAX_PLAN_ATTEMPTS: "too much changed while it was placed",
    EvaluationTrigger.QUEUED_ALLOCS: "part of it found no room",
    EvaluationTrigger.PREEMPTION: "something of it was pushed aside",
    EvaluationTrigger.JOB_SCALING: "its count was changed",
    EvaluationTrigger.MAX_DISCONNECT_TIMEOUT: "a node was out of contact for too long",
    EvaluationTrigger.RECONNECT: "a node came back",
}

ENDED: Final = {
    ClientStatus.COMPLETE: "ended well",
    ClientStatus.FAILED: "failed",
    ClientStatus.LOST: "was lost",
}


def explain_evaluation(snapshot: Replica, eval_id: str, ground_of: GroundOf) -> EvaluationExplanation:
    evaluation = snapshot.get(EVALUATIONS, eval_id)
    if evaluation is None:
        raise unknown("eval not found")
    has_job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id) is not None
    job = explain(snapshot, evaluation.namespace, evaluation.job_id, ground_of) if has_job else None
    waits = tuple(_waits_of(evaluation, job))
    groups = tuple(_unplaced(name, metric) for name, metric in sorted((evaluation.failed_tg_allocs or {}).items()))
    placed = sum(1 for _ in snapshot.those(ALLOCATIONS_OF_EVALUATION, eval_id))
    came_to = waits[0].text if waits else _came_to(evaluation, placed, groups)
    because = BECAUSE.get(evaluation.triggered_by, evaluation.triggered_by.value)
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


def _waits_of(evaluation: Evaluation, job: Explanation | None) -> Iterator[Waiting]:
    if evaluation.status.is_terminal:
        return
    if job is None:
        text = "waits for nothing: there is no such job any more, and it is cancelled when it is looked at"
        yield Waiting(waits_for=Waits.QUEUE, text=text, eval_id=evaluation.id)
        return
    mine = [each for each in job.waits if each.eval_id == evaluation.id]
    paused = [each for each in job.waits if each.waits_for is Waits.PAUSED_SCHEDULER]
    yield from paused if evaluation.status is EvaluationStatus.PENDING else ()
    yield from mine
    if not mine and not paused:
        text = "waits until another evaluation of the same job is through: one at a time is looked at"
        yield Waiting(waits_for=Waits.QUEUE, text=text, eval_id=evaluation.id)


def _came_to(evaluation: Evaluation, placed: int, groups: tuple[GroupExplanation, ...]) -> str:
    said = evaluation.status_description
    match evaluation.status:
        case EvaluationStatus.FAILED:
            return f"could not be decided ({said or 'no reason was kept'})"
        case EvaluationStatus.CANCELED:
            return f"needed no look any more ({said or 'another one stands for it'})"
    done = f"placed or last changed {allocations(placed)}" if placed else "changed nothing that still stands"
    if not groups:
        return done
    words = "; ".join(each.text for each in groups)
    if evaluation.quota_limit_reached:
        words = f'the quota "{evaluation.quota_limit_reached}" is used up: {quota_words(evaluation)}'
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
        text=f"{group} lacked {allocations(unplaced)}: {looked_at} take one{why}",
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
            because = BECAUSE.get(other.triggered_by, other.triggered_by.value)
            yield f"{eval_id} ({other.status.value}): looked at because {because}"


# -- allocations -----------------------------------------------------------------------------------------------------


def explain_allocation(snapshot: Replica, alloc_id: str) -> AllocationExplanation:
    allocation = snapshot.get(ALLOCATIONS, alloc_id)
    if allocation is None:
        raise unknown("alloc not found")
    waits = tuple(_waits_of_allocation(snapshot, allocation))
    told = placement(allocation)
    where = allocation.node_name or allocation.node_id
    # That its health is waited for says less than where it runs.
    in_the_way = [each for each in waits if each.waits_for is not Waits.HEALTH]
    state = in_the_way[0].text if in_the_way else _state_of(allocation, where)
    chosen = "" if in_the_way or allocation.is_terminal else _chosen(told)
    return AllocationExplanation(
        alloc_id=alloc_id,
        name=allocation.name,
        job_id=allocation.job_id,
        namespace=allocation.namespace,
        text=f"{allocation.name} {state}{chosen}{_what_follows(snapshot, allocation)}",
        waits=waits,
        story=tuple(_story(snapshot, allocation)),
        placement=told,
    )


def _chosen(told: PlacementExplanation) -> str:
    evaluated, filtered = told.nodes_evaluated, told.nodes_filtered
    could = evaluated - filtered
    if not evaluated:
        return ""
    best = "the only node that could take it" if could == 1 else f"the best of {could} nodes that could take it"
    return f", {best}" + (f" ({evaluated} were looked at)" if filtered else "")


def _waits_of_allocation(snapshot: Replica, allocation: Allocation) -> Iterator[Waiting]:
    if allocation.is_client_terminal:
        return
    node = snapshot.get(NODES, allocation.node_id)
    where = allocation.node_name or allocation.node_id
    why = last_failure(allocation.task_states)
    if node is None or node.status is not NodeStatus.READY or allocation.client_status is ClientStatus.UNKNOWN:
        yield Waiting(waits_for=Waits.NODE, text=f"is on {where}, which is out of contact")
    if allocation.is_server_terminal:
        reason = f" ({allocation.desired_description})" if allocation.desired_description else ""
        yield Waiting(waits_for=Waits.TASKS, text=f"is to stop{reason}, and {where} has not ended it yet")
        return
    if node is not None and node.drain_strategy is not None:
        yield Waiting(
            waits_for=Waits.DRAIN, text=f"is on {where}, which is being drained, and waits for its turn to move"
        )
    if allocation.client_status is ClientStatus.PENDING:
        again = f" after it ended ({why})" if why else ""
        yield Waiting(waits_for=Waits.TASKS, text=f"is placed on {where} and has not started{again} yet")
        return
    health = allocation.deployment_status
    if allocation.deployment_id and (health is None or health.healthy is None):
        yield Waiting(
            waits_for=Waits.HEALTH,
            text="its deployment waits until it is healthy",
            deployment_id=allocation.deployment_id,
        )


def _state_of(allocation: Allocation, where: str) -> str:
    ended = ENDED.get(allocation.client_status)
    if ended is None:
        return f"runs on {where}"
    why = last_failure(allocation.task_states) or allocation.client_description
    because = f" ({why})" if why and allocation.client_status is not ClientStatus.COMPLETE else ""
    if allocation.is_server_terminal and allocation.client_status is ClientStatus.COMPLETE:
        reason = f" ({allocation.desired_description})" if allocation.desired_description else ""
        return f"was stopped on {where}{reason}"
    return f"{ended} on {where}{because}"


def _what_follows(snapshot: Replica, allocation: Allocation) -> str:
    if not allocation.is_terminal:
        return ""
    if allocation.next_allocation:
        return f"; {_successor(snapshot, allocation)}"
    follow_up = snapshot.get(EVALUATIONS, allocation.followup_eval_id) if allocation.followup_eval_id else None
    if follow_up is not None and not follow_up.status.is_terminal and follow_up.wait_until is not None:
        return f"; it is tried again at {say_time(follow_up.wait_until)}"
    if allocation.client_status in (ClientStatus.FAILED, ClientStatus.LOST):
        return "; nothing took its place: `explain` of its job tells why"
    return ""


def _successor(snapshot: Replica, allocation: Allocation) -> str:
    """A stop names who is to come next before that is placed, and a placement may be refused."""
    if snapshot.get(ALLOCATIONS, allocation.next_allocation) is None:
        return f"{allocation.next_allocation} was to take its place, and was not placed or is collected by now"
    return f"{allocation.next_allocation} took its place"


def _story(snapshot: Replica, allocation: Allocation) -> Iterator[str]:
    for event in (allocation.reschedule_tracker.events if allocation.reschedule_tracker else None) or ():
        yield f"{event.prev_alloc_id} failed on node {event.prev_node_id[:8]} and was tried again elsewhere"
    former = snapshot.get(ALLOCATIONS, allocation.previous_allocation) if allocation.previous_allocation else None
    if former is not None:
        where = former.node_name or former.node_id
        reason = former.desired_description or last_failure(former.task_states) or former.client_status.value
        yield f"takes the place of {former.id} on {where} ({reason})"
    evaluation = snapshot.get(EVALUATIONS, allocation.eval_id)
    if evaluation is not None:
        because = BECAUSE.get(evaluation.triggered_by, evaluation.triggered_by.value)
        yield f"version {allocation.job_version} of {allocation.job_id}; looked at last because {because} ({evaluation.id})"
    for other in allocation.preempted_allocations or ():
        yield f"pushed {other} aside to get its room"
    if allocation.preempted_by_allocation:
        yield f"was pushed aside by {allocation.preempted_by_allocation}, whose job has a higher priority"
    health = allocation.deployment_status
    if health is not None and health.canary:
        yield "is a canary: it tries its version beside the others"
    if health is not None and health.healthy is not None:
        yield "was found healthy by its deployment" if health.healthy else "was found unhealthy by its deployment"
    if allocation.is_to_migrate:
        yield "somebody asked that it move"
    if allocation.next_allocation:
        yield _successor(snapshot, allocation)
