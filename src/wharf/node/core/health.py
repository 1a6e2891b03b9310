"""Whether an allocation is healthy: for its deployment, or for whoever drains a node of its group."""

from typing import Final

from msgspec.structs import replace

from wharf.model.task import LifecycleHook
from wharf.model.task_state import TaskEventType
from wharf.node.core.moment import Now, earliest
from wharf.node.core.plan import HealthPlan, Plan
from wharf.node.core.record import AllocationRecord, with_event
from wharf.node.core.steps import TaskStep

NOT_IN_TIME: Final = "Task not running by healthy_deadline"


def judge(record: AllocationRecord, plan: Plan, now: Now) -> AllocationRecord:
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
        with_event(task, TaskEventType.ALLOC_UNHEALTHY, now, message=NOT_IN_TIME)
        if task.step is not TaskStep.RUNNING and not task.is_dead
        else task
        for task in record.tasks
    )
    return replace(record, is_healthy=False, tasks=tasks)


def judged_at_s(record: AllocationRecord, plan: Plan) -> float | None:
    """When time alone will decide."""
    if plan.health is None or record.judged_since_s is None or record.is_healthy is not None or record.is_to_stop:
        return None
    return earliest((record.judged_since_s + plan.health.deadline_s, _healthy_at_s(record, plan, plan.health)))


def _has_ended_early(record: AllocationRecord, plan: Plan) -> bool:
    return any(record.task(task.name).is_dead for task in plan.tasks if task.is_main)


def _healthy_at_s(record: AllocationRecord, plan: Plan, health: HealthPlan) -> float | None:
    """When it has been as it should be for long enough; None while it is not."""
    since_s = 0.0
    for task in plan.tasks:
        known = record.task(task.name)
        if task.hook == LifecycleHook.POSTSTOP or (task.hook and known.is_dead):
            continue
        if known.step is not TaskStep.RUNNING:
            return None
        since_s = max(since_s, known.started_s)
    if health.needs_checks and plan.keeps_checks:
        if record.checks_pass_since_s is None:
            return None
        since_s = max(since_s, record.checks_pass_since_s)
    return since_s + health.min_healthy_s
