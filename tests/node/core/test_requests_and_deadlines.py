"""Restarts, signals and stops that somebody requests, deadlines, and what a reboot leaves of them."""

import pytest

from tests.node.core.allocations import (
    NOON_NS,
    SUCCESS,
    AllocationHarness,
    failed,
    make_batch_task,
    make_restart_policy,
    make_spec,
    make_task,
)
from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.contract.model.times import SECOND
from wharf.node.core import events
from wharf.node.core.allocation import find_next_deadline_s, list_interrupted_actions, reset_after_boot
from wharf.node.core.allocation_spec import HealthSpec
from wharf.node.core.outcome import UNKNOWN, Outcome
from wharf.node.core.steps import TaskStep

# -- events about other tasks and runs


@pytest.mark.parametrize(
    "event",
    [
        events.TaskEventOccurred("unknown", TaskEventType.RECEIVED),
        events.TaskPrepared("unknown"),
        events.TaskStarted("unknown", 1),
        events.TaskStarted("web", 2),
        events.TaskStarted("web", 1),  # It runs already.
        events.TaskPrepared("web"),
        events.TaskStartFailed("web", 1, "late"),
        events.TaskEnded("unknown", 1, SUCCESS),
        events.TaskEnded("web", 2, SUCCESS),
    ],
)
def test_an_event_about_another_task_run_or_step_changes_nothing(event: events.AllocationEvent) -> None:
    harness = AllocationHarness(make_spec())
    before = harness.record
    harness.apply(event)
    assert harness.record == before


def test_an_event_of_a_dead_task_is_not_added_to_its_history() -> None:
    harness = AllocationHarness(make_spec(make_batch_task()))
    harness.apply(events.TaskEventOccurred("work", TaskEventType.DRIVER, "pulling", {"image": "a"}))
    assert harness.task("work").events[-1].message == "pulling"
    assert harness.details("work", TaskEventType.DRIVER) == {"image": "a"}
    harness.end("work")
    harness.apply(events.TaskEventOccurred("work", TaskEventType.DRIVER, "late"))
    assert harness.task("work").events[-1].message != "late"


# -- starts


def test_the_times_of_a_start_are_stored() -> None:
    harness = AllocationHarness(make_spec(), starts=False)
    harness.pass_time(3)
    harness.apply(events.TaskStarted("web", 1))
    task = harness.task("web")
    assert (task.started_s, task.started_ns, harness.record.began_s) == (103.0, NOON_NS + 103 * SECOND, 103.0)


def test_the_first_start_of_any_task_begins_the_allocation() -> None:
    harness = AllocationHarness(make_spec(make_batch_task("first", hook="prestart"), make_task()))
    harness.pass_time(5)
    harness.end("first")
    assert (harness.record.began_s, harness.task("web").started_s) == (100.0, 105.0)


@pytest.mark.parametrize("is_known", [True, False])
def test_the_first_start_is_doubtful_if_a_task_ended_before_it_was_reported_and_the_outcome_is_unknown(
    is_known: bool,
) -> None:
    harness = AllocationHarness(make_spec(make_batch_task()), starts=False)
    harness.apply(events.TaskEnded("work", 1, Outcome() if is_known else UNKNOWN))
    assert harness.task("work").is_start_doubtful is not is_known
    assert harness.task("work").has_started


def test_a_failed_preparation_is_tried_again_and_says_why() -> None:
    task = make_task(restart_policy=make_restart_policy(1, delay_s=4))
    harness = AllocationHarness(make_spec(task), prepares=False)
    harness.apply(events.TaskPreparationFailed("web", "no space"))
    assert harness.steps() == {"web": TaskStep.BACKOFF}
    assert harness.details("web", TaskEventType.SETUP_FAILURE) == {"setup_error": "no space"}
    harness.take_actions()
    harness.pass_time(4)
    assert harness.take_actions() == [events.PrepareTask("web")]
    harness.apply(events.TaskPreparationFailed("web", "no space"))
    assert (harness.steps(), harness.task("web").has_failed) == ({"web": TaskStep.DEAD}, True)


