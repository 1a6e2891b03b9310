"""The order of tasks in an allocation: when a task may start, and which tasks stop because of others."""

import pytest
from msgspec.structs import replace

from tests.node.core.allocations import make_spec, make_task
from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.node.core.allocation_spec import AllocationSpec
from wharf.node.core.record import AllocationRecord, TaskRecord
from wharf.node.core.steps import TaskStep
from wharf.node.core.task_order import StartDecision, TaskToStop, decide_start, find_tasks_to_stop

SPEC = make_spec(
    make_task("init", hook="prestart"),
    make_task("proxy", hook="prestart", is_sidecar=True),
    make_task("web"),
    make_task("notify", hook="poststart"),
    make_task("cleanup", hook="poststop"),
)


def make_record(**step_by_task: TaskStep) -> AllocationRecord:
    """Return a record of the tasks of `SPEC`. Tasks wait by default; all others have started before."""
    tasks = []
    for task in SPEC.tasks:
        step = step_by_task.get(task.name, TaskStep.WAITING)
        tasks.append(TaskRecord(task.name, step, started_ns=0 if step is TaskStep.WAITING else 1))
    return AllocationRecord("a1", tuple(tasks))


def decide(task: str, record: AllocationRecord) -> StartDecision:
    return decide_start(SPEC.task(task), record, SPEC)


def test_prestart_tasks_start_first() -> None:
    record = make_record()

    assert [StartDecision.START_NOW, StartDecision.START_NOW] == [decide("init", record), decide("proxy", record)]
    assert [StartDecision.KEEP_WAITING] * 3 == [decide(task, record) for task in ("web", "notify", "cleanup")]


@pytest.mark.parametrize(
    ("init", "proxy", "expected"),
    [
        (TaskStep.DEAD, TaskStep.RUNNING, StartDecision.START_NOW),
        (TaskStep.RUNNING, TaskStep.RUNNING, StartDecision.KEEP_WAITING),
        (TaskStep.DEAD, TaskStep.STARTING, StartDecision.KEEP_WAITING),
    ],
)
def test_a_main_task_waits_for_the_end_of_prestart_tasks_and_for_the_start_of_their_sidecars(
    init: TaskStep, proxy: TaskStep, expected: StartDecision
) -> None:
    assert expected is decide("web", make_record(init=init, proxy=proxy))


def test_a_poststart_task_waits_for_the_certain_start_of_the_main_tasks() -> None:
    record = make_record(init=TaskStep.DEAD, proxy=TaskStep.RUNNING, web=TaskStep.RUNNING)
    doubtful = replace(
        record,
        tasks=tuple(replace(task, is_start_doubtful=True) if task.name == "web" else task for task in record.tasks),
    )

    assert StartDecision.START_NOW is decide("notify", record)
    assert StartDecision.KEEP_WAITING is decide("notify", doubtful)


def test_a_poststop_task_runs_after_all_others_and_never_if_none_of_them_has_started() -> None:
    dead = {task.name: TaskStep.DEAD for task in SPEC.tasks if task.name != "cleanup"}
    record = make_record(**dead)
    never_started = replace(record, tasks=tuple(replace(task, started_ns=0) for task in record.tasks))

    assert StartDecision.START_NOW is decide("cleanup", record)
    assert StartDecision.KEEP_WAITING is decide("cleanup", make_record(**{**dead, "web": TaskStep.RUNNING}))
    assert StartDecision.NEVER_START is decide("cleanup", never_started)


def running_record(spec: AllocationSpec, *dead: str, has_failed: bool = False) -> AllocationRecord:
    """Return a record in which all tasks run, except the dead ones; `has_failed` is how they ended."""
    return AllocationRecord(
        "a1",
        tuple(
            TaskRecord(task.name, TaskStep.DEAD, has_failed=has_failed)
            if task.name in dead
            else TaskRecord(task.name, TaskStep.RUNNING)
            for task in spec.tasks
        ),
    )


def test_no_task_stops_while_all_run() -> None:
    assert [] == list(find_tasks_to_stop(running_record(SPEC), SPEC))


def test_the_siblings_of_a_failed_task_stop_except_poststop_tasks() -> None:
    record = running_record(SPEC, "web", has_failed=True)

    tasks = list(find_tasks_to_stop(record, SPEC))

    assert ["init", "proxy", "web", "notify"] == [task.name for task in tasks]
    assert {(TaskEventType.SIBLING_TASK_FAILED, "web")} == {(task.event_type, task.failed_sibling) for task in tasks}


def test_sidecars_stop_when_the_main_tasks_are_dead_and_other_running_tasks_may_finish() -> None:
    record = running_record(SPEC, "init", "web")

    tasks = list(find_tasks_to_stop(record, SPEC))

    assert [("init", TaskEventType.MAIN_TASKS_DEAD), ("proxy", TaskEventType.MAIN_TASKS_DEAD)] == [
        (task.name, task.event_type) for task in tasks if task.name in ("init", "proxy", "notify")
    ]


def test_all_tasks_stop_after_the_death_of_their_leader() -> None:
    spec = make_spec(make_task("leader", is_leader=True), make_task("helper"))

    tasks = list(find_tasks_to_stop(running_record(spec, "leader"), spec))

    assert ("helper", TaskEventType.LEADER_TASK_DEAD) in [(task.name, task.event_type) for task in tasks]


def test_leaders_of_a_stopping_allocation_stop_before_the_others() -> None:
    spec = make_spec(make_task("leader", is_leader=True), make_task("helper"))
    stopping = replace(running_record(spec), is_to_stop=True)
    leader_dead = replace(running_record(spec, "leader"), is_to_stop=True)

    assert [TaskToStop("leader")] == list(find_tasks_to_stop(stopping, spec))
    assert [TaskToStop("leader"), TaskToStop("helper")] == list(find_tasks_to_stop(leader_dead, spec))
    assert [] == list(find_tasks_to_stop(replace(stopping, stop_due_s=9.0), spec))
