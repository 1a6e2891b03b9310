"""One allocation on its node: order of tasks, restarts, stops, health, and what follows when one of several tasks
ends.
"""

import pytest

from tests.node.core.tasks import (
    ENDED_WELL,
    KILLED,
    Stage,
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
from wharf.node.core.outcome import UNKNOWN
from wharf.node.core.steps import TaskStep

DEAD, RUNNING, WAITING, RESTING = TaskStep.DEAD, TaskStep.RUNNING, TaskStep.WAITING, TaskStep.BACKOFF


def test_a_successful_batch_task_completes_its_allocation() -> None:
    stage = Stage(make_spec(make_batch_task()))
    assert stage.status() is ClientStatus.RUNNING

    stage.end("work")

    assert stage.status() is ClientStatus.COMPLETE
    assert stage.event_types("work") == ["Received", "Started", "Terminated"]
    assert stage.details("work", TaskEventType.TERMINATED) == {"exit_code": "0", "signal": "0"}


def test_a_failed_task_is_restarted_after_its_delay() -> None:
    stage = Stage(make_spec(make_batch_task(restart_policy=make_restart_policy(2, delay_s=10))))
    stage.chance = 0.5
    stage.end("work", failed())

    assert stage.steps() == {"work": RESTING}
    assert stage.status() is ClientStatus.PENDING
    assert stage.details("work", TaskEventType.RESTARTING) == {
        "restart_reason": "Restart within policy",
        "start_delay": "11250000000",
    }
    stage.pass_time(11.2)
    assert stage.steps() == {"work": RESTING}
    stage.pass_time(0.1)
    assert (stage.steps(), stage.task("work").run, stage.task("work").restarts) == ({"work": RUNNING}, 2, 1)


def test_the_allocation_fails_when_all_restart_attempts_are_used_up() -> None:
    stage = Stage(make_spec(make_batch_task(restart_policy=make_restart_policy(1, delay_s=1))))
    stage.end("work", failed())
    stage.pass_time(2)
    stage.end("work", failed(3))

    assert stage.status() is ClientStatus.FAILED
    assert stage.details("work", TaskEventType.NOT_RESTARTING) == {
        "restart_reason": 'Exceeded allowed attempts 1 in interval 30m0s and mode is "fail"',
        "fails_task": "true",
    }


def test_attempts_are_counted_from_zero_after_the_interval() -> None:
    stage = Stage(make_spec(make_batch_task(restart_policy=make_restart_policy(1, delay_s=1, interval_s=60))))
    for _ in range(4):
        stage.end("work", failed())
        stage.pass_time(61)

    assert (stage.status(), stage.task("work").restarts) == (ClientStatus.RUNNING, 4)


def test_in_mode_delay_a_restart_waits_for_the_rest_of_the_interval() -> None:
    stage = Stage(
        make_spec(make_batch_task(restart_policy=make_restart_policy(1, delay_s=1, interval_s=60, mode="delay")))
    )
    stage.end("work", failed())
    stage.pass_time(10)
    stage.end("work", failed())

    assert stage.details("work", TaskEventType.RESTARTING)["restart_reason"] == (
        "Exceeded allowed attempts, applying a delay"
    )
    stage.pass_time(49)
    assert stage.steps() == {"work": RESTING}
    stage.pass_time(1.5)
    assert stage.steps() == {"work": RUNNING}


def test_a_service_task_is_restarted_even_after_exit_code_0() -> None:
    stage = Stage(make_spec(make_task(restart_policy=make_restart_policy(2))))
    stage.end("web")

    assert stage.steps() == {"web": RESTING}


def test_a_final_start_error_is_not_retried() -> None:
    stage = Stage(make_spec(make_task(restart_policy=make_restart_policy(5))), starts=False)
    stage.apply(events.TaskStartFailed("web", 1, "no such program", is_final=True))

    assert stage.status() is ClientStatus.FAILED
    assert stage.event_types("web") == ["Received", "Driver Failure", "Not Restarting"]


def test_a_start_error_is_recorded_with_its_own_event_type() -> None:
    stage = Stage(make_spec(make_task()), starts=False)
    kind = TaskEventType.FAILED_VALIDATION
    stage.apply(
        events.TaskStartFailed(
            "web", 1, "nobody knows ${x}", is_final=True, event_type=kind, detail_name="validation_error"
        )
    )

    assert stage.details("web", kind) == {"validation_error": "nobody knows ${x}"}


def test_an_unknown_outcome_counts_as_a_failure() -> None:
    stage = Stage(make_spec(make_batch_task()))
    stage.end("work", UNKNOWN)

    assert stage.status() is ClientStatus.FAILED
    assert "exit code unknown" in stage.details("work", TaskEventType.TERMINATED)["exit_message"]


# -- order


def test_main_tasks_wait_for_prestart_tasks() -> None:
    stage = Stage(
        make_spec(
            make_task("first", hook="prestart", is_run_to_completion=True),
            make_task("beside", hook="prestart", is_sidecar=True),
            make_task("main"),
            make_task("then", hook="poststart", is_run_to_completion=True),
        )
    )
    assert stage.steps() == {"first": RUNNING, "beside": RUNNING, "main": WAITING, "then": WAITING}

    stage.end("first")

    assert stage.steps() == {"first": DEAD, "beside": RUNNING, "main": RUNNING, "then": RUNNING}


def test_poststart_tasks_do_not_start_after_a_doubtful_start_of_the_main_task() -> None:
    plan = make_spec(
        make_task("main", restart_policy=make_restart_policy(5)),
        make_task("then", hook="poststart", is_run_to_completion=True),
    )
    stage = Stage(plan, starts=False)
    stage.apply(events.TaskEnded("main", 1, UNKNOWN))

    assert stage.steps() == {"main": RESTING, "then": WAITING}
    stage.pass_time(60)
    stage.apply(events.TaskPrepared("main"))
    stage.apply(events.TaskStarted("main", 2))
    assert stage.steps()["main"] is RUNNING
    assert stage.steps()["then"] is not WAITING


def test_when_main_tasks_are_dead_sidecars_are_stopped_and_then_poststop_tasks_run() -> None:
    stage = Stage(
        make_spec(
            make_task("beside", hook="prestart", is_sidecar=True),
            make_batch_task("main"),
            make_task("after", hook="poststop", is_run_to_completion=True),
        )
    )
    stage.end("main")

    assert stage.steps() == {"beside": TaskStep.STOPPING, "main": DEAD, "after": WAITING}
    assert "Main Tasks Dead" in stage.event_types("beside")
    stage.end("beside", failed(3))
    assert stage.steps() == {"beside": DEAD, "main": DEAD, "after": RUNNING}
    stage.end("after")
    assert stage.status() is ClientStatus.COMPLETE


def test_the_main_task_does_not_start_after_a_failed_prestart_task() -> None:
    stage = Stage(make_spec(make_task("first", hook="prestart", is_run_to_completion=True), make_task("main")))
    stage.end("first", failed())

    assert stage.status() is ClientStatus.FAILED
    assert stage.task("main").started_ns == 0


def test_a_failed_task_stops_its_siblings() -> None:
    stage = Stage(make_spec(make_task("one"), make_task("two")))
    stage.end("one", failed())

    assert stage.steps() == {"one": DEAD, "two": TaskStep.STOPPING}
    assert stage.status() is ClientStatus.RUNNING
    assert stage.details("two", TaskEventType.SIBLING_TASK_FAILED) == {"failed_sibling": "one"}
    stage.end("two", KILLED)
    assert stage.status() is ClientStatus.FAILED
    assert [task.has_failed for task in stage.record.tasks] == [True, False]


def test_when_the_leader_task_ends_the_others_are_stopped() -> None:
    stage = Stage(make_spec(make_batch_task("leads", is_leader=True), make_task("follows")))
    stage.end("leads")

    assert stage.steps() == {"leads": DEAD, "follows": TaskStep.STOPPING}
    stage.end("follows", KILLED)
    assert stage.status() is ClientStatus.COMPLETE


def test_a_stop_ends_the_leader_task_first() -> None:
    stage = Stage(make_spec(make_task("leads", is_leader=True), make_task("follows")))
    stage.stop()

    assert stage.steps() == {"leads": TaskStep.STOPPING, "follows": RUNNING}
    stage.end("leads", KILLED)
    assert stage.steps() == {"leads": DEAD, "follows": TaskStep.STOPPING}


# -- stopping


def test_a_stop_sends_the_kill_signal_and_kills_after_the_timeout() -> None:
    stage = Stage(make_spec(make_task(kill_signal="SIGTERM", kill_timeout_s=5.0)))
    stage.take_actions()
    stage.stop()
    assert stage.take_actions() == [events.SignalTask("web", 1, "SIGTERM")]

    stage.pass_time(4.9)
    assert stage.take_actions() == []
    stage.pass_time(0.2)
    assert stage.take_actions() == [events.KillTask("web", 1)]
    stage.end("web", KILLED)
    assert stage.status() is ClientStatus.COMPLETE
    assert stage.event_types("web") == ["Received", "Started", "Killing", "Terminated", "Killed"]


def test_a_task_that_survives_a_kill_is_killed_again_with_growing_delays() -> None:
    stage = Stage(make_spec(make_task(kill_timeout_s=1.0)))
    stage.stop()
    stage.take_actions()
    kills = []
    for second in range(1, 400):
        stage.pass_time(1.0)
        kills += [second for action in stage.take_actions() if isinstance(action, events.KillTask)]

    assert kills == [1, 6, 26, 106, 226, 346]


def test_shutdown_delays_of_group_and_task_add_up_and_can_be_skipped() -> None:
    stage = Stage(make_spec(make_task(shutdown_delay_s=2.0), shutdown_delay_s=3.0))
    stage.stop()
    assert stage.steps() == {"web": RUNNING}
    stage.pass_time(3.0)
    assert stage.steps() == {"web": TaskStep.SHUTDOWN_DELAY}
    stage.pass_time(2.0)
    assert stage.steps() == {"web": TaskStep.STOPPING}

    hasty = Stage(make_spec(make_task(shutdown_delay_s=2.0), shutdown_delay_s=3.0))
    hasty.stop(skips_delays=True)
    assert hasty.steps() == {"web": TaskStep.STOPPING}


def test_an_allocation_stopped_before_its_start_is_complete() -> None:
    stage = Stage(
        make_spec(make_task("first", hook="prestart", is_run_to_completion=True), make_task("main")), prepares=False
    )
    stage.stop()

    assert stage.status() is ClientStatus.COMPLETE


def test_a_stop_during_a_start_stops_the_task_as_soon_as_it_has_started() -> None:
    stage = Stage(make_spec(), starts=False)
    stage.stop()
    assert stage.steps() == {"web": TaskStep.STARTING}
    stage.take_actions()

    stage.apply(events.TaskStarted("web", 1))

    assert stage.take_actions() == [events.SignalTask("web", 1, "")]


def test_a_task_that_waits_for_a_restart_is_not_started_after_a_stop() -> None:
    stage = Stage(make_spec(make_task(restart_policy=make_restart_policy(3))))
    stage.end("web", failed())
    stage.stop()

    assert stage.status() is ClientStatus.COMPLETE


def test_a_requested_restart_has_no_delay_and_does_not_count() -> None:
    stage = Stage(make_spec(make_task(restart_policy=make_restart_policy(1))))
    stage.apply(events.RestartRequested())
    assert stage.steps() == {"web": TaskStep.STOPPING}
    stage.end("web", KILLED)
    stage.pass_time(0)

    assert (stage.steps(), stage.task("web").run) == ({"web": RUNNING}, 2)
    assert stage.task("web").window.count == 0
    assert stage.event_types("web")[2:] == ["Restart Signaled", "Terminated", "Restarting", "Started"]


def test_a_restart_of_an_unhealthy_task_counts_and_follows_its_policy() -> None:
    stage = Stage(make_spec(make_task(restart_policy=make_restart_policy(1))))
    stage.apply(events.RestartRequested(is_failure=True))
    stage.end("web", KILLED)
    assert (stage.steps(), stage.task("web").window.count) == ({"web": TaskStep.BACKOFF}, 1)
    stage.pass_time(60)
    stage.apply(events.RestartRequested(is_failure=True))
    stage.end("web", KILLED)

    assert stage.status() is ClientStatus.FAILED
    assert stage.event_types("web")[-1] == "Not Restarting"


def test_a_stop_during_a_requested_restart_stops_the_task() -> None:
    stage = Stage(make_spec())
    stage.apply(events.RestartRequested())
    stage.stop()
    stage.end("web", KILLED)

    assert stage.status() is ClientStatus.COMPLETE


def test_an_allocation_that_exceeds_max_run_duration_has_failed() -> None:
    stage = Stage(make_spec(make_batch_task(), max_run_s=60.0))
    stage.pass_time(61)
    stage.end("work", KILLED)

    assert (stage.status(), stage.record.description) == (
        ClientStatus.FAILED,
        "allocation exceeded max_run_duration",
    )


def test_an_allocation_stops_after_its_time_without_servers_unless_they_return_before() -> None:
    back = Stage(make_spec(stop_after_contact_lost_s=30.0))
    back.apply(events.ServerContactLost(back.now_s))
    back.pass_time(29)
    back.apply(events.ServerContactRestored())
    back.pass_time(100)
    assert back.steps() == {"web": RUNNING}

    gone = Stage(make_spec(stop_after_contact_lost_s=30.0))
    gone.apply(events.ServerContactLost(gone.now_s))
    gone.pass_time(31)
    assert gone.steps() == {"web": TaskStep.STOPPING}


# -- health

HEALTH = HealthSpec(min_healthy_s=10.0, deadline_s=60.0)


def test_an_allocation_is_healthy_after_min_healthy_time() -> None:
    stage = Stage(make_spec(health=HEALTH))
    stage.pass_time(9.9)
    assert stage.record.is_healthy is None
    stage.pass_time(0.1)
    assert stage.record.is_healthy is True


def test_a_restart_resets_min_healthy_time() -> None:
    stage = Stage(make_spec(make_task(restart_policy=make_restart_policy(3, delay_s=1)), health=HEALTH))
    stage.pass_time(8)
    stage.end("web", failed())
    stage.pass_time(10)
    assert stage.record.is_healthy is None
    stage.pass_time(1.1)
    assert stage.record.is_healthy is True


def test_a_failed_allocation_is_unhealthy_at_once_even_if_it_was_healthy() -> None:
    stage = Stage(make_spec(health=HEALTH))
    stage.pass_time(20)
    stage.end("web", failed())

    assert stage.record.is_healthy is False


def test_an_allocation_not_running_at_the_healthy_deadline_is_unhealthy() -> None:
    stage = Stage(make_spec(health=HEALTH), starts=False)
    stage.pass_time(61)

    assert stage.record.is_healthy is False
    assert "Alloc Unhealthy" in stage.event_types("web")


def test_checks_must_pass_for_min_healthy_time_too() -> None:
    stage = Stage(make_spec(health=HealthSpec(10.0, 60.0, should_wait_for_checks=True), required_checks=("c1",)))
    stage.pass_time(20)
    assert stage.record.is_healthy is None
    stage.apply(events.ChecksChanged(True))
    stage.pass_time(9)
    stage.apply(events.ChecksChanged(False))
    stage.pass_time(5)
    assert stage.record.is_healthy is None
    stage.apply(events.ChecksChanged(True))
    stage.pass_time(10)
    assert stage.record.is_healthy is True


def test_a_new_deployment_decides_the_health_again() -> None:
    stage = Stage(make_spec(health=HEALTH))
    stage.pass_time(20)
    stage.apply(events.HealthWatchStarted())

    # It has run for long enough already.
    assert stage.record.is_healthy is True


# -- after a crash of the agent


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (Stage(make_spec(), prepares=False), (events.PrepareTask("web"),)),
        (Stage(make_spec(), starts=False), (events.StartTask("web", 1),)),
        (Stage(make_spec()), ()),
    ],
)
def test_interrupted_actions_are_repeated(stage: Stage, expected: tuple[events.TaskAction, ...]) -> None:
    assert list_interrupted_actions(stage.record, stage.spec) == expected