def test_a_final_failure_of_the_preparation_is_not_tried_again() -> None:
    task = make_task(restart_policy=make_restart_policy(5))
    harness = AllocationHarness(make_spec(task), prepares=False)
    harness.apply(events.TaskPreparationFailed("web", "no such user", is_final=True))
    assert harness.steps() == {"web": TaskStep.DEAD}
    assert harness.details("web", TaskEventType.NOT_RESTARTING)["restart_reason"] == "Error was unrecoverable"
    assert harness.task("web").finished_ns == NOON_NS + 100 * SECOND


# -- requested restarts


def test_a_restart_of_one_task_leaves_the_others() -> None:
    harness = AllocationHarness(make_spec(make_task("a"), make_task("b")))
    harness.apply(events.RestartRequested(("b",), reason="template changed"))
    assert harness.steps() == {"a": TaskStep.RUNNING, "b": TaskStep.STOPPING}
    assert harness.details("b", TaskEventType.RESTART_SIGNALED) == {"restart_reason": "template changed"}


def test_a_restart_without_names_is_for_all_running_tasks() -> None:
    harness = AllocationHarness(make_spec(make_task("a"), make_task("b")))
    harness.apply(events.RestartRequested())
    assert harness.steps() == {"a": TaskStep.STOPPING, "b": TaskStep.STOPPING}


def test_a_restart_ends_the_delay_of_a_task_that_waits_for_its_next_attempt() -> None:
    harness = AllocationHarness(make_spec(make_task(restart_policy=make_restart_policy(1, delay_s=50))))
    harness.end("web", failed())
    harness.apply(events.RestartRequested())
    assert (harness.steps(), harness.task("web").run) == ({"web": TaskStep.RUNNING}, 2)


@pytest.mark.parametrize("is_including_dead_tasks", [False, True])
def test_dead_tasks_start_again_only_if_the_restart_includes_them(is_including_dead_tasks: bool) -> None:
    harness = AllocationHarness(make_spec(make_batch_task("first", hook="prestart"), make_task()), starts=False)
    harness.apply(events.TaskStarted("first", 1))
    harness.end("first")
    harness.apply(events.RestartRequested(is_including_dead_tasks=is_including_dead_tasks))
    assert harness.task("first").is_dead is not is_including_dead_tasks


def test_a_failed_task_that_is_started_again_has_not_failed() -> None:
    harness = AllocationHarness(make_spec(make_batch_task()))
    harness.end("work", failed())
    harness.apply(events.RestartRequested(is_including_dead_tasks=True))
    assert (harness.steps(), harness.task("work").has_failed) == ({"work": TaskStep.RUNNING}, False)


def test_a_stopping_allocation_is_not_restarted() -> None:
    harness = AllocationHarness(make_spec())
    harness.stop()
    harness.apply(events.RestartRequested())
    harness.end("web")
    assert harness.steps() == {"web": TaskStep.DEAD}


def test_a_requested_restart_of_an_unhealthy_task_fails_it_if_its_policy_allows_none() -> None:
    harness = AllocationHarness(make_spec(make_task()))
    harness.apply(events.RestartRequested(is_failure=True))
    harness.end("web", SUCCESS)
    assert (harness.steps(), harness.task("web").has_failed) == ({"web": TaskStep.DEAD}, True)


# -- signals


@pytest.mark.parametrize(("names", "signaled"), [((), ["a", "b"]), (("b",), ["b"])])
def test_a_signal_goes_to_the_named_tasks_or_to_all(names: tuple[str, ...], signaled: list[str]) -> None:
    harness = AllocationHarness(make_spec(make_task("a"), make_task("b")))
    harness.take_actions()
    harness.apply(events.SignalRequested("SIGHUP", names))
    assert harness.take_actions() == [events.SignalTask(name, 1, "SIGHUP") for name in signaled]
    assert [name for name in ("a", "b") if "Signaling" in harness.event_types(name)] == signaled


def test_a_task_that_is_being_stopped_is_not_signaled() -> None:
    harness = AllocationHarness(make_spec())
    harness.stop()
    harness.take_actions()
    harness.apply(events.SignalRequested("SIGHUP"))
    assert harness.take_actions() == []


# -- stops


def test_a_stop_waits_for_the_groups_delay_only_if_a_task_runs() -> None:
    harness = AllocationHarness(make_spec(shutdown_delay_s=9.0), prepares=False)
    harness.stop()
    assert harness.steps() == {"web": TaskStep.DEAD}


