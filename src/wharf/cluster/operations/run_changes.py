"""Begins, stops and cancels the steps of runs. The operations of users and the timers of the leader are built on it."""

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.decision import WriteBuilder
from wharf.cluster.operations.derived_write_builder import DerivedWriteBuilder
from wharf.cluster.operations.step_states import read_run_ahead, read_stored_run, settle_steps, store_step_states
from wharf.cluster.scheduling.steps.conditions import MAX_DETAIL_BYTES
from wharf.cluster.scheduling.steps.decider import NEVER_BEGAN_PHASES, judge_step
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ARRAY_ATTEMPTS
from wharf.contract.model.body_limits import MAX_NAME_BYTES
from wharf.contract.model.jobs.array_attempts import ArrayAttempt, CancelCause, GroupAttempt
from wharf.contract.model.jobs.arrays import MAX_ARRAY_ELEMENTS
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, JobStatus
from wharf.contract.model.jobs.step_states import (
    StepCause,
    StepCauseKind,
    StepOutcome,
    StepPhase,
    StepState,
    limit_detail_bytes,
)
from wharf.contract.model.log import Cause, CauseKind, Write
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.times import SECOND

DEFAULT_FINAL_TIMEOUT_NS: Final = 300 * SECOND
MAX_ANSWER_BYTES: Final = 1_024
"""UTF-8 bytes of the text of an answer. It is stored with the step; in a run with more than 128 steps it has fewer bytes."""
FREE_FIELDS: Final = frozenset(
    {
        "priority", "ui", "stop", "version", "version_tag", "submitter_accessor_id", "status", "status_description", "stable",
        "submit_time", "create_index", "modify_index", "job_modify_index", "task_groups",
    }
)  # fmt: skip
"""Fields of a job that may change during a run, because no step depends on them."""


def start_builder(snapshot: Replica, write_kind: str, cause: Cause) -> DerivedWriteBuilder:
    """Return a builder of a write about a run. Each record that it stores must not change before the commit."""
    return DerivedWriteBuilder(snapshot, Write(write_kind, cause, ()))


def must_begin_run(stored: Job | None, job: Job) -> bool:
    """Return whether all steps of a job version run from the beginning.

    Raises if `stored`, the job until now, is a run that has not ended and would change: a run is frozen at its start.
    """
    if stored is None or stored.stop or not stored.is_run:
        return True
    changed = _find_changed_field(stored, job)
    if not changed:
        return False
    if stored.status is not JobStatus.DEAD:
        raise Refusal(
            RefusalCode.CONFLICT,
            f'job "{job.id}" is a run that has not ended, and {changed} would change: wait for its end, cancel it with '
            f"`wharf flow cancel {job.id}`, or submit the new version with another ID",
        )
    return True


def _find_changed_field(stored: Job, job: Job) -> str:
    """Return the first field on which the steps of a run depend and that differs; empty if there is none."""
    for name in Job.__struct_fields__:
        if name not in FREE_FIELDS and getattr(stored, name) != getattr(job, name):
            return name
    if [group.name for group in stored.groups] != [group.name for group in job.groups]:
        return "its list of groups"
    for former, group in zip(stored.groups, job.groups, strict=True):
        if _clear_free_fields(former) != _clear_free_fields(group):
            return f"group {group.name}"
    return ""


def _clear_free_fields(group: TaskGroup) -> TaskGroup:
    return group if group.array is None else replace(group, array=replace(group.array, max_running=0))


def begin_run(snapshot: Replica, job: Job, attempt: ArrayAttempt, now_ns: int) -> ArrayAttempt:
    """Return an attempt of a run with the states of its steps: those that wait for nothing are ready."""
    builder = start_builder(snapshot, "run-begun", Cause(CauseKind.REQUEST, ""))
    add_run_attempt(builder, job, attempt, now_ns)
    stored: ArrayAttempt = builder.get_record(ARRAY_ATTEMPTS, attempt.namespace, attempt.job_id, attempt.attempt)
    return stored


def add_run_attempt(builder: DerivedWriteBuilder, job: Job, attempt: ArrayAttempt, now_ns: int) -> None:
    """Add to the write an attempt of a run. Its steps wait, or are ready at once. Its deadline counts from now."""
    waiting = StepState(since=now_ns)
    deadline_ns = job.flow.deadline if job.flow is not None else 0
    builder.put_record(
        ARRAY_ATTEMPTS,
        replace(
            attempt,
            groups={name: replace(part, step=waiting) for name, part in attempt.groups.items()},
            deadline=now_ns + deadline_ns if deadline_ns else 0,
        ),
    )
    settle_steps(builder, job, now_ns)


