"""Signals that users send to tasks."""

from tests.node.core.tasks import Stage, make_spec, make_task
from wharf.node.core import events


def test_a_signal_is_sent_to_running_tasks_and_recorded() -> None:
    stage = Stage(make_spec(make_task("web"), make_task("helper")))

    stage.apply(events.SignalRequested("SIGHUP", ("web",)))

    assert [events.SignalTask("web", 1, "SIGHUP")] == stage.actions[-1:]
    assert "Signaling" == stage.event_types("web")[-1]
    assert {"signal": "SIGHUP"} == stage.task("web").events[-1].details
    assert "Signaling" not in stage.event_types("helper")


def test_a_signal_is_not_sent_to_tasks_that_do_not_run() -> None:
    stage = Stage(make_spec(), starts=False)
    before = list(stage.actions)

    stage.apply(events.SignalRequested("SIGHUP"))

    assert before == stage.actions
