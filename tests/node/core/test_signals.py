"""Signals that people send to tasks."""

from tests.node.core.tasks import Stage, a_plan, a_task
from wharf.node.core import events as on


def test_a_signal_is_sent_to_the_tasks_that_run_and_told_of() -> None:
    stage = Stage(a_plan(a_task("web"), a_task("helper")))

    stage.happen(on.SignalRequested("SIGHUP", ("web",)))

    assert [on.SignalTask("web", 1, "SIGHUP")] == stage.actions[-1:]
    assert "Signaling" == stage.events("web")[-1]
    assert {"signal": "SIGHUP"} == stage.task("web").events[-1].details
    assert "Signaling" not in stage.events("helper")


def test_a_signal_reaches_nothing_that_does_not_run() -> None:
    stage = Stage(a_plan(), starts=False)
    before = list(stage.actions)

    stage.happen(on.SignalRequested("SIGHUP"))

    assert before == stage.actions
