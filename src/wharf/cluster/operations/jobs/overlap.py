"""Runs of one flow that would overlap: what a new launch does to the earlier runs, and what a run waits for (record 0316).

Runs of a flow with `Flow.Overlap` never run at the same time. The setting decides only what a launch does while earlier runs
have not ended: it is skipped, it waits, or it cancels them and waits for their end.
"""

import sys
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from wharf.cluster.operations.derived_write_builder import DerivedWriteBuilder
from wharf.cluster.scheduling.steps.facts import RunFacts
from wharf.cluster.state import Replica
from wharf.cluster.state.table import Index, Table
from wharf.cluster.state.tables import JOB_PURGES, JOBS, PURGED_CHILDREN_OF_JOB, UNFINISHED_CHILDREN_OF_JOB
from wharf.contract.model.jobs.array_attempts import ArrayAttempt
from wharf.contract.model.jobs.job import Job, JobKey, JobStatus
from wharf.contract.model.jobs.step_states import StepCauseKind, StepPhase, StepState
from wharf.contract.model.jobs.steps import FlowOverlap, Need, NeedWhen
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.refusal import Refusal, RefusalCode

MAX_UNFINISHED_RUNS: Final = 1_000
"""Runs of a flow with `Overlap` that have not ended. Each new one is compared with all of them."""
NEWEST: Final = sys.maxsize
"""Stands for the create index of a run that the write creates: it is launched after all others."""
_BEGUN_PHASES: Final = frozenset({StepPhase.GATED, StepPhase.READY, StepPhase.FAILED})


def get_overlap(job: Job) -> str:
    """Return what happens to runs of a flow that would overlap; empty if they may."""
    return job.flow.overlap if job.flow is not None else ""


class UnfinishedRun(NamedTuple):
    """A run of a flow that has not ended. Runs begin in the order of these tuples."""

    create_index: int
    id: str


def list_unfinished_runs(snapshot: Replica, flow: Job) -> list[Job]:
    """Return the runs of a flow that have not ended, oldest first, without purged ones."""
    key = (flow.namespace, flow.id)
    runs = [
        run
        for has_overlap in (True, False)
        for run in snapshot.list_by_index(UNFINISHED_CHILDREN_OF_JOB, *key, has_overlap)
    ]
    return sorted(runs, key=_describe_run)


def has_queue(snapshot: Replica, flow: JobKey) -> bool:
    """Return whether a run of a flow with `Overlap` has not ended."""
    return snapshot.count_by_index(UNFINISHED_CHILDREN_OF_JOB, *flow, True) > 0


def list_unfinished(snapshot: Replica, namespace: str, flow_id: str) -> list[UnfinishedRun]:
    """Return what is known about the runs of a flow that have not ended, oldest first.

    A purged run has not ended before its tasks have stopped.
    """
    return sorted(
        _iterate_unfinished(
            lambda _table, index, value: (record for _, record in snapshot.iter_by_index(index, *value)),
            (namespace, flow_id),
        )
    )


def list_unfinished_after(builder: DerivedWriteBuilder, namespace: str, flow_id: str) -> list[UnfinishedRun]:
    """Return the runs of a flow that have not ended, oldest first, as the write will leave them."""
    return sorted(_iterate_unfinished(builder.iterate_index, (namespace, flow_id)))


def _iterate_unfinished(
    iterate_index: Callable[[Table[Any], Index[Any], tuple[Hashable, ...]], Iterator[Any]], flow: JobKey
) -> Iterator[UnfinishedRun]:
    for has_overlap in (True, False):
        for run in iterate_index(JOBS, UNFINISHED_CHILDREN_OF_JOB, (*flow, has_overlap)):
            yield _describe_run(run)
    for purge in iterate_index(JOB_PURGES, PURGED_CHILDREN_OF_JOB, flow):
        yield UnfinishedRun(purge.job_create_index, purge.job_id)


def _describe_run(run: Job) -> UnfinishedRun:
    return UnfinishedRun(NEWEST if run.create_index == WRITE_INDEX else run.create_index, run.id)


def is_unfinished(run: Job) -> bool:
    return run.status is not JobStatus.DEAD