def estimate_group_bytes(job: Job, group: TaskGroup) -> int:
    """Return the most bytes that an attempt may store about a step."""
    cause = StepCause(
        kind=StepCauseKind.CONDITION,
        step="x" * max(len(each.name.encode()) for each in job.groups),
        outcome=StepOutcome.SKIPPED_BY_CONDITION,
        actor="x" * MAX_NAME_BYTES if group.gate is not None else "",
        detail="x" * limit_detail_bytes(MAX_DETAIL_BYTES if group.gate is None else MAX_ANSWER_BYTES, len(job.groups)),
    )
    time_ns = 2**62
    state = StepState(
        phase=StepPhase.CANCELED, cause=cause, since=time_ns, began_at=time_ns, ended_at=time_ns, gate_deadline=time_ns
    )
    part = GroupAttempt(
        size=MAX_ARRAY_ELEMENTS,
        element_count=MAX_ARRAY_ELEMENTS,
        cancel_cause=CancelCause.FAILED_ELEMENT,
        failed_element=MAX_ARRAY_ELEMENTS,
        canceled_at=time_ns,
        step=state,
    )
    return len(msgspec.msgpack.encode({group.name: part}))


def stop_run(builder: WriteBuilder, job: Job, now_ns: int, cause: StepCause | None = None) -> None:
    """Add to the write that stops a job the end of all of its steps, also of final ones.

    `cause`: who stops the run, and why; `None`: the job is stopped without a cancellation of the run.
    """
    steps = start_builder(builder.snapshot, "run-stopped", Cause(CauseKind.REQUEST, ""))
    newest = read_stored_run(steps, job).newest_attempt
    if cause is not None and newest is not None:
        # The name and the reason may be long, and the write has the job too. Views take both from the attempt.
        steps.put_record(ARRAY_ATTEMPTS, replace(newest, stop_cause=cause, stopped_at=now_ns))
    end_steps(steps, job, StepCause(kind=StepCauseKind.STOP), now_ns)
    write = steps.build_write()
    builder.changes += write.changes
    builder.conditions += write.conditions


def end_steps(
    builder: DerivedWriteBuilder,
    job: Job,
    cause: StepCause,
    now_ns: int,
    *,
    selects: Callable[[TaskGroup], bool] = lambda _group: True,
) -> bool:
    """Add to the write the cancellation of all steps that have not ended and are selected, and what follows from it.

    A step that was decided never to begin, such as a skipped one, keeps its state, also while tasks of an earlier version
    of it still stop. Return whether a step has become ready.
    """
    run = read_stored_run(builder, job)
    canceled = {
        name: replace(record.facts.state, phase=StepPhase.CANCELED, cause=cause, since=now_ns)
        for name, record in run.steps.items()
        if record.facts.state.phase not in NEVER_BEGAN_PHASES
        and selects(record.facts.group)
        and judge_step(record.facts) is StepOutcome.OPEN
    }
    store_step_states(builder, run, canceled)
    return settle_steps(builder, job, now_ns)


def cancel_steps(builder: DerivedWriteBuilder, job: Job, cause: StepCause, now_ns: int) -> None:
    """Add to the write the cancellation of a run: steps that are not final end, and the final ones have limited time.

    If the run waits for an earlier run of its flow, nothing of it has begun, so its final steps end too.
    """
    run = read_stored_run(builder, job)
    newest = run.newest_attempt
    if newest is None:
        return
    is_queued = bool(read_run_ahead(builder, job, run))
    timeout_ns = (job.flow.final_timeout if job.flow is not None else 0) or DEFAULT_FINAL_TIMEOUT_NS
    builder.put_record(ARRAY_ATTEMPTS, replace(newest, cancel_cause=cause, deadline=now_ns + timeout_ns))
    # The reason may be a long text. Views take it from the attempt.
    of_steps = replace(cause, detail="") if cause.kind is StepCauseKind.CANCEL else cause
    end_steps(builder, job, of_steps, now_ns, selects=lambda group: is_queued or not group.final)


def end_final_steps(builder: DerivedWriteBuilder, job: Job, now_ns: int) -> None:
    """Add to the write the end of a canceled run whose final steps have used up their time."""
    newest = read_stored_run(builder, job).newest_attempt
    if newest is not None:
        builder.put_record(ARRAY_ATTEMPTS, replace(newest, deadline=0))
    end_steps(builder, job, StepCause(kind=StepCauseKind.DEADLINE, detail="Flow.FinalTimeout"), now_ns)
