"""Properties that hold for an allocation after any sequence of events."""

from hypothesis import given
from hypothesis import strategies as some

from tests.node.core.tasks import Stage, make_restart_policy, make_task
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.node.core import events
from wharf.node.core.allocation import find_next_deadline_s, list_interrupted_actions, reset_after_boot
from wharf.node.core.allocation_spec import AllocationSpec, HealthSpec
from wharf.node.core.outcome import UNKNOWN, Outcome
from wharf.node.core.steps import STEPS_WITH_PROCESS, TaskStep

HOOKS = ("", "", "prestart", "poststart", "poststop")
POLICIES = some.builds(
    make_restart_policy,
    some.integers(0, 3),
    delay_s=some.integers(0, 20),
    interval_s=some.integers(5, 60),
    mode=some.sampled_from(("fail", "delay")),
)


@some.composite
def plans(draw: some.DrawFn) -> AllocationSpec:
    hooks = ["", *draw(some.lists(some.sampled_from(HOOKS), max_size=3))]
    tasks = []
    for number, hook in enumerate(hooks):
        is_sidecar = hook in ("prestart", "poststart") and draw(some.booleans())
        tasks.append(
            make_task(
                f"t{number}",
                hook=hook,
                is_sidecar=is_sidecar,
                is_leader=not hook and draw(some.booleans()),
                is_run_to_completion=not is_sidecar and (bool(hook) or draw(some.booleans())),
                restart_policy=draw(POLICIES),
                kill_timeout_s=draw(some.sampled_from((0.0, 5.0))),
                shutdown_delay_s=draw(some.sampled_from((0.0, 2.0))),
            )
        )
    return AllocationSpec(
        tasks=tuple(tasks),
        health=draw(some.none() | some.just(HealthSpec(5.0, 30.0))),
        shutdown_delay_s=draw(some.sampled_from((0.0, 3.0))),
        max_run_s=draw(some.none() | some.just(50.0)),
        stop_after_contact_lost_s=draw(some.none() | some.just(20.0)),
    )


OUTCOMES = some.sampled_from((Outcome(), Outcome(1), Outcome(137, 9), UNKNOWN))
NAMES = some.sampled_from(("t0", "t1", "t2", "t3"))
RUNS = some.integers(0, 4)
EVENTS = some.one_of(
    some.builds(events.StopRequested, some.booleans()),
    some.just(events.HealthWatchStarted()),
    some.builds(events.TaskPrepared, NAMES),
    some.builds(events.TaskPreparationFailed, NAMES, some.just("why"), is_final=some.booleans()),
    some.builds(events.TaskStarted, NAMES, RUNS),
    some.builds(events.TaskStartFailed, NAMES, RUNS, some.just("why"), some.booleans()),
    some.builds(events.TaskEnded, NAMES, RUNS, OUTCOMES),
    some.builds(events.RestartRequested, some.just(()), some.booleans()),
    some.builds(events.ChecksChanged, some.booleans()),
    some.builds(events.ServerContactLost, some.just(100.0)),
    some.just(events.ServerContactRestored()),
    some.just(events.DeadlineReached()),
)
HISTORIES = some.lists(some.tuples(EVENTS, some.floats(0.0, 10.0)), max_size=40)


@given(plans(), HISTORIES, some.booleans(), some.booleans())
def test_no_sequence_of_events_breaks_an_allocation(
    plan: AllocationSpec, history: list[tuple[events.AllocationEvent, float]], prepares: bool, starts: bool
) -> None:
    stage = Stage(plan, prepares=prepares, starts=starts)
    started: list[tuple[str, int]] = []
    was_over = False
    for event, wait_s in history:
        stage.apply(event)
        stage.pass_time(wait_s)

        started += [
            (action.task, action.run) for action in stage.take_actions() if isinstance(action, events.StartTask)
        ]
        for task in stage.record.tasks:
            # A step that only time ends knows when; no other waits for time.
            is_timed = task.step in (TaskStep.BACKOFF, TaskStep.SHUTDOWN_DELAY, TaskStep.STOPPING, TaskStep.KILLING)
            assert (task.due_s is not None) == is_timed
            assert len(task.events) <= 10
        due_s = find_next_deadline_s(stage.record, plan)
        assert due_s is None or due_s > stage.now_s
        if was_over and not isinstance(event, events.RestartRequested):
            assert stage.record.is_over
        was_over = stage.record.is_over
        assert stage.status() is not ClientStatus.COMPLETE or was_over
    assert len(set(started)) == len(started)


@given(plans(), HISTORIES)
def test_a_stopping_allocation_is_over_once_its_programs_have_ended(
    plan: AllocationSpec, history: list[tuple[events.AllocationEvent, float]]
) -> None:
    stage = Stage(plan)
    for event, wait_s in history:
        stage.apply(event)
        stage.pass_time(wait_s)
    stage.stop()
    stage.apply(events.ServerContactRestored())
    for _ in range(60):
        stage.pass_time(60)
        for task in stage.record.tasks:
            if task.step in STEPS_WITH_PROCESS:
                stage.end(task.name)

    assert stage.record.is_over


@given(plans(), HISTORIES)
def test_a_record_can_be_restored_after_a_crash_or_a_reboot(
    plan: AllocationSpec, history: list[tuple[events.AllocationEvent, float]]
) -> None:
    stage = Stage(plan, prepares=False, starts=False)
    for event, wait_s in history:
        stage.apply(event)
        stage.pass_time(wait_s)
    under_way = {task.name for task in stage.record.tasks if task.step in (TaskStep.PREPARING, TaskStep.STARTING)}

    assert under_way <= {action.task for action in list_interrupted_actions(stage.record, plan)}
    stage.record = reset_after_boot(stage.record)
    stage.now_s = 3.0
    stage.apply(events.DeadlineReached())
    for task in stage.record.tasks:
        stage.apply(events.TaskEnded(task.name, task.run, UNKNOWN))
    assert not any(task.step in STEPS_WITH_PROCESS for task in stage.record.tasks)
