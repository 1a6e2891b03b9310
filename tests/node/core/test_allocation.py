"""One allocation on its node: order of tasks, restarts, stops, health, and the effects of the end of one
of several tasks.
"""

import pytest

from tests.node.core.allocations import (
    KILLED,
    SUCCESS,
    AllocationHarness,
    failed,
    make_batch_task,
    make_restart_policy,
    make_spec,
    make_task,
)
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.node.core import events
from wharf.node.core.allocation import list_interrupted_actions, reset_after_boot
from wharf.node.core.allocation_spec import HealthSpec
from wharf.node.core.outcome import UNKNOWN, Outcome
from wharf.node.core.steps import TaskStep

DEAD, RUNNING, WAITING, BACKOFF = TaskStep.DEAD, TaskStep.RUNNING, TaskStep.WAITING, TaskStep.BACKOFF


def test_a_successful_batch_task_completes_its_allocation() -> None:
    harness = AllocationHarness(make_spec(make_batch_task()))
    assert harness.status() is ClientStatus.RUNNING

    harness.end("work")

    assert harness.status() is ClientStatus.COMPLETE
    assert harness.event_types("work") == ["Received", "Task Setup", "Started", "Terminated"]
    assert harness.details("work", TaskEventType.TERMINATED) == {"exit_code": "0", "signal": "0"}


def test_the_setup_of_a_task_is_recorded_once_with_its_message() -> None:
    harness = AllocationHarness(make_spec(make_batch_task(restart_policy=make_restart_policy(2, delay_s=10))))
    harness.end("work", failed())
    harness.pass_time(20)

    types = harness.event_types("work")
    setup = harness.record.task("work").events[types.index("Task Setup")]
    assert (types.count("Task Setup"), types.count("Started")) == (1, 2)
    assert setup.message == "Building Task Directory"


def test_a_batch_task_whose_child_was_killed_for_lack_of_memory_fails_with_exit_code_0() -> None:
    harness = AllocationHarness(make_spec(make_batch_task()))

    harness.end("work", Outcome(0, is_out_of_memory=True))

    assert harness.status() is ClientStatus.FAILED
    assert "true" == harness.details("work", TaskEventType.TERMINATED)["oom_killed"]


def test_a_failed_task_is_restarted_after_its_delay() -> None:
    harness = AllocationHarness(make_spec(make_batch_task(restart_policy=make_restart_policy(2, delay_s=10))))
    harness.random = 0.5
    harness.end("work", failed())

    assert harness.steps() == {"work": BACKOFF}
    assert harness.status() is ClientStatus.PENDING
    assert harness.details("work", TaskEventType.RESTARTING) == {
        "restart_reason": "Restart within policy",
        "start_delay": "11250000000",
    }
    harness.pass_time(11.2)
    assert harness.steps() == {"work": BACKOFF}
    harness.pass_time(0.1)
    assert (harness.steps(), harness.task("work").run, harness.task("work").restarts) == ({"work": RUNNING}, 2, 1)


def test_the_allocation_fails_when_all_restart_attempts_are_used_up() -> None:
    harness = AllocationHarness(make_spec(make_batch_task(restart_policy=make_restart_policy(1, delay_s=1))))
    harness.end("work", failed())
    harness.pass_time(2)
    harness.end("work", failed(3))

    assert harness.status() is ClientStatus.FAILED
    assert harness.details("work", TaskEventType.NOT_RESTARTING) == {
        "restart_reason": 'Exceeded allowed attempts 1 in interval 30m0s and mode is "fail"',
        "fails_task": "true",
    }


def test_attempts_are_counted_from_zero_after_the_interval() -> None:
    harness = AllocationHarness(
        make_spec(make_batch_task(restart_policy=make_restart_policy(1, delay_s=1, interval_s=60)))
    )
    for _ in range(4):
        harness.end("work", failed())
        harness.pass_time(61)

    assert (harness.status(), harness.task("work").restarts) == (ClientStatus.RUNNING, 4)


