"""Whether an allocation is healthy: for its deployment, or for whoever drains a node of its group."""

from typing import Final

from msgspec.structs import replace

from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.contract.model.jobs.groups import LifecycleHook
from wharf.node.core.allocation_spec import AllocationSpec, HealthSpec
from wharf.node.core.clock import ClockReading, find_earliest
from wharf.node.core.record import AllocationRecord, add_task_event
from wharf.node.core.steps import TaskStep

HEALTHY_DEADLINE_MESSAGE: Final = "Task not running by healthy_deadline"


def update_health(record: AllocationRecord, plan: AllocationSpec, now: ClockReading) -> AllocationRecord:
    """The record with what is known by now. What was found healthy is so until a task fails; unhealthy it stays."""
    if plan.health is None or record.judged_since_s is None or record.is_healthy is False or record.is_to_stop:
        return record
    if any(task.has_failed for task in record.tasks):
        return replace(record, is_healthy=False)
    if record.is_healthy:
        return record
    if _has_ended_early(record, plan):
        return replace(record, is_healthy=False)
    healthy_at_s = _healthy_at_s(record, plan, plan.health)
    if healthy_at_s is not None and now.monotonic_s >= healthy_at_s:
        return replace(record, is_healthy=True)
    if now.monotonic_s < record.judged_since_s + plan.health.deadline_s:
        return record
    tasks = tuple(
        add_task_event(task, TaskEventType.ALLOC_UNHEALTHY, now, message=HEALTHY_DEADLINE_MESSAGE)
        if task.step is not TaskStep.RUNNING and not task.is_dead
        else task
        for task in record.tasks
    )
    return replace(record, is_healthy=False, tasks=tasks)


def find_health_deadline_s(record: AllocationRecord, plan: AllocationSpec) -> float | None:
    """When time alone will decide."""
    if plan.health is None or record.judged_since_s is None or record.is_healthy is not None or record.is_to_stop:
        return None
    return find_earliest((record.judged_since_s + plan.health.deadline_s, _healthy_at_s(record, plan, plan.health)))


def _has_ended_early(record: AllocationRecord, plan: AllocationSpec) -> bool:
    return any(record.task(task.name).is_dead for task in plan.tasks if task.is_main)


def _healthy_at_s(record: AllocationRecord, plan: AllocationSpec, health: HealthSpec) -> float | None:
    """When it has been as it should be for long enough; None while it is not."""
    since_s = 0.0
    for task in plan.tasks:
        known = record.task(task.name)
        if task.hook == LifecycleHook.POSTSTOP or (task.hook and known.is_dead):
            continue
        if known.step is not TaskStep.RUNNING:
            return None
        since_s = max(since_s, known.started_s)
    if health.should_wait_for_checks and plan.required_checks:
        if record.checks_pass_since_s is None:
            return None
        since_s = max(since_s, record.checks_pass_since_s)
    return since_s + health.min_healthy_s
