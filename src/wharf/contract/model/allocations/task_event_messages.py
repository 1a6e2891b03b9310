"""Task events as replies show them: a sentence for people, and the fields of older clients that repeat the details.

Everything is derived from the event's type, message and details; nothing is stored.
"""

from collections.abc import Callable, Mapping
from typing import Final

from wharf.contract.model.allocations.task_states import (
    TaskEvent,
    TaskEventType,
    TaskEventView,
    TaskState,
    TaskStateView,
)
from wharf.contract.model.times import SECOND, format_duration

EventDetails = Mapping[str, str]

RESTART_WITHIN_POLICY: Final = "Restart within policy"
"""The reason of an ordinary restart. It is left out of the message, because it explains nothing."""

# Event type -> its message, for events without details.
_SENTENCES: Final[Mapping[str, str]] = {
    TaskEventType.RECEIVED: "Task received by client",
    TaskEventType.STARTED: "Task started by client",
    TaskEventType.DOWNLOADING_ARTIFACTS: "Client is downloading artifacts",
    TaskEventType.LEADER_TASK_DEAD: "Leader Task in Group dead",
    TaskEventType.MAIN_TASKS_DEAD: "Main tasks in the group died",
    TaskEventType.FAILED_RESTORING_TASK: "failed to restore task; will not run until server is contacted",
    TaskEventType.RECONNECTED: "Client reconnected",
}

# Event type -> the detail that serves as the message, and the message if that detail is missing.
_DETAIL_OR_SENTENCE: Final[Mapping[str, tuple[str, str]]] = {
    TaskEventType.NOT_RESTARTING: ("restart_reason", "Task exceeded restart policy"),
    TaskEventType.RESTART_SIGNALED: ("restart_reason", "Task signaled to restart"),
    TaskEventType.KILLED: ("kill_error", "Task successfully killed"),
    TaskEventType.DRIVER_FAILURE: ("driver_error", "Failed to start task"),
    TaskEventType.DRIVER: ("driver_message", ""),
    TaskEventType.SETUP_FAILURE: ("setup_error", "Task setup failed"),
    TaskEventType.FAILED_VALIDATION: ("validation_error", "Validation of task failed"),
    TaskEventType.FAILED_ARTIFACT_DOWNLOAD: ("download_error", "Failed to download artifacts"),
}


def describe_event(event: TaskEvent | TaskEventView) -> str:
    """Return the message of a task event for users, with the cause if the kernel killed a task that ran out of memory.

    `render_event_message` has the text of the API without the cause, as Nomad's clients expect it.
    """
    text = render_event_message(event)
    return f"{text} (out of memory)" if (event.details or {}).get("oom_killed") == "true" else text


def render_event_message(event: TaskEvent | TaskEventView) -> str:
    """Return the message of a task event for users.

    A message from the node takes precedence; otherwise it is built from the type and the details of the event.
    """
    if event.display_message:
        return event.display_message
    details = event.details or {}
    if event.type in _SENTENCES:
        return _SENTENCES[event.type]
    if event.type in _DETAIL_OR_SENTENCE:
        detail, sentence = _DETAIL_OR_SENTENCE[event.type]
        return details.get(detail) or sentence or event.message
    render = _RENDERERS.get(event.type)
    return render(details) if render is not None and not event.message else event.message


def _render_terminated(details: EventDetails) -> str:
    """Return the message for an ended task: its exit code, and the signal and the exit message if it has them."""
    parts = [f"Exit Code: {details.get('exit_code', '0')}"]
    if details.get("signal", "0") not in ("", "0"):
        parts.append(f"Signal: {details['signal']}")
    if details.get("exit_message"):
        parts.append(f'Exit Message: "{details["exit_message"]}"')
    return ", ".join(parts)


def _render_restarting(details: EventDetails) -> str:
    """Return the message for a task that restarts: the delay, and the reason unless it is the ordinary one."""
    delay = _parse_int(details, "start_delay")
    delay -= delay % (SECOND // 10) if delay > SECOND else 0  # Delays have a random part of nanoseconds.
    sentence = f"Task restarting in {format_duration(delay)}"
    reason = details.get("restart_reason", "")
    return sentence if reason in ("", RESTART_WITHIN_POLICY) else f"{reason} - {sentence}"


def _render_signaling(details: EventDetails) -> str:
    """Return the message for a task that is sent a signal, with the signal and the reason if they are known."""
    signal, reason = details.get("task_signal"), details.get("task_signal_reason")
    if not signal:
        return "Task being sent a signal"
    return f"Task being sent signal {signal}: {reason}" if reason else f"Task being sent signal {signal}"


def _render_killing(details: EventDetails) -> str:
    """Return the message for a task that is killed: the reason, or how long the task has to exit."""
    if details.get("kill_reason"):
        return details["kill_reason"]
    if details.get("kill_timeout"):
        return f"Sent interrupt. Waiting {details['kill_timeout']} before force killing"
    return "Sent interrupt"


def _render_sibling_failed(details: EventDetails) -> str:
    """Return the message for a task that stops because another task of its group failed."""
    sibling = details.get("failed_sibling")
    return f'Task\'s sibling "{sibling}" failed' if sibling else "Task's sibling failed"


_RENDERERS: Final[Mapping[str, Callable[[EventDetails], str]]] = {
    TaskEventType.TERMINATED: _render_terminated,
    TaskEventType.RESTARTING: _render_restarting,
    TaskEventType.SIGNALING: _render_signaling,
    TaskEventType.KILLING: _render_killing,
    TaskEventType.SIBLING_TASK_FAILED: _render_sibling_failed,
}


def make_task_event_view(event: TaskEvent) -> TaskEventView:
    """Return the task event as replies show it: with a message, and with single details as fields for older clients."""
    details = event.details or {}
    return TaskEventView(
        type=event.type,
        time=event.time,
        message=event.message,
        display_message=render_event_message(event),
        # Clients find the message of the node among the details too.
        details={"message": event.message, **details} if event.message else event.details,
        fails_task=details.get("fails_task") == "true",
        exit_code=_parse_int(details, "exit_code"),
        signal=_parse_int(details, "signal"),
        start_delay=_parse_int(details, "start_delay"),
        disk_limit=_parse_int(details, "disk_limit"),
        restart_reason=details.get("restart_reason", ""),
        setup_error=details.get("setup_error", ""),
        driver_error=details.get("driver_error", ""),
        kill_error=details.get("kill_error", ""),
        kill_reason=details.get("kill_reason", ""),
        download_error=details.get("download_error", ""),
        validation_error=details.get("validation_error", ""),
        failed_sibling=details.get("failed_sibling", ""),
        task_signal_reason=details.get("task_signal_reason", ""),
        task_signal=details.get("task_signal", ""),
        driver_message=details.get("driver_message", ""),
    )


def make_task_state_view(state: TaskState) -> TaskStateView:
    """Return the task state as replies show it: its events have messages."""
    return TaskStateView(
        state=state.state,
        failed=state.failed,
        restarts=state.restarts,
        last_restart=state.last_restart,
        started_at=state.started_at,
        finished_at=state.finished_at,
        events=tuple(make_task_event_view(event) for event in state.events) if state.events is not None else None,
        paused=state.paused,
    )


def _parse_int(details: EventDetails, name: str) -> int:
    """Return a detail of an event as an integer.

    It is 0 if the detail is missing or a word, such as the signal name `SIGUSR1`.
    """
    text = details.get(name, "")
    return int(text) if text.removeprefix("-").isdecimal() else 0
