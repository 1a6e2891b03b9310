"""The life of an allocation on its node: turns, restarts, stops, and what follows when one of several tasks ends."""

import pytest

from tests.node.core.tasks import ENDED_WELL, KILLED, Stage, a_batch_task, a_plan, a_policy, a_task, failed
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.node.core import events as on
from wharf.node.core.allocation import list_interrupted_actions, reset_after_boot
from wharf.node.core.allocation_spec import HealthSpec
from wharf.node.core.outcome import UNKNOWN
from wharf.node.core.steps import TaskStep

DEAD, RUNNING, WAITING, RESTING = TaskStep.DEAD, TaskStep.RUNNING, TaskStep.WAITING, TaskStep.BACKOFF


def test_a_batch_task_that_ends_well_completes_its_allocation() -> None:
    stage = Stage(a_plan(a_batch_task()))
    assert stage.status() is ClientStatus.RUNNING

    stage.end("work")

    assert stage.status() is ClientStatus.COMPLETE
    assert stage.events("work") == ["Received", "Started", "Terminated"]
    assert stage.details("work", TaskEventType.TERMINATED) == {"exit_code": "0", "signal": "0"}


def test_a_task_that_ends_badly_is_started_again_after_its_delay() -> None:
    stage = Stage(a_plan(a_batch_task(restart_policy=a_policy(2, delay_s=10))))
    stage.chance = 0.5
    stage.end("work", failed())

    assert stage.steps() == {"work": RESTING}
    assert stage.status() is ClientStatus.PENDING
    assert stage.details("work", TaskEventType.RESTARTING) == {
        "restart_reason": "Restart within policy",
        "start_delay": "11250000000",
    }
    stage.pass_s(11.2)
    assert stage.steps() == {"work": RESTING}
    stage.pass_s(0.1)
    assert (stage.steps(), stage.task("work").run, stage.task("work").restarts) == ({"work": RUNNING}, 2, 1)


def test_when_its_attempts_are_used_up_the_allocation_has_failed() -> None:
    stage = Stage(a_plan(a_batch_task(restart_policy=a_policy(1, delay_s=1))))
    stage.end("work", failed())
    stage.pass_s(2)
    stage.end("work", failed(3))

    assert stage.status() is ClientStatus.FAILED
    assert stage.details("work", TaskEventType.NOT_RESTARTING) == {
        "restart_reason": 'Exceeded allowed attempts 1 in interval 30m0s and mode is "fail"',
        "fails_task": "true",
    }


def test_after_the_interval_attempts_are_counted_anew() -> None:
    stage = Stage(a_plan(a_batch_task(restart_policy=a_policy(1, delay_s=1, interval_s=60))))
    for _ in range(4):
        stage.end("work", failed())
        stage.pass_s(61)

    assert (stage.status(), stage.task("work").restarts) == (ClientStatus.RUNNING, 4)


def test_in_mode_delay_the_rest_of_the_interval_is_waited_for() -> None:
    stage = Stage(a_plan(a_batch_task(restart_policy=a_policy(1, delay_s=1, interval_s=60, mode="delay"))))
    stage.end("work", failed())
    stage.pass_s(10)
    stage.end("work", failed())

    assert stage.details("work", TaskEventType.RESTARTING)["restart_reason"] == (
        "Exceeded allowed attempts, applying a delay"
    )
    stage.pass_s(49)
    assert stage.steps() == {"work": RESTING}
    stage.pass_s(1.5)
    assert stage.steps() == {"work": RUNNING}


def test_a_service_that_ends_well_is_started_again_too() -> None:
    stage = Stage(a_plan(a_task(restart_policy=a_policy(2))))
    stage.end("web")

    assert stage.steps() == {"web": RESTING}


def test_what_cannot_be_started_at_all_is_not_tried_again() -> None:
    stage = Stage(a_plan(a_task(restart_policy=a_policy(5))), starts=False)
    stage.happen(on.TaskStartFailed("web", 1, "no such program", is_final=True))

    assert stage.status() is ClientStatus.FAILED
    assert stage.events("web") == ["Received", "Driver Failure", "Not Restarting"]


def test_why_it_cannot_be_started_is_told_by_the_event_that_it_is() -> None:
    stage = Stage(a_plan(a_task()), starts=False)
    kind = TaskEventType.FAILED_VALIDATION
    stage.happen(
        on.TaskStartFailed(
            "web", 1, "nobody knows ${x}", is_final=True, event_type=kind, detail_name="validation_error"
        )
    )

    assert stage.details("web", kind) == {"validation_error": "nobody knows ${x}"}


