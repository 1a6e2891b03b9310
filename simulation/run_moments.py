"""Reads what the records say about each step of a run, in the words of `step_model`, and how a run ended."""

from collections.abc import Mapping
from typing import Final

from simulation.step_model import (
    CANCELED_EARLY,
    CANCELED_LATE,
    FAILED,
    NEED_SKIP,
    OWN_SKIP,
    SUCCEEDED,
    ModelNeed,
    ModelStep,
    Moment,
    add_implied_needs,
)
from simulation.step_texts import list_attempts, read_code
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.jobs.array_attempts import ArrayAttempt
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.step_states import StepCauseKind, StepPhase, StepState

NEVER_BEGAN: Final = (StepPhase.SKIPPED, StepPhase.FAILED, StepPhase.CANCELED)
ENDED_STATUSES: Final = (ClientStatus.COMPLETE, ClientStatus.FAILED, ClientStatus.LOST)


def read_moments(replica: Replica, job: Job) -> dict[str, Moment]:
    """Return what the records say about each step of a run."""
    steps = add_implied_needs([_make_model_step(group) for group in job.groups])
    attempts = list_attempts(replica, job)
    allocations = replica.list_by_index(ALLOCATIONS_OF_JOB, job.namespace, job.id)
    alive = {
        each.task_group
        for each in allocations
        if each.array_attempt and each.client_status not in ENDED_STATUSES and each.job_create_index == job.create_index
    }
    return {step.name: _read_moment(replica, step, attempts, is_alive=step.name in alive) for step in steps}


def _make_model_step(group: TaskGroup) -> ModelStep:
    needs = tuple(
        ModelNeed(need.on, need.when, need.each, need.at_least, need.optional) for need in group.depends or ()
    )
    size = group.array.element_count if group.array is not None else 1
    gate = "asked" if group.gate is not None else ""
    condition = "asked" if group.condition else ""
    return ModelStep(group.name, needs, "." * size, group.may_fail, group.final, condition, gate)


def _read_moment(replica: Replica, step: ModelStep, attempts: list[ArrayAttempt], *, is_alive: bool) -> Moment:
    own: list[ArrayAttempt] = []
    for attempt in attempts:
        if step.name in attempt.groups:
            own = [attempt] if attempt.groups[step.name].is_full else [*own, attempt]
    elements = ["."] * len(step.results)
    for attempt in own:
        part = attempt.groups[step.name]
        for index in range(len(elements)):
            code = read_code(replica, attempt, step.name, index)
            elements[index] = code if code != "-" else elements[index]
            if part.cancel_cause and elements[index] == ".":
                elements[index] = "c"
    state = own[-1].groups[step.name].step if own else None
    assert state is not None, f"step {step.name} has a state"
    text = "".join(elements)
    return Moment(
        step,
        text.replace("c", "?") if is_alive else text,
        is_decided=state.phase not in (StepPhase.WAITING, StepPhase.GATED),
        end=_describe_end(state),
        has_begun=bool(state.began_at),
        is_alive=is_alive,
        is_gated=state.phase is StepPhase.GATED,
    )


def _describe_end(state: StepState) -> str:
    """Return how a step never began, in the words of the model."""
    if state.phase is StepPhase.SKIPPED:
        is_own = state.cause is not None and state.cause.kind == StepCauseKind.CONDITION
        return "skipped-by-condition" if is_own else "skipped-by-need"
    return state.phase.value if state.phase in NEVER_BEGAN else ""


def judge_ended_run(moments: Mapping[str, Moment]) -> set[str]:
    """Return how a run ended, as needs of other jobs see it; empty if it has not ended.

    Both kinds of skips are returned if none of its steps ran: which one counts is not decided here.
    """
    if not all(moment.is_over for moment in moments.values()):
        return set()
    ends = {end for moment in moments.values() for end in moment.possible_ends}
    if FAILED in ends:
        return {FAILED}
    if ends & {CANCELED_EARLY, CANCELED_LATE}:
        has_begun = any(moment.has_begun for moment in moments.values())
        return {CANCELED_LATE if has_begun else CANCELED_EARLY}
    counted = [moment for moment in moments.values() if not moment.step.final] or list(moments.values())
    if any(SUCCEEDED in moment.possible_ends for moment in counted):
        return {SUCCEEDED}
    return {OWN_SKIP, NEED_SKIP}
