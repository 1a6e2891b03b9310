"""What must not pass of what programs did: shown to the ledger, one by one."""

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
WELL = Outcome()
GROUP = replace(
    a_group(
        "web",
        a_task("main"),
        replace(a_task("before"), lifecycle=Lifecycle(hook=LifecycleHook.PRESTART)),
        replace(a_task("after"), lifecycle=Lifecycle(hook=LifecycleHook.POSTSTOP)),
    ),
    restart_policy=RestartPolicy(attempts=1),
)


class Shown:
    """A ledger, and what it said was wrong."""

    def __init__(self) -> None:
        self.log = SmallLog()
        self.wrong = self.log.failures
        self.ledger = TaskRunLog(self.log.witness, Timeline(self.log.loop), lambda error: self.wrong.append(str(error)))
        self._starts = 0

    def begins(self, task: str, *, run: str = "") -> TaskRun:
        self._starts += 1
        play = TaskRun(run or f"run-{self._starts}", ID, task, GROUP, {}, began_s=float(self._starts))
        self.ledger.record_start(play)
        return play

    def ran(self, task: str, outcome: Outcome = WELL, *, run: str = "") -> None:
        play = self.begins(task, run=run)
        play.ended_s, play.outcome = 100.0, outcome

    def told(self, status: ClientStatus, *, node_name: str = "", **codes: int) -> None:
        """The allocation's report is in the log, with how its tasks ended."""
        states = {
            task: TaskState(
                state=TaskStatus.DEAD,
                events=(TaskEvent(type=TaskEventType.TERMINATED, details={"exit_code": str(code), "signal": "0"}),),
            )
            for task, code in codes.items()
        }
        told = Allocation(
            id=ID,
            node_name=node_name,
            desired_status=DesiredStatus.RUN,
            client_status=status,
            task_states=states,
        )
        self.log.put((ALLOCATIONS, told))

    def is_to(self, desired: DesiredStatus) -> None:
        self.log.put((ALLOCATIONS, Allocation(id=ID, desired_status=desired, client_status=ClientStatus.RUNNING)))


@pytest.fixture
def shown() -> Shown:
    return Shown()


def test_an_allocation_that_runs_its_tasks_in_order_passes(shown: Shown) -> None:
    shown.ran("before")
    shown.ran("main", Outcome(3))
    shown.ran("main")
    shown.ran("after")

    shown.told(ClientStatus.COMPLETE, before=0, main=3, after=0)

    assert shown.wrong == []


def test_a_start_happens_once(shown: Shown) -> None:
    shown.ran("before", run="x")
    shown.ran("before", run="x")

    assert shown.wrong == ["x of before is started a second time"]


def test_starting_a_task_that_still_runs_is_a_violation(shown: Shown) -> None:
    shown.begins("before", run="x")
    shown.begins("before", run="y")

    assert shown.wrong == ["y of before begins, and an earlier start still runs"]


@pytest.mark.parametrize("outcome", [None, Outcome(1), UNKNOWN])
def test_a_main_task_that_starts_before_its_prestart_task_succeeded_is_a_violation(
    shown: Shown, outcome: Outcome | None
) -> None:
    if outcome is not None:
        shown.ran("before", outcome)

    shown.begins("main")

    assert shown.wrong == ["main of a1 begins before before is done"]


def test_a_poststop_task_that_starts_before_the_main_task_ended_is_a_violation(shown: Shown) -> None:
    shown.ran("before")
    shown.begins("main")

    shown.begins("after")

    assert shown.wrong == ["after of a1 begins while main runs"]


def test_more_restarts_than_the_policy_allows_are_a_violation(shown: Shown) -> None:
    shown.ran("before")
    for _ in range(3):
        shown.ran("main", Outcome(1))

    assert shown.wrong == ["main of a1 is started 3 times; 1 restarts may be"]


def test_an_allocation_reported_as_ended_while_a_task_runs_is_a_violation(shown: Shown) -> None:
    shown.begins("before", run="x")

    shown.told(ClientStatus.FAILED)

    assert shown.wrong == ["a1 is told as failed at 1, and x runs"]


def test_a_reported_exit_status_that_never_happened_is_a_violation(shown: Shown) -> None:
    shown.ran("before", Outcome(3))

    shown.told(ClientStatus.FAILED, before=0)

    assert shown.wrong == ["before of a1 is told to have ended as [('0', '0')] at 1; it was [('3', '0')]"]


def test_an_unknown_exit_status_may_be_reported_only_after_a_power_loss(shown: Shown) -> None:
    shown.ran("before")
    shown.ledger.record_power_loss("node-1")
    shown.begins("main")

    shown.told(ClientStatus.RUNNING, node_name="node-1", main=-1)
    assert [] == shown.wrong

    shown.told(ClientStatus.RUNNING, node_name="node-2", main=-1)
    assert ["main of a1 is told to have ended as [('-1', '0')] at 2; it was []"] == shown.wrong


def test_an_exit_status_stored_before_a_power_loss_may_be_reported(shown: Shown) -> None:
    play = shown.begins("before")
    play.ended_s, play.outcome, play.lost_outcome = 100.0, UNKNOWN, Outcome(1)

    shown.told(ClientStatus.RUNNING, before=1)
    assert [] == shown.wrong

    shown.told(ClientStatus.FAILED, before=0)
    assert ["before of a1 is told to have ended as [('0', '0')] at 2; it was [('-1', '0')]"] == shown.wrong


def test_a_failed_task_reported_as_complete_is_a_violation(shown: Shown) -> None:
    shown.ran("before", Outcome(3), run="x")

    shown.told(ClientStatus.COMPLETE, before=3)

    assert shown.wrong == ["a1 is told as complete at 1; x did not end well"]


def test_a_task_stopped_between_two_attempts_is_complete_also_after_a_restore(shown: Shown) -> None:
    shown.ran("before", Outcome(3))
    shown.is_to(DesiredStatus.STOP)
    shown.is_to(DesiredStatus.RUN)

    shown.told(ClientStatus.COMPLETE, before=3)

    assert shown.wrong == []


def test_a_task_that_starts_after_its_reported_end_is_a_violation(shown: Shown) -> None:
    shown.told(ClientStatus.COMPLETE)

    shown.begins("before", run="x")

    assert shown.wrong == ["x of before begins after it was told as complete"]
