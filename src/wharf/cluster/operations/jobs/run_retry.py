"""Runs steps of a run again, in a new attempt: those that failed or that a user names, and all that follow them (record 0308)."""

from collections.abc import Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Final, NamedTuple

import msgspec

from wharf.cluster.operations.decision import Decision, DecisionContext, WriteBuilder
from wharf.cluster.operations.evaluations import make_evaluation
from wharf.cluster.operations.jobs.arrays import drop_oldest_attempt, find_next_attempt, make_selected_results
from wharf.cluster.operations.jobs.job_needs import require_no_circle
from wharf.cluster.operations.jobs.registration import check_registration_enabled
from wharf.cluster.operations.jobs.rerun import MAX_ATTEMPTS
from wharf.cluster.operations.jobs.runs import find_run, make_unknown_step_refusal
from wharf.cluster.operations.jobs.versions import MAX_COPIED_JOB_BYTES, make_switched_version, store_version
from wharf.cluster.operations.run_changes import add_run_attempt, estimate_group_bytes, start_builder
from wharf.cluster.operations.scaling import sync_policies
from wharf.cluster.scheduling.steps.decider import StepFacts, judge_step, list_all_needs
from wharf.cluster.scheduling.steps.facts import RunFacts, StepRecord, read_snapshot_run
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ARRAY_RESULTS, EVALUATIONS, JOBS
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.array_attempts import (
    ABSENT,
    FAILED,
    OPEN,
    SUCCEEDED,
    ArrayAttempt,
    AttemptReason,
    GroupAttempt,
    iter_elements,
)
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.step_states import StepCauseKind, StepOutcome, StepPhase
from wharf.contract.model.jobs.steps import Need
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request

MAX_RUN_ATTEMPTS: Final = 100
"""Attempts of a run. Each read of its state visits all of them."""
MAX_STOP_BYTES: Final = 1_250_000
"""The bytes of all copies of the job, and of all attempts with a step that has not ended: a write that stops the run has them, and at
most 1.4 MB.
"""
_SELECT_UNSUCCESSFUL: Final = bytes(ABSENT[0] if code == SUCCEEDED[0] else OPEN[0] for code in range(256))


class RunRetry(msgspec.Struct, frozen=True, kw_only=True):
    """A request to run steps of a run again."""

    namespace: str
    job_id: str
    steps: tuple[str, ...] = ()
    """These steps and all that follow them; empty: those that failed or were canceled, and all that follow them."""
    is_management: bool = True  # The caller may run steps even while registration is disabled.
    may_start: bool = True  # The caller may start a stopped job, which is a new version of it.
    cause: str = ""


class RetriedStep(msgspec.Struct, frozen=True):
    """A step that runs again."""

    name: str
    reason: str  # Why, in words.
    element_count: int  # How many of its elements run.
    size: int  # How many elements it has.


class KeptStep(msgspec.Struct, frozen=True):
    """A step that does not run again."""

    name: str
    reason: str  # Why, in words.
    outcome: StepOutcome


class RetryPlan(msgspec.Struct, frozen=True):
    """What a retry of a run would do."""

    steps: tuple[RetriedStep, ...]  # In the order of the file.
    other_steps: tuple[KeptStep, ...]  # They keep their results.


class RetryResult(msgspec.Struct, frozen=True):
    """The result of a retry."""

    index: int
    plan: RetryPlan
    job_modify_index: int = 0
    eval_id: str = ""
    eval_create_index: int = 0
    attempt: int = 0  # The number of the new attempt; 0: no step has to run again, so nothing changed.


class _Selection(NamedTuple):
    """What runs again of a step."""

    elements: bytes  # `OPEN` for each element that runs, else `ABSENT`.
    reason: str

    @property
    def is_full(self) -> bool:
        return ABSENT not in self.elements


