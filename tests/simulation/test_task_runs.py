"""The rules for task runs: each detects its violation."""

import pytest
from msgspec.structs import replace

from simulation.task_runs import TaskRun, TaskRunLog
from simulation.timeline import Timeline
from tests.builders import a_group, a_task
from tests.simulation.small_log import SmallLog
from wharf.cluster.state.tables import ALLOCATIONS
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.allocations.task_states import TaskEvent, TaskEventType, TaskState, TaskStatus
from wharf.contract.model.jobs.group_policies import RestartPolicy
from wharf.contract.model.jobs.groups import Lifecycle, LifecycleHook
from wharf.node.core.outcome import UNKNOWN, Outcome

ID = "a1"
SUCCESS = Outcome()
GROUP = replace(
    a_group(
        "web",
        a_task("main"),
        replace(a_task("before"), lifecycle=Lifecycle(hook=LifecycleHook.PRESTART)),
        replace(a_task("after"), lifecycle=Lifecycle(hook=LifecycleHook.POSTSTOP)),
    ),
    restart_policy=RestartPolicy(attempts=1),
)


class TaskRunScenario:
    """Runs of tasks of one allocation, its reports, and the violations that the checks found."""

    def __init__(self) -> None:
        self.log = SmallLog()
        self.violations = self.log.failures
        self.task_run_log = TaskRunLog(
            self.log.history, Timeline(self.log.loop), lambda error: self.violations.append(str(error))
        )
        self._starts = 0

    def start(self, task: str, *, run: str = "") -> TaskRun:
        self._starts += 1
        task_run = TaskRun(run or f"run-{self._starts}", ID, task, GROUP, {}, started_s=float(self._starts))
        self.task_run_log.record_start(task_run)
        return task_run

    def run(self, task: str, outcome: Outcome = SUCCESS, *, run: str = "") -> None:
        task_run = self.start(task, run=run)
        task_run.ended_s, task_run.outcome = 100.0, outcome

    def report(self, status: ClientStatus, *, node_name: str = "", **codes: int) -> None:
        """Commit a report of the node, with the exit codes of tasks that ended."""
        states = {
            task: TaskState(
                state=TaskStatus.DEAD,
                events=(TaskEvent(type=TaskEventType.TERMINATED, details={"exit_code": str(code), "signal": "0"}),),
            )
            for task, code in codes.items()
        }
        allocation = Allocation(
            id=ID,
            node_name=node_name,
            desired_status=DesiredStatus.RUN,
            client_status=status,
            task_states=states,
        )
        self.log.put((ALLOCATIONS, allocation))

    def set_desired_status(self, desired: DesiredStatus) -> None:
        self.log.put((ALLOCATIONS, Allocation(id=ID, desired_status=desired, client_status=ClientStatus.RUNNING)))


@pytest.fixture
def scenario() -> TaskRunScenario:
    return TaskRunScenario()


def test_an_allocation_that_runs_its_tasks_in_order_passes(scenario: TaskRunScenario) -> None:
    scenario.run("before")
    scenario.run("main", Outcome(3))
    scenario.run("main")
    scenario.run("after")

    scenario.report(ClientStatus.COMPLETE, before=0, main=3, after=0)

    assert scenario.violations == []


def test_a_start_happens_once(scenario: TaskRunScenario) -> None:
    scenario.run("before", run="x")
    scenario.run("before", run="x")

    assert scenario.violations == ["x of before is started a second time"]


def test_starting_a_task_that_still_runs_is_a_violation(scenario: TaskRunScenario) -> None:
    scenario.start("before", run="x")
    scenario.start("before", run="y")

    assert scenario.violations == ["y of before starts while an earlier start still runs"]


@pytest.mark.parametrize("outcome", [None, Outcome(1), UNKNOWN])
def test_a_main_task_that_starts_before_its_prestart_task_succeeded_is_a_violation(
    scenario: TaskRunScenario, outcome: Outcome | None
) -> None:
    if outcome is not None:
        scenario.run("before", outcome)

    scenario.start("main")

    assert scenario.violations == ["main of a1 starts before the prestart task before is done"]


def test_a_poststop_task_that_starts_before_the_main_task_ended_is_a_violation(scenario: TaskRunScenario) -> None:
    scenario.run("before")
    scenario.start("main")

    scenario.start("after")

    assert scenario.violations == ["after of a1 starts while main runs"]


def test_more_restarts_than_the_policy_allows_are_a_violation(scenario: TaskRunScenario) -> None:
    scenario.run("before")
    for _ in range(3):
        scenario.run("main", Outcome(1))

    assert scenario.violations == ["main of a1 is started 3 times; its policy allows 1 restarts"]


def test_an_allocation_reported_as_ended_while_a_task_runs_is_a_violation(scenario: TaskRunScenario) -> None:
    scenario.start("before", run="x")

    scenario.report(ClientStatus.FAILED)

    assert scenario.violations == ["a1 is reported as failed at 1, but x runs"]


def test_a_reported_exit_status_that_never_happened_is_a_violation(scenario: TaskRunScenario) -> None:
    scenario.run("before", Outcome(3))

    scenario.report(ClientStatus.FAILED, before=0)

    assert scenario.violations == [
        "before of a1 is reported to have ended as [('0', '0')] at 1; it really ended as [('3', '0')]"
    ]


def test_an_unknown_exit_status_may_be_reported_only_after_a_power_loss(scenario: TaskRunScenario) -> None:
    scenario.run("before")
    scenario.task_run_log.record_power_loss("node-1")
    scenario.start("main")

    scenario.report(ClientStatus.RUNNING, node_name="node-1", main=-1)
    assert [] == scenario.violations

    scenario.report(ClientStatus.RUNNING, node_name="node-2", main=-1)
    assert ["main of a1 is reported to have ended as [('-1', '0')] at 2; it really ended as []"] == scenario.violations


def test_an_exit_status_stored_before_a_power_loss_may_be_reported(scenario: TaskRunScenario) -> None:
    task_run = scenario.start("before")
    task_run.ended_s, task_run.outcome, task_run.lost_outcome = 100.0, UNKNOWN, Outcome(1)

    scenario.report(ClientStatus.RUNNING, before=1)
    assert [] == scenario.violations

    scenario.report(ClientStatus.FAILED, before=0)
    assert [
        "before of a1 is reported to have ended as [('0', '0')] at 2; it really ended as [('-1', '0')]"
    ] == scenario.violations


def test_a_failed_task_reported_as_complete_is_a_violation(scenario: TaskRunScenario) -> None:
    scenario.run("before", Outcome(3), run="x")

    scenario.report(ClientStatus.COMPLETE, before=3)

    assert scenario.violations == ["a1 is reported as complete at 1, but these runs failed: x"]


def test_a_task_stopped_between_two_attempts_is_complete_also_after_a_restore(scenario: TaskRunScenario) -> None:
    scenario.run("before", Outcome(3))
    scenario.set_desired_status(DesiredStatus.STOP)
    scenario.set_desired_status(DesiredStatus.RUN)

    scenario.report(ClientStatus.COMPLETE, before=3)

    assert scenario.violations == []


def test_a_task_that_starts_after_its_reported_end_is_a_violation(scenario: TaskRunScenario) -> None:
    scenario.report(ClientStatus.COMPLETE)

    scenario.start("before", run="x")

    assert scenario.violations == ["x of before starts after its end was reported as complete"]
