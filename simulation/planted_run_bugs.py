"""Planted bugs of conditions, text outputs, needs between jobs, and flows. They change the writes of all processes.

A write cannot be changed in place, because its writer has the same records in memory: changes are left out, or a second write
follows.
"""

from collections.abc import Callable, Iterator
from random import Random
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from simulation.cluster import Cluster
from simulation.job_order import get_overlap
from simulation.process import current_process
from wharf.cluster.engines.port import EncodedWrite
from wharf.cluster.state import Table
from wharf.cluster.state.codec import RecordDecoder, encode_record
from wharf.cluster.state.tables import ARRAY_ATTEMPTS, JOB_RESULTS, JOBS, STEP_OUTPUTS
from wharf.contract.model.jobs.array_attempts import ArrayAttempt
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.step_outputs import StepOutputs
from wharf.contract.model.jobs.step_states import StepCauseKind, StepPhase, StepState
from wharf.contract.model.log import EncodedChange

R = TypeVar("R", bound=msgspec.Struct)
LAUNCH_KINDS: Final = ("periodic-job-launched", "job-dispatched")
REPORT_KIND: Final = "node-reported"


def ignore_conditions(cluster: Cluster) -> None:
    """Begin steps that their own `If` has skipped."""

    def begin(step: StepState) -> StepState:
        is_own = step.cause is not None and step.cause.kind == StepCauseKind.CONDITION
        return replace(step, phase=StepPhase.READY) if step.phase is StepPhase.SKIPPED and is_own else step

    def alter(write: EncodedWrite) -> Iterator[EncodedChange]:
        for attempt in _iterate_stored(cluster, write, ARRAY_ATTEMPTS):
            yield from _change_steps(attempt, lambda _name, step: begin(step))

    _follow_writes(cluster, alter)


def lose_outputs(cluster: Cluster) -> None:
    """Keep text outputs beside the log: a server process that was restarted writes none of them any more."""

    def lose(write: EncodedWrite) -> list[EncodedWrite]:
        process = current_process()
        if process is None or process.name.endswith("#1") or write.kind != REPORT_KIND:
            return [write]
        return [_leave_out(write, STEP_OUTPUTS)]

    cluster.log.alter_write = lose


def replace_outputs(cluster: Cluster) -> None:
    """Let a later report replace the texts of an element that has ended."""

    def alter(write: EncodedWrite) -> Iterator[EncodedChange]:
        for stored in _iterate_stored(cluster, write, STEP_OUTPUTS):
            yield _encode(STEP_OUTPUTS, _replace_texts(stored))

    _follow_writes(cluster, alter)


def _replace_texts(stored: StepOutputs) -> StepOutputs:
    elements = [replace(each, texts=dict.fromkeys(each.texts, "late")) for each in stored.elements]
    return replace(stored, elements=tuple(elements))


def ignore_needed_jobs(cluster: Cluster) -> None:
    """Begin the steps of a job as if it needed no other jobs."""

    def alter(write: EncodedWrite) -> Iterator[EncodedChange]:
        jobs = {job.id: job for job in _iterate_stored(cluster, write, JOBS) if job.depends}
        yield from _begin_first_steps(cluster, write, jobs)

    _follow_writes(cluster, alter)


def ignore_queue(cluster: Cluster) -> None:
    """Begin each run of a flow when it is launched, also if an earlier one has not ended."""

    def alter(write: EncodedWrite) -> Iterator[EncodedChange]:
        if write.kind in LAUNCH_KINDS:
            jobs = {job.id: job for job in _iterate_stored(cluster, write, JOBS) if get_overlap(job)}
            yield from _begin_first_steps(cluster, write, jobs)

    _follow_writes(cluster, alter)


def lose_job_results(cluster: Cluster) -> None:
    """Delete runs without a record of how they ended."""
    cluster.log.alter_write = lambda write: [_leave_out(write, JOB_RESULTS)]


def launch_twice(cluster: Cluster) -> None:
    """Launch some runs twice, as two servers would that do not know of each other."""
    draw = Random(f"{cluster.seed}/plant")

    def launch(write: EncodedWrite) -> list[EncodedWrite]:
        if write.kind != LAUNCH_KINDS[0] or draw.random() > 0.5:
            return [write]
        return [write, replace(write, id=f"{write.id}+again", conditions=())]

    cluster.log.alter_write = launch


# -- writes ------------------------------------------------------------------------------------------------------------


def _follow_writes(cluster: Cluster, list_changes: Callable[[EncodedWrite], Iterator[EncodedChange]]) -> None:
    """Let a second write without conditions follow each write for which `list_changes` returns changes."""

    def follow(write: EncodedWrite) -> list[EncodedWrite]:
        changes = list(list_changes(write))
        if not changes:
            return [write]
        return [write, replace(write, id=f"{write.id}+planted", kind="planted", conditions=(), changes=changes)]

    cluster.log.alter_write = follow


def _leave_out(write: EncodedWrite, table: Table[R]) -> EncodedWrite:
    return replace(write, changes=[change for change in write.changes if change.table != table.name])


def _iterate_stored(cluster: Cluster, write: EncodedWrite, table: Table[R]) -> Iterator[R]:
    """Yield the records that the next write stores in a table."""
    for change in write.changes:
        if change.table == table.name and change.data is not None:
            yield RecordDecoder(table).decode_record(change.key, change.data, cluster.log.index + 1)


def _encode(table: Table[R], record: R) -> EncodedChange:
    return EncodedChange(table.name, table.get_key(record), encode_record(table, record))


def _change_steps(attempt: ArrayAttempt, change: Callable[[str, StepState], StepState]) -> Iterator[EncodedChange]:
    """Yield the attempt with other states of its steps, if any changes."""
    groups = {
        name: replace(part, step=change(name, part.step)) if part.step is not None else part
        for name, part in attempt.groups.items()
    }
    if groups != attempt.groups:
        yield _encode(ARRAY_ATTEMPTS, replace(attempt, groups=groups))


def _begin_first_steps(cluster: Cluster, write: EncodedWrite, jobs: dict[str, Job]) -> Iterator[EncodedChange]:
    """Yield the attempts of these jobs in which the steps are ready that need no other step."""
    for attempt in _iterate_stored(cluster, write, ARRAY_ATTEMPTS):
        job = jobs.get(attempt.job_id)
        if job is None:
            continue
        first = {group.name for group in job.groups if not group.depends and not group.final and not group.condition}

        def begin(name: str, step: StepState, first: set[str] = first) -> StepState:
            is_waiting = step.phase is StepPhase.WAITING and name in first
            return replace(step, phase=StepPhase.READY) if is_waiting else step

        yield from _change_steps(attempt, begin)