KEPT_REASONS: Final[Mapping[StepOutcome, str]] = {
    StepOutcome.OPEN: "it has not ended",
    StepOutcome.SUCCEEDED: "it succeeded",
    StepOutcome.FAILED: "it failed, and was not selected",
    StepOutcome.SKIPPED_BY_CONDITION: "its condition was false",
    StepOutcome.SKIPPED_BY_NEED: "it does not follow a step that runs again",
    StepOutcome.CANCELED_BEFORE_BEGIN: "it was canceled, and was not selected",
    StepOutcome.CANCELED_WHILE_RUNNING: "it was canceled, and was not selected",
}
"""Why a step does not run again, by how it ended."""
RETRIED_REASONS: Final[Mapping[StepOutcome, str]] = {
    StepOutcome.FAILED: "it failed",
    StepOutcome.SKIPPED_BY_NEED: "the job that it needs did not succeed",
    StepOutcome.CANCELED_BEFORE_BEGIN: "it was canceled before it began",
    StepOutcome.CANCELED_WHILE_RUNNING: "it was canceled while it ran",
}
"""Why a step runs again that no user named, by how it ended."""


def plan_retry(snapshot: Replica, request: RunRetry) -> RetryPlan:
    """Return what a retry would run again and what it would keep. Raises if it is not possible now."""
    job = find_run(snapshot, request.namespace, request.job_id)
    require_no_circle(snapshot, job)
    run = read_snapshot_run(snapshot, job)
    return _describe_plan(run, _select_steps(job, run, request.steps))


def retry_run(
    snapshot: Replica, request: RunRetry, context: DecisionContext, settings: JobSettings
) -> Decision[RetryResult]:
    """Return the decision that runs steps of a run again, in a new attempt. All other steps keep their states.

    A stopped job starts again, but only with these steps. Raises if a step that would run again has not ended.
    """
    check_registration_enabled(snapshot, is_management=request.is_management)
    job = find_run(snapshot, request.namespace, request.job_id)
    if job.stop and not request.may_start:
        raise Refusal(
            RefusalCode.FORBIDDEN,
            f'run "{job.id}" is stopped, and a retry starts it again: the token needs the capability register-job too',
        )
    require_no_circle(snapshot, job)
    run = read_snapshot_run(snapshot, job)
    selected = _select_steps(job, run, request.steps)
    plan = _describe_plan(run, selected)
    if not selected:
        return Decision(None, lambda index: RetryResult(index, plan, job.job_modify_index))
    _require_stoppable(job, run, selected)
    builder = WriteBuilder(snapshot)
    job_modify_index, running = job.job_modify_index, job
    if job.stop:
        running = make_switched_version(job, context, stop=False)
        store_version(builder, running, max_versions=settings.versions_kept, starts_arrays=False)
        sync_policies(builder, running)
        job_modify_index = WRITE_INDEX
    else:
        # A new index of the job protects it from a garbage collection that was decided before.
        builder.put(JOBS, job)
        builder.require_unchanged_record(JOBS, job)
    builder.require_unchanged_parents(JOBS, running)
    attempt = _make_retry(snapshot, running, run, selected, context)
    cause = Cause(CauseKind.REQUEST, request.cause)
    steps = start_builder(snapshot, "run-retried", cause)
    partial = {name: each.elements for name, each in selected.items() if not each.is_full}
    for results in make_selected_results(attempt, partial):
        steps.put_record(ARRAY_RESULTS, results)
    add_run_attempt(steps, running, attempt, context.now_ns)
    write = steps.build_write()
    builder.changes += write.changes
    builder.conditions += write.conditions
    drop_oldest_attempt(builder, running)
    evaluation = make_evaluation(running, context, EvaluationTrigger.RUN_RETRY)
    builder.put(EVALUATIONS, evaluation)
    return Decision(
        builder.build("run-retried", cause),
        lambda index: RetryResult(
            index=index,
            plan=plan,
            job_modify_index=index if job_modify_index == WRITE_INDEX else job_modify_index,
            eval_id=evaluation.id,
            eval_create_index=index,
            attempt=attempt.attempt,
        ),
    )