def test_an_end_that_nobody_saw_counts_as_a_failure_and_is_told_so() -> None:
    stage = Stage(a_plan(a_batch_task()))
    stage.end("work", UNKNOWN)

    assert stage.status() is ClientStatus.FAILED
    assert "exit code unknown" in stage.details("work", TaskEventType.TERMINATED)["exit_message"]


# -- order


def test_main_tasks_wait_for_what_comes_before_them() -> None:
    stage = Stage(
        a_plan(
            a_task("first", hook="prestart", is_run_to_completion=True),
            a_task("beside", hook="prestart", is_sidecar=True),
            a_task("main"),
            a_task("then", hook="poststart", is_run_to_completion=True),
        )
    )
    assert stage.steps() == {"first": RUNNING, "beside": RUNNING, "main": WAITING, "then": WAITING}

    stage.end("first")

    assert stage.steps() == {"first": DEAD, "beside": RUNNING, "main": RUNNING, "then": RUNNING}


def test_what_comes_after_the_start_of_the_main_task_does_not_come_after_one_that_nobody_saw() -> None:
    plan = a_plan(
        a_task("main", restart_policy=a_policy(5)), a_task("then", hook="poststart", is_run_to_completion=True)
    )
    stage = Stage(plan, starts=False)
    stage.happen(on.TaskEnded("main", 1, UNKNOWN))

    assert stage.steps() == {"main": RESTING, "then": WAITING}
    stage.pass_s(60)
    stage.happen(on.TaskPrepared("main"))
    stage.happen(on.TaskStarted("main", 2))
    assert stage.steps()["main"] is RUNNING
    assert stage.steps()["then"] is not WAITING


def test_when_the_main_tasks_are_dead_sidecars_end_and_then_what_comes_after() -> None:
    stage = Stage(
        a_plan(
            a_task("beside", hook="prestart", is_sidecar=True),
            a_batch_task("main"),
            a_task("after", hook="poststop", is_run_to_completion=True),
        )
    )
    stage.end("main")

    assert stage.steps() == {"beside": TaskStep.STOPPING, "main": DEAD, "after": WAITING}
    assert "Main Tasks Dead" in stage.events("beside")
    stage.end("beside", failed(3))
    assert stage.steps() == {"beside": DEAD, "main": DEAD, "after": RUNNING}
    stage.end("after")
    assert stage.status() is ClientStatus.COMPLETE


def test_a_prestart_task_that_fails_keeps_the_main_task_from_starting() -> None:
    stage = Stage(a_plan(a_task("first", hook="prestart", is_run_to_completion=True), a_task("main")))
    stage.end("first", failed())

    assert stage.status() is ClientStatus.FAILED
    assert stage.task("main").started_ns == 0


def test_a_task_that_fails_takes_its_siblings_with_it() -> None:
    stage = Stage(a_plan(a_task("one"), a_task("two")))
    stage.end("one", failed())

    assert stage.steps() == {"one": DEAD, "two": TaskStep.STOPPING}
    assert stage.status() is ClientStatus.RUNNING
    assert stage.details("two", TaskEventType.SIBLING_TASK_FAILED) == {"failed_sibling": "one"}
    stage.end("two", KILLED)
    assert stage.status() is ClientStatus.FAILED
    assert [task.has_failed for task in stage.record.tasks] == [True, False]


def test_when_the_leader_ends_the_others_are_stopped() -> None:
    stage = Stage(a_plan(a_batch_task("leads", is_leader=True), a_task("follows")))
    stage.end("leads")

    assert stage.steps() == {"leads": DEAD, "follows": TaskStep.STOPPING}
    stage.end("follows", KILLED)
    assert stage.status() is ClientStatus.COMPLETE


def test_of_what_is_stopped_the_leader_goes_first() -> None:
    stage = Stage(a_plan(a_task("leads", is_leader=True), a_task("follows")))
    stage.stop()

    assert stage.steps() == {"leads": TaskStep.STOPPING, "follows": RUNNING}
    stage.end("leads", KILLED)
    assert stage.steps() == {"leads": DEAD, "follows": TaskStep.STOPPING}


# -- stopping


def test_a_stop_sends_the_signal_and_after_the_timeout_kills() -> None:
    stage = Stage(a_plan(a_task(kill_signal="SIGTERM", kill_timeout_s=5.0)))
    stage.take_actions()
    stage.stop()
    assert stage.take_actions() == [on.SignalTask("web", 1, "SIGTERM")]

    stage.pass_s(4.9)
    assert stage.take_actions() == []
    stage.pass_s(0.2)
    assert stage.take_actions() == [on.KillTask("web", 1)]
    stage.end("web", KILLED)
    assert stage.status() is ClientStatus.COMPLETE
    assert stage.events("web") == ["Received", "Started", "Killing", "Terminated", "Killed"]


