"""Invariants of flows and of needs between jobs.

A run begins only when the jobs that it needs allow it, and when no earlier run of its flow is left. Each slot of a schedule has
one run. A launch obeys `Flow.Overlap`. A deleted run leaves how it ended.
"""

import re
from collections.abc import Mapping
from typing import Final

from simulation.job_order import allows_job, find_ends, find_run_before, get_overlap, iterate_other_runs
from simulation.record_history import ObservedBatch, ObservedChange, RecordHistory
from simulation.run_moments import judge_ended_run, read_moments
from simulation.step_texts import list_attempts
from simulation.task_runs import TaskRun, TaskRunLog
from simulation.timeline import InvariantViolation
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    ARRAY_ATTEMPTS,
    ARRAY_RESULTS,
    JOB_RESULTS,
    JOBS,
    PERIODIC_LAUNCHES,
    PURGED_CHILDREN_OF_JOB,
)
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.jobs.array_attempts import ArrayAttempt, GroupAttempt
from wharf.contract.model.jobs.job import Job, JobKey, JobStatus
from wharf.contract.model.jobs.step_states import StepCauseKind, StepPhase, StepState
from wharf.contract.model.jobs.steps import FlowOverlap

LAUNCH_KINDS: Final = ("periodic-job-launched", "job-dispatched")
SLOT_KEY: Final = "slot_s"
"""The metadata of a simulated flow with the seconds between two slots of its schedule."""
ALIVE_STATUSES: Final = (ClientStatus.PENDING, ClientStatus.RUNNING, ClientStatus.UNKNOWN)
_SLOT_ID: Final = re.compile(r"/periodic-(\d+)\Z")