def test_in_mode_delay_a_restart_waits_for_the_rest_of_the_interval() -> None:
    harness = AllocationHarness(
        make_spec(make_batch_task(restart_policy=make_restart_policy(1, delay_s=1, interval_s=60, mode="delay")))
    )
    harness.end("work", failed())
    harness.pass_time(10)
    harness.end("work", failed())

    assert harness.details("work", TaskEventType.RESTARTING)["restart_reason"] == (
        "Exceeded allowed attempts, applying a delay"
    )
    harness.pass_time(49)
    assert harness.steps() == {"work": BACKOFF}
    harness.pass_time(1.5)
    assert harness.steps() == {"work": RUNNING}


def test_a_service_task_is_restarted_even_after_exit_code_0() -> None:
    harness = AllocationHarness(make_spec(make_task(restart_policy=make_restart_policy(2))))
    harness.end("web")

    assert harness.steps() == {"web": BACKOFF}


def test_a_final_start_error_is_not_retried() -> None:
    harness = AllocationHarness(make_spec(make_task(restart_policy=make_restart_policy(5))), starts=False)
    harness.apply(events.TaskStartFailed("web", 1, "no such program", is_final=True))

    assert harness.status() is ClientStatus.FAILED
    assert harness.event_types("web") == ["Received", "Task Setup", "Driver Failure", "Not Restarting"]


def test_a_start_error_is_recorded_with_its_own_event_type() -> None:
    harness = AllocationHarness(make_spec(make_task()), starts=False)
    kind = TaskEventType.FAILED_VALIDATION
    harness.apply(
        events.TaskStartFailed(
            "web", 1, "nobody knows ${x}", is_final=True, event_type=kind, detail_name="validation_error"
        )
    )

    assert harness.details("web", kind) == {"validation_error": "nobody knows ${x}"}


def test_an_unknown_outcome_counts_as_a_failure() -> None:
    harness = AllocationHarness(make_spec(make_batch_task()))
    harness.end("work", UNKNOWN)

    assert harness.status() is ClientStatus.FAILED
    assert "exit code unknown" in harness.details("work", TaskEventType.TERMINATED)["exit_message"]


# -- order


def test_main_tasks_wait_for_prestart_tasks() -> None:
    harness = AllocationHarness(
        make_spec(
            make_task("first", hook="prestart", is_run_to_completion=True),
            make_task("beside", hook="prestart", is_sidecar=True),
            make_task("main"),
            make_task("then", hook="poststart", is_run_to_completion=True),
        )
    )
    assert harness.steps() == {"first": RUNNING, "beside": RUNNING, "main": WAITING, "then": WAITING}

    harness.end("first")

    assert harness.steps() == {"first": DEAD, "beside": RUNNING, "main": RUNNING, "then": RUNNING}


def test_poststart_tasks_do_not_start_after_a_doubtful_start_of_the_main_task() -> None:
    plan = make_spec(
        make_task("main", restart_policy=make_restart_policy(5)),
        make_task("then", hook="poststart", is_run_to_completion=True),
    )
    harness = AllocationHarness(plan, starts=False)
    harness.apply(events.TaskEnded("main", 1, UNKNOWN))

    assert harness.steps() == {"main": BACKOFF, "then": WAITING}
    harness.pass_time(60)
    harness.apply(events.TaskPrepared("main"))
    harness.apply(events.TaskStarted("main", 2))
    assert harness.steps()["main"] is RUNNING
    assert harness.steps()["then"] is not WAITING


def test_when_main_tasks_are_dead_sidecars_are_stopped_and_then_poststop_tasks_run() -> None:
    harness = AllocationHarness(
        make_spec(
            make_task("beside", hook="prestart", is_sidecar=True),
            make_batch_task("main"),
            make_task("after", hook="poststop", is_run_to_completion=True),
        )
    )
    harness.end("main")

    assert harness.steps() == {"beside": TaskStep.STOPPING, "main": DEAD, "after": WAITING}
    assert "Main Tasks Dead" in harness.event_types("beside")
    harness.end("beside", failed(3))
    assert harness.steps() == {"beside": DEAD, "main": DEAD, "after": RUNNING}
    harness.end("after")
    assert harness.status() is ClientStatus.COMPLETE


