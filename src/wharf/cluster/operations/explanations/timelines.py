"""Finds the phases of an allocation from the times of its record, its evaluation and its task events."""

from collections.abc import Iterable
from itertools import islice
from typing import Final

from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.task_states import TaskEvent, TaskEventType, TaskState
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.timelines import PhaseName, TimelineAllocation, TimelineEvaluation, TimelinePhase
from wharf.contract.model.times import to_ns

PREPARING_EVENTS: Final = frozenset((
    TaskEventType.RECEIVED, TaskEventType.SETUP, TaskEventType.BUILDING_TASK_DIRECTORY,
))  # fmt: skip
PULL_MESSAGE: Final = "Downloading image"
"""The beginning of the message of a driver that downloads an image."""
MAX_TASKS_READ: Final = 50
"""Limits the time of one step: an allocation may have thousands of tasks."""


def build_timeline_allocation(allocation: Allocation, evaluation: Evaluation | None) -> TimelineAllocation:
    """Return the phases of an allocation. `evaluation`: the one that placed it, if it still exists.

    Of an allocation with many tasks, the first tasks are read. Clocks of servers and nodes differ, so a phase never begins
    before the previous one.
    """
    states = list(islice((allocation.task_states or {}).values(), MAX_TASKS_READ))
    ended_ns = _find_end(allocation, states)
    marks = _find_marks(allocation, evaluation, states)
    phases: list[TimelinePhase] = []
    latest_ns = 0
    for name, at_ns in marks:
        latest_ns = max(latest_ns, at_ns)
        if not ended_ns or latest_ns <= ended_ns:
            phases.append(TimelinePhase(name=name, start=latest_ns))
    return TimelineAllocation(
        id=allocation.id,
        name=allocation.name,
        task_group=allocation.task_group,
        job_version=allocation.job_version,
        node_id=allocation.node_id,
        node_name=allocation.node_name,
        client_status=allocation.client_status,
        desired_status=allocation.desired_status,
        phases=tuple(phases),
        ended=ended_ns,
        restarts=sum(state.restarts for state in states),
    )


def build_timeline_evaluation(evaluation: Evaluation) -> TimelineEvaluation:
    """Return an evaluation as timelines show it."""
    return TimelineEvaluation(
        id=evaluation.id,
        triggered_by=evaluation.triggered_by,
        status=evaluation.status,
        create_time=evaluation.create_time,
    )


def _find_marks(
    allocation: Allocation, evaluation: Evaluation | None, states: Iterable[TaskState]
) -> list[tuple[PhaseName, int]]:
    """Return the phases with the times at which they begin, as they were recorded."""
    marks: list[tuple[PhaseName, int]] = []
    if evaluation is not None and 0 < evaluation.waiting_since_ns < allocation.create_time:
        marks.append((PhaseName.WAITING, evaluation.waiting_since_ns))
    marks.append((PhaseName.PLACED, allocation.create_time))
    events = [event for state in states for event in state.events or ()]
    started_ns = min((to_ns(state.started_at) for state in states if state.started_at is not None), default=0)
    for name, times in (
        (PhaseName.PREPARING, [event.time for event in events if event.type in PREPARING_EVENTS]),
        (PhaseName.PULLING, [event.time for event in events if _is_pull(event)]),
    ):
        # Events of a restart are later than the first start, and are no phase of their own.
        if (first_ns := min(times, default=0)) and (not started_ns or first_ns <= started_ns):
            marks.append((name, first_ns))
    if started_ns:
        marks += _find_marks_after_start(allocation, started_ns)
    return marks


def _find_marks_after_start(allocation: Allocation, started_ns: int) -> list[tuple[PhaseName, int]]:
    """Return the phases of an allocation whose first task has started."""
    health = allocation.deployment_status
    if not allocation.deployment_id:
        return [(PhaseName.RUNNING, started_ns)]
    starting = (PhaseName.STARTING, started_ns)
    if health is None or health.healthy is None or health.timestamp is None:
        return [starting]
    return [starting, (PhaseName.HEALTHY if health.healthy else PhaseName.UNHEALTHY, to_ns(health.timestamp))]


def _is_pull(event: TaskEvent) -> bool:
    if event.type == TaskEventType.DRIVER:
        return (event.details or {}).get("driver_message", "").startswith(PULL_MESSAGE)
    return event.type == TaskEventType.DOWNLOADING_ARTIFACTS


def _find_end(allocation: Allocation, states: Iterable[TaskState]) -> int:
    """Return when an allocation ended, in ns since the epoch; 0 if it has not ended."""
    if not allocation.is_client_terminal:
        return 0
    finished = [to_ns(state.finished_at) for state in states if state.finished_at is not None]
    return max(finished, default=allocation.modify_time)
