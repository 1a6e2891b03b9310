"""Invariants of runs: no step begins before its needs allow, each ends in the write of its cause, and every run ends.

They compare the records with the model in `step_model`, and not with the product's own decisions.
"""

from collections.abc import Mapping
from typing import Final

from simulation.array_invariants import is_superseded, parse_element
from simulation.job_order import find_awaited_job, may_wait_for_others
from simulation.record_history import ObservedBatch, ObservedChange, RecordHistory
from simulation.run_moments import read_moments
from simulation.step_model import Moment, can_begin, never_begins, was_stopped
from simulation.step_texts import is_condition_true
from simulation.timeline import InvariantViolation
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    ARRAY_ATTEMPTS,
    ARRAY_RESULTS,
    EVALUATIONS_OF_JOB,
    JOBS,
)
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.step_states import StepCauseKind, StepPhase, StepState

NEXT_PHASES: Final[dict[StepPhase | None, frozenset[StepPhase]]] = {
    None: frozenset(StepPhase),
    StepPhase.WAITING: frozenset(StepPhase) - {StepPhase.WAITING},
    StepPhase.GATED: frozenset({StepPhase.READY, StepPhase.FAILED, StepPhase.CANCELED}),
    StepPhase.READY: frozenset({StepPhase.CANCELED}),
}
"""The phases that may follow each phase in one attempt. A step that never begins stays so."""
GATE_ANSWERED: Final = "gate-answered"


class RunInvariants:
    """The checks of each batch that concern runs. The counts show that the checks had something to do."""

    def __init__(self, history: RecordHistory) -> None:
        self._history = history
        self.decided_count = 0
        self.placed_count = 0
        history.batch_checks.append(self.check_steps)

    def check_steps(self, observed: ObservedBatch) -> None:
        """Check the steps of all runs that a batch changes."""
        replica = self._history.replica
        keys: dict[tuple[str, str], None] = {}
        for changed in observed.changes:
            record = changed.new
            if changed.table in (ARRAY_ATTEMPTS.name, ARRAY_RESULTS.name, ALLOCATIONS.name) and record is not None:
                keys[record.namespace, record.job_id] = None
        for key in keys:
            job = replica.get(JOBS, *key)
            if job is not None and job.is_run and not job.stop:
                moments = read_moments(replica, job)
                for changed in observed.changes:
                    self._check_change(observed, changed, job, moments)
                if not may_wait_for_others(job):
                    _require_no_waiting(job, moments, observed.batch.index)

    def _check_change(
        self, observed: ObservedBatch, changed: ObservedChange, job: Job, moments: Mapping[str, Moment]
    ) -> None:
        record = changed.new
        if record is None or changed.table not in (ARRAY_ATTEMPTS.name, ALLOCATIONS.name):
            return
        if (record.namespace, record.job_id, record.job_create_index) != (job.namespace, job.id, job.create_index):
            return
        if changed.table == ALLOCATIONS.name:
            if changed.old is None:
                self._check_placement(record, job, moments)
            return
        kind = observed.batch.kind
        for name, part in record.groups.items():
            old = changed.old.groups[name].step if changed.old is not None and name in changed.old.groups else None
            if part.step is not None and (old is None or old.phase is not part.step.phase):
                self.decided_count += 1
                where = f"{kind} at {observed.batch.index}"
                _require_allowed(job, name, old, part.step, moments, where)
                _require_condition(self._history.replica, job, name, old, part.step, where)

    def _check_placement(self, placed: Allocation, job: Job, moments: Mapping[str, Moment]) -> None:
        """Require that the needs of a placed element hold. A plan may be older than the cancellation of its step."""
        if is_superseded(self._history.replica, placed):
            return
        self.placed_count += 1
        moment = moments[placed.task_group]
        if not moment.is_decided or not can_begin(moment.step, moments, parse_element(placed)):
            raise InvariantViolation(f"{placed.name} was placed before its needs allow", job.id, placed.id)
        if moment.end and moment.end != StepPhase.CANCELED:
            raise InvariantViolation(f"{placed.name} was placed, but its step is {moment.end}", job.id, placed.id)

    def require_ended(self) -> None:
        """Raise `InvariantViolation` if a run of a steady cluster has not ended, and nothing is going to continue it."""
        replica = self._history.replica
        for job in replica.iter_all(JOBS):
            if not job.is_run or job.stop or find_awaited_job(replica, job):
                continue
            evaluations = replica.list_by_index(EVALUATIONS_OF_JOB, job.namespace, job.id)
            if any(each.status in (EvaluationStatus.BLOCKED, EvaluationStatus.PENDING) for each in evaluations):
                continue
            for name, moment in read_moments(replica, job).items():
                if not moment.is_over:
                    raise InvariantViolation(
                        f"step {name} of {job.id} has not ended: {moment.elements}, decided: {moment.is_decided}",
                        job.id,
                    )