def test_a_second_stop_does_not_begin_the_groups_delay_again() -> None:
    harness = AllocationHarness(make_spec(shutdown_delay_s=9.0))
    harness.stop()
    harness.pass_time(5)
    harness.stop()
    harness.pass_time(4)
    assert harness.steps() == {"web": TaskStep.STOPPING}


def test_a_stop_without_delays_ends_the_delays_of_a_stop_that_waits() -> None:
    harness = AllocationHarness(make_spec(make_task(shutdown_delay_s=9.0), shutdown_delay_s=9.0))
    harness.stop()
    harness.stop(skips_delays=True)
    assert harness.steps() == {"web": TaskStep.STOPPING}


def test_a_stop_without_delays_stays_one_if_another_stop_follows() -> None:
    harness = AllocationHarness(make_spec(make_task(shutdown_delay_s=9.0), shutdown_delay_s=9.0), starts=False)
    harness.stop(skips_delays=True)
    harness.stop()
    harness.apply(events.TaskStarted("web", 1))
    assert harness.steps() == {"web": TaskStep.STOPPING}


def test_a_stop_cancels_a_start_once() -> None:
    harness = AllocationHarness(make_spec(), starts=False)
    harness.take_actions()
    harness.stop()
    harness.stop()
    assert harness.take_actions() == [events.CancelStart("web", 1)]


def test_a_start_that_fails_after_its_stop_is_no_failure() -> None:
    harness = AllocationHarness(make_spec(make_task(restart_policy=make_restart_policy(5))), starts=False)
    harness.stop()
    harness.pass_time(2)
    harness.apply(events.TaskStartFailed("web", 1, "canceled"))
    task = harness.task("web")
    assert (task.step, task.has_failed, task.finished_ns) == (TaskStep.DEAD, False, NOON_NS + 102 * SECOND)
    assert harness.event_types("web")[-1] == "Killed"


def test_the_kill_signal_and_its_timeout_are_those_of_the_task() -> None:
    harness = AllocationHarness(make_spec(make_task("a"), make_task("b", kill_signal="SIGINT", kill_timeout_s=7.0)))
    harness.take_actions()
    harness.stop()
    assert events.SignalTask("b", 1, "SIGINT") in harness.take_actions()
    assert harness.details("b", TaskEventType.KILLING) == {"kill_timeout": "7s"}


def test_the_attempts_to_kill_are_counted_for_each_run() -> None:
    harness = AllocationHarness(make_spec(make_task(kill_timeout_s=1.0)))
    harness.apply(events.RestartRequested())
    harness.pass_time(1)
    harness.pass_time(5)
    assert harness.task("web").kill_tries == 2
    harness.end("web", Outcome(137, 9))
    assert (harness.steps(), harness.task("web").kill_tries) == ({"web": TaskStep.RUNNING}, 0)


@pytest.mark.parametrize(
    ("outcome", "details"),
    [
        (Outcome(1, 2, message="broken"), {"exit_code": "1", "signal": "2", "exit_message": "broken"}),
        (Outcome(137, 9, is_out_of_memory=True), {"exit_code": "137", "signal": "9", "oom_killed": "true"}),
    ],
)
def test_the_history_says_how_a_run_ended(outcome: Outcome, details: dict[str, str]) -> None:
    harness = AllocationHarness(make_spec())
    harness.end("web", outcome)
    assert harness.details("web", TaskEventType.TERMINATED) == details


# -- deadlines


@pytest.mark.parametrize(
    ("rules", "deadline_s"),
    [({}, None), ({"max_run_s": 7.0}, 107.0), ({"stop_after_contact_lost_s": 5.0}, 105.0)],
)
def test_the_next_deadline_is_the_end_of_the_run_or_of_the_time_without_servers(
    rules: dict[str, float], deadline_s: float | None
) -> None:
    harness = AllocationHarness(make_spec(**rules))
    harness.apply(events.ServerContactLost(100.0))
    assert find_next_deadline_s(harness.record, harness.spec) == deadline_s


