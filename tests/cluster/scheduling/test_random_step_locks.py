"""Random runs that want locks: no lock is ever exceeded, slots are given in order, and every run ends."""

from random import Random

import pytest

from tests.builders import a_group
from tests.cluster.scheduling.test_step_locks import NO_RETRY, Runs
from tests.kit.state import SETTINGS
from wharf.cluster.operations.evaluations import unblock_evaluations
from wharf.cluster.operations.jobs.registration import deregister_job
from wharf.cluster.scheduling.capacity.locks import list_lock_holders, list_lock_waiters
from wharf.cluster.state.tables import ALLOCATIONS, JOBS
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import JobStatus
from wharf.contract.model.jobs.steps import Lock, LockPolicy, Need

SLOTS = {"production": 1, "license": 2}
POLICIES = (*[LockPolicy.QUEUE] * 5, LockPolicy.REPLACE_WAITING, LockPolicy.REPLACE_RUNNING)


class RandomRuns(Runs):
    """A cluster on which random things happen to runs."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.slots = SLOTS
        self.random = Random(seed)
        self.checks.append(self.assert_placed_in_order)
        self.waiting_before: dict[str, list[tuple[int, str, str]]] = {}

    def make_step(self, name: str, *needs: str) -> TaskGroup:
        key = self.random.choice(list(SLOTS))
        return a_group(
            name,
            count=1,
            reschedule_policy=NO_RETRY,
            array=GroupArray(size=self.random.choice([1, 1, 2, 4])),
            lock=Lock(key=key, slots=SLOTS[key], policy=self.random.choice(POLICIES))
            if self.random.random() < 0.8
            else None,
            depends=tuple(Need(on=need) for need in needs) or None,
        )

    def submit_random(self, number: int) -> None:
        steps = [self.make_step("one")]
        for name in ("two", "three")[: self.random.choice([0, 1, 2])]:
            steps.append(self.make_step(name, *([steps[-1].name] if self.random.random() < 0.5 else [])))
        self.submit(f"run-{number}", *steps, is_processed=False)

    def list_alive(self) -> list[Allocation]:
        alive = [each for each in self.replica.iter_all(ALLOCATIONS) if not each.is_client_terminal]
        return sorted(alive, key=lambda each: each.id)

    def end_random(self) -> None:
        if alive := self.list_alive():
            status = self.random.choice([ClientStatus.COMPLETE, ClientStatus.COMPLETE, ClientStatus.FAILED])
            self.report(self.random.choice(alive), status)

    def stop_random(self) -> None:
        jobs = sorted(job.id for job in self.replica.iter_all(JOBS) if not job.stop)
        if jobs:
            job_id = self.random.choice(jobs)
            self.do(deregister_job(self.replica, "default", job_id, self.moment, settings=SETTINGS))

    def process_random(self) -> None:
        """Process one due evaluation, in any order, as if its queue had delayed the others."""
        if due := self.list_due():
            self.process(self.random.choice(due))

    def retry_random(self) -> None:
        """Retry a blocked evaluation for no reason, as a new leader does."""
        blocked = [each for each in self.list_blocked() if each.status is EvaluationStatus.BLOCKED]
        if blocked:
            self.commit(unblock_evaluations(self.replica, [self.random.choice(blocked)], self.moment))

    def assert_placed_in_order(self) -> None:
        """Assert that no step that waits since before has been passed by one of its own key."""
        for key in SLOTS:
            lock = ("default", key)
            waiting = [each.order for each in list_lock_waiters(self.replica, lock) if not each.wait.lacks_capacity]
            still_waiting = [order for order in self.waiting_before.get(key, []) if order in waiting]
            placed = {
                (each.job_id, each.task_group)
                for each in list_lock_holders(self.replica, lock)
                if each.create_index == self.replica.index
            }
            for job_id, step in sorted(placed):
                since = self.read_step(job_id, step).since
                assert not any(order < (since, job_id, step) for order in still_waiting), (
                    f"{job_id} passed {still_waiting}"
                )
            self.waiting_before[key] = waiting


@pytest.mark.parametrize("seed", range(12))
def test_random_runs_never_exceed_a_lock_and_all_end(seed: int) -> None:
    runs = RandomRuns(seed)
    actions = (runs.end_random, runs.end_random, runs.process_random, runs.process_random, runs.retry_random)
    for number in range(10):
        runs.submit_random(number)
        for action in runs.random.choices(actions, k=runs.random.randint(0, 6)):
            action()
        if runs.random.random() < 0.1:
            runs.stop_random()
        if runs.random.random() < 0.3:
            runs.work()
    for _ in range(300):
        runs.work()
        if not runs.list_alive():
            break
        runs.end_random()

    assert {job.id: job.status for job in runs.replica.iter_all(JOBS) if job.status is not JobStatus.DEAD} == {}
    for key in SLOTS:
        assert list_lock_holders(runs.replica, ("default", key)) == []
        assert list_lock_waiters(runs.replica, ("default", key)) == []
