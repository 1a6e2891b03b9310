"""Recognizes finite allocations that were stopped before their tasks had ended by themselves.

A node reports a task that it has killed as ended without a failure. Only the events of the task show the difference.
"""

from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.allocations.task_states import TaskEventType, TaskState
from wharf.contract.model.jobs.groups import Task, TaskGroup


def list_decisive_tasks(group: TaskGroup) -> list[Task]:
    """Return the tasks whose ends decide about the result of an allocation: the leader, or else all main tasks."""
    main_tasks = [task for task in group.tasks or () if task.lifecycle is None]
    return [task for task in main_tasks if task.leader] or main_tasks


def was_killed(state: TaskState) -> bool:
    """Return whether the node has stopped the task, instead of the task ending by itself."""
    return any(event.type == TaskEventType.KILLED for event in state.events or ())


def was_interrupted(allocation: Allocation, group: TaskGroup | None) -> bool:
    """Return whether an allocation without a failure was stopped before it had a result (record 0305).

    True if a decisive task was killed, or never started because another task was killed. Exit code 0 after the kill
    signal is no success: the task may have ended early. `False` if the node has reported no states of tasks.
    """
    if group is None or allocation.client_status is not ClientStatus.COMPLETE:
        return False
    states = allocation.task_states or {}
    is_any_killed = any(was_killed(state) for state in states.values())
    return is_any_killed and any(
        was_killed(state) or state.started_at is None
        for task in list_decisive_tasks(group)
        if (state := states.get(task.name)) is not None
    )