def find_refusal(snapshot: Replica, flow: Job) -> str:
    """Return why `Flow.Overlap` does not allow another run of the flow now; empty if it does."""
    overlap = get_overlap(flow)
    if not overlap:
        return ""
    unfinished = list_unfinished(snapshot, flow.namespace, flow.id)
    if overlap == FlowOverlap.SKIP and unfinished:
        return f'run "{unfinished[0].id}" has not ended, and the flow has Overlap skip: wait for its end, or cancel it'
    if len(unfinished) >= MAX_UNFINISHED_RUNS:
        return f"{len(unfinished)} runs of the flow have not ended, which is the limit: wait for them, or cancel some"
    return ""


def require_launch(snapshot: Replica, flow: Job) -> None:
    """Raise if `Flow.Overlap` does not allow another run of the flow now."""
    if reason := find_refusal(snapshot, flow):
        raise Refusal(RefusalCode.CONFLICT, f'flow "{flow.id}" cannot launch another run: {reason}')


def require_no_other_run(snapshot: Replica, namespace: str, run_id: str) -> None:
    """Raise if steps of an ended run cannot run again now because another run of its flow has not ended, and both would
    overlap.
    """
    run = snapshot.get(JOBS, namespace, run_id)
    if run is None or not run.parent_id or not get_overlap(run) or is_unfinished(run):
        return
    unfinished = list_unfinished(snapshot, namespace, run.parent_id)
    if unfinished:
        raise Refusal(
            RefusalCode.CONFLICT,
            f'run "{unfinished[0].id}" of the same flow has not ended, and the flow has Overlap {get_overlap(run)}: '
            "wait for its end, or cancel it",
        )


def waits_in_queue(job: Job, run: RunFacts) -> bool:
    """Return whether earlier runs of the flow must end before a run begins."""
    return bool(get_overlap(job)) and bool(job.parent_id) and not has_run_begun(run)


def add_run_ahead(job: Job, run_ahead: str) -> Job:
    """Return a run with a need on the run of its flow that must end before it; the same run if there is none.

    The need is derived from the runs that have not ended, and never stored.
    """
    if not run_ahead:
        return job
    return replace(job, depends=(*(job.depends or ()), Need(on=run_ahead, when=NeedWhen.ANY)))


def has_run_begun(run: RunFacts) -> bool:
    """Return whether a step of a run has begun, or none waits any more. Such a run does not wait for others.

    Steps of a run in the queue may have ended: they were canceled, or skipped because of another job.
    """
    states = [each.state for each in run.iter_facts()]
    return any(map(_has_begun, states)) or not any(state.phase is StepPhase.WAITING for state in states)


def has_attempt_begun(newest: ArrayAttempt | None) -> bool:
    """Return whether a step of the newest attempt of a run has begun. The needs of the job held then, and do not decide again:
    the other job may run again meanwhile, or its result may be deleted (record 0337).
    """
    return newest is not None and any(
        part.step is not None and _has_begun(part.step) for part in newest.groups.values()
    )


def _has_begun(state: StepState) -> bool:
    """Return whether a step has been allowed to begin, even if its condition or its gate then kept it from doing so."""
    is_skipped_by_itself = state.cause is not None and state.cause.kind == StepCauseKind.CONDITION
    return bool(state.began_at) or state.phase in _BEGUN_PHASES or is_skipped_by_itself


def find_run_ahead(unfinished: Sequence[UnfinishedRun], run: Job) -> str:
    """Return the ID of the last run of the flow that was launched before this one and has not ended; empty if there is none.

    `unfinished` are the runs of the flow that have not ended, oldest first. Each waits for the one before it, so they begin one
    after the other.
    """
    own = _describe_run(run)
    position = bisect_left(unfinished, own)
    return unfinished[position - 1].id if position else ""


class RunQueues:
    """The runs that have not ended, by flow. Each flow is read once, so that a listing of a long queue stays cheap."""

    def __init__(self, snapshot: Replica) -> None:
        self._snapshot = snapshot
        self._unfinished: dict[JobKey, list[UnfinishedRun]] = {}

    def find_run_ahead(self, run: Job) -> str:
        """Return the run of the same flow that must end before a run begins; empty if there is none."""
        flow = (run.namespace, run.parent_id)
        if flow not in self._unfinished:
            self._unfinished[flow] = list_unfinished(self._snapshot, *flow)
        return find_run_ahead(self._unfinished[flow], run)