class FlowInvariants:
    """The checks of each batch and each start that concern several runs. The counts show that they had something to do."""

    def __init__(self, history: RecordHistory, task_runs: TaskRunLog) -> None:
        self._history = history
        self._ends: dict[JobKey, tuple[int, set[str]]] = {}
        """How each ended run ended, with the create index of its job. The records of its steps are deleted with it."""
        self.launch_count = self.begin_count = self.result_count = 0
        history.batch_checks += [self.check_launches, self.check_begins, self.check_results]
        history.on_new_epoch.append(self._ends.clear)
        task_runs.start_checks.append(self.check_start)

    # -- launches ------------------------------------------------------------------------------------------------------

    def check_launches(self, observed: ObservedBatch) -> None:
        """Require that a launched run is the only one of its slot, and that `Flow.Overlap` allowed it."""
        if observed.batch.kind not in LAUNCH_KINDS:
            return
        is_backfill = observed.batch.kind == LAUNCH_KINDS[0] and not any(
            changed.table == PERIODIC_LAUNCHES.name for changed in observed.changes
        )
        for changed in observed.changes:
            run: Job | None = changed.new
            if changed.table != JOBS.name or run is None or not run.parent_id or not run.is_run:
                continue
            self.launch_count += 1
            _require_single_slot(changed, run, is_backfill=is_backfill)
            if not is_backfill:
                _require_overlap(self._history.replica, run, observed.batch.index)

    # -- begins --------------------------------------------------------------------------------------------------------

    def check_begins(self, observed: ObservedBatch) -> None:
        """Require that steps begin, or are skipped because of another job, only as other jobs allow."""
        replica = self._history.replica
        for changed in observed.changes:
            attempt: ArrayAttempt | None = changed.new
            if changed.table != ARRAY_ATTEMPTS.name or attempt is None:
                continue
            job = replica.get(JOBS, attempt.namespace, attempt.job_id)
            if job is None or job.stop or not job.is_run or job.create_index != attempt.job_create_index:
                continue
            former = changed.old.groups.values() if changed.old is not None else ()
            # The jobs that a job needs decide until its run has begun: they may run again, or be deleted (record 0337).
            asks_jobs = not any(_has_begun(part.step) for part in former)
            for name, part in attempt.groups.items():
                old = changed.old.groups.get(name) if changed.old is not None else None
                old_phase = old.step.phase if old is not None and old.step is not None else StepPhase.WAITING
                if part.step is None or old_phase is not StepPhase.WAITING:
                    continue
                where = f"at {observed.batch.index}"
                if _begins(part.step):
                    self.begin_count += 1
                    if asks_jobs:
                        _require_needed_jobs(replica, job, name, where)
                    _require_first_run(replica, job, name, where)
                elif part.step.phase is StepPhase.SKIPPED:
                    _require_hopeless_job(replica, job, name, part.step, where)

    def check_start(self, started: TaskRun, runs: Mapping[str, Mapping[str, list[TaskRun]]]) -> None:
        """Require that no program of another run of a flow with `Overlap` runs when one starts.

        Programs of lost allocations do not count: their node may be cut off (record 0316).
        """
        run = self._find_run(started.allocation_id)
        if run is None or not run.parent_id or not get_overlap(run):
            return
        for allocation_id, by_task in runs.items():
            if not any(each.is_alive for task_runs in by_task.values() for each in task_runs):
                continue
            other = self._find_run(allocation_id)
            if other is None or other.id == run.id:
                continue
            if (other.namespace, other.parent_id) == (run.namespace, run.parent_id):
                raise InvariantViolation(
                    f"a program of {run.id} starts while one of {other.id} runs", run.id, other.id, allocation_id
                )

    def _find_run(self, allocation_id: str) -> Job | None:
        """Return the run of an allocation that its node has not ended; `None` if there is none."""
        replica = self._history.replica
        allocation = replica.get(ALLOCATIONS, allocation_id)
        if allocation is None or allocation.client_status not in ALIVE_STATUSES or not allocation.array_attempt:
            return None
        job = replica.get(JOBS, allocation.namespace, allocation.job_id)
        return job if job is not None and job.create_index == allocation.job_create_index else None

    # -- results -------------------------------------------------------------------------------------------------------

    def check_results(self, observed: ObservedBatch) -> None:
        """Record how runs end, and require that a deleted run leaves that."""
        replica = self._history.replica
        keys: dict[JobKey, None] = {}
        for changed in observed.changes:
            record = changed.new if changed.new is not None else changed.old
            if changed.table == JOBS.name and changed.new is None:
                if record is not None and record.is_run:
                    self._require_result(record, observed.batch.index)
            elif record is not None and changed.table == JOBS.name:
                keys[record.namespace, record.id] = None
            elif record is not None and changed.table in (ARRAY_ATTEMPTS.name, ARRAY_RESULTS.name):
                keys[record.namespace, record.job_id] = None
        for key in keys:
            job = replica.get(JOBS, *key)
            if job is not None and job.is_run and job.status is JobStatus.DEAD and not job.stop:
                self._ends[key] = job.create_index, judge_ended_run(read_moments(replica, job))
            else:
                self._ends.pop(key, None)

    def _require_result(self, deleted: Job, index: int) -> None:
        """Require that the write that deletes a run stores how it ended."""
        key = (deleted.namespace, deleted.id)
        create_index, ends = self._ends.pop(key, (0, set[str]()))
        result = self._history.replica.get(JOB_RESULTS, *key)
        self.result_count += 1
        if result is None or result.job_create_index != deleted.create_index:
            raise InvariantViolation(f"run {deleted.id} was deleted at {index} without its result", deleted.id)
        if create_index == deleted.create_index and ends and result.outcome.value not in ends:
            raise InvariantViolation(
                f"run {deleted.id} was deleted at {index} as {result.outcome}; it was {' or '.join(sorted(ends))}",
                deleted.id,
            )


def _begins(state: StepState) -> bool:
    """Return whether a step has been allowed to begin, even if its own condition then kept it from doing so."""
    is_own = state.cause is not None and state.cause.kind == StepCauseKind.CONDITION
    return state.phase in (StepPhase.READY, StepPhase.GATED) or (
        state.phase in (StepPhase.SKIPPED, StepPhase.FAILED) and is_own
    )


