"""Decides the order of the tasks of an allocation: which may start now, and which must stop because of others.

Pure functions of the record and the rules of the allocation; `allocation` applies what they return.
"""

from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple

from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.contract.model.jobs.groups import LifecycleHook
from wharf.node.core.allocation_spec import AllocationSpec, TaskSpec
from wharf.node.core.record import AllocationRecord
from wharf.node.core.steps import TaskStep


class StartDecision(Enum):
    """Whether a task that waits for other tasks may start."""

    START_NOW = auto()  # nothing that it waits for is left
    KEEP_WAITING = auto()  # another task must start or end first
    NEVER_START = auto()  # what it waits for cannot happen any more


class TaskToStop(NamedTuple):
    """A task that must not keep running, and why."""

    name: str
    event_type: TaskEventType | None = None
    """The event for the task's history; `None` if the whole allocation is being stopped."""
    failed_sibling: str = ""
    """The task whose failure is the reason."""


def decide_start(task: TaskSpec, record: AllocationRecord, spec: AllocationSpec) -> StartDecision:
    """Return whether the waiting task may start, according to its lifecycle hook and the states of the other tasks."""
    match task.hook:
        case LifecycleHook.PRESTART:
            is_ready = True
        case LifecycleHook.POSTSTART:
            main_records = [record.task(t.name) for t in spec.tasks if t.is_main]
            is_ready = all(r.has_started and not r.is_start_doubtful for r in main_records)
        case LifecycleHook.POSTSTOP:
            earlier = [record.task(t.name) for t in spec.tasks if t.hook != LifecycleHook.POSTSTOP]
            is_ready = all(r.is_dead for r in earlier)
            if is_ready and not any(r.has_started for r in earlier):
                return StartDecision.NEVER_START
        case _:
            prestart = [(t, record.task(t.name)) for t in spec.tasks if t.hook == LifecycleHook.PRESTART]
            is_ready = all(r.step is TaskStep.RUNNING if t.is_sidecar else r.is_dead for t, r in prestart)
    return StartDecision.START_NOW if is_ready else StartDecision.KEEP_WAITING


def find_tasks_to_stop(record: AllocationRecord, spec: AllocationSpec) -> Iterator[TaskToStop]:
    """Yield the tasks that must not keep running, with the reason. Some of them may already be dead or stopping.

    Reasons: the allocation stops, a task failed, a leader ended, or all main tasks ended.
    """
    stoppable = [task for task in spec.tasks if task.hook != LifecycleHook.POSTSTOP]
    if record.is_to_stop:
        yield from _iter_tasks_of_stopping_allocation(stoppable, record)
        return
    failed = next((task.name for task in spec.tasks if record.task(task.name).has_failed), None)
    if failed is not None:
        for task in stoppable:
            yield TaskToStop(task.name, TaskEventType.SIBLING_TASK_FAILED, failed)
        return
    if any(task.is_leader and record.task(task.name).is_dead for task in stoppable):
        for task in stoppable:
            yield TaskToStop(task.name, TaskEventType.LEADER_TASK_DEAD)
        return
    main_tasks = [task for task in spec.tasks if task.is_main]
    if main_tasks and all(record.task(task.name).is_dead for task in main_tasks):
        for task in stoppable:
            # Tasks that are not sidecars and already run may finish.
            if task.is_sidecar or not record.task(task.name).has_process:
                yield TaskToStop(task.name, TaskEventType.MAIN_TASKS_DEAD)


def _iter_tasks_of_stopping_allocation(stoppable: list[TaskSpec], record: AllocationRecord) -> Iterator[TaskToStop]:
    """Yield the tasks of a stopping allocation that must stop now: first the leaders, then all others.

    Nothing is yielded before the group's shutdown delay has ended.
    """
    if record.stop_due_s is not None:
        return
    leaders = [task.name for task in stoppable if task.is_leader and not record.task(task.name).is_dead]
    for task in stoppable:
        if not leaders or task.name in leaders or not record.task(task.name).has_process:
            yield TaskToStop(task.name)
