"""Decides by its cause whether an allocation of a step with `Retry` runs again (record 0314).

Only failures of the program use up attempts. A lost node, a drain and a preemption never do. Neither does a failure before the
program ran, but the number of those is limited, because a driver may fail on every node.
"""

from typing import Final, NamedTuple

from wharf.cluster.scheduling.reconcile.input import MIGRATING_TEXT
from wharf.contract.model.allocations.allocation import (
    INTERRUPTED_TEXT,
    Allocation,
    ClientStatus,
    DesiredStatus,
    RescheduleEvent,
    RescheduleTracker,
    RetryCause,
)
from wharf.contract.model.allocations.failure_reasons import TaskFailure, find_task_failure
from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.contract.model.jobs.steps import StepRetry
from wharf.contract.model.times import SECOND

MAX_DRIVER_FAILURES: Final = 5
"""How often an element fails before its program ran, until it has failed for good. Each time another node is preferred."""
FIRST_DELAY_NS: Final = 5 * SECOND
"""The delay before an element runs again after its first failure. Each failure doubles it."""
MAX_DELAY_NS: Final = 300 * SECOND
MAX_UNCOUNTED_EVENTS: Final = 10
"""Causes that use up no attempt and are stored, the newest; limits the size of an allocation."""
_COUNTED_CAUSES: Final = frozenset({RetryCause.NONE, RetryCause.PROGRAM})
FAILURE_CAUSES: Final = _COUNTED_CAUSES | {RetryCause.DRIVER}
"""Causes after which another node is preferred, and after which the element waits."""
_UNKNOWN_EXIT_CODE: Final = -1
"""The exit code that a node reports if nothing observed the end of the program."""
MAX_DETAIL_CHARS: Final = 200


class AllocationEnd(NamedTuple):
    """Why an allocation ended."""

    cause: RetryCause
    text: str
    exit_code: int = 0
    """The exit code of the program that failed; 0 if it has none, because it was stopped after its `MaxRunDuration`."""
    is_final: bool = False
    """Another run would fail in the same way."""


class RetryDecision(NamedTuple):
    """Whether an allocation runs again."""

    is_allowed: bool
    reason: str
    """Why not."""
    delay_ns: int = 0
    """How long after its end."""


def classify_end(allocation: Allocation) -> AllocationEnd:
    """Return why an allocation of a step ended without success."""
    if allocation.client_status is ClientStatus.LOST:
        return AllocationEnd(RetryCause.NODE, "its node was lost")
    if allocation.desired_status is DesiredStatus.EVICT:
        return AllocationEnd(RetryCause.PREEMPTION, "a job of higher priority took its resources")
    if allocation.desired_status is DesiredStatus.STOP:
        text = allocation.desired_description
        if text == INTERRUPTED_TEXT:
            return AllocationEnd(RetryCause.NODE, "its node stopped it before its end")
        return AllocationEnd(RetryCause.MIGRATION if text == MIGRATING_TEXT else RetryCause.STOP, text)
    failure = find_task_failure(allocation.task_states)
    if failure is None or not _has_failed_task(allocation):
        return AllocationEnd(RetryCause.PROGRAM, allocation.client_description or "it failed")
    return _classify_failure(failure)


def _has_failed_task(allocation: Allocation) -> bool:
    """Return whether a task failed. If none did, the allocation took longer than its `MaxRunDuration`."""
    return any(state.failed for state in (allocation.task_states or {}).values())


def _classify_failure(failure: TaskFailure) -> AllocationEnd:
    event, text = failure.event, failure.text[:MAX_DETAIL_CHARS]
    if event.type == TaskEventType.FAILED_VALIDATION:
        return AllocationEnd(RetryCause.PROGRAM, text, is_final=True)
    if event.type not in (TaskEventType.TERMINATED, TaskEventType.RESTART_SIGNALED):
        return AllocationEnd(RetryCause.DRIVER, text)
    code = (event.details or {}).get("exit_code", "")
    exit_code = int(code) if code.removeprefix("-").isdecimal() and len(code) < 12 else 0
    if exit_code == _UNKNOWN_EXIT_CODE:
        return AllocationEnd(RetryCause.DRIVER, text)
    return AllocationEnd(RetryCause.PROGRAM, text, exit_code)


