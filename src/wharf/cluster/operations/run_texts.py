"""Says in words why a step waits or how it ended, and how a run stands."""

from collections.abc import Mapping, Sequence
from typing import Final

from wharf.cluster.scheduling.steps.decider import StepFacts
from wharf.cluster.scheduling.steps.needs import NeededStep, StepVerdict, judge_need
from wharf.contract.model.jobs.array_views import ArrayCounts
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.run_views import RunStatus, StepStatus, StepView
from wharf.contract.model.jobs.step_states import StepCause, StepCauseKind, StepOutcome, StepPhase, StepState
from wharf.contract.model.jobs.steps import Need, NeedWhen

MAX_NAMED_STEPS: Final = 3
"""Steps that one sentence names; limits its length."""
RESTARTS_TEXT: Final = "failed, and starts again"
"""Begins the text of a step whose task failed and waits on its node for its next start."""
_OUTCOME_TEXTS: Final = {
    StepOutcome.SUCCEEDED: "succeeded",
    StepOutcome.FAILED: "failed",
    StepOutcome.SKIPPED_BY_CONDITION: "was skipped by its condition",
    StepOutcome.SKIPPED_BY_NEED: "was skipped",
    StepOutcome.CANCELED_BEFORE_BEGIN: "was canceled before it began",
    StepOutcome.CANCELED_WHILE_RUNNING: "was canceled while it ran",
}
_WHEN_TEXTS: Final = {
    NeedWhen.SUCCEEDED: "to succeed",
    NeedWhen.FAILED: "to fail",
    NeedWhen.ENDED: "to run and end",
    NeedWhen.ANY: "to end",
}


def describe_waiting(
    job: Job, facts: StepFacts, needs: Sequence[Need], needed: Mapping[str, NeededStep], run_ahead: str
) -> str:
    """Return what a step waits for, such as `waits for build and test to succeed`."""
    names: dict[NeedWhen, list[str]] = {}
    for need in needs:
        if need.each or judge_need(need, needed[need.on]) is StepVerdict.WAIT:
            at_least = f"{format_element_count(need.at_least)} of " if need.at_least else ""
            names.setdefault(NeedWhen(need.when), []).append(at_least + need.on)
    if names:
        return "waits for " + ", and for ".join(
            f"{join_names(each)} {_WHEN_TEXTS[when]}" for when, each in names.items()
        )
    if run_ahead:
        return f"waits for the run {run_ahead} to end"
    is_stopping = any(each.is_canceled and each.stopping for each in needed.values())
    if job.depends and not (facts.group.final and is_stopping):
        word = "job" if len(job.depends) == 1 else "jobs"
        return f"waits for the {word} {join_names([need.on for need in job.depends])}"
    return "is about to be decided"


def format_element_count(count: int) -> str:
    """Return a number of elements in words, such as `1 element`."""
    return "1 element" if count == 1 else f"{count} elements"


def describe_end(facts: StepFacts, counts: ArrayCounts, failure: str) -> str:
    """Return how a step ended, and what caused it. `failure` is why its elements failed; empty: nothing is known."""
    size = len(facts.elements)
    if counts.failed:
        text = "failed" if size == 1 else f"{counts.failed} of {size} elements failed"
        text += f": {failure}" if failure else ""
        return f"{text}; the run goes on, because it has MayFail" if facts.group.may_fail else text
    if facts.state.cause is not None and facts.state.phase is not StepPhase.READY:
        return describe_cause(facts.group, facts.state, facts.state.cause)
    if size and counts.succeeded == size:
        return "succeeded"
    if counts.skipped and not counts.canceled:
        return (
            f"{counts.succeeded} of {size} elements succeeded, {counts.skipped} skipped because of those that they need"
        )
    return "was stopped while it ran" if facts.state.began_at else "was stopped before it began"


def describe_cause(group: TaskGroup, state: StepState, cause: StepCause) -> str:
    """Return what caused the end of a step, as a sentence without its subject."""
    outcome = _OUTCOME_TEXTS.get(StepOutcome(cause.outcome), cause.outcome) if cause.outcome else "has no result"
    actor = f" by {cause.actor}" if cause.actor else ""
    detail = f": {cause.detail}" if cause.detail else ""
    match cause.kind:
        case StepCauseKind.NEED:
            return f"skipped, because {cause.step} {outcome}{_describe_when(group.depends, cause.step)}"
        case StepCauseKind.JOB:
            return f"skipped, because the job {cause.step} {outcome}"
        case StepCauseKind.CONDITION if state.phase is StepPhase.FAILED:
            return f"failed, because its condition cannot be evaluated{detail}"
        case StepCauseKind.CONDITION:
            return f"skipped, because its condition is false{detail}"
        case StepCauseKind.GATE:
            return f"rejected{actor}{detail}" if cause.actor else f"not approved{detail}"
        case StepCauseKind.CANCEL:
            return f"canceled{actor}{detail}"
        case StepCauseKind.DEADLINE:
            return f"canceled, because the run took longer than its deadline{detail}"
        case StepCauseKind.REPLACED:
            return f"canceled, because the run {cause.step} took its place"
        case StepCauseKind.LOCK:
            return f"canceled, because the run {cause.step} took the lock{detail}"
        case StepCauseKind.STOP if cause.actor:
            return f"stopped{actor}{detail}"
    return f"stopped with its job{detail}"


