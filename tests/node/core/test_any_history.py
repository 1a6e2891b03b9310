"""Whatever happens to an allocation, in whatever order: some things are true of it."""

from hypothesis import given
from hypothesis import strategies as some

from tests.node.core.tasks import Stage, a_policy, a_task
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.node.core import events as on
from wharf.node.core.allocation import find_next_deadline_s, list_interrupted_actions, reset_after_boot
from wharf.node.core.allocation_spec import AllocationSpec, HealthSpec
from wharf.node.core.outcome import UNKNOWN, Outcome
from wharf.node.core.steps import STEPS_WITH_PROCESS, TaskStep

HOOKS = ("", "", "prestart", "poststart", "poststop")
POLICIES = some.builds(
    a_policy,
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
            a_task(
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
    some.builds(on.StopRequested, some.booleans()),
    some.just(on.HealthWatchStarted()),
    some.builds(on.TaskPrepared, NAMES),
    some.builds(on.TaskPreparationFailed, NAMES, some.just("why"), is_final=some.booleans()),
    some.builds(on.TaskStarted, NAMES, RUNS),
    some.builds(on.TaskStartFailed, NAMES, RUNS, some.just("why"), some.booleans()),
    some.builds(on.TaskEnded, NAMES, RUNS, OUTCOMES),
    some.builds(on.RestartRequested, some.just(()), some.booleans()),
    some.builds(on.ChecksChanged, some.booleans()),
    some.builds(on.ServerContactLost, some.just(100.0)),
    some.just(on.ServerContactRestored()),
    some.just(on.DeadlineReached()),
)
HISTORIES = some.lists(some.tuples(EVENTS, some.floats(0.0, 10.0)), max_size=40)


@given(plans(), HISTORIES, some.booleans(), some.booleans())
def test_nothing_that_happens_breaks_it(
    plan: AllocationSpec, history: list[tuple[on.AllocationEvent, float]], prepares: bool, starts: bool
) -> None:
    stage = Stage(plan, prepares=prepares, starts=starts)
    started: list[tuple[str, int]] = []
    was_over = False
    for event, wait_s in history:
        stage.happen(event)
        stage.pass_s(wait_s)

        started += [(action.task, action.run) for action in stage.take_actions() if isinstance(action, on.StartTask)]
        for task in stage.record.tasks:
            # A step that only time ends knows when; no other waits for time.
            is_timed = task.step in (TaskStep.BACKOFF, TaskStep.SHUTDOWN_DELAY, TaskStep.STOPPING, TaskStep.KILLING)
            assert (task.due_s is not None) == is_timed
            assert len(task.events) <= 10
        due_s = find_next_deadline_s(stage.record, plan)
        assert due_s is None or due_s > stage.now_s
        if was_over and not isinstance(event, on.RestartRequested):
            assert stage.record.is_over
        was_over = stage.record.is_over
        assert stage.status() is not ClientStatus.COMPLETE or was_over
    assert len(set(started)) == len(started)


@given(plans(), HISTORIES)
def test_what_is_to_stop_comes_to_an_end_once_its_programs_do(
    plan: AllocationSpec, history: list[tuple[on.AllocationEvent, float]]
) -> None:
    stage = Stage(plan)
    for event, wait_s in history:
        stage.happen(event)
        stage.pass_s(wait_s)
    stage.stop()
    stage.happen(on.ServerContactRestored())
    for _ in range(60):
        stage.pass_s(60)
        for task in stage.record.tasks:
            if task.step in STEPS_WITH_PROCESS:
                stage.end(task.name)

    assert stage.record.is_over


@given(plans(), HISTORIES)
def test_a_record_can_be_taken_up_again_after_a_crash_or_another_boot(
    plan: AllocationSpec, history: list[tuple[on.AllocationEvent, float]]
) -> None:
    stage = Stage(plan, prepares=False, starts=False)
    for event, wait_s in history:
        stage.happen(event)
        stage.pass_s(wait_s)
    under_way = {task.name for task in stage.record.tasks if task.step in (TaskStep.PREPARING, TaskStep.STARTING)}

    assert under_way <= {action.task for action in list_interrupted_actions(stage.record, plan)}
    stage.record = reset_after_boot(stage.record)
    stage.now_s = 3.0
    stage.happen(on.DeadlineReached())
    for task in stage.record.tasks:
        stage.happen(on.TaskEnded(task.name, task.run, UNKNOWN))
    assert not any(task.step in STEPS_WITH_PROCESS for task in stage.record.tasks)
