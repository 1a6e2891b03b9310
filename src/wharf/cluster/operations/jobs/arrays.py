"""Attempts of arrays: a new one for a new or changed group, and the end of the open ones when a job stops."""

from collections.abc import Iterator, Mapping
from typing import Final, NoReturn

from wharf.cluster.operations.array_results import cancel_group
from wharf.cluster.operations.decision import WriteBuilder
from wharf.cluster.operations.jobs.job_needs import list_need_conditions
from wharf.cluster.operations.jobs.overlap import require_no_other_run
from wharf.cluster.operations.run_changes import begin_run, must_begin_run, stop_run
from wharf.cluster.scheduling.reconcile.updates import is_destructive_update
from wharf.cluster.state import Replica
from wharf.cluster.state.formats import get_active_format
from wharf.cluster.state.lookups import read_element_states
from wharf.cluster.state.tables import (
    ARRAY_ATTEMPTS,
    ARRAY_RESULTS,
    ATTEMPTS_OF_JOB,
    OUTPUTS_OF_ATTEMPT,
    RESULTS_OF_ATTEMPT,
    STEP_OUTPUTS,
)
from wharf.contract.model.jobs.array_attempts import (
    CHUNK_ELEMENTS,
    OPEN,
    ArrayAttempt,
    ArrayResults,
    CancelCause,
    GroupAttempt,
    count_chunks,
)
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.step_outputs import StepOutputs
from wharf.contract.model.jobs.step_states import StepCause
from wharf.contract.model.log import WRITE_INDEX, Condition, DeleteRecord
from wharf.contract.model.refusal import Refusal, RefusalCode

STEPS_FORMAT: Final = ARRAY_ATTEMPTS.migrations[-1].since_format
"""The first format of a cluster in which attempts have the states of steps."""
MAX_DROPPED_RECORDS: Final = 60
"""Records of an old attempt that one write deletes. A write to etcd has 112 changes, and some are for the new version."""
MAX_KEPT_ATTEMPTS: Final = 20
"""Attempts that are kept of a job besides those that decide the states of elements."""


def require_array_format(snapshot: Replica, job: Job) -> None:
    """Raise if the job has an array or steps, and a server of the cluster is too old to know them.

    That server would run one element, and begin all steps at once.
    """
    active_format = get_active_format(snapshot)
    if job.has_steps and active_format < STEPS_FORMAT:
        _refuse_format("steps")
    if job.has_arrays and active_format < ARRAY_ATTEMPTS.since_format:
        _refuse_format("Array")


def _refuse_format(feature: str) -> NoReturn:
    raise Refusal(
        RefusalCode.UNAVAILABLE,
        f"the cluster cannot run jobs with {feature} yet, because one of its servers has an older version: "
        "upgrade all servers",
    )


def add_attempt(builder: WriteBuilder, job: Job, stored: Job | None, *, stop_cause: StepCause | None = None) -> None:
    """Add to the write the attempt of a job version that is stored: of its new arrays and of those that changed.

    An array whose tasks and elements are unchanged keeps its results, for example after a change of `MaxRunning`. If the
    job is stopped, its open elements are canceled instead. Periodic and parameterized jobs have no attempts; their
    children have. `stored` is the job until now. `stop_cause` is who stops a run with its final steps; `None`: nobody is
    recorded.
    """
    if job.stop:
        if stored is not None and stored.is_run:
            # Raises if a stop would change it too: tasks of removed steps would be lost sight of.
            must_begin_run(stored, job)
            stop_run(builder, stored, job.submit_time, stop_cause)
        elif stored is not None and stored.has_arrays:
            _cancel_open(builder, stored, job.submit_time)
        return
    attempt = make_attempt(builder.snapshot, job, stored)
    if attempt is None:
        return
    builder.put(ARRAY_ATTEMPTS, attempt)
    builder.require_unchanged_key(ARRAY_ATTEMPTS, job.namespace, job.id, attempt.attempt)
    builder.conditions += list_need_conditions(builder.snapshot, job)
    if stored is not None:
        drop_oldest_attempt(builder, job)


def make_attempt(snapshot: Replica, job: Job, stored: Job | None) -> ArrayAttempt | None:
    """Return the attempt that runs the new and changed arrays of a job version, or `None` if it has none.

    `stored` is the job until now. Raises if it is a run that has not ended and the new version would change it, or if the run would
    overlap with another one of its flow.
    """
    if job.is_periodic or job.is_parameterized:
        return None
    is_new_run = job.is_run and must_begin_run(stored, job)
    if is_new_run:
        require_no_other_run(snapshot, job.namespace, job.id)
    groups = {
        group.name: GroupAttempt(size=group.array.element_count, element_count=group.array.element_count)
        for group in job.groups
        if group.array is not None and (is_new_run if job.is_run else _is_new_array(stored, job, group))
    }
    if not groups:
        return None
    attempt = _make_first_attempt(snapshot, job, groups)
    return begin_run(snapshot, job, attempt, job.submit_time) if is_new_run else attempt


