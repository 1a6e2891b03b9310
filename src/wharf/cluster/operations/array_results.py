"""Records how the elements of arrays end: in the same write as the change of the allocation that ends the element.

Also requests the evaluation that begins the next elements, once for all changes of a write, and cancels an array with
`FailFast` whose element failed (record 0297).
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from wharf.cluster.operations.derived_write_builder import DerivedWriteBuilder
from wharf.cluster.operations.step_states import (
    count_alive,
    iterate_alive,
    may_change_steps,
    read_stored_run,
    settle_steps,
)
from wharf.cluster.scheduling.reconcile.array_group import GIVEN_UP_TEXT
from wharf.cluster.scheduling.reconcile.interruption import list_decisive_tasks, was_interrupted, was_killed
from wharf.cluster.scheduling.reconcile.rescheduling import can_ever_retry
from wharf.cluster.scheduling.reconcile.step_retry import decide_step_retry
from wharf.cluster.scheduling.steps.decider import judge_run
from wharf.cluster.state.table import format_key_part
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_OF_JOB,
    ARRAY_ATTEMPTS,
    ARRAY_RESULTS,
    ATTEMPTS_OF_JOB,
    EVALUATIONS,
    EVALUATIONS_OF_JOB,
    STEP_OUTPUTS,
)
from wharf.contract.model.allocations.allocation import NOT_RETRIED_PREFIX, Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.allocations.names import parse_index
from wharf.contract.model.evaluations import (
    ELEMENT_TRIGGERS,
    Evaluation,
    EvaluationStatus,
    EvaluationTrigger,
    SchedulerType,
)
from wharf.contract.model.jobs.array_attempts import (
    CANCELED,
    CHUNK_ELEMENTS,
    FAILED,
    OPEN,
    RESULT_CODES,
    ArrayAttempt,
    ArrayResults,
    CancelCause,
    ElementResult,
    ElementStates,
    build_chunk,
    select_attempts,
)
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, JobEnding
from wharf.contract.model.jobs.step_outputs import (
    ElementOutputs,
    StepOutputs,
    cut_problem,
    get_output_limit,
    get_problem_limit,
    limit_outputs,
    list_output_names,
    unpack_outputs,
)
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.times import SECOND, to_datetime, to_ns

MAX_PENDING_EVALUATIONS: Final = 2
"""Pending evaluations of a job for elements that ended. One may be in progress, based on an older state. The other one begins
later, so it finds every element that has ended until then."""
LARGE_ARRAY_ALLOCATIONS: Final = 1_000
"""An evaluation of a job with more allocations of arrays that have not ended waits for `LARGE_ARRAY_DELAY_NS`."""
LARGE_ARRAY_DELAY_NS: Final = SECOND // 5
"""Limits how often the allocations of a large array are compared. Its elements end many at a time."""


def decide_result(allocation: Allocation, group: TaskGroup) -> ElementResult | None:
    """Return how an allocation of an array ends its element, or `None` if it does not.

    | Client status | Desired status | Tasks | Result |
    |---|---|---|---|
    | complete | run | none was killed before its end | succeeded |
    | complete | run | otherwise | none: the element runs again |
    | complete | stop, evict | all main ones ended by themselves without a failure | succeeded |
    | complete | stop, evict | otherwise | none: the element is canceled, or runs again |
    | failed | run | another attempt is allowed, with `Retry` by its cause | none: the element is retried |
    | failed | run | no attempt is left, or the exit code is not retried | failed |
    | failed | stop, evict | | none; failed if its retry was given up |
    | lost, unknown, pending, running | | | none |
    """
    if allocation.client_status is ClientStatus.COMPLETE:
        is_undisturbed = allocation.desired_status is DesiredStatus.RUN and not was_interrupted(allocation, group)
        return ElementResult.SUCCEEDED if is_undisturbed or has_ended_by_itself(allocation, group) else None
    if allocation.client_status is not ClientStatus.FAILED or allocation.next_allocation:
        return None
    if allocation.desired_status is DesiredStatus.RUN:
        return None if can_ever_retry(allocation, group) else ElementResult.FAILED
    return ElementResult.FAILED if allocation.desired_description == GIVEN_UP_TEXT else None


def has_ended_by_itself(allocation: Allocation, group: TaskGroup) -> bool:
    """Return whether the main tasks of an allocation, or its leader, ran and ended with success before they were killed.

    A node reports a killed task as ended without a failure too, so only its events show the difference.
    """
    decisive_tasks = list_decisive_tasks(group)
    states = allocation.task_states or {}
    for task in decisive_tasks:
        state = states.get(task.name)
        if state is None or not state.is_successful or state.started_at is None or was_killed(state):
            return False
    return bool(decisive_tasks)


def add_element_results(builder: DerivedWriteBuilder, job: Job) -> None:
    """Add to the write the results of the elements that it ends, the states of steps that follow from them, and the
    evaluation that begins the next elements."""
    changed: dict[str, list[Allocation]] = {}
    for allocation in builder.list_stored(ALLOCATIONS, ALLOCATIONS_OF_JOB, (job.namespace, job.id)):
        if allocation.job_create_index == job.create_index:
            changed.setdefault(allocation.task_group, []).append(allocation)
    is_evaluation_needed = False
    for name, allocations in changed.items():
        group = job.find_group(name)
        if group is not None and group.array is not None:
            is_evaluation_needed |= _add_results_of_group(builder, job, group, allocations)
    trigger = EvaluationTrigger.ARRAY_ELEMENT
    time_ns = max((each.modify_time for each in _flatten(changed.values())), default=0)
    if time_ns and job.is_run and may_change_steps(builder, job) and settle_steps(builder, job, time_ns):
        is_evaluation_needed, trigger = True, EvaluationTrigger.STEP_READY
    if is_evaluation_needed and not job.stop:
        _add_evaluation(builder, job, trigger, time_ns)


def _flatten(groups: Iterable[Sequence[Allocation]]) -> Iterator[Allocation]:
    for group in groups:
        yield from group


def _add_results_of_group(
    builder: DerivedWriteBuilder, job: Job, group: TaskGroup, allocations: Sequence[Allocation]
) -> bool:
    """Add the results of one group to the write. Return whether the scheduler must evaluate the job because of them."""
    ended = [each for each in allocations if each.is_client_terminal and _has_changed(builder, each)]
    if not ended:
        return False
    states = read_states(builder, job, group.name)
    awaits_retry, failed_element = False, -1
    results = _ChangedResults(builder, group.name)
    for allocation in ended:
        index = parse_index(allocation.name)
        result = None if allocation.array_result else decide_result(allocation, group)
        owner = states.find_owner(index)
        if owner is None or owner.attempt != allocation.array_attempt:
            continue
        if result is None:
            awaits_retry |= allocation.client_status is ClientStatus.FAILED
            continue
        if results.set_result(owner, index, result):
            builder.put_record(ALLOCATIONS, _set_result(allocation, group, result))
            _add_outputs(builder, owner, group, index, allocation)
            if result is ElementResult.FAILED and failed_element < 0:
                failed_element = index
    results.store()
    array = group.array
    if failed_element >= 0 and array is not None and array.fail_fast:
        time_ns = max(each.modify_time for each in ended)
        if _cancel(builder, states, failed_element, time_ns):
            return True
    if awaits_retry:
        return True
    # The chunks have changed.
    return read_states(builder, job, group.name).count_open() > count_alive(builder, job, group.name)


def _set_result(allocation: Allocation, group: TaskGroup, result: ElementResult) -> Allocation:
    """Return the allocation that decided the result of its element, with the reason why a failed one is not retried."""
    allocation = replace(allocation, array_result=result.value, output_texts=b"")
    if result is not ElementResult.FAILED or group.retry is None or allocation.is_server_terminal:
        return allocation
    return replace(
        allocation, desired_description=f"{NOT_RETRIED_PREFIX}{decide_step_retry(allocation, group.retry).reason}"
    )


def _has_changed(builder: DerivedWriteBuilder, allocation: Allocation) -> bool:
    """Return whether the write ends the allocation, or decides about its retry."""
    old = builder.snapshot.get(ALLOCATIONS, allocation.id)
    return (
        old is None
        or old.client_status is not allocation.client_status
        or (old.desired_status is not allocation.desired_status and old.client_status is ClientStatus.FAILED)
    )


class _ChangedResults:
    """The results of a group that a write changes. Each record is stored once, however many of its elements end."""

    def __init__(self, builder: DerivedWriteBuilder, group: str) -> None:
        self._builder = builder
        self._group = group
        self._changed: dict[tuple[int, int], tuple[ArrayResults, bytearray]] = {}
        """By attempt and chunk, the stored record and its new results."""

    def set_result(self, attempt: ArrayAttempt, index: int, result: ElementResult) -> bool:
        """Set the result of an element. Return whether it had none yet: an element ends once."""
        chunk, position = divmod(index, CHUNK_ELEMENTS)
        key = (attempt.attempt, chunk)
        changed = self._changed.get(key)
        if changed is None:
            stored = self._find_stored(attempt, chunk)
            changed = self._changed[key] = stored, bytearray(stored.results)
        results = changed[1]
        if position >= len(results) or results[position] != OPEN[0]:
            return False
        results[position] = RESULT_CODES[result][0]
        return True

    def _find_stored(self, attempt: ArrayAttempt, chunk: int) -> ArrayResults:
        """Return the stored results of a chunk, or new ones."""
        key = (attempt.namespace, attempt.job_id, attempt.attempt, self._group, chunk)
        stored: ArrayResults | None = self._builder.get_record(ARRAY_RESULTS, *key)
        return stored or ArrayResults(
            namespace=attempt.namespace,
            job_id=attempt.job_id,
            attempt=attempt.attempt,
            group=self._group,
            chunk=chunk,
            results=build_chunk(attempt.groups[self._group], chunk),
            create_index=WRITE_INDEX,
        )

    def store(self) -> None:
        """Add the changed records to the write."""
        for stored, results in self._changed.values():
            if stored.results != results:
                self._builder.put_record(ARRAY_RESULTS, replace(stored, results=bytes(results)))


def _add_outputs(
    builder: DerivedWriteBuilder, attempt: ArrayAttempt, group: TaskGroup, index: int, allocation: Allocation
) -> None:
    """Add to the write the texts that the allocation left for later steps. They outlive the allocation."""
    names = list_output_names(group)
    if not names or not allocation.output_texts:
        return
    size = attempt.groups[group.name].size
    outputs = limit_outputs(unpack_outputs(allocation.output_texts), names, get_output_limit(size))
    if not outputs.texts and not outputs.problem:
        return
    problem = cut_problem(outputs.problem, get_problem_limit(size))
    element = ElementOutputs(index=index, texts=outputs.texts, problem=problem)
    key = (attempt.namespace, attempt.job_id, attempt.attempt, group.name)
    stored: StepOutputs | None = builder.get_record(STEP_OUTPUTS, *key)
    if stored is None:
        stored = StepOutputs(
            namespace=attempt.namespace,
            job_id=attempt.job_id,
            attempt=attempt.attempt,
            group=group.name,
            create_index=WRITE_INDEX,
        )
    builder.put_record(STEP_OUTPUTS, replace(stored, elements=(*stored.elements, element)))


def _cancel(builder: DerivedWriteBuilder, states: ElementStates, failed_element: int, time_ns: int) -> bool:
    """Cancel the open elements of a group because one has failed. Return whether they were not canceled yet."""
    newest = states.attempts[-1]
    stored: ArrayAttempt = builder.get_record(ARRAY_ATTEMPTS, newest.namespace, newest.job_id, newest.attempt)
    if stored.groups[states.group].cancel_cause:
        return False
    builder.put_record(
        ARRAY_ATTEMPTS, cancel_group(stored, states.group, CancelCause.FAILED_ELEMENT, time_ns, failed_element)
    )
    return True


def cancel_group(
    attempt: ArrayAttempt, group: str, cause: CancelCause, time_ns: int, failed_element: int = -1
) -> ArrayAttempt:
    """Return the attempt with the open elements of a group canceled."""
    canceled = replace(attempt.groups[group], cancel_cause=cause, failed_element=failed_element, canceled_at=time_ns)
    return replace(attempt, groups={**attempt.groups, group: canceled})


def read_states(builder: DerivedWriteBuilder, job: Job, group: str) -> ElementStates:
    """Return the states of the elements of a group as the write will leave them."""
    attempts = builder.iterate_index(ARRAY_ATTEMPTS, ATTEMPTS_OF_JOB, (job.namespace, job.id))
    prefixes: dict[int, str] = {}
    """The key of the results of each attempt, up to the chunk: each write reads up to 25 chunks of it."""

    def find_results(attempt: int, name: str, chunk: int) -> ArrayResults | None:
        number = format_key_part(chunk)
        if attempt not in prefixes:
            key = ARRAY_RESULTS.build_key(job.namespace, job.id, attempt, name, chunk)
            prefixes[attempt] = key.removesuffix(number)
        found: ArrayResults | None = builder.get_record(ARRAY_RESULTS, prefixes[attempt] + number)
        return found

    return ElementStates(group, select_attempts(attempts, job.create_index, group), find_results)


def has_active_elements(builder: DerivedWriteBuilder, job: Job) -> bool:
    """Return whether an allocation of an array of the job runs, or should run, when the write is committed.

    A run ends only when its tasks have stopped, because final steps, and the next run of its flow, wait for that.
    """
    return any(
        job.is_run or not allocation.is_terminal
        for group in job.groups
        if group.array is not None
        for allocation in iterate_alive(builder, job, group.name)
    )


def has_open_elements(builder: DerivedWriteBuilder, job: Job) -> bool:
    """Return whether an element of an array, or a step, of the job has not ended when the write is committed."""
    if not job.is_run:
        return any(
            read_states(builder, job, group.name).count_open() for group in job.groups if group.array is not None
        )
    run = read_stored_run(builder, job)
    return any(OPEN in facts.elements for facts in run.iter_facts()) or not judge_run(run.iter_facts()).outcome


def derive_outcome(builder: DerivedWriteBuilder, job: Job) -> JobEnding:
    """Return how the elements of an ended job ended together, as the write will leave them.

    It is `NONE` if a group has no elements, so that its allocations decide.
    """
    if job.is_run:
        found = judge_run(read_stored_run(builder, job).iter_facts())
        is_passed = found.outcome == JobEnding.SUCCEEDED
        return JobEnding.WITH_FAILURES if is_passed and found.has_failures else JobEnding(found.outcome)
    if job.is_periodic or job.is_parameterized or not all(group.array is not None for group in job.groups):
        return JobEnding.NONE
    states = [read_states(builder, job, group.name).states for group in job.groups]
    if any(FAILED in each for each in states):
        return JobEnding.FAILED
    if any(CANCELED in each for each in states):
        return JobEnding.CANCELED
    return JobEnding.SUCCEEDED if states and all(states) else JobEnding.NONE


def _add_evaluation(builder: DerivedWriteBuilder, job: Job, trigger: EvaluationTrigger, time_ns: int) -> None:
    """Add an evaluation of the job to the write, unless enough of them are pending.

    The id depends only on the job and the state, because derived changes need no source of new ids.
    """
    pending = [
        evaluation
        for evaluation in builder.iterate_index(EVALUATIONS, EVALUATIONS_OF_JOB, (job.namespace, job.id))
        if evaluation.triggered_by in ELEMENT_TRIGGERS
        and evaluation.status is EvaluationStatus.PENDING
        # Not one from before the clock was set back.
        and (evaluation.wait_until is None or to_ns(evaluation.wait_until) - time_ns <= 2 * LARGE_ARRAY_DELAY_NS)
    ]
    if len(pending) >= MAX_PENDING_EVALUATIONS:
        return
    alive = sum(count_alive(builder, job, group.name) for group in job.groups if group.array is not None)
    due_ns = time_ns + LARGE_ARRAY_DELAY_NS if alive >= LARGE_ARRAY_ALLOCATIONS else 0
    digest = hashlib.sha256(
        "\0".join((trigger.value, job.namespace, job.id, str(job.create_index), str(builder.snapshot.index))).encode()
    ).hexdigest()
    evaluation = Evaluation(
        id="-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32])),
        namespace=job.namespace,
        priority=job.priority,
        type=SchedulerType(job.type),
        triggered_by=trigger,
        job_id=job.id,
        job_modify_index=job.job_modify_index,
        status=EvaluationStatus.PENDING,
        wait_until=to_datetime(due_ns) if due_ns else None,
        create_index=WRITE_INDEX,
        create_time=time_ns,
        modify_time=time_ns,
    )
    builder.put_record(EVALUATIONS, evaluation)
