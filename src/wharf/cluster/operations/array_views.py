"""Builds what the API shows of the arrays of a job."""

from collections.abc import Iterable, Iterator

from wharf.cluster.state import Replica
from wharf.cluster.state.lookups import list_attempts, list_elements, read_element_states
from wharf.cluster.state.tables import ARRAY_RESULTS, JOB_SUMMARIES, ElementPhase
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.allocations.names import parse_index
from wharf.contract.model.jobs.array_attempts import (
    CANCELED,
    FAILED,
    OPEN,
    RUNNING,
    SKIPPED,
    STARTING,
    SUCCEEDED,
    ArrayAttempt,
    CancelCause,
    ElementStates,
    build_chunk,
    count_chunks,
    encode_runs,
)
from wharf.contract.model.jobs.array_views import ArrayAttemptView, ArrayCounts, ArrayView
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import GroupSummary, Job
from wharf.contract.model.jobs.run_views import ElementProgress
from wharf.contract.model.jobs.step_states import StepPhase, StepState


def build_array_view(snapshot: Replica, job: Job, group: TaskGroup, *, shown_attempt: int = 0) -> ArrayView:
    """Return what the API shows of a group with an array. `shown_attempt` is the attempt whose states are included."""
    elements = read_element_states(snapshot, job, group.name)
    states = _read_current_states(snapshot, job, elements)
    canceled = next(
        (each.groups[group.name] for each in elements.attempts[::-1] if is_canceled(each, group.name)), None
    )
    array = group.array
    return ArrayView(
        group=group.name,
        size=elements.size,
        max_running=array.max_running if array is not None else 0,
        fail_fast=array is not None and array.fail_fast,
        counts=count_states(states),
        states=encode_runs(states),
        cancel_cause=canceled.cancel_cause if canceled is not None else CancelCause.NONE,
        failed_element=canceled.failed_element if canceled is not None else -1,
        attempts=tuple(_build_attempts(snapshot, job, group.name, elements, shown_attempt)),
    )


def is_canceled(attempt: ArrayAttempt, group: str) -> bool:
    """Return whether the open elements of a group were canceled in this attempt."""
    return bool(attempt.groups[group].cancel_cause)


def show_running(states: bytes, alive: Iterable[Allocation]) -> bytes:
    """Return the states with `STARTING` or `RUNNING` for each element that has an allocation."""
    shown = bytearray(states)
    for allocation in alive:
        index = parse_index(allocation.name)
        if index < len(shown):
            shown[index : index + 1] = STARTING if allocation.client_status is ClientStatus.PENDING else RUNNING
    return bytes(shown)


def show_skipped(states: bytes, step: StepState | None) -> bytes:
    """Return the states with `SKIPPED` for each element that never began because its step was skipped.

    The results of such an element are stored as canceled.
    """
    return states.replace(CANCELED, SKIPPED) if step is not None and step.phase is StepPhase.SKIPPED else states


def count_states(states: bytes) -> ArrayCounts:
    """Return how many elements have each state."""
    return ArrayCounts(
        waiting=states.count(OPEN),
        starting=states.count(STARTING),
        running=states.count(RUNNING),
        succeeded=states.count(SUCCEEDED),
        failed=states.count(FAILED),
        canceled=states.count(CANCELED),
        skipped=states.count(SKIPPED),
    )


def add_counts(parts: Iterable[ArrayCounts]) -> ArrayCounts:
    """Return the sum of counts of elements, such as those of all groups of a job."""
    listed = list(parts)
    return ArrayCounts(**{name: sum(getattr(each, name) for each in listed) for name in ArrayCounts.__struct_fields__})


def build_array_progress(snapshot: Replica, job: Job) -> ElementProgress:
    """Return how many elements of a job with arrays have each state. Its groups without an array count their allocations."""
    summary = snapshot.get(JOB_SUMMARIES, job.namespace, job.id)
    groups = summary.summary if summary is not None else {}
    return ElementProgress(
        elements=add_counts(
            count_elements(snapshot, job, group)
            if group.array is not None
            else _count_allocations(groups.get(group.name, GroupSummary()))
            for group in job.groups
        )
    )


def count_elements(snapshot: Replica, job: Job, group: TaskGroup) -> ArrayCounts:
    """Return how many elements of an array have each state now."""
    return count_states(_read_current_states(snapshot, job, read_element_states(snapshot, job, group.name)))


def _read_current_states(snapshot: Replica, job: Job, elements: ElementStates) -> bytes:
    states = show_running(elements.states, list_elements(snapshot, job, elements.group, ElementPhase.ALIVE))
    return show_skipped(states, elements.step)


def _count_allocations(group: GroupSummary) -> ArrayCounts:
    return ArrayCounts(
        waiting=group.queued,
        starting=group.starting,
        running=group.running + group.unknown,
        succeeded=group.complete,
        failed=group.failed + group.lost,
    )


def _build_attempts(
    snapshot: Replica, job: Job, group: str, elements: ElementStates, shown_attempt: int
) -> Iterator[ArrayAttemptView]:
    """Yield the attempts of a group, oldest first, also those that no longer decide the state of an element."""
    attempts = [attempt for attempt in list_attempts(snapshot, job) if group in attempt.groups]
    for attempt in attempts:
        states = _read_attempt(snapshot, attempt, group)
        if attempt.attempt < elements.first_attempt or attempt.attempt <= elements.canceled_until:
            states = show_skipped(states.replace(OPEN, CANCELED), attempt.groups[group].step)
        yield ArrayAttemptView(
            attempt=attempt.attempt,
            reason=attempt.reason,
            job_version=attempt.job_version,
            element_count=attempt.groups[group].element_count,
            create_time=attempt.create_time,
            counts=count_states(states),
            states=encode_runs(states) if attempt.attempt == shown_attempt else "",
        )


def _read_attempt(snapshot: Replica, attempt: ArrayAttempt, group: str) -> bytes:
    """Return the stored results of one attempt."""
    parts = []
    for chunk in range(count_chunks(attempt.groups[group].size)):
        stored = snapshot.get(ARRAY_RESULTS, attempt.namespace, attempt.job_id, attempt.attempt, group, chunk)
        parts.append(stored.results if stored is not None else build_chunk(attempt.groups[group], chunk))
    return b"".join(parts)