def _require_single_slot(changed: ObservedChange, run: Job, *, is_backfill: bool) -> None:
    """Require that a launch creates a run, and that the ID of a run that a schedule has launched is that of its slot."""
    if changed.old is not None:
        raise InvariantViolation(f"run {run.id} was launched twice", run.id)
    slot_s = int((run.meta or {}).get(SLOT_KEY, "0"))
    found = _SLOT_ID.search(run.id)
    if slot_s and (found is None or run.id != f"{run.parent_id}{found[0]}"):
        raise InvariantViolation(f"run {run.id} of a schedule has no slot", run.id)
    if slot_s and found is not None and is_backfill and int(found[1]) % slot_s:
        raise InvariantViolation(f"run {run.id} was backfilled, but is in no slot of the schedule", run.id)


def _require_overlap(replica: Replica, run: Job, index: int) -> None:
    """Require that `Flow.Overlap` allowed a launch that is no backfill, and that it replaced the earlier runs."""
    others = list(iterate_other_runs(replica, run))
    if get_overlap(run) == FlowOverlap.SKIP:
        purged = replica.list_by_index(PURGED_CHILDREN_OF_JOB, run.namespace, run.parent_id)
        left = [*(each.id for each in others), *(each.job_id for each in purged)]
        if left:
            raise InvariantViolation(
                f"run {run.id} was launched at {index} although {left[0]} has not ended", run.id, *left
            )
    if get_overlap(run) == FlowOverlap.REPLACE:
        for other in others:
            if not other.stop and other.is_run and not _is_canceled(replica, other):
                raise InvariantViolation(
                    f"run {run.id} was launched at {index} and did not cancel {other.id}", run.id, other.id
                )


def _is_canceled(replica: Replica, run: Job) -> bool:
    """Return whether the newest attempt of a run was canceled."""
    attempts = list_attempts(replica, run)
    return bool(attempts) and attempts[-1].cancel_cause is not None


def _waits_for_jobs(job: Job, step: str) -> bool:
    """Return whether a step never begins without the jobs that its job needs. Final ones clean up after others."""
    group = job.find_group(step)
    return group is not None and (not group.final or all(each.final for each in job.groups))


def _require_needed_jobs(replica: Replica, job: Job, step: str, where: str) -> None:
    """Require that all jobs that a job needs allow one of its steps to begin."""
    if not _waits_for_jobs(job, step):
        return
    for need in job.depends or ():
        ends = find_ends(replica, job.namespace, need)
        if not allows_job(need, ends):
            raise InvariantViolation(
                f"step {step} of {job.id} begins {where} before the job {need.on} allows it: "
                f"{' or '.join(sorted(ends)) or 'it has not ended'}",
                job.id, need.on,
            )  # fmt: skip


def _require_hopeless_job(replica: Replica, job: Job, step: str, state: StepState, where: str) -> None:
    """Require that a step is skipped because of another job only if that one can no longer allow it."""
    if state.cause is None or state.cause.kind != StepCauseKind.JOB:
        return
    for need in job.depends or ():
        if need.on == state.cause.step:
            ends = find_ends(replica, job.namespace, need)
            if ends and not all(allows_job(need, {end}) for end in ends):
                return
    raise InvariantViolation(
        f"step {step} of {job.id} is skipped {where} because of the job {state.cause.step}, which may allow it",
        job.id, state.cause.step,
    )  # fmt: skip


def _require_first_run(replica: Replica, run: Job, step: str, where: str) -> None:
    """Require that no other run of a flow with `Overlap` has to end before a step of a run begins, or has begun."""
    if not run.parent_id or not get_overlap(run):
        return
    if before := find_run_before(replica, run):
        raise InvariantViolation(
            f"step {step} of {run.id} begins {where} although run {before} of the flow has not ended", run.id, before
        )
    for other in iterate_other_runs(replica, run):
        if not other.stop and any(_has_begun(each.step) for each in _list_newest_parts(replica, other)):
            raise InvariantViolation(
                f"step {step} of {run.id} begins {where} although run {other.id} of the flow has begun",
                run.id,
                other.id,
            )


def _list_newest_parts(replica: Replica, run: Job) -> list[GroupAttempt]:
    """Return the newest part of each step of a run."""
    parts = {name: part for attempt in list_attempts(replica, run) for name, part in attempt.groups.items()}
    return list(parts.values())


def _has_begun(state: StepState | None) -> bool:
    """Return whether a step was allowed to begin, before this or now."""
    return state is not None and (bool(state.began_at) or state.phase is StepPhase.FAILED or _begins(state))
