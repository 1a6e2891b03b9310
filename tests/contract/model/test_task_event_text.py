"""Messages of task events as replies show them."""

import pytest

from wharf.contract.model.allocations.task_event_messages import make_task_event_view, render_event_message
from wharf.contract.model.allocations.task_states import TaskEvent


@pytest.mark.parametrize(
    ("type_", "details", "sentence"),
    [
        ("Received", {}, "Task received by client"),
        ("Started", {}, "Task started by client"),
        ("Terminated", {"exit_code": "0"}, "Exit Code: 0"),
        ("Terminated", {"exit_code": "137", "signal": "9"}, "Exit Code: 137, Signal: 9"),
        ("Terminated", {"exit_code": "1", "signal": "0", "exit_message": "no"}, 'Exit Code: 1, Exit Message: "no"'),
        ("Restarting", {"start_delay": "15000000000"}, "Task restarting in 15s"),
        ("Restarting", {"start_delay": "0", "restart_reason": "Restart within policy"}, "Task restarting in 0s"),
        ("Restarting", {"start_delay": "1000000", "restart_reason": "unhealthy"}, "unhealthy - Task restarting in 1ms"),
        ("Not Restarting", {}, "Task exceeded restart policy"),
        ("Not Restarting", {"restart_reason": "Policy allows no restarts"}, "Policy allows no restarts"),
        ("Signaling", {"signal": "SIGUSR1"}, "Task being sent a signal"),
        ("Signaling", {"task_signal": "hangup", "task_signal_reason": "new"}, "Task being sent signal hangup: new"),
        ("Killing", {"kill_timeout": "5s"}, "Sent interrupt. Waiting 5s before force killing"),
        ("Killing", {"kill_reason": "stopped"}, "stopped"),
        ("Killing", {}, "Sent interrupt"),
        ("Killed", {}, "Task successfully killed"),
        ("Driver Failure", {"driver_error": "no such file"}, "no such file"),
        ("Driver Failure", {}, "Failed to start task"),
        ("Sibling Task Failed", {"failed_sibling": "log"}, 'Task\'s sibling "log" failed'),
        ("Leader Task Dead", {}, "Leader Task in Group dead"),
        ("Reconnected", {}, "Client reconnected"),
    ],
)
def test_an_event_has_a_message(type_: str, details: dict[str, str], sentence: str) -> None:
    assert render_event_message(TaskEvent(type=type_, details=details)) == sentence


def test_an_event_of_an_unknown_type_shows_its_own_message() -> None:
    assert render_event_message(TaskEvent(type="Frozen", message="it is cold")) == "it is cold"


def test_a_display_message_of_the_node_takes_precedence() -> None:
    assert render_event_message(TaskEvent(type="Started", display_message="Up")) == "Up"


def test_details_are_also_returned_in_the_fields_of_older_clients() -> None:
    event = TaskEvent(type="Terminated", time=5, details={"exit_code": "137", "signal": "9"})

    found = make_task_event_view(event)

    assert (found.time, found.exit_code, found.signal, found.fails_task) == (5, 137, 9, False)
    assert found.display_message == "Exit Code: 137, Signal: 9"


def test_the_message_of_the_node_is_also_a_detail() -> None:
    event = TaskEvent(type="Task Setup", message="Building Task Directory")

    found = make_task_event_view(event)

    assert (found.display_message, found.details) == (event.message, {"message": event.message})


def test_a_signal_name_is_converted_to_0() -> None:
    assert make_task_event_view(TaskEvent(type="Signaling", details={"signal": "SIGUSR1"})).signal == 0


def test_an_event_shows_whether_it_fails_its_task() -> None:
    assert make_task_event_view(TaskEvent(type="Setup Failure", details={"fails_task": "true"})).fails_task
