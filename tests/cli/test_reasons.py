"""What a command makes of work that failed."""

import pytest

from wharf.cli.reasons import common_exit_code
from wharf.model.allocation import AllocationStub, ClientStatus, DesiredStatus
from wharf.model.task_event_text import shown_state
from wharf.model.task_state import TaskEvent, TaskState, TaskStatus


def ended(*ends: dict[str, str]) -> AllocationStub:
    events = tuple(TaskEvent(type="Terminated", time=at, details=details) for at, details in enumerate(ends))
    state = shown_state(TaskState(state=TaskStatus.DEAD, failed=True, events=events))
    return AllocationStub(
        id="a1", desired_status=DesiredStatus.RUN, client_status=ClientStatus.FAILED, task_states={"main": state}
    )


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ([[{"exit_code": "7"}], [{"exit_code": "7"}]], 7),
        ([[{"exit_code": "7"}], [{"exit_code": "8"}]], 0),
        ([[{"exit_code": "7"}, {"exit_code": "9"}]], 9),
        ([[{"exit_code": "0", "signal": "9"}]], 137),
        ([[{"exit_code": "-1"}]], 0),
        ([[]], 0),
        ([], 0),
    ],
)
def test_work_that_failed_alike_has_one_exit_code(ends: list[list[dict[str, str]]], code: int) -> None:
    assert code == common_exit_code([ended(*each) for each in ends])
