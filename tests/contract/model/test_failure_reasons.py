"""Why an allocation failed: which of its events explains the failure."""

from typing import Any

import pytest

from wharf.contract.model.allocations.allocation import (
    AllocationStub,
    AllocDeploymentStatus,
    ClientStatus,
    DesiredStatus,
)
from wharf.contract.model.allocations.failure_reasons import describe_failure, summarize_failures
from wharf.contract.model.allocations.task_event_messages import make_task_state_view
from wharf.contract.model.allocations.task_states import TaskEvent, TaskState, TaskStateView, TaskStatus

Step = tuple[int, str, dict[str, str]]


def make_state(*steps: Step, failed: bool = False) -> TaskStateView:
    events = tuple(TaskEvent(type=name, time=time, details=details) for time, name, details in steps)
    return make_task_state_view(TaskState(state=TaskStatus.DEAD, failed=failed, events=events))


def make_allocation(name: str = "web.api[0]", **fields: Any) -> AllocationStub:
    values: dict[str, Any] = {
        "id": name, "desired_status": DesiredStatus.RUN, "client_status": ClientStatus.FAILED, **fields
    }  # fmt: skip
    return AllocationStub(name=name, **values)


STARTED: Step = (1, "Started", {})
EXITED: Step = (2, "Terminated", {"exit_code": "3"})
KILLED: Step = (5, "Terminated", {"exit_code": "143", "signal": "15"})


@pytest.mark.parametrize(
    ("states", "reason"),
    [
        ({"main": make_state(STARTED, EXITED, failed=True)}, "main: Exit Code: 3"),
        (
            {
                "main": make_state(STARTED, EXITED, (3, "Not Restarting", {}), failed=True),
                "log": make_state(STARTED, (4, "Sibling Task Failed", {"failed_sibling": "main"}), KILLED),
            },
            "main: Exit Code: 3",
        ),
        (
            {"main": make_state(STARTED, (4, "Restart Signaled", {"restart_reason": "check unhealthy"}), KILLED)},
            "main: check unhealthy",
        ),
        ({"main": make_state((1, "Terminated", {"exit_code": "0"}), EXITED)}, "main: Exit Code: 3"),
        ({"main": make_state(STARTED, (2, "Terminated", {"exit_code": "0"}), failed=True)}, "main: Exit Code: 0"),
        (
            {"main": make_state(STARTED, (2, "Killing", {}), (5, "Terminated", {"exit_code": "137", "oom_killed": "true"}))},
            "main: Exit Code: 137 (out of memory)",
        ),
        ({"main": make_state((2, "Driver Failure", {"driver_error": "no such image"}))}, "main: no such image"),
        ({"main": make_state((2, "Alloc Unhealthy", {}))}, "main: Alloc Unhealthy"),
        (None, ""),
    ],
    ids=[
        "exit code", "sibling", "failed check", "cause before success", "success", "out of memory", "driver", "unhealthy",
        "no events",
    ],
)  # fmt: skip
def test_the_event_that_explains_a_failure_is_its_reason(states: dict[str, TaskStateView] | None, reason: str) -> None:
    assert describe_failure(make_allocation(task_states=states, client_description="Failed tasks")) == reason


def test_a_lost_allocation_has_the_reason_of_its_loss_and_not_of_an_earlier_failure() -> None:
    lost = make_allocation(
        client_status=ClientStatus.LOST,
        desired_status=DesiredStatus.STOP,
        desired_description="alloc is lost since its node is down",
        task_states={"main": make_state(STARTED, EXITED)},
    )

    (summary,) = summarize_failures([lost])

    assert (summary.reason, summary.ended_task) == ("alloc is lost since its node is down", "")


def test_allocations_that_failed_for_the_same_reason_are_one_summary_with_the_newest() -> None:
    states = {"main": make_state(STARTED, EXITED, failed=True)}
    found = [make_allocation(f"web.api[{number}]", task_states=states, modify_time=number) for number in range(5)]

    (summary,) = summarize_failures(found)

    assert (summary.newest.name, summary.alloc_count, summary.ended_task) == ("web.api[4]", 5, "main")


@pytest.mark.parametrize(
    ("status", "count"), [(ClientStatus.RUNNING, 0), (ClientStatus.COMPLETE, 0), (ClientStatus.PENDING, 1)]
)
def test_a_failure_counts_until_the_replacement_runs(status: ClientStatus, count: int) -> None:
    failed = make_allocation(task_states={"main": make_state(STARTED, EXITED)}, create_index=1)
    replacement = make_allocation(client_status=status, create_index=2)

    assert len(summarize_failures([replacement, failed])) == count


def test_each_node_of_a_system_job_has_its_own_failure() -> None:
    states = {"main": make_state(STARTED, EXITED)}
    failed = make_allocation(task_states=states, node_id="n1", create_index=1)
    running = make_allocation(client_status=ClientStatus.RUNNING, node_id="n2", create_index=2)

    assert [each.newest for each in summarize_failures([failed, running], is_per_node=True)] == [failed]


def test_an_allocation_that_waits_for_its_restart_has_the_reason_of_its_failure() -> None:
    states = {"main": make_state(STARTED, EXITED, (3, "Restarting", {}))}

    found = summarize_failures([make_allocation(client_status=ClientStatus.PENDING, task_states=states)])

    assert [each.reason for each in found] == ["main: Exit Code: 3"]


def test_an_unhealthy_allocation_that_runs_has_a_reason() -> None:
    unhealthy = make_allocation(
        client_status=ClientStatus.RUNNING,
        deployment_status=AllocDeploymentStatus(healthy=False),
        task_states={"main": make_state((2, "Alloc Unhealthy", {}))},
    )

    assert [each.reason for each in summarize_failures([unhealthy])] == ["main: Alloc Unhealthy"]
