"""The invariants of locks: each detects its violation."""

from typing import Any

import pytest
from msgspec.structs import replace

from simulation.lock_invariants import LockInvariants
from simulation.task_runs import TaskRun, TaskRunLog
from simulation.timeline import InvariantViolation, Timeline
from tests.builders import a_batch_job, a_group, a_task
from tests.simulation.small_log import SmallLog
from wharf.cluster.state.tables import ALLOCATIONS, ARRAY_ATTEMPTS, EVALUATIONS, JOBS, NODES
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus, EvaluationTrigger, SchedulerType
from wharf.contract.model.jobs.array_attempts import ArrayAttempt, GroupAttempt
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.lock_waits import LockWait
from wharf.contract.model.jobs.step_states import StepPhase, StepState
from wharf.contract.model.jobs.steps import Lock
from wharf.contract.model.nodes.node import Node, NodeStatus

NODE = Node(id="n1", name="first", secret_digest="x", status=NodeStatus.READY)
GROUP = a_group("deploy", a_task("work"), array=GroupArray(size=3), lock=Lock(key="production", slots=1))
READY = StepState(phase=StepPhase.READY)
ATTEMPT = ArrayAttempt(
    namespace="default", job_id="a", attempt=1, groups={"deploy": GroupAttempt(size=3, element_count=3, step=READY)}
)
EVALUATION = Evaluation(
    id="e1",
    namespace="default",
    job_id="a",
    type=SchedulerType.BATCH,
    triggered_by=EvaluationTrigger.QUEUED_ALLOCS,
    status=EvaluationStatus.BLOCKED,
    failed_tg_allocs={},
    lock_waits=(LockWait(key="production", step="deploy"),),
)


def an_allocation(id: str, **fields: Any) -> Allocation:
    return Allocation(
        id=id,
        namespace="default",
        name=f"a.deploy[{id}]",
        job_id="a",
        task_group="deploy",
        array_attempt=1,
        **{"node_id": "n1", "desired_status": DesiredStatus.RUN, "client_status": ClientStatus.RUNNING, **fields},
    )


class LockScenario:
    """A log with a run that wants a lock, and the violations that the checks found."""

    def __init__(self) -> None:
        self.log = SmallLog()
        self.task_runs = TaskRunLog(
            self.log.history, Timeline(self.log.loop), lambda error: self.log.failures.append(str(error))
        )
        self.invariants = LockInvariants(self.log.history, self.task_runs)
        self.log.put((NODES, NODE), (JOBS, a_batch_job("a", GROUP)))

    def place(self, id: str, **fields: Any) -> None:
        self.log.put((ALLOCATIONS, an_allocation(id, **fields)))

    def start(self, allocation_id: str) -> None:
        run = TaskRun(f"run-{allocation_id}", allocation_id, "work", GROUP, {}, started_s=1.0)
        self.task_runs.record_start(run)


@pytest.mark.parametrize(
    "status", [ClientStatus.PENDING, ClientStatus.RUNNING, ClientStatus.UNKNOWN, ClientStatus.LOST]
)
def test_more_holders_than_slots_are_a_violation(status: ClientStatus) -> None:
    scenario = LockScenario()
    scenario.place("0", client_status=status)
    assert scenario.log.failures == []

    scenario.place("1", client_status=ClientStatus.PENDING)

    assert scenario.log.failures == [
        "2 allocations hold the lock production at 3; it has 1 slots: a.deploy[0] a.deploy[1]"
    ]


@pytest.mark.parametrize("status", [ClientStatus.COMPLETE, ClientStatus.FAILED])
def test_a_slot_may_be_taken_after_the_end_of_its_holder(status: ClientStatus) -> None:
    scenario = LockScenario()
    scenario.place("0", client_status=status)
    scenario.place("1")

    assert scenario.log.failures == []


def test_a_lost_allocation_of_a_deleted_node_holds_no_slot() -> None:
    scenario = LockScenario()
    scenario.place("0", client_status=ClientStatus.LOST, node_id="n0")
    scenario.place("1")

    assert scenario.log.failures == []


def test_more_running_programs_than_slots_are_a_violation() -> None:
    scenario = LockScenario()
    scenario.place("0", client_status=ClientStatus.COMPLETE)
    scenario.place("1")
    scenario.start("0")
    assert scenario.log.failures == ["run-0 of work starts after its end was reported as complete"]
    scenario.log.failures.clear()

    scenario.start("1")

    assert scenario.log.failures == ["programs of 2 allocations run with the lock production; it has 1 slots"]


def test_a_step_that_does_not_begin_although_a_slot_is_free_is_a_violation() -> None:
    scenario = LockScenario()
    scenario.log.put((ARRAY_ATTEMPTS, ATTEMPT), (EVALUATIONS, EVALUATION))

    with pytest.raises(InvariantViolation, match="step deploy of a does not begin, although the lock production has a"):
        scenario.invariants.require_free_locks_are_taken()


def test_a_step_that_waits_for_a_held_lock_or_for_capacity_or_has_ended_is_no_violation() -> None:
    held, full, ended = LockScenario(), LockScenario(), LockScenario()
    held.log.put((ARRAY_ATTEMPTS, ATTEMPT), (EVALUATIONS, EVALUATION))
    held.place("0")
    lacks = (LockWait(key="production", step="deploy", lacks_capacity=True),)
    full.log.put((ARRAY_ATTEMPTS, ATTEMPT), (EVALUATIONS, replace(EVALUATION, lock_waits=lacks)))
    done = GroupAttempt(size=3, element_count=3, step=replace(READY, ended_at=7))
    ended.log.put((ARRAY_ATTEMPTS, replace(ATTEMPT, groups={"deploy": done})))

    for scenario in (held, full, ended):
        scenario.invariants.require_free_locks_are_taken()
