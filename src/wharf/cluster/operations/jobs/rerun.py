"""Runs elements of arrays again that a user selects: those that failed, or those with certain indexes."""

from collections.abc import Mapping
from typing import Final

import msgspec

from wharf.cluster.operations.decision import Decision, DecisionContext, WriteBuilder
from wharf.cluster.operations.evaluations import make_evaluation
from wharf.cluster.operations.jobs.arrays import find_next_attempt, make_selected_results
from wharf.cluster.operations.jobs.registration import check_registration_enabled
from wharf.cluster.operations.jobs.versions import make_switched_version, store_version
from wharf.cluster.operations.scaling import sync_policies
from wharf.cluster.state import Replica
from wharf.cluster.state.lookups import list_elements, read_element_states
from wharf.cluster.state.tables import ARRAY_ATTEMPTS, ARRAY_RESULTS, EVALUATIONS, JOBS, ElementPhase
from wharf.contract.model.allocations.names import parse_index
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.array_attempts import (
    ABSENT,
    CANCELED,
    FAILED,
    OPEN,
    ArrayAttempt,
    AttemptReason,
    GroupAttempt,
    IndexesError,
    exclude_elements,
    format_indexes,
    parse_indexes,
)
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request, not_found

MAX_ATTEMPTS: Final = 20
"""Attempts that may lie on each other for one group. Each read of its states visits all of them."""
MAX_LISTED_INDEXES: Final = 10
"""Indexes that an error lists."""
_SELECT_OPEN: Final = bytes(OPEN[0] if code == OPEN[0] else ABSENT[0] for code in range(256))
_SELECT_FAILED: Final = bytes(OPEN[0] if code in (FAILED[0], CANCELED[0]) else ABSENT[0] for code in range(256))


class RerunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to run elements of arrays again."""

    namespace: str
    job_id: str
    group: str = ""  # Only elements of this group; empty: of all groups with an array.
    failed: bool = False  # The elements that failed or were canceled.
    indexes: str = ""  # These elements, such as `3,7-9`.
    is_management: bool = True  # The caller may run elements even while registration is disabled.
    may_start: bool = True  # The caller may start a stopped job, which is a new version of it.
    cause: str = ""


class RerunResult(msgspec.Struct, frozen=True):
    """The result of a rerun."""

    index: int
    job_modify_index: int = 0
    eval_id: str = ""
    eval_create_index: int = 0
    attempt: int = 0  # The number of the new attempt; 0: no element matches, so nothing changed.
    element_count: int = 0  # How many elements run again.


def rerun_elements(
    snapshot: Replica, request: RerunRequest, context: DecisionContext, settings: JobSettings
) -> Decision[RerunResult]:
    """Return the decision that runs the selected elements in a new attempt, with the current version of the job.

    A stopped job starts again, but only with these elements. Raises if a selected element has not ended.
    """
    check_registration_enabled(snapshot, is_management=request.is_management)
    job = snapshot.get(JOBS, request.namespace, request.job_id)
    if job is None:
        raise not_found(f'job "{request.job_id}" not found')
    if job.has_steps:
        raise invalid_request(f'job "{job.id}" is a run: `wharf flow retry {job.id}` runs its steps again')
    if job.stop and not request.may_start:
        raise Refusal(
            RefusalCode.FORBIDDEN,
            f'job "{job.id}" is stopped, and a rerun starts it again: the token needs the capability register-job too',
        )
    if bool(request.failed) == bool(request.indexes):
        raise invalid_request("select elements either by Failed or by Indexes")
    if job.stop and not all(group.array is not None for group in job.groups):
        raise invalid_request(
            f'job "{job.id}" is stopped and has groups without Array, which would start too: submit it again'
        )
    selected = {
        group.name: selection
        for group in list_selected_groups(job, group=request.group, indexes=request.indexes)
        if OPEN in (selection := _select_elements(snapshot, job, group, request))
    }
    if not selected:
        return Decision(None, lambda index: RerunResult(index, job.job_modify_index))
    builder = WriteBuilder(snapshot)
    job_modify_index = job.job_modify_index
    running = job
    if job.stop:
        running = make_switched_version(job, context, stop=False)
        store_version(builder, running, max_versions=settings.versions_kept, starts_arrays=False)
        builder.require_unchanged_parents(JOBS, running)
        sync_policies(builder, running)
        job_modify_index = WRITE_INDEX
    else:
        # A new index of the job protects it from a garbage collection that was decided before.
        builder.put(JOBS, job)
        builder.require_unchanged_record(JOBS, job)
        builder.require_unchanged_parents(JOBS, job)
    attempt = _add_rerun(builder, running, selected, context)
    evaluation = make_evaluation(running, context, EvaluationTrigger.ARRAY_RERUN)
    builder.put(EVALUATIONS, evaluation)
    return Decision(
        builder.build("job-rerun", Cause(CauseKind.REQUEST, request.cause)),
        lambda index: RerunResult(
            index=index,
            job_modify_index=index if job_modify_index == WRITE_INDEX else job_modify_index,
            eval_id=evaluation.id,
            eval_create_index=index,
            attempt=attempt.attempt,
            element_count=sum(each.element_count for each in attempt.groups.values()),
        ),
    )


def list_selected_groups(job: Job, *, group: str = "", indexes: str = "") -> list[TaskGroup]:
    """Return the groups with an array, or the named one. Raises if there is none, or if indexes could mean several."""
    arrays = [each for each in job.groups if each.array is not None]
    if job.is_periodic or job.is_parameterized:
        raise invalid_request(f'job "{job.id}" runs only as its children; name a child')
    if not arrays:
        raise invalid_request(
            f'job "{job.id}" has no group with Array, so it has no elements: `wharf job stop {job.id}` and '
            f"`wharf job start {job.id}` run all of it again"
        )
    if group:
        named = [each for each in arrays if each.name == group]
        if not named:
            raise invalid_request(f'job "{job.id}" has no group "{group}" with Array')
        return named
    if indexes and len(arrays) > 1:
        raise invalid_request(f'job "{job.id}" has {len(arrays)} groups with Array: name the group of the indexes')
    return arrays


def _select_elements(snapshot: Replica, job: Job, group: TaskGroup, request: RerunRequest) -> bytes:
    """Return the selected elements of a group: one byte for each element, `OPEN` if it runs again, or else `ABSENT`."""
    elements = read_element_states(snapshot, job, group.name)
    states = elements.states
    running = bytearray(states.translate(_SELECT_OPEN))
    for allocation in list_elements(snapshot, job, group.name, ElementPhase.ALIVE):
        index = parse_index(allocation.name)
        running[index : index + 1] = OPEN if index < len(states) else b""
    if request.failed:
        return exclude_elements(states.translate(_SELECT_FAILED), running)
    selection = select_indexes(request.indexes, len(states))
    if exclude_elements(selection, running) != selection:
        found = [
            index
            for index, (selected, open_) in enumerate(zip(selection, running, strict=True))
            if selected == open_ == OPEN[0]
        ]
        more = ", ..." if len(found) > MAX_LISTED_INDEXES else ""
        raise Refusal(
            RefusalCode.CONFLICT,
            f"{len(found)} of the elements {'has' if len(found) == 1 else 'have'} not ended: {format_indexes(found[:MAX_LISTED_INDEXES])}{more}. "
            "Wait for them, or stop the job first",
        )
    return selection


def select_indexes(indexes: str, size: int) -> bytes:
    """Return one byte for each element: `OPEN` for those that a text such as `3,7-9` names, `ABSENT` for others."""
    selection = bytearray(ABSENT * size)
    try:
        for first, last in parse_indexes(indexes, size):
            selection[first : last + 1] = OPEN * (last + 1 - first)
    except IndexesError as error:
        raise invalid_request(f"{error}") from None
    return bytes(selection)


def _add_rerun(
    builder: WriteBuilder, job: Job, selected: Mapping[str, bytes], context: DecisionContext
) -> ArrayAttempt:
    """Add the attempt with the selected elements to the write, and return it."""
    snapshot = builder.snapshot
    groups = {}
    for name, selection in selected.items():
        layer_count = len(read_element_states(snapshot, job, name).attempts)
        if layer_count >= MAX_ATTEMPTS:
            raise invalid_request(
                f"the elements already have {layer_count} attempts, which is the limit: submit the job again"
            )
        groups[name] = GroupAttempt(size=len(selection), element_count=selection.count(OPEN), is_full=False)
    attempt = ArrayAttempt(
        namespace=job.namespace,
        job_id=job.id,
        attempt=find_next_attempt(snapshot, job),
        job_create_index=job.create_index,
        job_version=job.version,
        reason=AttemptReason.RERUN,
        groups=groups,
        create_time=context.now_ns,
        create_index=WRITE_INDEX,
    )
    builder.put(ARRAY_ATTEMPTS, attempt)
    builder.require_unchanged_key(ARRAY_ATTEMPTS, job.namespace, job.id, attempt.attempt)
    for results in make_selected_results(attempt, selected):
        builder.put(ARRAY_RESULTS, results)
    return attempt