def _make_retry(
    snapshot: Replica, job: Job, run: RunFacts, selected: Mapping[str, _Selection], context: DecisionContext
) -> ArrayAttempt:
    """Return the attempt that runs the selected steps. Raises if the run has too many attempts already."""
    if len(run.attempts) >= MAX_RUN_ATTEMPTS:
        raise invalid_request(
            f'run "{job.id}" already has {len(run.attempts)} attempts, which is the limit: submit the job again'
        )
    for name, selection in selected.items():
        if not selection.is_full and len(run.steps[name].states.attempts) >= MAX_ATTEMPTS:
            raise invalid_request(
                f"the elements of step {name} already have {MAX_ATTEMPTS} attempts, which is the limit: "
                f"run the whole step again with --from {name}"
            )
    return ArrayAttempt(
        namespace=job.namespace,
        job_id=job.id,
        attempt=find_next_attempt(snapshot, job),
        job_create_index=job.create_index,
        job_version=job.version,
        reason=AttemptReason.RETRY,
        groups={
            name: GroupAttempt(size=len(each.elements), element_count=each.elements.count(OPEN), is_full=each.is_full)
            for name, each in selected.items()
        },
        create_time=context.now_ns,
        create_index=WRITE_INDEX,
    )


def _require_stoppable(job: Job, run: RunFacts, selected: Mapping[str, _Selection]) -> None:
    """Raise if the run could not be stopped after the retry, because too many large attempts have steps that have not ended."""
    groups_by_attempt = {
        record.attempt.attempt: record.attempt.groups
        for name, record in run.steps.items()
        if record.attempt is not None and name not in selected and judge_step(record.facts) is StepOutcome.OPEN
    }
    if not groups_by_attempt:
        return
    estimate = {group.name: estimate_group_bytes(job, group) for group in job.groups}
    job_bytes = len(msgspec.msgpack.encode(job))
    size = job_bytes * (1 if job_bytes > MAX_COPIED_JOB_BYTES else 3) + sum(
        estimate.get(name, 0) for groups in (selected, *groups_by_attempt.values()) for name in groups
    )
    if size > MAX_STOP_BYTES:
        raise Refusal(
            RefusalCode.CONFLICT,
            f'steps of {len(groups_by_attempt)} attempts of run "{job.id}" have not ended, and the run could not be stopped '
            "with one more: wait for these steps, or cancel the run first",
        )


def _select_steps(job: Job, run: RunFacts, named: Sequence[str]) -> dict[str, _Selection]:
    """Return what runs again of each step, in the order of the file. Raises if a step of it has not ended."""
    newest = run.newest_attempt
    outcomes = {name: judge_step(record.facts) for name, record in run.steps.items()}
    if newest is not None and newest.cancel_cause is not None and StepOutcome.OPEN in outcomes.values():
        raise Refusal(RefusalCode.CONFLICT, f'run "{job.id}" is being canceled: wait for its end')
    for name in named:
        if name not in run.steps:
            raise make_unknown_step_refusal(job, name)
    roots = {
        name: "it was selected" if named else RETRIED_REASONS[outcomes[name]]
        for name, record in run.steps.items()
        if (name in named if named else _must_retry(record, outcomes[name]))
    }
    needs = list_all_needs(job)
    followed = _find_followed(needs, roots)
    selected: dict[str, _Selection] = {}
    for name in _sort_by_needs(needs, (*roots, *followed)):
        if outcomes[name] is StepOutcome.OPEN:
            _require_undecided(run.steps[name], followed.get(name, ""))
            continue
        if name in roots:
            is_partial = not named
            elements = _select_elements(run.steps[name], is_partial=is_partial, followed=())
            selected[name] = _Selection(elements, roots[name])
        else:
            own = [(need, selected[need.on].elements) for need in needs[name] if need.on in selected]
            is_partial = all(need.each for need, _ in own)
            elements = _select_elements(
                run.steps[name], is_partial=is_partial, followed=tuple(elements for _, elements in own)
            )
            selected[name] = _Selection(elements, f"it follows {followed[name]}")
    return {name: selected[name] for name in run.steps if name in selected}