def decide_step_retry(allocation: Allocation, retry: StepRetry) -> RetryDecision:
    """Return whether and when an allocation of a step that ended without success runs again."""
    end, events = classify_end(allocation), list_events(allocation)
    reason = _find_obstacle(allocation, end, events, retry)
    return RetryDecision(not reason, reason, _compute_delay_ns(end, events))


def _find_obstacle(
    allocation: Allocation, end: AllocationEnd, events: tuple[RescheduleEvent, ...], retry: StepRetry
) -> str:
    """Return why an allocation does not run again; empty if it does."""
    if end.is_final:
        return "another attempt would fail in the same way"
    if end.cause is RetryCause.DRIVER:
        nodes = [event.prev_node_id for event in events if event.cause is RetryCause.DRIVER]
        nodes.append(allocation.node_id)
        if len(nodes) < MAX_DRIVER_FAILURES:
            return ""
        return f"its program could not run {len(nodes)} times, on {len(set(nodes))} nodes"
    if end.cause is not RetryCause.PROGRAM:
        return ""
    if not is_retried_code(retry, end.exit_code):
        rule = f"not in OnExit ({_join(retry.on_exit)})" if retry.on_exit else "in NotOnExit"
        return f"exit code {end.exit_code} is {rule}" if end.exit_code else "it has no exit code, and OnExit is set"
    used = count_attempts(events)
    if used >= retry.attempts:
        return f"all retries are used up: {used} of {retry.attempts}" if retry.attempts else "Retry.Attempts is 0"
    return ""


def is_retried_code(retry: StepRetry, exit_code: int) -> bool:
    """Return whether a program that ended with this exit code runs again; 0: it was stopped and has no exit code."""
    if retry.on_exit:
        return exit_code in retry.on_exit
    return exit_code not in (retry.not_on_exit or ())


def count_attempts(events: tuple[RescheduleEvent, ...]) -> int:
    """Return how many attempts of `Retry` the earlier runs of an element used up."""
    return sum(event.cause in _COUNTED_CAUSES for event in events)


def list_events(allocation: Allocation) -> tuple[RescheduleEvent, ...]:
    """Return why the earlier runs of an element ended, oldest first."""
    tracker = allocation.reschedule_tracker
    return (tracker.events if tracker is not None else None) or ()


def _compute_delay_ns(end: AllocationEnd, events: tuple[RescheduleEvent, ...]) -> int:
    """Return how long an element waits after its end. What the program did not cause is repeated at once."""
    if end.cause not in FAILURE_CAUSES:
        return 0
    failures = sum(event.cause in FAILURE_CAUSES for event in events)
    return min(FIRST_DELAY_NS << min(failures, 16), MAX_DELAY_NS)


def build_step_tracker(previous: Allocation, now_ns: int) -> RescheduleTracker:
    """Return the tracker of the allocation that replaces `previous`: why the earlier runs of the element ended."""
    end, events = classify_end(previous), list_events(previous)
    newest = RescheduleEvent(
        reschedule_time=now_ns,
        prev_alloc_id=previous.id,
        prev_node_id=previous.node_id,
        delay=_compute_delay_ns(end, events),
        cause=end.cause,
        detail=end.text[:MAX_DETAIL_CHARS],
    )
    uncounted = [event for event in events if event.cause not in _COUNTED_CAUSES]
    surplus = frozenset(id(event) for event in uncounted[: -(MAX_UNCOUNTED_EVENTS - 1)])
    return RescheduleTracker(events=(*(event for event in events if id(event) not in surplus), newest))


def _join(codes: tuple[int, ...] | None) -> str:
    return ", ".join(map(str, codes or ()))


EMPTY_TRACKER: Final = RescheduleTracker()
"""The tracker of the first run of an element with `Retry`. It marks the allocation, so that the end of a lost one is counted."""
