"""Signals that users send to tasks."""

from tests.node.core.allocations import AllocationHarness, make_spec, make_task
from wharf.node.core import events


def test_a_signal_is_sent_to_running_tasks_and_recorded() -> None:
    harness = AllocationHarness(make_spec(make_task("web"), make_task("helper")))

    harness.apply(events.SignalRequested("SIGHUP", ("web",)))

    assert [events.SignalTask("web", 1, "SIGHUP")] == harness.actions[-1:]
    assert "Signaling" == harness.event_types("web")[-1]
    assert {"signal": "SIGHUP"} == harness.task("web").events[-1].details
    assert "Signaling" not in harness.event_types("helper")


def test_a_signal_is_not_sent_to_tasks_that_do_not_run() -> None:
    harness = AllocationHarness(make_spec(), starts=False)
    before = list(harness.actions)

    harness.apply(events.SignalRequested("SIGHUP"))

    assert before == harness.actions