def _must_retry(record: StepRecord, outcome: StepOutcome) -> bool:
    """Return whether a step runs again in a retry without named steps because of itself, not because of another step."""
    if outcome is StepOutcome.SKIPPED_BY_NEED:
        cause = record.facts.state.cause
        return cause is not None and cause.kind == StepCauseKind.JOB
    return outcome in RETRIED_REASONS


def _find_followed(needs: Mapping[str, Sequence[Need]], roots: Iterable[str]) -> dict[str, str]:
    """Return the steps that follow these ones, directly or through others, each with a step that it needs."""
    followed: dict[str, str] = {}
    pending = list(roots)
    reached = set(pending)
    followers: dict[str, list[str]] = {}
    for name, own in needs.items():
        for need in own:
            followers.setdefault(need.on, []).append(name)
    while pending:
        on = pending.pop()
        for name in followers.get(on, ()):
            if name not in reached:
                reached.add(name)
                followed[name] = on
                pending.append(name)
    return followed


def _sort_by_needs(needs: Mapping[str, Sequence[Need]], names: Iterable[str]) -> list[str]:
    """Return steps so that each one comes after those that it needs."""
    graph = {name: [need.on for need in needs[name]] for name in names}
    return [name for name in TopologicalSorter(graph).static_order() if name in graph]


def _require_undecided(record: StepRecord, followed: str) -> None:
    """Raise unless a step still waits. It then waits also for the steps that run again."""
    name = record.facts.group.name
    if not followed:
        raise Refusal(RefusalCode.CONFLICT, f"step {name} has not ended: wait for its end, or cancel the run first")
    if record.facts.state.phase is not StepPhase.WAITING:
        raise Refusal(
            RefusalCode.CONFLICT,
            f"step {name} follows {followed}, which would run again, and has begun: wait for its end, or cancel the run first",
        )


def _select_elements(record: StepRecord, *, is_partial: bool, followed: Sequence[bytes]) -> bytes:
    """Return the elements of a step that run again: all, or those that did not succeed and those that follow others."""
    states = record.facts.elements
    size = record.states.size
    if not is_partial or SUCCEEDED not in states:
        return OPEN * size
    selected = bytearray(states.translate(_SELECT_UNSUCCESSFUL))
    for elements in followed:
        for index in iter_elements(elements, OPEN):
            selected[index : index + 1] = OPEN
    return bytes(selected[:size])


def _describe_plan(run: RunFacts, selected: Mapping[str, _Selection]) -> RetryPlan:
    other_steps = {name: record for name, record in run.steps.items() if name not in selected}
    return RetryPlan(
        tuple(
            RetriedStep(name, each.reason, each.elements.count(OPEN), len(each.elements))
            for name, each in selected.items()
        ),
        tuple(_describe_kept(name, record) for name, record in other_steps.items()),
    )


def _describe_open(facts: StepFacts) -> str:
    """Return what a step does that has not ended."""
    match facts.state.phase:
        case StepPhase.WAITING:
            return "it waits for others"
        case StepPhase.GATED:
            return "it waits for approval"
        case StepPhase.CANCELED:
            return "it is being stopped"
    return "it runs" if facts.alive else KEPT_REASONS[StepOutcome.OPEN]


def _describe_kept(name: str, record: StepRecord) -> KeptStep:
    """Return why a step does not run again. One that may fail has failed, although its successors see success."""
    facts, outcome = record.facts, judge_step(record.facts)
    has_failed = FAILED in facts.elements or facts.state.phase is StepPhase.FAILED
    if outcome is StepOutcome.SUCCEEDED and has_failed:
        return KeptStep(name, "it failed, and may fail", outcome)
    if outcome is StepOutcome.OPEN:
        return KeptStep(name, _describe_open(facts), outcome)
    return KeptStep(name, KEPT_REASONS[outcome], outcome)