def _make_first_attempt(snapshot: Replica, job: Job, groups: dict[str, GroupAttempt]) -> ArrayAttempt:
    """Return the attempt that runs these groups of a job version."""
    return ArrayAttempt(
        namespace=job.namespace,
        job_id=job.id,
        attempt=find_next_attempt(snapshot, job),
        job_create_index=job.create_index,
        job_version=job.version,
        groups=groups,
        create_time=job.submit_time,
        create_index=WRITE_INDEX,
    )


def _is_new_array(stored: Job | None, job: Job, group: TaskGroup) -> bool:
    """Return whether all elements of the group run because of this version of the job."""
    former = stored.find_group(group.name) if stored is not None else None
    if stored is None or former is None or former.array is None or group.array is None or stored.stop:
        return True
    if (former.array.size, former.array.items) != (group.array.size, group.array.items):
        return True
    return is_destructive_update(stored, former, job, group)


def find_next_attempt(snapshot: Replica, job: Job) -> int:
    """Return the number of the next attempt. Attempts of a purged job with the same ID may still exist."""
    attempts = snapshot.list_by_index(ATTEMPTS_OF_JOB, job.namespace, job.id)
    return max((each.attempt for each in attempts), default=0) + 1


def make_selected_results(attempt: ArrayAttempt, selected: Mapping[str, bytes]) -> Iterator[ArrayResults]:
    """Yield the results with which an attempt begins that runs only some elements of groups.

    `selected` has one byte for each element of a group: `OPEN` if it runs, or else `ABSENT`.
    """
    for name, selection in selected.items():
        for chunk in range(count_chunks(len(selection))):
            part = selection[chunk * CHUNK_ELEMENTS : (chunk + 1) * CHUNK_ELEMENTS]
            if OPEN in part:
                yield ArrayResults(
                    namespace=attempt.namespace,
                    job_id=attempt.job_id,
                    attempt=attempt.attempt,
                    group=name,
                    chunk=chunk,
                    results=part,
                    create_index=WRITE_INDEX,
                )


def _cancel_open(builder: WriteBuilder, job: Job, time_ns: int) -> None:
    """Cancel the open elements of all arrays of a job."""
    changed: dict[int, tuple[ArrayAttempt, ArrayAttempt]] = {}
    for group in job.groups:
        attempts = read_element_states(builder.snapshot, job, group.name).attempts if group.array is not None else ()
        if attempts and not attempts[-1].groups[group.name].cancel_cause:
            newest = attempts[-1]
            former = changed.get(newest.attempt, (newest, newest))[1]
            changed[newest.attempt] = newest, cancel_group(former, group.name, CancelCause.STOPPED, time_ns)
    for stored, canceled in changed.values():
        builder.put(ARRAY_ATTEMPTS, canceled)
        builder.require_unchanged_record(ARRAY_ATTEMPTS, stored)


def _decides_states(snapshot: Replica, job: Job, attempt: ArrayAttempt) -> bool:
    """Return whether an attempt decides the state of an element of a group of the job."""
    return any(
        each.attempt == attempt.attempt
        for name in attempt.groups
        for each in read_element_states(snapshot, job, name).attempts
    )


def drop_oldest_attempt(builder: WriteBuilder, job: Job) -> None:
    """Delete the oldest attempt of a job if there are too many, with its results. The next version deletes the next one.

    Of an attempt with many results, the first ones are deleted, and the next version continues.
    """
    snapshot = builder.snapshot
    attempts = snapshot.list_by_index_sorted(ATTEMPTS_OF_JOB, job.namespace, job.id)
    attempts = [each for each in attempts if each.job_create_index == job.create_index]
    if len(attempts) <= MAX_KEPT_ATTEMPTS or _decides_states(snapshot, job, attempts[0]):
        return
    changes = list_attempt_deletions(snapshot, attempts[0])[:MAX_DROPPED_RECORDS]
    builder.changes += changes
    builder.conditions += [
        Condition(change.table, change.key, snapshot.get_version(snapshot.tables[change.table], change.key))
        for change in changes
    ]


def _list_results(snapshot: Replica, attempt: ArrayAttempt) -> list[ArrayResults]:
    return snapshot.list_by_index_sorted(RESULTS_OF_ATTEMPT, attempt.namespace, attempt.job_id, attempt.attempt)


def _list_outputs(snapshot: Replica, attempt: ArrayAttempt) -> list[StepOutputs]:
    return snapshot.list_by_index_sorted(OUTPUTS_OF_ATTEMPT, attempt.namespace, attempt.job_id, attempt.attempt)


def list_attempt_deletions(snapshot: Replica, attempt: ArrayAttempt) -> list[DeleteRecord]:
    """Return the changes that delete an attempt with its results and outputs, the attempt last."""
    key = (attempt.namespace, attempt.job_id, attempt.attempt)
    return [
        *(ARRAY_RESULTS.build_delete(*key, each.group, each.chunk) for each in _list_results(snapshot, attempt)),
        *(STEP_OUTPUTS.build_delete(*key, each.group) for each in _list_outputs(snapshot, attempt)),
        ARRAY_ATTEMPTS.build_delete(*key),
    ]
