"""Stops single elements of an array: they are canceled, whether they run or have not begun. The others go on."""

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.decision import Decision, DecisionContext
from wharf.cluster.operations.evaluations import make_evaluation
from wharf.cluster.operations.jobs.rerun import list_selected_groups, select_indexes
from wharf.cluster.operations.run_changes import start_builder
from wharf.cluster.operations.step_states import settle_steps
from wharf.cluster.state import Replica
from wharf.cluster.state.lookups import read_element_states
from wharf.cluster.state.tables import ARRAY_RESULTS, EVALUATIONS, JOBS
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.array_attempts import (
    CANCELED,
    CHUNK_ELEMENTS,
    OPEN,
    ArrayAttempt,
    ArrayResults,
    ElementStates,
    build_chunk,
)
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind
from wharf.contract.model.refusal import invalid_request, not_found


class StopElementsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to stop elements of an array."""

    namespace: str
    job_id: str
    indexes: str  # Such as `3,7-9`.
    group: str = ""  # Empty: the only group with an array.
    cause: str = ""


class StopElementsResult(msgspec.Struct, frozen=True):
    """The result of stopping elements."""

    index: int
    job_modify_index: int = 0
    eval_id: str = ""
    eval_create_index: int = 0
    element_count: int = 0  # How many elements were canceled; 0: all of them had ended, so nothing changed.


def stop_elements(
    snapshot: Replica, request: StopElementsRequest, context: DecisionContext
) -> Decision[StopElementsResult]:
    """Return the decision that cancels the selected elements. Those that have ended keep their results.

    Their allocations stop in the evaluation that the write creates. A canceled element stays canceled, also if its task
    ends with success before it stops.
    """
    job = snapshot.get(JOBS, request.namespace, request.job_id)
    if job is None:
        raise not_found(f'job "{request.job_id}" not found')
    if not request.indexes:
        raise invalid_request("select elements by Indexes")
    (group,) = list_selected_groups(job, group=request.group, indexes=request.indexes)
    elements = read_element_states(snapshot, job, group.name)
    selection = select_indexes(request.indexes, elements.size)
    builder = start_builder(snapshot, "elements-stopped", Cause(CauseKind.REQUEST, request.cause))
    count = 0
    for stored, canceled in _cancel_elements(snapshot, job, elements, selection):
        builder.put_record(ARRAY_RESULTS, canceled)
        count += canceled.results.count(CANCELED) - stored.count(CANCELED)
    if not count:
        return Decision(None, lambda index: StopElementsResult(index, job.job_modify_index))
    if job.is_run:
        settle_steps(builder, job, context.now_ns)
    # The leader derives the status of the job again after a change of the job.
    builder.put_record(JOBS, job)
    evaluation = make_evaluation(job, context, EvaluationTrigger.ARRAY_ELEMENT)
    builder.put_record(EVALUATIONS, evaluation)
    return Decision(
        builder.build_write(),
        lambda index: StopElementsResult(
            index=index,
            job_modify_index=job.job_modify_index,
            eval_id=evaluation.id,
            eval_create_index=index,
            element_count=count,
        ),
    )


def _cancel_elements(
    snapshot: Replica, job: Job, elements: ElementStates, selection: bytes
) -> Iterator[tuple[bytes, ArrayResults]]:
    """Yield the results of each chunk with a selected element that is open: as they were, and with it canceled."""
    chosen: dict[tuple[int, int], list[int]] = {}
    for index, (selected, state, owner) in enumerate(zip(selection, elements.states, elements.owners, strict=True)):
        if selected == state == OPEN[0]:
            chosen.setdefault((owner, index // CHUNK_ELEMENTS), []).append(index % CHUNK_ELEMENTS)
    for (owner, chunk), positions in chosen.items():
        stored = _find_results(snapshot, job, elements.attempts[owner], elements.group, chunk)
        results = bytearray(stored.results)
        for position in positions:
            results[position : position + 1] = CANCELED
        yield stored.results, replace(stored, results=bytes(results))


def _find_results(snapshot: Replica, job: Job, attempt: ArrayAttempt, group: str, chunk: int) -> ArrayResults:
    """Return the stored results of a chunk, or new ones."""
    stored: ArrayResults | None = snapshot.get(ARRAY_RESULTS, job.namespace, job.id, attempt.attempt, group, chunk)
    return stored or ArrayResults(
        namespace=job.namespace,
        job_id=job.id,
        attempt=attempt.attempt,
        group=group,
        chunk=chunk,
        results=build_chunk(attempt.groups[group], chunk),
        create_index=WRITE_INDEX,
    )