def test_the_main_task_does_not_start_after_a_failed_prestart_task() -> None:
    harness = AllocationHarness(
        make_spec(make_task("first", hook="prestart", is_run_to_completion=True), make_task("main"))
    )
    harness.end("first", failed())

    assert harness.status() is ClientStatus.FAILED
    assert harness.task("main").started_ns == 0


def test_a_failed_task_stops_its_siblings() -> None:
    harness = AllocationHarness(make_spec(make_task("one"), make_task("two")))
    harness.end("one", failed())

    assert harness.steps() == {"one": DEAD, "two": TaskStep.STOPPING}
    assert harness.status() is ClientStatus.RUNNING
    assert harness.details("two", TaskEventType.SIBLING_TASK_FAILED) == {"failed_sibling": "one"}
    harness.end("two", KILLED)
    assert harness.status() is ClientStatus.FAILED
    assert [task.has_failed for task in harness.record.tasks] == [True, False]


def test_when_the_leader_task_ends_the_others_are_stopped() -> None:
    harness = AllocationHarness(make_spec(make_batch_task("leads", is_leader=True), make_task("follows")))
    harness.end("leads")

    assert harness.steps() == {"leads": DEAD, "follows": TaskStep.STOPPING}
    harness.end("follows", KILLED)
    assert harness.status() is ClientStatus.COMPLETE


def test_a_stop_ends_the_leader_task_first() -> None:
    harness = AllocationHarness(make_spec(make_task("leads", is_leader=True), make_task("follows")))
    harness.stop()

    assert harness.steps() == {"leads": TaskStep.STOPPING, "follows": RUNNING}
    harness.end("leads", KILLED)
    assert harness.steps() == {"leads": DEAD, "follows": TaskStep.STOPPING}


# -- stopping


def test_a_stop_sends_the_kill_signal_and_kills_after_the_timeout() -> None:
    harness = AllocationHarness(make_spec(make_task(kill_signal="SIGTERM", kill_timeout_s=5.0)))
    harness.take_actions()
    harness.stop()
    assert harness.take_actions() == [events.SignalTask("web", 1, "SIGTERM")]

    harness.pass_time(4.9)
    assert harness.take_actions() == []
    harness.pass_time(0.2)
    assert harness.take_actions() == [events.KillTask("web", 1)]
    harness.end("web", KILLED)
    assert harness.status() is ClientStatus.COMPLETE
    assert harness.event_types("web") == ["Received", "Task Setup", "Started", "Killing", "Terminated", "Killed"]


def test_a_task_that_survives_a_kill_is_killed_again_with_growing_delays() -> None:
    harness = AllocationHarness(make_spec(make_task(kill_timeout_s=1.0)))
    harness.stop()
    harness.take_actions()
    kills = []
    for second in range(1, 400):
        harness.pass_time(1.0)
        kills += [second for action in harness.take_actions() if isinstance(action, events.KillTask)]

    assert kills == [1, 6, 26, 106, 226, 346]


def test_shutdown_delays_of_group_and_task_add_up_and_can_be_skipped() -> None:
    harness = AllocationHarness(make_spec(make_task(shutdown_delay_s=2.0), shutdown_delay_s=3.0))
    harness.stop()
    assert harness.steps() == {"web": RUNNING}
    harness.pass_time(3.0)
    assert harness.steps() == {"web": TaskStep.SHUTDOWN_DELAY}
    harness.pass_time(2.0)
    assert harness.steps() == {"web": TaskStep.STOPPING}

    without_delays = AllocationHarness(make_spec(make_task(shutdown_delay_s=2.0), shutdown_delay_s=3.0))
    without_delays.stop(skips_delays=True)
    assert without_delays.steps() == {"web": TaskStep.STOPPING}


def test_an_allocation_stopped_before_its_start_is_complete() -> None:
    harness = AllocationHarness(
        make_spec(make_task("first", hook="prestart", is_run_to_completion=True), make_task("main")), prepares=False
    )
    harness.stop()

    assert harness.status() is ClientStatus.COMPLETE


def test_a_stop_during_a_start_stops_the_task_as_soon_as_it_has_started() -> None:
    harness = AllocationHarness(make_spec(), starts=False)
    harness.stop()
    assert harness.steps() == {"web": TaskStep.STARTING}
    harness.take_actions()

    harness.apply(events.TaskStarted("web", 1))

    assert harness.take_actions() == [events.SignalTask("web", 1, "")]