def test_what_does_not_die_is_killed_again_less_and_less_often() -> None:
    stage = Stage(a_plan(a_task(kill_timeout_s=1.0)))
    stage.stop()
    stage.take_actions()
    kills = []
    for second in range(1, 400):
        stage.pass_s(1.0)
        kills += [second for action in stage.take_actions() if isinstance(action, on.KillTask)]

    assert kills == [1, 6, 26, 106, 226, 346]


def test_shutdown_delays_come_one_after_the_other_and_can_be_skipped() -> None:
    stage = Stage(a_plan(a_task(shutdown_delay_s=2.0), shutdown_delay_s=3.0))
    stage.stop()
    assert stage.steps() == {"web": RUNNING}
    stage.pass_s(3.0)
    assert stage.steps() == {"web": TaskStep.SHUTDOWN_DELAY}
    stage.pass_s(2.0)
    assert stage.steps() == {"web": TaskStep.STOPPING}

    hasty = Stage(a_plan(a_task(shutdown_delay_s=2.0), shutdown_delay_s=3.0))
    hasty.stop(skips_delays=True)
    assert hasty.steps() == {"web": TaskStep.STOPPING}


def test_what_is_stopped_before_it_began_is_complete() -> None:
    stage = Stage(a_plan(a_task("first", hook="prestart", is_run_to_completion=True), a_task("main")), prepares=False)
    stage.stop()

    assert stage.status() is ClientStatus.COMPLETE


def test_a_stop_while_a_task_starts_ends_it_as_soon_as_it_has_started() -> None:
    stage = Stage(a_plan(), starts=False)
    stage.stop()
    assert stage.steps() == {"web": TaskStep.STARTING}
    stage.take_actions()

    stage.happen(on.TaskStarted("web", 1))

    assert stage.take_actions() == [on.SignalTask("web", 1, "")]


def test_a_task_between_two_tries_is_not_started_after_a_stop() -> None:
    stage = Stage(a_plan(a_task(restart_policy=a_policy(3))))
    stage.end("web", failed())
    stage.stop()

    assert stage.status() is ClientStatus.COMPLETE


def test_a_restart_that_is_asked_for_neither_waits_nor_counts() -> None:
    stage = Stage(a_plan(a_task(restart_policy=a_policy(1))))
    stage.happen(on.RestartRequested())
    assert stage.steps() == {"web": TaskStep.STOPPING}
    stage.end("web", KILLED)
    stage.pass_s(0)

    assert (stage.steps(), stage.task("web").run) == ({"web": RUNNING}, 2)
    assert stage.task("web").window.count == 0
    assert stage.events("web")[2:] == ["Restart Signaled", "Terminated", "Restarting", "Started"]


def test_a_restart_of_what_was_found_ill_counts_and_ends_as_its_policy_says() -> None:
    stage = Stage(a_plan(a_task(restart_policy=a_policy(1))))
    stage.happen(on.RestartRequested(is_failure=True))
    stage.end("web", KILLED)
    assert (stage.steps(), stage.task("web").window.count) == ({"web": TaskStep.BACKOFF}, 1)
    stage.pass_s(60)
    stage.happen(on.RestartRequested(is_failure=True))
    stage.end("web", KILLED)

    assert stage.status() is ClientStatus.FAILED
    assert stage.events("web")[-1] == "Not Restarting"


def test_a_stop_during_a_restart_that_was_asked_for_is_a_stop() -> None:
    stage = Stage(a_plan())
    stage.happen(on.RestartRequested())
    stage.stop()
    stage.end("web", KILLED)

    assert stage.status() is ClientStatus.COMPLETE


def test_what_runs_for_too_long_has_failed() -> None:
    stage = Stage(a_plan(a_batch_task(), max_run_s=60.0))
    stage.pass_s(61)
    stage.end("work", KILLED)

    assert (stage.status(), stage.record.description) == (
        ClientStatus.FAILED,
        "allocation exceeded max_run_duration",
    )


def test_without_servers_it_stops_as_its_group_says_and_not_when_they_come_back_in_time() -> None:
    back = Stage(a_plan(stop_after_contact_lost_s=30.0))
    back.happen(on.ServerContactLost(back.now_s))
    back.pass_s(29)
    back.happen(on.ServerContactRestored())
    back.pass_s(100)
    assert back.steps() == {"web": RUNNING}

    gone = Stage(a_plan(stop_after_contact_lost_s=30.0))
    gone.happen(on.ServerContactLost(gone.now_s))
    gone.pass_s(31)
    assert gone.steps() == {"web": TaskStep.STOPPING}


# -- health

HEALTH = HealthSpec(min_healthy_s=10.0, deadline_s=60.0)


def test_what_ran_for_long_enough_is_healthy() -> None:
    stage = Stage(a_plan(health=HEALTH))
    stage.pass_s(9.9)
    assert stage.record.is_healthy is None
    stage.pass_s(0.1)
    assert stage.record.is_healthy is True


