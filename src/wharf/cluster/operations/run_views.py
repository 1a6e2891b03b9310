"""Builds what the API shows of a run, from the stored states of its steps, the results of elements and its allocations."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from wharf.cluster.operations.array_views import add_counts, count_states, show_running, show_skipped
from wharf.cluster.operations.jobs.overlap import RunQueues, waits_in_queue
from wharf.cluster.operations.run_texts import describe_end, describe_progress, describe_run, describe_waiting
from wharf.cluster.operations.step_waits import StepFailures, StepWaits, describe_restart
from wharf.cluster.scheduling.steps.decider import StepFacts, describe_needed, judge_run, judge_step, list_all_needs
from wharf.cluster.scheduling.steps.facts import RunFacts, add_cancel_reason, read_snapshot_run
from wharf.cluster.scheduling.steps.needs import NeededStep
from wharf.cluster.state import Replica
from wharf.cluster.state.lookups import list_elements
from wharf.cluster.state.tables import ARRAY_RESULTS, ATTEMPTS_OF_JOB, ElementPhase
from wharf.contract.model.jobs.array_attempts import (
    OPEN,
    ArrayAttempt,
    AttemptReason,
    ElementStates,
    GroupAttempt,
    select_attempts,
)
from wharf.contract.model.jobs.array_views import ArrayCounts
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.run_views import (
    BUSY_STATUSES,
    AttemptStepView,
    ElementProgress,
    GateView,
    RunAttemptView,
    RunStatus,
    RunStub,
    RunView,
    StepCounts,
    StepStatus,
    StepView,
    waits_for_approval,
)
from wharf.contract.model.jobs.step_states import StepCause, StepCauseKind, StepOutcome, StepPhase, StepState
from wharf.contract.model.jobs.steps import Need

MAX_ATTEMPT_STEPS: Final = 2_000
"""Steps of attempts whose results a view has, those of the newest attempts. Limits its size and the time to build it."""
_ENDED_STATUSES: Final = {
    StepOutcome.SUCCEEDED: StepStatus.SUCCEEDED,
    StepOutcome.FAILED: StepStatus.FAILED,
    StepOutcome.SKIPPED_BY_CONDITION: StepStatus.SKIPPED,
    StepOutcome.SKIPPED_BY_NEED: StepStatus.SKIPPED,
    StepOutcome.CANCELED_BEFORE_BEGIN: StepStatus.CANCELED,
    StepOutcome.CANCELED_WHILE_RUNNING: StepStatus.CANCELED,
}


class _Step(NamedTuple):
    """A step with what is derived from its records."""

    facts: StepFacts
    counts: ArrayCounts
    status: StepStatus
    outcome: StepOutcome
    attempts: Sequence[ArrayAttempt]
    first_attempt: int
    """The attempt that ran all of its elements; those after it ran some of them again."""
    restart: str
    """Why and when a task of the step starts again that failed; empty: none does."""

    @property
    def state(self) -> StepState:
        return self.facts.state

    @property
    def ended_at(self) -> int:
        """When it ended; 0 if it has not."""
        if self.outcome is StepOutcome.OPEN:
            return 0
        return self.state.ended_at or self.state.since


def _read_all(snapshot: Replica, job: Job, run: RunFacts) -> dict[str, _Step]:
    """Return the steps of a run, in the order of the file."""
    steps = {}
    for name, facts in run.get_facts().items():
        alive = list_elements(snapshot, job, name, ElementPhase.ALIVE) if facts.alive else ()
        states = show_running(facts.elements, alive) if alive else facts.elements
        outcome, counts = judge_step(facts), count_states(show_skipped(states, facts.state))
        own = [each for each in run.attempts if name in each.groups]
        restart = describe_restart(alive) if counts.starting else ""
        status, first = _find_status(facts, counts, outcome), run.steps[name].states.first_attempt
        steps[name] = _Step(facts, counts, status, outcome, own, first, restart)
    return steps


def _find_status(facts: StepFacts, counts: ArrayCounts, outcome: StepOutcome) -> StepStatus:
    """Return the state of a step in one word. A step that may fail is shown as failed, although its successors see success."""
    if outcome is not StepOutcome.OPEN:
        has_failed = counts.failed or facts.state.phase is StepPhase.FAILED
        return StepStatus.FAILED if has_failed and facts.group.may_fail else _ENDED_STATUSES[outcome]
    match facts.state.phase:
        case StepPhase.WAITING:
            return StepStatus.WAITING
        case StepPhase.GATED:
            return StepStatus.GATED
    if facts.state.phase is not StepPhase.READY or OPEN not in facts.elements:
        return StepStatus.STOPPING
    if counts.running:
        return StepStatus.RUNNING
    return StepStatus.STARTING if counts.starting else StepStatus.READY


def find_layers(needs: Mapping[str, Sequence[Need]]) -> dict[str, int]:
    """Return the layer of each step: one more than the last layer of the steps that it needs."""
    needed_names = {name: {need.on for need in own if need.on in needs} for name, own in needs.items()}
    followers: dict[str, list[str]] = {}
    for name, needed in needed_names.items():
        for each in needed:
            followers.setdefault(each, []).append(name)
    open_needs = {name: len(each) for name, each in needed_names.items()}
    layers = dict.fromkeys(needs, 0)
    queue = [name for name, count in open_needs.items() if not count]
    for name in queue:
        for follower in followers.get(name, ()):
            layers[follower] = max(layers[follower], layers[name] + 1)
            open_needs[follower] -= 1
            if not open_needs[follower]:
                queue.append(follower)
    return layers


def _took_time(step: _Step) -> bool:
    """Return whether a step that has ended took time: its tasks ran, or its gate waited for an answer that failed it."""
    state = step.state
    if state.began_at:
        return True
    return state.phase is StepPhase.FAILED and state.cause is not None and state.cause.kind is StepCauseKind.GATE


def find_critical_path(needs: Mapping[str, Sequence[Need]], steps: Mapping[str, "_Step"]) -> tuple[str, ...]:
    """Return the steps that took the time of a run up to now, first to last.

    The last one is the step that ended last, or, while steps are busy or wait for an answer, the one that has been so for
    longest. Before each step lies the needed step that ended last: it began when that one had ended.
    """
    busy = [
        name
        for name, each in steps.items()
        if each.outcome is StepOutcome.OPEN and each.status is not StepStatus.WAITING
    ]
    if busy:
        last = min(busy, key=lambda name: steps[name].state.since)
    else:
        began = [name for name, each in steps.items() if each.outcome is not StepOutcome.OPEN and _took_time(each)]
        if not began:
            return ()
        last = max(began, key=lambda name: steps[name].ended_at)
    path = [last]
    while True:
        ended = [need.on for need in needs[path[-1]] if need.on in steps and steps[need.on].ended_at]
        if not ended or len(path) > len(steps):
            return tuple(reversed(path))
        path.append(max(ended, key=lambda name: steps[name].ended_at))


def build_run_view(
    snapshot: Replica, job: Job, queues: RunQueues | None = None, *, has_details: bool = True
) -> RunView:
    """Return what the API shows of a run. A listing passes the same `queues` for all of its runs.

    With `has_details`, also why elements failed, and earlier attempts.
    """
    run = read_snapshot_run(snapshot, job)
    steps = _read_all(snapshot, job, run)
    needs = list_all_needs(job)
    needed = {name: describe_needed(each.facts) for name, each in steps.items()}
    run_ahead = (queues or RunQueues(snapshot)).find_run_ahead(job) if waits_in_queue(job, run) else ""
    layers = find_layers(needs)
    critical_path = find_critical_path(needs, steps)
    newest = run.newest_attempt
    canceled = newest.cancel_cause if newest is not None else None
    stopped = newest.stop_cause if newest is not None else None
    waits, failures = StepWaits(snapshot, job), StepFailures(snapshot, job) if has_details else None
    views = [
        _build_step(
            name,
            each,
            _describe_step(job, each, needs[name], needed, run_ahead, waits, failures, canceled),
            needs[name],
            layers[name],
            name in critical_path,
        )
        for name, each in steps.items()
    ]
    views.sort(key=lambda each: each.layer)
    status, has_failures = find_run_status([each.facts for each in steps.values()], run.newest_attempt)
    return RunView(
        job_id=job.id,
        namespace=job.namespace,
        flow=job.parent_id,
        status=status,
        has_failures=has_failures,
        text=describe_run(status, views, run_ahead, has_failures=has_failures, canceled=canceled, stopped=stopped),
        waits_for_run=run_ahead,
        created_at=find_run_creation(job, run.attempts),
        began_at=find_run_begin(run.attempts),
        ended_at=max((each.ended_at for each in steps.values()), default=0) if status.has_ended else 0,
        deadline=newest.deadline if newest is not None else 0,
        layer_count=max(layers.values(), default=-1) + 1,
        steps=tuple(views),
        critical_path=critical_path,
        attempts=_build_attempts(snapshot, job, run, views, failures),
    )


def _build_attempts(
    snapshot: Replica, job: Job, run: RunFacts, views: Sequence[StepView], failures: StepFailures | None
) -> tuple[RunAttemptView, ...]:
    """Return the attempts of a run, oldest first. Without `failures` they have no results."""
    current = {each.name: each for each in views}
    left = MAX_ATTEMPT_STEPS if failures is not None else 0
    found = []
    for position in range(len(run.attempts) - 1, -1, -1):
        attempt = run.attempts[position]
        left -= len(attempt.groups)
        results = []
        for name in run.steps if failures is not None and left >= 0 else ():
            if name in attempt.groups:
                view = current[name]
                is_current = view.attempt == attempt.attempt
                results.append(
                    _summarize_step(view)
                    if is_current
                    else _build_earlier_step(snapshot, job, run, position, name, failures)
                )
        found.append(
            RunAttemptView(
                attempt=attempt.attempt,
                reason=attempt.reason,
                create_time=attempt.create_time,
                steps=tuple(attempt.groups),
                partial_steps=tuple(name for name, part in attempt.groups.items() if part.element_count < part.size),
                cancel_cause=attempt.cancel_cause,
                stop_cause=attempt.stop_cause,
                results=tuple(results),
            )
        )
    return tuple(reversed(found))


def _summarize_step(view: StepView) -> AttemptStepView:
    return AttemptStepView(
        name=view.name,
        status=view.status,
        outcome=view.outcome,
        text=view.text,
        cause=view.cause,
        counts=view.counts,
        began_at=view.began_at,
        ended_at=view.ended_at,
    )


def _build_earlier_step(
    snapshot: Replica, job: Job, run: RunFacts, position: int, name: str, failures: StepFailures | None
) -> AttemptStepView:
    """Return how a step had ended when the attempt after this one began."""
    attempt, group = run.attempts[position], run.steps[name].facts.group
    layers = select_attempts(run.attempts[: position + 1], job.create_index, name)
    key = (job.namespace, job.id)
    elements = ElementStates(name, layers, lambda *chunk: snapshot.get(ARRAY_RESULTS, *key, *chunk))
    stored = StepFacts(group, attempt.groups[name].step or StepState(phase=StepPhase.READY), elements.states)
    facts = add_cancel_reason(stored, attempt)
    outcome, counts = judge_step(facts), count_states(show_skipped(facts.elements, facts.state))
    own = [each for each in run.attempts[: position + 1] if name in each.groups]
    step = _Step(facts, counts, _find_status(facts, counts, outcome), outcome, own, elements.first_attempt, "")
    has_ended = outcome is not StepOutcome.OPEN
    return AttemptStepView(
        name=name,
        status=step.status,
        outcome=outcome,
        text=describe_end(facts, counts, _describe_failure(step, failures)) if has_ended else "did not end",
        cause=facts.state.cause,
        counts=counts,
        began_at=facts.state.began_at,
        ended_at=step.ended_at,
    )


def list_run_attempts(snapshot: Replica, job: Job) -> list[ArrayAttempt]:
    """Return the attempts of a run, oldest first."""
    stored = snapshot.list_by_index(ATTEMPTS_OF_JOB, job.namespace, job.id)
    own = [each for each in stored if each.job_create_index == job.create_index]
    return sorted(own, key=lambda each: each.attempt)


def find_run_creation(job: Job, attempts: Sequence[ArrayAttempt]) -> int:
    """Return when the run was submitted. A stop or a retry makes a new version of the job, but no new run."""
    submitted = [each.create_time for each in attempts if each.reason is AttemptReason.REGISTERED]
    oldest = [each.create_time for each in attempts[:1]]
    return next(iter(submitted[-1:] or oldest), 0) or job.submit_time


def find_run_begin(attempts: Sequence[ArrayAttempt]) -> int:
    """Return when the first step of a run began; 0 if none did. `attempts` are those of the run, oldest first.

    A retry does not change it. A submission of a new version makes a new run.
    """
    newest = max((at for at, each in enumerate(attempts) if each.reason is AttemptReason.REGISTERED), default=0)
    steps = (part.step for attempt in attempts[newest:] for part in attempt.groups.values())
    return min((step.began_at for step in steps if step is not None and step.began_at), default=0)


def has_open_gate(attempts: Sequence[ArrayAttempt]) -> bool:
    """Return whether a step of a run waits for the approval of a person. `attempts` are those of the run, oldest first."""
    newest: dict[str, GroupAttempt] = {}
    for attempt in attempts:
        newest |= attempt.groups
    return any(part.step is not None and part.step.phase is StepPhase.GATED for part in newest.values())


def read_run_status(snapshot: Replica, job: Job) -> RunStatus:
    """Return the state of a run in one word."""
    run = read_snapshot_run(snapshot, job)
    return find_run_status(list(run.iter_facts()), run.newest_attempt)[0]


def find_run_status(steps: Sequence[StepFacts], newest: ArrayAttempt | None) -> tuple[RunStatus, bool]:
    """Return the state of a run in one word, and whether a step failed that may fail."""
    outcome, has_failures = judge_run(steps)
    if outcome:
        return RunStatus(outcome), has_failures
    if newest is not None and (newest.cancel_cause is not None or newest.stop_cause is not None):
        return RunStatus.CANCELING, has_failures
    has_begun = any(each.state.began_at or each.alive for each in steps)
    return RunStatus.RUNNING if has_begun else RunStatus.WAITING, has_failures


def _build_step(name: str, step: _Step, text: str, needs: Sequence[Need], layer: int, is_critical: bool) -> StepView:
    group, state = step.facts.group, step.state
    size = len(step.facts.elements)
    return StepView(
        name=name,
        layer=layer,
        status=step.status,
        outcome=step.outcome,
        text=text,
        cause=state.cause,
        needs=tuple(need.on for need in needs),
        may_fail=group.may_fail,
        final=group.final,
        size=size,
        is_array=size > 1,
        counts=step.counts,
        attempt=step.attempts[-1].attempt if step.attempts else 0,
        attempt_count=len(step.attempts),
        since=state.since,
        began_at=state.began_at,
        ended_at=step.ended_at,
        gate=_build_gate(group, state),
        is_critical=is_critical,
    )


def _build_gate(group: TaskGroup, state: StepState) -> GateView | None:
    gate = group.gate
    if gate is None:
        return None
    is_open = state.phase is StepPhase.GATED
    ask = gate.ask or f"may {group.name} begin?"
    answer = (
        state.cause
        if state.cause is not None and state.cause.kind is StepCauseKind.GATE and state.cause.actor
        else None
    )
    return GateView(
        ask=ask,
        policy=gate.policy,
        deadline=state.gate_deadline if is_open else 0,
        is_open=is_open,
        answer="" if answer is None else "rejected" if state.phase is StepPhase.FAILED else "approved",
        answered_by=answer.actor if answer is not None else "",
        answer_text=answer.detail if answer is not None else "",
    )


def _describe_step(
    job: Job,
    step: _Step,
    needs: Sequence[Need],
    needed: Mapping[str, NeededStep],
    run_ahead: str,
    waits: StepWaits,
    failures: StepFailures | None,
    canceled: StepCause | None,
) -> str:
    if step.outcome is not StepOutcome.OPEN:
        text = describe_end(step.facts, step.counts, _describe_failure(step, failures))
        return text + _describe_canceled_run(step.state, canceled)
    match step.status:
        case StepStatus.WAITING:
            return describe_waiting(job, step.facts, needs, needed, run_ahead)
        case StepStatus.GATED:
            return "waits for approval"
    name, counts = step.facts.group.name, step.counts
    wait = ""
    if step.status is StepStatus.READY:
        has_results = counts.succeeded + counts.failed
        wait = waits.describe_known_wait(name) if has_results else waits.describe_unplaced(name)
    return describe_progress(step.status, counts, len(step.facts.elements), step.restart or wait)


def _describe_canceled_run(state: StepState, canceled: StepCause | None) -> str:
    """Return who canceled the run of a step that was stopped after that, such as by a second cancellation."""
    is_stopped = state.cause is not None and state.cause.kind is StepCauseKind.STOP
    if not is_stopped or canceled is None or not canceled.actor:
        return ""
    detail = f": {canceled.detail}" if canceled.detail else ""
    return f", after {canceled.actor} canceled the run{detail}"


def _describe_failure(step: _Step, failures: StepFailures | None) -> str:
    """Return why elements of a step failed; empty if none did, or if nothing is known."""
    if failures is None or not step.counts.failed or not step.attempts:
        return ""
    return failures.describe(step.facts.group.name, step.first_attempt, step.attempts[-1].attempt)


def build_run_stub(snapshot: Replica, job: Job, queues: RunQueues | None = None) -> RunStub:
    """Return a run as lists show it. A listing passes the same `queues` for all of its runs."""
    view = build_run_view(snapshot, job, queues, has_details=False)
    counts = {status: sum(each.status is status for each in view.steps) for status in StepStatus}
    return RunStub(
        job_id=job.id,
        namespace=job.namespace,
        flow=job.parent_id,
        status=view.status,
        has_failures=view.has_failures,
        text=view.text,
        step_count=len(view.steps),
        counts=StepCounts(
            waiting=counts[StepStatus.WAITING],
            gated=counts[StepStatus.GATED],
            running=sum(counts[each] for each in BUSY_STATUSES),
            succeeded=counts[StepStatus.SUCCEEDED],
            failed=counts[StepStatus.FAILED],
            skipped=counts[StepStatus.SKIPPED],
            canceled=counts[StepStatus.CANCELED],
        ),
        created_at=view.created_at,
        began_at=view.began_at,
        ended_at=view.ended_at,
        create_index=job.create_index,
        modify_index=job.modify_index,
    )


def build_run_progress(snapshot: Replica, job: Job) -> ElementProgress:
    """Return how far a run is: its state, and the elements of all of its steps. Reads less than `build_run_stub`."""
    run = read_snapshot_run(snapshot, job)
    steps = _read_all(snapshot, job, run).values()
    status, _ = find_run_status([each.facts for each in steps], run.newest_attempt)
    statuses = {each.status for each in steps}
    return ElementProgress(
        run_status=status,
        is_gated=not status.has_ended and waits_for_approval(statuses),
        elements=add_counts(each.counts for each in steps),
    )