def test_a_record_that_has_ended_has_no_deadline() -> None:
    harness = AllocationHarness(make_spec(make_batch_task(), max_run_s=7.0, stop_after_contact_lost_s=5.0))
    harness.apply(events.ServerContactLost(100.0))
    harness.end("work")
    assert find_next_deadline_s(harness.record, harness.spec) is None
    harness.pass_time(100)
    assert not harness.record.is_to_stop


def test_an_allocation_runs_for_exactly_its_longest_time() -> None:
    harness = AllocationHarness(make_spec(max_run_s=7.0))
    harness.pass_time(6.9)
    assert harness.steps() == {"web": TaskStep.RUNNING}
    harness.pass_time(0.1)
    assert (harness.steps(), harness.record.is_overdue) == ({"web": TaskStep.STOPPING}, True)


def test_without_a_start_the_longest_time_has_not_begun() -> None:
    harness = AllocationHarness(make_spec(max_run_s=7.0), starts=False)
    harness.pass_time(100)
    assert not harness.record.is_to_stop


def test_a_start_ends_the_time_of_the_former_end() -> None:
    harness = AllocationHarness(make_spec(make_task(restart_policy=make_restart_policy(1, delay_s=1))))
    harness.end("web", failed())
    assert harness.task("web").finished_ns == NOON_NS + 100 * SECOND
    harness.pass_time(1)
    assert harness.task("web").finished_ns == 0


def test_the_time_at_which_the_last_task_ended_is_stored_once() -> None:
    harness = AllocationHarness(make_spec(make_batch_task("a"), make_batch_task("b")))
    harness.end("a")
    assert harness.record.finished_s is None
    harness.pass_time(3)
    harness.end("b")
    harness.pass_time(3)
    assert harness.record.finished_s == 103.0


# -- after a reboot


def test_deadlines_of_before_a_reboot_are_due_at_once() -> None:
    harness = AllocationHarness(make_spec(shutdown_delay_s=50.0))
    harness.stop()
    harness.record = reset_after_boot(harness.record)
    assert find_next_deadline_s(harness.record, harness.spec) == 0.0


def test_a_delay_before_a_restart_is_due_after_a_reboot() -> None:
    harness = AllocationHarness(make_spec(make_task(restart_policy=make_restart_policy(1, delay_s=500))))
    harness.end("web", failed())
    harness.record = reset_after_boot(harness.record)
    harness.apply(events.DeadlineReached())
    assert (harness.steps(), harness.task("web").run) == ({"web": TaskStep.RUNNING}, 2)


def test_a_task_without_a_deadline_has_none_after_a_reboot() -> None:
    harness = AllocationHarness(make_spec(), starts=False)
    record = reset_after_boot(harness.record)
    assert find_next_deadline_s(record, harness.spec) is None
    assert (record.began_s, record.finished_s, record.health_watch_since_s) == (None, None, None)


def test_the_times_of_the_former_clock_begin_again_after_a_reboot() -> None:
    harness = AllocationHarness(
        make_spec(make_batch_task(), health=HealthSpec(10.0, 60.0, should_wait_for_checks=True))
    )
    harness.apply(events.ChecksChanged(True))
    harness.apply(events.ServerContactLost(90.0))
    harness.end("work")
    record = reset_after_boot(harness.record)
    assert (record.began_s, record.finished_s, record.health_watch_since_s) == (0.0, 0.0, 0.0)
    assert (record.checks_pass_since_s, record.lost_contact_s, record.task("work").started_s) == (None, None, 0.0)


@pytest.mark.parametrize(
    ("kill_after", "action"),
    [(0.0, events.SignalTask("web", 1, "SIGINT")), (5.0, events.KillTask("web", 1))],
)
def test_an_interrupted_stop_is_repeated(kill_after: float, action: events.NodeTaskAction) -> None:
    harness = AllocationHarness(make_spec(make_task(kill_signal="SIGINT")))
    harness.stop()
    harness.pass_time(kill_after)
    assert list_interrupted_actions(harness.record, harness.spec) == (action,)


def test_only_a_start_is_of_the_former_boot() -> None:
    harness = AllocationHarness(make_spec(make_task()), prepares=False)
    record = reset_after_boot(harness.record)
    assert (record.tasks[0].should_recover, list_interrupted_actions(record, harness.spec)) == (
        False,
        (events.PrepareTask("web"),),
    )