def test_a_restart_begins_the_time_of_health_anew() -> None:
    stage = Stage(a_plan(a_task(restart_policy=a_policy(3, delay_s=1)), health=HEALTH))
    stage.pass_s(8)
    stage.end("web", failed())
    stage.pass_s(10)
    assert stage.record.is_healthy is None
    stage.pass_s(1.1)
    assert stage.record.is_healthy is True


def test_what_fails_is_unhealthy_at_once_and_also_after_it_was_healthy() -> None:
    stage = Stage(a_plan(health=HEALTH))
    stage.pass_s(20)
    stage.end("web", failed())

    assert stage.record.is_healthy is False


def test_what_does_not_run_by_the_deadline_is_unhealthy() -> None:
    stage = Stage(a_plan(health=HEALTH), starts=False)
    stage.pass_s(61)

    assert stage.record.is_healthy is False
    assert "Alloc Unhealthy" in stage.events("web")


def test_checks_must_pass_for_as_long_too() -> None:
    stage = Stage(a_plan(health=HealthSpec(10.0, 60.0, should_wait_for_checks=True), required_checks=("c1",)))
    stage.pass_s(20)
    assert stage.record.is_healthy is None
    stage.happen(on.ChecksChanged(True))
    stage.pass_s(9)
    stage.happen(on.ChecksChanged(False))
    stage.pass_s(5)
    assert stage.record.is_healthy is None
    stage.happen(on.ChecksChanged(True))
    stage.pass_s(10)
    assert stage.record.is_healthy is True


def test_a_new_deployment_wants_to_know_anew() -> None:
    stage = Stage(a_plan(health=HEALTH))
    stage.pass_s(20)
    stage.happen(on.HealthWatchStarted())

    # It has run for long enough already.
    assert stage.record.is_healthy is True


# -- after a crash of the agent


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (Stage(a_plan(), prepares=False), (on.PrepareTask("web"),)),
        (Stage(a_plan(), starts=False), (on.StartTask("web", 1),)),
        (Stage(a_plan()), ()),
    ],
)
def test_what_was_under_way_is_asked_for_again(stage: Stage, expected: tuple[on.TaskAction, ...]) -> None:
    assert list_interrupted_actions(stage.record, stage.plan) == expected


def test_a_start_that_the_machine_went_down_in_is_asked_after_and_not_repeated() -> None:
    stage = Stage(a_plan(a_batch_task(restart_policy=a_policy(attempts=1))), starts=False)
    stage.record = reset_after_boot(stage.record)
    (task,) = stage.record.tasks

    assert (list_interrupted_actions(stage.record, stage.plan), task.should_recover) == ((), True)

    stage.happen(on.TaskEnded(task.name, task.run, UNKNOWN))

    assert stage.record.tasks[0].step is TaskStep.BACKOFF
    assert not stage.record.tasks[0].should_recover


def test_attempts_are_counted_on_after_another_boot_and_their_interval_ends_by_the_new_clock() -> None:
    policy = a_policy(attempts=1, interval_s=60)
    stage = Stage(a_plan(a_batch_task(restart_policy=policy)))
    stage.pass_s(1_000_000)
    stage.end("work", failed(1))
    stage.record = reset_after_boot(stage.record)
    stage.now_s = 100.0
    stage.pass_s(1)
    stage.end("work", failed(1))

    assert stage.record.tasks[0].step is TaskStep.BACKOFF


def test_word_of_an_earlier_run_changes_nothing() -> None:
    stage = Stage(a_plan(a_batch_task(restart_policy=a_policy(2, delay_s=1))))
    stage.end("work", failed())
    stage.pass_s(2)
    before = stage.record

    stage.happen(on.TaskEnded("work", 1, ENDED_WELL))

    assert stage.record == before


def test_what_takes_the_place_of_another_begins_when_that_has_ended() -> None:
    stage = Stage(a_plan(a_task()), waits_for_former=True)
    stage.pass_s(100)
    assert (stage.steps(), stage.status()) == ({"web": TaskStep.WAITING}, ClientStatus.PENDING)
    assert stage.events("web") == ["Received"]

    stage.happen(on.PredecessorEnded())
    assert stage.steps() == {"web": TaskStep.RUNNING}


def test_what_is_stopped_while_it_waits_for_the_former_one_is_complete() -> None:
    stage = Stage(a_plan(a_task(), a_batch_task("after", hook="poststop")), waits_for_former=True)
    stage.stop()
    assert (stage.steps(), stage.status()) == (
        {"web": TaskStep.DEAD, "after": TaskStep.DEAD},
        ClientStatus.COMPLETE,
    )