def test_a_task_that_waits_for_a_restart_is_not_started_after_a_stop() -> None:
    harness = AllocationHarness(make_spec(make_task(restart_policy=make_restart_policy(3))))
    harness.end("web", failed())
    harness.stop()

    assert harness.status() is ClientStatus.COMPLETE


def test_a_requested_restart_has_no_delay_and_does_not_count() -> None:
    harness = AllocationHarness(make_spec(make_task(restart_policy=make_restart_policy(1))))
    harness.apply(events.RestartRequested())
    assert harness.steps() == {"web": TaskStep.STOPPING}
    harness.end("web", KILLED)
    harness.pass_time(0)

    assert (harness.steps(), harness.task("web").run) == ({"web": RUNNING}, 2)
    assert harness.task("web").window.count == 0
    assert harness.event_types("web")[3:] == ["Restart Signaled", "Terminated", "Restarting", "Started"]


def test_a_restart_of_an_unhealthy_task_counts_and_follows_its_policy() -> None:
    harness = AllocationHarness(make_spec(make_task(restart_policy=make_restart_policy(1))))
    harness.apply(events.RestartRequested(is_failure=True))
    harness.end("web", KILLED)
    assert (harness.steps(), harness.task("web").window.count) == ({"web": TaskStep.BACKOFF}, 1)
    harness.pass_time(60)
    harness.apply(events.RestartRequested(is_failure=True))
    harness.end("web", KILLED)

    assert harness.status() is ClientStatus.FAILED
    assert harness.event_types("web")[-1] == "Not Restarting"


def test_a_stop_during_a_requested_restart_stops_the_task() -> None:
    harness = AllocationHarness(make_spec())
    harness.apply(events.RestartRequested())
    harness.stop()
    harness.end("web", KILLED)

    assert harness.status() is ClientStatus.COMPLETE


def test_an_allocation_that_exceeds_max_run_duration_has_failed() -> None:
    harness = AllocationHarness(make_spec(make_batch_task(), max_run_s=60.0))
    harness.pass_time(61)
    harness.end("work", KILLED)

    assert (harness.status(), harness.record.description) == (
        ClientStatus.FAILED,
        "allocation exceeded max_run_duration",
    )


def test_an_allocation_stops_after_its_time_without_servers_unless_they_return_before() -> None:
    reconnected = AllocationHarness(make_spec(stop_after_contact_lost_s=30.0))
    reconnected.apply(events.ServerContactLost(reconnected.now_s))
    reconnected.pass_time(29)
    reconnected.apply(events.ServerContactRestored())
    reconnected.pass_time(100)
    assert reconnected.steps() == {"web": RUNNING}

    harness = AllocationHarness(make_spec(stop_after_contact_lost_s=30.0))
    harness.apply(events.ServerContactLost(harness.now_s))
    harness.pass_time(31)
    assert harness.steps() == {"web": TaskStep.STOPPING}


# -- health

HEALTH = HealthSpec(min_healthy_s=10.0, deadline_s=60.0)


def test_an_allocation_is_healthy_after_min_healthy_time() -> None:
    harness = AllocationHarness(make_spec(health=HEALTH))
    harness.pass_time(9.9)
    assert harness.record.is_healthy is None
    harness.pass_time(0.1)
    assert harness.record.is_healthy is True


def test_a_restart_resets_min_healthy_time() -> None:
    harness = AllocationHarness(make_spec(make_task(restart_policy=make_restart_policy(3, delay_s=1)), health=HEALTH))
    harness.pass_time(8)
    harness.end("web", failed())
    harness.pass_time(10)
    assert harness.record.is_healthy is None
    harness.pass_time(1.1)
    assert harness.record.is_healthy is True


def test_a_failed_allocation_is_unhealthy_at_once_even_if_it_was_healthy() -> None:
    harness = AllocationHarness(make_spec(health=HEALTH))
    harness.pass_time(20)
    harness.end("web", failed())

    assert harness.record.is_healthy is False