def test_a_start_during_which_the_machine_rebooted_is_recovered_and_not_repeated() -> None:
    stage = Stage(make_spec(make_batch_task(restart_policy=make_restart_policy(attempts=1))), starts=False)
    stage.record = reset_after_boot(stage.record)
    (task,) = stage.record.tasks

    assert (list_interrupted_actions(stage.record, stage.spec), task.should_recover) == ((), True)

    stage.apply(events.TaskEnded(task.name, task.run, UNKNOWN))

    assert stage.record.tasks[0].step is TaskStep.BACKOFF
    assert not stage.record.tasks[0].should_recover


def test_restart_attempts_survive_a_reboot_and_their_interval_follows_the_new_clock() -> None:
    policy = make_restart_policy(attempts=1, interval_s=60)
    stage = Stage(make_spec(make_batch_task(restart_policy=policy)))
    stage.pass_time(1_000_000)
    stage.end("work", failed(1))
    stage.record = reset_after_boot(stage.record)
    stage.now_s = 100.0
    stage.pass_time(1)
    stage.end("work", failed(1))

    assert stage.record.tasks[0].step is TaskStep.BACKOFF


def test_reports_about_an_earlier_run_change_nothing() -> None:
    stage = Stage(make_spec(make_batch_task(restart_policy=make_restart_policy(2, delay_s=1))))
    stage.end("work", failed())
    stage.pass_time(2)
    before = stage.record

    stage.apply(events.TaskEnded("work", 1, ENDED_WELL))

    assert stage.record == before


def test_a_replacement_starts_when_its_predecessor_has_ended() -> None:
    stage = Stage(make_spec(make_task()), is_waiting_for_predecessor=True)
    stage.pass_time(100)
    assert (stage.steps(), stage.status()) == ({"web": TaskStep.WAITING}, ClientStatus.PENDING)
    assert stage.event_types("web") == ["Received"]

    stage.apply(events.PredecessorEnded())
    assert stage.steps() == {"web": TaskStep.RUNNING}


def test_an_allocation_stopped_while_waiting_for_its_predecessor_is_complete() -> None:
    stage = Stage(make_spec(make_task(), make_batch_task("after", hook="poststop")), is_waiting_for_predecessor=True)
    stage.stop()
    assert (stage.steps(), stage.status()) == (
        {"web": TaskStep.DEAD, "after": TaskStep.DEAD},
        ClientStatus.COMPLETE,
    )
