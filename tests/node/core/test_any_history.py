"""Properties that hold for an allocation after any sequence of events."""

from hypothesis import given
from hypothesis import strategies as st

from tests.node.core.allocations import AllocationHarness, make_restart_policy, make_task
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.node.core import events
from wharf.node.core.allocation import find_next_deadline_s, list_interrupted_actions, reset_after_boot
from wharf.node.core.allocation_spec import AllocationSpec, HealthSpec
from wharf.node.core.outcome import UNKNOWN, Outcome
from wharf.node.core.steps import STEPS_WITH_PROCESS, TaskStep

HOOKS = ("", "", "prestart", "poststart", "poststop")
POLICIES = st.builds(
    make_restart_policy,
    st.integers(0, 3),
    delay_s=st.integers(0, 20),
    interval_s=st.integers(5, 60),
    mode=st.sampled_from(("fail", "delay")),
)


@st.composite
def specs(draw: st.DrawFn) -> AllocationSpec:
    hooks = ["", *draw(st.lists(st.sampled_from(HOOKS), max_size=3))]
    tasks = []
    for number, hook in enumerate(hooks):
        is_sidecar = hook in ("prestart", "poststart") and draw(st.booleans())
        tasks.append(
            make_task(
                f"t{number}",
                hook=hook,
                is_sidecar=is_sidecar,
                is_leader=not hook and draw(st.booleans()),
                is_run_to_completion=not is_sidecar and (bool(hook) or draw(st.booleans())),
                restart_policy=draw(POLICIES),
                kill_timeout_s=draw(st.sampled_from((0.0, 5.0))),
                shutdown_delay_s=draw(st.sampled_from((0.0, 2.0))),
            )
        )
    return AllocationSpec(
        tasks=tuple(tasks),
        health=draw(st.none() | st.just(HealthSpec(5.0, 30.0))),
        shutdown_delay_s=draw(st.sampled_from((0.0, 3.0))),
        max_run_s=draw(st.none() | st.just(50.0)),
        stop_after_contact_lost_s=draw(st.none() | st.just(20.0)),
    )


OUTCOMES = st.sampled_from((Outcome(), Outcome(1), Outcome(137, 9), UNKNOWN))
NAMES = st.sampled_from(("t0", "t1", "t2", "t3"))
RUNS = st.integers(0, 4)
EVENTS = st.one_of(
    st.builds(events.AllocationStopRequested, st.booleans()),
    st.just(events.HealthWatchStarted()),
    st.builds(events.TaskPrepared, NAMES),
    st.builds(events.TaskPreparationFailed, NAMES, st.just("reason"), is_final=st.booleans()),
    st.builds(events.TaskStarted, NAMES, RUNS),
    st.builds(events.TaskStartFailed, NAMES, RUNS, st.just("reason"), st.booleans()),
    st.builds(events.TaskEnded, NAMES, RUNS, OUTCOMES),
    st.builds(events.RestartRequested, st.just(()), st.booleans()),
    st.builds(events.ChecksChanged, st.booleans()),
    st.builds(events.ServerContactLost, st.just(100.0)),
    st.just(events.ServerContactRestored()),
    st.just(events.DeadlineReached()),
)
HISTORIES = st.lists(st.tuples(EVENTS, st.floats(0.0, 10.0)), max_size=40)


@given(specs(), HISTORIES, st.booleans(), st.booleans())
def test_no_sequence_of_events_breaks_an_allocation(
    spec: AllocationSpec, history: list[tuple[events.AllocationEvent, float]], prepares: bool, starts: bool
) -> None:
    harness = AllocationHarness(spec, prepares=prepares, starts=starts)
    started: list[tuple[str, int]] = []
    was_over = False
    for event, wait_s in history:
        harness.apply(event)
        harness.pass_time(wait_s)

        started += [
            (action.task, action.run) for action in harness.take_actions() if isinstance(action, events.StartTask)
        ]
        for task in harness.record.tasks:
            # Only the steps that time ends have a deadline.
            is_timed = task.step in (TaskStep.BACKOFF, TaskStep.SHUTDOWN_DELAY, TaskStep.STOPPING, TaskStep.KILLING)
            assert (task.due_s is not None) == is_timed
            assert len(task.events) <= 10
        due_s = find_next_deadline_s(harness.record, spec)
        assert due_s is None or due_s > harness.now_s
        if was_over and not isinstance(event, events.RestartRequested):
            assert harness.record.is_over
        was_over = harness.record.is_over
        assert harness.status() is not ClientStatus.COMPLETE or was_over
    assert len(set(started)) == len(started)


@given(specs(), HISTORIES)
def test_a_stopping_allocation_is_over_once_its_programs_have_ended(
    spec: AllocationSpec, history: list[tuple[events.AllocationEvent, float]]
) -> None:
    harness = AllocationHarness(spec)
    for event, wait_s in history:
        harness.apply(event)
        harness.pass_time(wait_s)
    harness.stop()
    harness.apply(events.ServerContactRestored())
    for _ in range(60):
        harness.pass_time(60)
        for task in harness.record.tasks:
            if task.step in STEPS_WITH_PROCESS:
                harness.end(task.name)

    assert harness.record.is_over


@given(specs(), HISTORIES)
def test_a_record_can_be_restored_after_a_crash_or_a_reboot(
    spec: AllocationSpec, history: list[tuple[events.AllocationEvent, float]]
) -> None:
    harness = AllocationHarness(spec, prepares=False, starts=False)
    for event, wait_s in history:
        harness.apply(event)
        harness.pass_time(wait_s)
    in_progress = {task.name for task in harness.record.tasks if task.step in (TaskStep.PREPARING, TaskStep.STARTING)}

    assert in_progress <= {action.task for action in list_interrupted_actions(harness.record, spec)}
    harness.record = reset_after_boot(harness.record)
    harness.now_s = 3.0
    harness.apply(events.DeadlineReached())
    for task in harness.record.tasks:
        harness.apply(events.TaskEnded(task.name, task.run, UNKNOWN))
    assert not any(task.step in STEPS_WITH_PROCESS for task in harness.record.tasks)