def _require_allowed(
    job: Job, name: str, old: StepState | None, new: StepState, moments: Mapping[str, Moment], where: str
) -> None:
    """Require that a step may go from one state to another. `where` names the write."""
    phase, cause = new.phase, new.cause
    moment = moments[name]
    if phase not in NEXT_PHASES.get(old.phase if old is not None else None, ()):
        former = old.phase if old is not None else "nothing"
        raise InvariantViolation(f"step {name} of {job.id} went from {former} to {phase} by {where}", job.id)
    group = job.find_group(name)
    if phase is StepPhase.READY and group is not None and group.gate is not None:
        is_answered = old is not None and old.phase is StepPhase.GATED and where.startswith(GATE_ANSWERED)
        if not is_answered:
            raise InvariantViolation(f"step {name} of {job.id} began without an answer to its gate, by {where}", job.id)
    if phase in (StepPhase.READY, StepPhase.GATED) and not can_begin(moment.step, moments):
        raise InvariantViolation(f"step {name} of {job.id} is {phase} before its needs allow, by {where}", job.id)
    is_skipped = phase is StepPhase.SKIPPED and cause is not None and cause.kind == StepCauseKind.NEED
    if is_skipped and not never_begins(moment.step, moments):
        raise InvariantViolation(f"step {name} of {job.id} was skipped, but its needs may hold, by {where}", job.id)


def _require_condition(
    replica: Replica, job: Job, name: str, old: StepState | None, new: StepState, where: str
) -> None:
    """Require that a step begins only if its `If` is true with the stored texts, and is skipped by it only if it is not."""
    group = job.find_group(name)
    condition = group.condition if group is not None else ""
    has_begun = new.phase in (StepPhase.READY, StepPhase.GATED) and (old is None or old.phase is StepPhase.WAITING)
    is_from_condition = new.cause is not None and new.cause.kind == StepCauseKind.CONDITION
    if condition and has_begun and not is_condition_true(replica, job, condition):
        raise InvariantViolation(f"step {name} of {job.id} began, but its If is false: {condition}, by {where}", job.id)
    if (
        new.phase is StepPhase.SKIPPED
        and is_from_condition
        and (not condition or is_condition_true(replica, job, condition))
    ):
        raise InvariantViolation(
            f"step {name} of {job.id} was skipped, but its If is true: {condition}, by {where}", job.id
        )
    if new.phase is StepPhase.FAILED and is_from_condition:
        detail = new.cause.detail if new.cause is not None else ""
        raise InvariantViolation(f"step {name} of {job.id} failed because of its If: {detail}, by {where}", job.id)


def _require_no_waiting(job: Job, moments: Mapping[str, Moment], index: int) -> None:
    """Require that no step waits although its needs have decided: the decision is in the write of its cause."""
    is_stopping = any(moment.end == "canceled" and moment.is_alive for moment in moments.values())
    for name, moment in moments.items():
        step = moment.step
        if was_stopped(moment):
            raise InvariantViolation(f"step {name} of {job.id} waits at {index}, but its elements were stopped", job.id)
        if moment.is_decided or moment.is_gated:
            continue
        if never_begins(step, moments):
            raise InvariantViolation(f"step {name} of {job.id} waits at {index} for what never happens", job.id)
        waits_for_all = bool(step.gate or step.condition) and any(need.each for need in step.needs)
        if not (step.final and is_stopping) and not waits_for_all and can_begin(step, moments):
            raise InvariantViolation(f"step {name} of {job.id} waits at {index} although its needs hold", job.id)
