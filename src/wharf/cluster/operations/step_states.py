"""Stores what the decider says about the steps of a run, in the same write as the facts on which it is based.

`settle_steps` is the only place that stores new states of steps, apart from the operations of users on runs, which call it
too. What a step may do is decided in `wharf.cluster.scheduling.steps` (record 0307).
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from wharf.cluster.operations.derived_write_builder import DerivedWriteBuilder
from wharf.cluster.operations.jobs.job_outcomes import find_outcome
from wharf.cluster.operations.jobs.overlap import (
    add_run_ahead,
    find_run_ahead,
    has_attempt_begun,
    list_unfinished_after,
    waits_in_queue,
)
from wharf.cluster.operations.step_outputs import find_texts_of_step
from wharf.cluster.scheduling.steps import conditions
from wharf.cluster.scheduling.steps.decider import ConditionEvaluator, StepChange, StepFacts, decide_steps, judge_step
from wharf.cluster.scheduling.steps.facts import RunFacts, StepRecord, read_run
from wharf.cluster.scheduling.steps.needs import NeededStep
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_OF_JOB,
    ARRAY_ATTEMPTS,
    ARRAY_RESULTS,
    ATTEMPTS_OF_JOB,
    ELEMENTS_OF_GROUP,
    STEP_OUTPUTS,
    ElementPhase,
)
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.jobs.array_attempts import (
    CANCELED,
    CHUNK_ELEMENTS,
    OPEN,
    SKIPPED,
    ArrayAttempt,
    ArrayResults,
    CancelCause,
    GroupAttempt,
    build_chunk,
    iter_elements,
)
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.step_outputs import StepOutputs
from wharf.contract.model.jobs.step_states import StepOutcome, StepPhase, StepState
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.times import to_ns


def read_stored_run(builder: DerivedWriteBuilder, job: Job) -> RunFacts:
    """Return the facts about the steps of a job as the write will leave them."""
    run = builder.find_run(job)
    if run is None:
        run = _read_run(builder, job)
        builder.remember_run(job, run)
    return run


def _read_run(builder: DerivedWriteBuilder, job: Job) -> RunFacts:
    key = (job.namespace, job.id)
    alive = _count_changed_alive(builder, job)
    return read_run(
        job,
        builder.iterate_index(ARRAY_ATTEMPTS, ATTEMPTS_OF_JOB, key),
        lambda attempt, group, chunk: builder.get_record(ARRAY_RESULTS, *key, attempt, group, chunk),
        lambda group: builder.snapshot.count_by_index(ELEMENTS_OF_GROUP, *_get_alive_value(job, group)) + alive[group],
        lambda group: iterate_alive(builder, job, group),
    )


def iterate_alive(builder: DerivedWriteBuilder, job: Job, group: str) -> Iterator[Allocation]:
    """Yield the allocations of an array that have not ended when the write is committed."""
    return builder.iterate_index(ALLOCATIONS, ELEMENTS_OF_GROUP, _get_alive_value(job, group))


def count_alive(builder: DerivedWriteBuilder, job: Job, group: str) -> int:
    """Return how many allocations of an array have not ended when the write is committed."""
    stored = builder.snapshot.count_by_index(ELEMENTS_OF_GROUP, *_get_alive_value(job, group))
    return stored + _count_changed_alive(builder, job)[group]


def _get_alive_value(job: Job, group: str) -> tuple[str, str, int, str, ElementPhase]:
    return job.namespace, job.id, job.create_index, group, ElementPhase.ALIVE


def _count_changed_alive(builder: DerivedWriteBuilder, job: Job) -> Counter[str]:
    """Return by how many the write changes the number of allocations that have not ended, for each group."""
    alive: Counter[str] = Counter()
    for allocation in builder.list_stored(ALLOCATIONS, ALLOCATIONS_OF_JOB, (job.namespace, job.id)):
        old = builder.snapshot.get(ALLOCATIONS, allocation.id)
        alive[allocation.task_group] += _is_alive(allocation, job) - (old is not None and _is_alive(old, job))
    return alive


def _is_alive(allocation: Allocation, job: Job) -> bool:
    """Return whether an allocation of the job, and not of a purged one with its ID, has not ended."""
    is_own = allocation.job_create_index == job.create_index
    return is_own and bool(allocation.array_attempt) and not allocation.client_status.is_terminal


def may_change_steps(builder: DerivedWriteBuilder, job: Job) -> bool:
    """Return whether the write changes a fact on which the states of the steps of a job depend."""
    key = (job.namespace, job.id)
    if builder.list_stored(ARRAY_ATTEMPTS, ATTEMPTS_OF_JOB, key):
        return True
    for allocation in builder.list_stored(ALLOCATIONS, ALLOCATIONS_OF_JOB, key):
        old = builder.snapshot.get(ALLOCATIONS, allocation.id)
        # The element of a new allocation that has not begun was open, and still is.
        former_status = old.client_status if old is not None else ClientStatus.PENDING
        if allocation.client_status is not former_status:
            return True
    return False


def settle_steps(builder: DerivedWriteBuilder, job: Job, now_ns: int) -> bool:
    """Add to the write the states of the steps that change because of it. Return whether elements may begin now that
    could not begin before it.

    Each step that begins, ends, or never begins is stored in the attempt that has it, and so are the elements that a need with
    `Each` skips.
    """
    run = read_stored_run(builder, job)
    run_times = _measure_begun(builder, job)
    facts = {name: _store_begin(record, run_times, now_ns) for name, record in run.steps.items()}
    is_ready = False
    run_ahead = read_run_ahead(builder, job, run)
    waiting = replace(job, depends=None) if has_attempt_begun(run.newest_attempt) else job
    other_jobs = read_other_jobs(builder, waiting)
    if run_ahead:
        other_jobs = {**other_jobs, run_ahead: NeededStep(StepOutcome.OPEN)}
    queued = add_run_ahead(waiting, run_ahead)
    evaluate_condition = make_condition_evaluator(builder, job, run)
    for change in decide_steps(queued, facts, other_jobs, now_ns, evaluate_condition, is_queued=bool(run_ahead)):
        former = facts[change.name]
        is_ready |= change.state.phase is StepPhase.READY and former.state.phase is not StepPhase.READY
        if change.elements:
            _store_skipped(builder, run.steps[change.name], change.elements)
        facts[change.name] = _apply_change(former, change)
    store_step_states(builder, run, {name: _store_end(each, now_ns) for name, each in facts.items()})
    return is_ready or _has_each_followers(builder, job)


def read_run_ahead(builder: DerivedWriteBuilder, job: Job, run: RunFacts) -> str:
    """Return the run of the same flow that must end before this one begins; empty if there is none."""
    if not waits_in_queue(job, run):
        return ""
    return find_run_ahead(list_unfinished_after(builder, job.namespace, job.parent_id), job)


def _measure_begun(builder: DerivedWriteBuilder, job: Job) -> dict[tuple[str, int], int]:
    """Return the groups and attempts of which the write changes an allocation that has begun, each with the ns for which
    one of them has run at least."""
    run_times: dict[tuple[str, int], int] = {}
    for allocation in builder.list_stored(ALLOCATIONS, ALLOCATIONS_OF_JOB, (job.namespace, job.id)):
        if _has_begun(allocation):
            key = (allocation.task_group, allocation.array_attempt)
            run_times[key] = max(run_times.get(key, 0), _measure_run_time(allocation))
    return run_times


def _measure_run_time(allocation: Allocation) -> int:
    """Return for how many ns the tasks of an ended allocation ran; 0 for one that runs.

    Both times are from the clock of its node, so another time on the servers does not change the result.
    """
    if not allocation.client_status.is_terminal:
        return 0
    states = (allocation.task_states or {}).values()
    began = [to_ns(each.started_at) for each in states if each.started_at is not None]
    ended = [to_ns(each.finished_at) for each in states if each.finished_at is not None]
    return max(0, max(ended) - min(began)) if began and ended else 0


def _has_begun(allocation: Allocation) -> bool:
    """Return whether tasks of an allocation have begun. One that was stopped before that has not."""
    if allocation.client_status is ClientStatus.COMPLETE and allocation.is_server_terminal:
        return any(state.started_at is not None for state in (allocation.task_states or {}).values())
    return allocation.client_status not in (ClientStatus.PENDING, ClientStatus.LOST)


def _store_begin(record: StepRecord, run_times: Mapping[tuple[str, int], int], now_ns: int) -> StepFacts:
    """Return the facts about a step with the time at which its first allocation began.

    A node can report the begin and the end of an allocation at once. Then it began before the report.
    """
    facts, attempt = record.facts, record.attempt
    run_time_ns = run_times.get((facts.group.name, attempt.attempt)) if attempt is not None else None
    if facts.state.began_at or run_time_ns is None:
        return facts
    began_ns = now_ns - run_time_ns
    if began_ns < facts.state.since <= now_ns:  # It was ready before.
        began_ns = facts.state.since
    return facts._replace(state=replace(facts.state, began_at=began_ns))


def _apply_change(facts: StepFacts, change: StepChange) -> StepFacts:
    elements = change.elements or facts.elements
    return facts._replace(
        state=change.state, elements=elements.replace(OPEN, CANCELED) if change.never_begins else elements
    )


def _store_end(facts: StepFacts, now_ns: int) -> StepState:
    """Return the state of a step with the time at which it ended."""
    if facts.state.ended_at or judge_step(facts) is StepOutcome.OPEN:
        return facts.state
    return replace(facts.state, ended_at=now_ns)


def _has_each_followers(builder: DerivedWriteBuilder, job: Job) -> bool:
    """Return whether the write ends an element of a step that another one needs with `Each`."""
    changed = {results.group for results in builder.get_changes(ARRAY_RESULTS).values() if _belongs_to(results, job)}
    return any(need.each and need.on in changed for group in job.groups for need in group.depends or ())


def _belongs_to(results: ArrayResults | None, job: Job) -> bool:
    return results is not None and (results.namespace, results.job_id) == (job.namespace, job.id)


def store_step_states(builder: DerivedWriteBuilder, run: RunFacts, states: Mapping[str, StepState]) -> None:
    """Add to the write new states of steps, each in the attempt that has it. Open elements of a step that never begins,
    or was canceled, are canceled."""
    by_attempt: dict[int, dict[str, StepState]] = {}
    for name, state in states.items():
        attempt = run.steps[name].attempt
        if attempt is not None and state is not run.steps[name].facts.state:
            by_attempt.setdefault(attempt.attempt, {})[name] = state
    for attempt in run.attempts:
        if changed := by_attempt.get(attempt.attempt):
            stored: ArrayAttempt = builder.get_record(
                ARRAY_ATTEMPTS, attempt.namespace, attempt.job_id, attempt.attempt
            )
            parts = {name: _set_state(stored.groups[name], state) for name, state in changed.items()}
            builder.put_record(ARRAY_ATTEMPTS, replace(stored, groups={**stored.groups, **parts}))


def _set_state(part: GroupAttempt, state: StepState) -> GroupAttempt:
    never_begins = state.phase in (StepPhase.SKIPPED, StepPhase.CANCELED, StepPhase.FAILED)
    if never_begins and not part.cancel_cause:
        return replace(part, step=state, cancel_cause=CancelCause.STEP, canceled_at=state.since)
    return replace(part, step=state)


def _store_skipped(builder: DerivedWriteBuilder, step: StepRecord, elements: bytes) -> None:
    """Store the elements that are skipped in `elements` and were open, each in the attempt that decides it."""
    states = step.states
    open_chunks = {
        (states.owners[index], index // CHUNK_ELEMENTS)
        for index in iter_elements(elements, SKIPPED)
        if states.states[index] == OPEN[0]
    }
    for position, chunk in sorted(open_chunks):
        attempt = states.attempts[position]
        key = (attempt.namespace, attempt.job_id, attempt.attempt, states.group, chunk)
        stored: ArrayResults = builder.get_record(ARRAY_RESULTS, *key) or ArrayResults(
            namespace=attempt.namespace,
            job_id=attempt.job_id,
            attempt=attempt.attempt,
            group=states.group,
            chunk=chunk,
            results=build_chunk(attempt.groups[states.group], chunk),
            create_index=WRITE_INDEX,
        )
        start = chunk * CHUNK_ELEMENTS
        results = bytes(
            SKIPPED[0] if old == OPEN[0] and new == SKIPPED[0] and owner == position else old
            for old, new, owner in zip(
                stored.results, elements[start:], states.owners[start : start + CHUNK_ELEMENTS], strict=False
            )
        )
        builder.put_record(ARRAY_RESULTS, replace(stored, results=results))


def read_other_jobs(builder: DerivedWriteBuilder, job: Job) -> Mapping[str, NeededStep]:
    """Return the outcomes of the jobs that a job needs, by ID, as the write will leave them.

    A job that is missing never ran, so a need of it does not hold.
    """
    found = ((need.on, find_outcome(builder, job.namespace, need)) for need in job.depends or ())
    return {name: NeededStep(outcome) for name, outcome in found if outcome is not None}


def make_condition_evaluator(builder: DerivedWriteBuilder, job: Job, run: RunFacts) -> ConditionEvaluator:
    """Return the function that evaluates the conditions `If` of the steps of a run.

    A condition that cannot be evaluated is an error, so its step fails: it is never true.
    """

    def find_outputs(attempt: int, group: str) -> StepOutputs | None:
        outputs: StepOutputs | None = builder.get_record(STEP_OUTPUTS, job.namespace, job.id, attempt, group)
        return outputs

    return conditions.make_condition_evaluator(
        job, lambda step: find_texts_of_step(run.steps[step].states, find_outputs)
    )
