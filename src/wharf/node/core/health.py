"""Decides whether an allocation is healthy, for its deployment or for the drain of another node."""

from typing import Final

from msgspec.structs import replace

from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.contract.model.jobs.groups import LifecycleHook
from wharf.node.core.allocation_spec import AllocationSpec, HealthSpec
from wharf.node.core.clock import ClockReading, find_earliest
from wharf.node.core.record import AllocationRecord, add_task_event
from wharf.node.core.steps import TaskStep

HEALTHY_DEADLINE_MESSAGE: Final = "Task not running by healthy_deadline"


def update_health(record: AllocationRecord, spec: AllocationSpec, now: ClockReading) -> AllocationRecord:
    """Return the record with its health as of now.

    A healthy allocation becomes unhealthy if a task fails. An unhealthy one stays unhealthy. If the deadline has
    passed, each task that is not running gets an event that says so.
    """
    if spec.health is None or record.health_watch_since_s is None or record.is_healthy is False or record.is_to_stop:
        return record
    if any(task.has_failed for task in record.tasks):
        return replace(record, is_healthy=False)
    if record.is_healthy:
        return record
    if _has_dead_main_task(record, spec):
        return replace(record, is_healthy=False)
    healthy_at_s = _find_healthy_at_s(record, spec, spec.health)
    if healthy_at_s is not None and now.monotonic_s >= healthy_at_s:
        return replace(record, is_healthy=True)
    if now.monotonic_s < record.health_watch_since_s + spec.health.deadline_s:
        return record
    tasks = tuple(
        add_task_event(task, TaskEventType.ALLOC_UNHEALTHY, now, message=HEALTHY_DEADLINE_MESSAGE)
        if task.step is not TaskStep.RUNNING and not task.is_dead
        else task
        for task in record.tasks
    )
    return replace(record, is_healthy=False, tasks=tasks)


def find_health_deadline_s(record: AllocationRecord, spec: AllocationSpec) -> float | None:
    """Return the time at which the health can change without an event, on the monotonic clock; `None` if it cannot."""
    if spec.health is None or record.health_watch_since_s is None or record.is_healthy is not None or record.is_to_stop:
        return None
    return find_earliest(
        (record.health_watch_since_s + spec.health.deadline_s, _find_healthy_at_s(record, spec, spec.health))
    )


def _has_dead_main_task(record: AllocationRecord, spec: AllocationSpec) -> bool:
    """Return whether any main task is dead; main tasks have no lifecycle hook."""
    return any(record.task(task.name).is_dead for task in spec.tasks if task.is_main)


def _find_healthy_at_s(record: AllocationRecord, spec: AllocationSpec, health: HealthSpec) -> float | None:
    """Return the time at which the allocation becomes healthy if nothing changes, on the monotonic clock.

    `None` while a required task does not run or a required check does not pass.
    """
    since_s = 0.0
    for task in spec.tasks:
        record_of_task = record.task(task.name)
        if task.hook == LifecycleHook.POSTSTOP or (task.hook and record_of_task.is_dead):
            continue
        if record_of_task.step is not TaskStep.RUNNING:
            return None
        since_s = max(since_s, record_of_task.started_s)
    if health.should_wait_for_checks and spec.required_checks:
        if record.checks_pass_since_s is None:
            return None
        since_s = max(since_s, record.checks_pass_since_s)
    return since_s + health.min_healthy_s
