"""Invariants of locks: never more holders than slots, in the records and on the machines, and no slot is free in vain.

They are computed from allocations and programs, and not by the product's code about locks.
"""

from collections.abc import Mapping

from simulation.record_history import ObservedBatch, RecordHistory
from simulation.task_runs import TaskRun, TaskRunLog
from simulation.timeline import InvariantViolation
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS, ATTEMPTS_OF_JOB, EVALUATIONS_OF_JOB, JOBS, NODES
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.step_states import StepPhase
from wharf.contract.model.jobs.steps import Lock


class LockInvariants:
    """The checks of locks. The counts show that the checks had something to do."""

    def __init__(self, history: RecordHistory, task_runs: TaskRunLog) -> None:
        self._history = history
        self._task_runs = task_runs
        self.placed_count = 0
        self.start_count = 0
        history.batch_checks.append(self.check_slots)
        task_runs.start_checks.append(self.check_start)

    def check_slots(self, observed: ObservedBatch) -> None:
        """Require that a placed allocation with a lock found a free slot."""
        replica = self._history.replica
        for changed in observed.changes:
            placed = changed.new
            if changed.table != ALLOCATIONS.name or changed.old is not None or placed is None:
                continue
            lock = find_lock(replica, placed)
            if lock is None:
                continue
            self.placed_count += 1
            holders = list_holders(replica, placed.namespace, lock.key)
            if len(holders) > lock.slots:
                raise InvariantViolation(
                    f"{len(holders)} allocations hold the lock {lock.key} at {observed.batch.index}; it has {lock.slots} "
                    f"slots: {' '.join(each.name for each in holders)}",
                    *(each.id for each in holders),
                    *(each.job_id for each in holders),
                )

    def check_start(self, started: TaskRun, runs: Mapping[str, Mapping[str, list[TaskRun]]]) -> None:
        """Require that the programs that really run do not exceed a lock when one of them starts.

        Those of allocations that a restore undid do not count: servers do not know them until their node reports them.
        """
        lock, replica = started.group.lock, self._history.replica
        if lock is None or replica.get(ALLOCATIONS, started.allocation_id) is None:
            return
        self.start_count += 1
        alive = {started.allocation_id}
        for allocation_id, by_task in runs.items():
            is_alive = any(run.is_alive and _wants_lock(run, lock) for each in by_task.values() for run in each)
            if is_alive and replica.get(ALLOCATIONS, allocation_id) is not None:
                alive.add(allocation_id)
        if len(alive) > lock.slots:
            raise InvariantViolation(
                f"programs of {len(alive)} allocations run with the lock {lock.key}; it has {lock.slots} slots", *alive
            )

    def require_free_locks_are_taken(self) -> None:
        """Raise `InvariantViolation` if a steady cluster has a step that waits for a lock with a free slot."""
        replica = self._history.replica
        for job in replica.iter_all(JOBS):
            if not job.is_run or job.stop:
                continue
            for name in _list_unplaced_steps(replica, job):
                group = job.find_group(name)
                lock = group.lock if group is not None else None
                if lock is not None and not self._is_explained(replica, job, lock):
                    raise InvariantViolation(
                        f"step {name} of {job.id} does not begin, although the lock {lock.key} has a free slot", job.id
                    )

    @staticmethod
    def _is_explained(replica: Replica, job: Job, lock: Lock) -> bool:
        """Return whether the lock is held, or the job waits for capacity or for the scheduler."""
        if len(list_holders(replica, job.namespace, lock.key)) >= lock.slots:
            return True
        open_evaluations = [
            each
            for each in replica.list_by_index(EVALUATIONS_OF_JOB, job.namespace, job.id)
            if each.status in (EvaluationStatus.BLOCKED, EvaluationStatus.PENDING)
        ]
        return any(not each.waits_only_for_locks for each in open_evaluations)


def _wants_lock(run: TaskRun, lock: Lock) -> bool:
    return run.group.lock is not None and run.group.lock.key == lock.key


def find_lock(replica: Replica, allocation: Allocation) -> Lock | None:
    """Return the lock of the step of an allocation, from its job, or `None` if it has none."""
    job = replica.get(JOBS, allocation.namespace, allocation.job_id)
    group = job.find_group(allocation.task_group) if job is not None else None
    return group.lock if group is not None else None


def list_holders(replica: Replica, namespace: str, key: str) -> list[Allocation]:
    """Return the allocations with this lock whose end no node has reported, and whose node exists."""
    found = []
    for allocation in replica.iter_all(ALLOCATIONS):
        if allocation.namespace != namespace or allocation.client_status in (
            ClientStatus.COMPLETE,
            ClientStatus.FAILED,
        ):
            continue
        lock = find_lock(replica, allocation)
        is_lost = allocation.client_status is ClientStatus.LOST and replica.get(NODES, allocation.node_id) is None
        if lock is not None and lock.key == key and not is_lost:
            found.append(allocation)
    return found


def _list_unplaced_steps(replica: Replica, job: Job) -> list[str]:
    """Return the steps of a run that may begin and have no allocation that has not ended, but have not ended either."""
    steps = {
        name: part.step
        for attempt in sorted(
            replica.list_by_index(ATTEMPTS_OF_JOB, job.namespace, job.id), key=lambda each: each.attempt
        )
        if attempt.job_create_index == job.create_index
        for name, part in attempt.groups.items()
    }
    return [
        name for name, step in steps.items() if step is not None and step.phase is StepPhase.READY and not step.ended_at
    ]
