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
    """Whether a waiting task may start."""

    NOW = auto()
    LATER = auto()
    NEVER = auto()


class TaskToStop(NamedTuple):
    """A task that must not keep running, and why."""

    name: str
    event_type: TaskEventType | None = None
    """The event for the task's history; `None` if the whole allocation is being stopped."""
    failed_sibling: str = ""
    """The task whose failure is the reason."""


def decide_start(task: TaskSpec, record: AllocationRecord, spec: AllocationSpec) -> StartDecision:
    """Return whether the waiting task may start, according to its lifecycle hook."""
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
                return StartDecision.NEVER
        case _:
            prestart = [(t, record.task(t.name)) for t in spec.tasks if t.hook == LifecycleHook.PRESTART]
            is_ready = all(r.step is TaskStep.RUNNING if t.is_sidecar else r.is_dead for t, r in prestart)
    return StartDecision.NOW if is_ready else StartDecision.LATER


def find_tasks_to_stop(record: AllocationRecord, spec: AllocationSpec) -> Iterator[TaskToStop]:
    """Yield the tasks that must be stopped; some of them may be dead or stopping already."""
    stoppable = [task for task in spec.tasks if task.hook != LifecycleHook.POSTSTOP]
    if record.is_to_stop:
        yield from _stop_leaders_first(stoppable, record)
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


def _stop_leaders_first(stoppable: list[TaskSpec], record: AllocationRecord) -> Iterator[TaskToStop]:
    """Yield the tasks of a stopping allocation, after its shutdown delay: running leaders end before the others."""
    if record.stop_due_s is not None:
        return
    leaders = [task.name for task in stoppable if task.is_leader and not record.task(task.name).is_dead]
    for task in stoppable:
        if not leaders or task.name in leaders or not record.task(task.name).has_process:
            yield TaskToStop(task.name)