def _describe_when(needs: Sequence[Need] | None, step: str) -> str:
    """Return which end the step would have needed, unless that is success."""
    when = next((need.when for need in needs or () if need.on == step), NeedWhen.SUCCEEDED)
    return "" if when == NeedWhen.SUCCEEDED else f", and it needs {step} {_WHEN_TEXTS[NeedWhen(when)]}"


def describe_progress(status: StepStatus, counts: ArrayCounts, size: int, wait: str) -> str:
    """Return what a step does that has begun or may begin. `wait` is what its elements wait for; empty: nothing is known."""
    if status is StepStatus.STOPPING:
        return "canceled; its tasks are being stopped"
    if wait and (size == 1 or (status is StepStatus.READY and not counts.succeeded + counts.failed)):
        return wait
    if size == 1:
        return "its task starts" if status is StepStatus.STARTING else "its task runs"
    ended = counts.succeeded + counts.failed + counts.skipped
    text = f"{ended} of {size} elements have ended, {counts.running + counts.starting} run"
    return f"{text}; one {wait}" if wait else text


def describe_run(
    status: RunStatus,
    steps: Sequence[StepView],
    run_ahead: str,
    *,
    has_failures: bool,
    canceled: StepCause | None = None,
    stopped: StepCause | None = None,
) -> str:
    """Return the state of a run as a sentence. `canceled` and `stopped` say who canceled it and who stopped its final steps."""
    failed = [each.name for each in steps if each.status is StepStatus.FAILED and each.outcome is StepOutcome.FAILED]
    allowed = [
        each.name for each in steps if each.status is StepStatus.FAILED and each.outcome is not StepOutcome.FAILED
    ]
    gated = [each.name for each in steps if each.status is StepStatus.GATED]
    restarting = [each for each in steps if each.status is StepStatus.STARTING and each.text.startswith(RESTARTS_TEXT)]
    running = [each.name for each in steps if each.status in _BUSY_STATUSES and each not in restarting]
    if status is RunStatus.SUCCEEDED:
        return f"succeeded with failures: {join_names(allowed)} failed" if has_failures else "succeeded"
    if status is RunStatus.FAILED:
        return f"failed: {join_names(failed)} failed"
    if status is RunStatus.CANCELED:
        texts = [each.text for each in steps if each.status is StepStatus.CANCELED and each.cause is not None]
        return _describe_cancellation(texts, canceled, stopped)
    if status is RunStatus.SKIPPED:
        first = next((each for each in steps if each.status is StepStatus.SKIPPED and each.cause is not None), None)
        return f"skipped: {first.name} was {first.text}" if first is not None else "skipped: none of its steps ran"
    if run_ahead:
        return f"waits for the run {run_ahead} to end"
    parts = []
    if status is RunStatus.CANCELING:
        parts.append(f"is being stopped by {stopped.actor}" if stopped is not None else "is being canceled")
    if gated:
        parts.append(f"{join_names(gated)} {'waits' if len(gated) == 1 else 'wait'} for approval")
    if running:
        parts.append(f"{join_names(running)} {'runs' if len(running) == 1 else 'run'}")
    parts += [f"{each.name} {each.text}" for each in restarting[:1]]
    if failed:
        parts.append(f"{join_names(failed)} failed")
    if not (gated or running or restarting or status is RunStatus.CANCELING):
        # Nothing runs, so the user wants to know what the run waits for, also if a step has failed.
        idle = sorted((each for each in steps if each.status in _IDLE_STATUSES), key=_is_waiting)
        parts += [f"{each.name} {each.text}" for each in idle[:1]]
    return "; ".join(parts)


def _describe_cancellation(step_texts: Sequence[str], canceled: StepCause | None, stopped: StepCause | None) -> str:
    """Return who canceled a run, and who stopped its final steps after that or at once."""
    text = next((each for each in step_texts if each.startswith("canceled")), "")
    if not text and canceled is not None and canceled.actor:
        text = f"canceled by {canceled.actor}{_format_detail(canceled)}"
    if stopped is None:
        return text or "canceled"
    stop = f"stopped at once by {stopped.actor}{_format_detail(stopped)}"
    return f"{text}; then {stop}" if text else f"canceled: {stop}"


def _format_detail(cause: StepCause) -> str:
    return f": {cause.detail}" if cause.detail else ""


def _is_waiting(step: StepView) -> bool:
    return step.status is StepStatus.WAITING


_BUSY_STATUSES: Final = frozenset({StepStatus.STARTING, StepStatus.RUNNING, StepStatus.STOPPING})
_IDLE_STATUSES: Final = frozenset({StepStatus.READY, StepStatus.WAITING})


def join_names(names: Sequence[str]) -> str:
    """Return names as a list in words, such as `a, b and 3 more`."""
    shown = list(names[:MAX_NAMED_STEPS])
    more = len(names) - len(shown)
    if more:
        return f"{', '.join(shown)} and {more} more"
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1]))) if shown else ""
