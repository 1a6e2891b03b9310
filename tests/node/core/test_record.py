"""What a node stores about an allocation, and what servers are sent of it."""

import pytest

from tests.node.core.allocations import NOON_NS, AllocationHarness, failed, make_batch_task, make_spec, make_task
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.allocations.task_states import MAX_TASK_EVENTS, TaskEventType, TaskState, TaskStatus
from wharf.contract.model.times import SECOND, to_datetime
from wharf.node.core.clock import ClockReading
from wharf.node.core.record import AllocationRecord, TaskRecord, add_task_event
from wharf.node.core.steps import STATUS_BY_STEP, TaskStep


def test_servers_are_sent_no_times_of_a_task_that_has_not_started() -> None:
    state = TaskRecord("web").to_task_state()
    assert state == TaskState(state=TaskStatus.PENDING, last_restart=None, started_at=None, finished_at=None, events=())


def test_servers_are_sent_the_times_and_counts_of_a_task() -> None:
    task = TaskRecord(
        "web", step=TaskStep.DEAD, has_failed=True, restarts=3, started_ns=NOON_NS, finished_ns=NOON_NS + SECOND,
        last_restart_ns=NOON_NS - SECOND,
    )  # fmt: skip
    state = task.to_task_state()
    assert (state.state, state.failed, state.restarts) == ("dead", True, 3)
    assert (state.last_restart, state.started_at, state.finished_at) == (
        to_datetime(NOON_NS - SECOND),
        to_datetime(NOON_NS),
        to_datetime(NOON_NS + SECOND),
    )


@pytest.mark.parametrize(("has_event_details", "details"), [(True, {"signal": "9"}), (False, None)])
def test_an_event_without_details_has_none(has_event_details: bool, details: dict[str, str] | None) -> None:
    given = {"signal": "9"} if has_event_details else {}
    task = add_task_event(TaskRecord("web"), TaskEventType.SIGNALING, ClockReading(NOON_NS, 1.0, 0.0), **given)
    assert (task.events[0].details, task.events[0].time) == (details, NOON_NS)


def test_the_oldest_events_of_a_task_are_dropped() -> None:
    task = TaskRecord("web")
    for number in range(MAX_TASK_EVENTS + 2):
        task = add_task_event(task, TaskEventType.SIGNALING, ClockReading(number, 1.0, 0.0))
    assert [event.time for event in task.events] == list(range(2, MAX_TASK_EVENTS + 2))


@pytest.mark.parametrize("step", TaskStep)
def test_the_client_status_follows_the_status_of_the_task(step: TaskStep) -> None:
    status = AllocationRecord("a1", (TaskRecord("web", step=step),)).status
    expected = {"pending": ClientStatus.PENDING, "running": ClientStatus.RUNNING, "dead": ClientStatus.COMPLETE}
    assert status is expected[STATUS_BY_STEP[step]]


@pytest.mark.parametrize("is_overdue", [False, True])
@pytest.mark.parametrize("has_failed", [False, True])
def test_an_ended_allocation_has_failed_if_a_task_failed_or_it_ran_too_long(is_overdue: bool, has_failed: bool) -> None:
    tasks = TaskRecord("a", step=TaskStep.DEAD), TaskRecord("b", step=TaskStep.DEAD, has_failed=has_failed)
    record = AllocationRecord("a1", tasks, is_overdue=is_overdue)
    assert (record.status is ClientStatus.FAILED) is (is_overdue or has_failed)


def test_one_running_task_makes_the_allocation_run_also_if_another_has_failed() -> None:
    tasks = TaskRecord("a", step=TaskStep.DEAD, has_failed=True), TaskRecord("b", step=TaskStep.STOPPING)
    assert AllocationRecord("a1", tasks).status is ClientStatus.RUNNING


def test_the_description_names_the_exceeded_time_only_after_the_end() -> None:
    harness = AllocationHarness(make_spec(make_task(), max_run_s=5.0))
    assert harness.record.description == "Tasks are running"
    harness.pass_time(5)
    assert harness.record.description == "Tasks are running"
    harness.end("web")
    assert harness.record.description == "allocation exceeded max_run_duration"


@pytest.mark.parametrize(
    ("is_started", "is_failed", "description"),
    [
        (False, False, "No tasks have started"),
        (True, False, "All tasks have completed"),
        (True, True, "Failed tasks"),
    ],
)
def test_the_description_says_how_far_the_allocation_is(is_started: bool, is_failed: bool, description: str) -> None:
    harness = AllocationHarness(make_spec(make_batch_task()), starts=is_started)
    if is_started:
        harness.end("work", failed() if is_failed else failed(0))
    assert harness.record.description == description