def test_an_allocation_not_running_at_the_healthy_deadline_is_unhealthy() -> None:
    harness = AllocationHarness(make_spec(health=HEALTH), starts=False)
    harness.pass_time(61)

    assert harness.record.is_healthy is False
    assert "Alloc Unhealthy" in harness.event_types("web")


def test_checks_must_pass_for_min_healthy_time_too() -> None:
    harness = AllocationHarness(
        make_spec(health=HealthSpec(10.0, 60.0, should_wait_for_checks=True), required_checks=("c1",))
    )
    harness.pass_time(20)
    assert harness.record.is_healthy is None
    harness.apply(events.ChecksChanged(True))
    harness.pass_time(9)
    harness.apply(events.ChecksChanged(False))
    harness.pass_time(5)
    assert harness.record.is_healthy is None
    harness.apply(events.ChecksChanged(True))
    harness.pass_time(10)
    assert harness.record.is_healthy is True


def test_a_new_deployment_decides_the_health_again() -> None:
    harness = AllocationHarness(make_spec(health=HEALTH))
    harness.pass_time(20)
    harness.apply(events.HealthWatchStarted())

    # It has run for long enough already.
    assert harness.record.is_healthy is True


# -- after a crash of the agent


@pytest.mark.parametrize(
    ("harness", "expected"),
    [
        (AllocationHarness(make_spec(), prepares=False), (events.PrepareTask("web"),)),
        (AllocationHarness(make_spec(), starts=False), (events.StartTask("web", 1),)),
        (AllocationHarness(make_spec()), ()),
    ],
)
def test_interrupted_actions_are_repeated(
    harness: AllocationHarness, expected: tuple[events.NodeTaskAction, ...]
) -> None:
    assert list_interrupted_actions(harness.record, harness.spec) == expected


def test_a_start_interrupted_by_a_reboot_is_recovered_and_not_repeated() -> None:
    harness = AllocationHarness(
        make_spec(make_batch_task(restart_policy=make_restart_policy(attempts=1))), starts=False
    )
    harness.record = reset_after_boot(harness.record)
    (task,) = harness.record.tasks

    assert (list_interrupted_actions(harness.record, harness.spec), task.should_recover) == ((), True)

    harness.apply(events.TaskEnded(task.name, task.run, UNKNOWN))

    assert harness.record.tasks[0].step is TaskStep.BACKOFF
    assert not harness.record.tasks[0].should_recover


def test_restart_attempts_survive_a_reboot_and_their_interval_follows_the_new_clock() -> None:
    policy = make_restart_policy(attempts=1, interval_s=60)
    harness = AllocationHarness(make_spec(make_batch_task(restart_policy=policy)))
    harness.pass_time(1_000_000)
    harness.end("work", failed(1))
    harness.record = reset_after_boot(harness.record)
    harness.now_s = 100.0
    harness.pass_time(1)
    harness.end("work", failed(1))

    assert harness.record.tasks[0].step is TaskStep.BACKOFF


def test_reports_about_an_earlier_run_change_nothing() -> None:
    harness = AllocationHarness(make_spec(make_batch_task(restart_policy=make_restart_policy(2, delay_s=1))))
    harness.end("work", failed())
    harness.pass_time(2)
    before = harness.record

    harness.apply(events.TaskEnded("work", 1, SUCCESS))

    assert harness.record == before


def test_a_replacement_starts_when_its_predecessor_has_ended() -> None:
    harness = AllocationHarness(make_spec(make_task()), is_waiting_for_predecessor=True)
    harness.pass_time(100)
    assert (harness.steps(), harness.status()) == ({"web": TaskStep.WAITING}, ClientStatus.PENDING)
    assert harness.event_types("web") == ["Received"]

    harness.apply(events.PredecessorEnded())
    assert harness.steps() == {"web": TaskStep.RUNNING}


def test_an_allocation_stopped_while_waiting_for_its_predecessor_is_complete() -> None:
    harness = AllocationHarness(
        make_spec(make_task(), make_batch_task("after", hook="poststop")), is_waiting_for_predecessor=True
    )
    harness.stop()
    assert (harness.steps(), harness.status()) == (
        {"web": TaskStep.DEAD, "after": TaskStep.DEAD},
        ClientStatus.COMPLETE,
    )
