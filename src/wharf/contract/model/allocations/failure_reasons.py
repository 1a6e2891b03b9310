"""Why an allocation failed: the one decision that every command and explanation shows. Derived from the record only."""

from collections.abc import Iterable, Mapping
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from wharf.contract.model.allocations.allocation import (
    NOT_RETRIED_PREFIX,
    OVERDUE_TEXT,
    AllocDeploymentStatus,
    ClientStatus,
    DesiredStatus,
)
from wharf.contract.model.allocations.task_event_messages import describe_event
from wharf.contract.model.allocations.task_states import (
    TaskEvent,
    TaskEventType,
    TaskEventView,
    TaskState,
    TaskStateView,
)

_FAILURES: Final = frozenset({
    TaskEventType.TERMINATED, TaskEventType.DRIVER_FAILURE, TaskEventType.SETUP_FAILURE, TaskEventType.FAILED_VALIDATION,
    TaskEventType.FAILED_ARTIFACT_DOWNLOAD, TaskEventType.DISK_RESOURCES_EXCEEDED, TaskEventType.HOOK_FAILED,
    TaskEventType.FAILED_RESTORING_TASK,
})  # fmt: skip
"""Events that give the reason why a task ended. Other events show what was done about it."""
_END_REQUESTS: Final = frozenset({
    TaskEventType.KILLING, TaskEventType.RESTART_SIGNALED, TaskEventType.SIBLING_TASK_FAILED,
    TaskEventType.LEADER_TASK_DEAD, TaskEventType.MAIN_TASKS_DEAD,
})  # fmt: skip
"""Events after which the node ends the program, so that its exit code explains nothing."""
MAX_FAILURES_SHOWN: Final = 3
"""Limit of the reasons in one summary; keeps output readable, and bounds the logs that commands read."""
OVERDUE_REASON: Final = "it ran longer than its MaxRunDuration"
_GENERIC_DESCRIPTION: Final = "Failed tasks"
"""The description of every allocation with a failed task."""

AnyTaskEvent = TaskEvent | TaskEventView
TaskStates = Mapping[str, TaskState] | Mapping[str, TaskStateView] | None


class FailedAllocation(Protocol):
    """The fields of an allocation, its list item or its view that show why it failed."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def node_id(self) -> str: ...
    @property
    def create_index(self) -> int: ...
    @property
    def modify_time(self) -> int: ...
    @property
    def client_status(self) -> ClientStatus: ...
    @property
    def client_description(self) -> str: ...
    @property
    def desired_status(self) -> DesiredStatus: ...
    @property
    def desired_description(self) -> str: ...
    @property
    def deployment_status(self) -> AllocDeploymentStatus | None: ...
    @property
    def task_states(self) -> TaskStates: ...


class TaskFailure(NamedTuple):
    """The event that explains why a task failed."""

    task: str
    event: AnyTaskEvent

    @property
    def text(self) -> str:
        return f"{self.task}: {describe_event(self.event) or self.event.type}"

    @property
    def is_end_of_program(self) -> bool:
        """Whether the program of the task ended by itself, so that its output may show the cause."""
        return self.event.type == TaskEventType.TERMINATED


FailedT = TypeVar("FailedT", bound=FailedAllocation)


class FailureSummary(NamedTuple, Generic[FailedT]):
    """Why one or more allocations failed, if they failed for the same reason."""

    reason: str
    newest: FailedT
    alloc_count: int
    """How many allocations failed for this reason."""
    ended_task: str
    """The task whose program ended by itself, so that its output may show the cause; empty if there is none."""


def summarize_failures(allocations: Iterable[FailedT], *, is_per_node: bool = False) -> list[FailureSummary[FailedT]]:
    """Return why allocations of one job fail, the newest reasons first, at most `MAX_FAILURES_SHOWN`.

    A failure counts until a later allocation of the same name runs or is complete. `is_per_node`: the allocations of all
    nodes have the same name, as in system jobs.
    """

    def get_key(allocation: FailedT) -> tuple[str, str]:
        return allocation.name, allocation.node_id if is_per_node else ""

    all_allocations = list(allocations)
    failed = [
        each
        for each in all_allocations
        # Most run and have no deployment. They are left out first, without a call.
        if (each.client_status is not ClientStatus.RUNNING or each.deployment_status is not None)
        and (has_failed(each) or is_restarting(each))
    ]
    if not failed:
        return []
    failed_ids, names = {id(each) for each in failed}, {each.name for each in failed}
    failing: dict[tuple[str, str], FailedT] = {}
    # Few of 100,000 allocations failed: only those with their names are sorted.
    with_names = [each for each in all_allocations if each.name in names]
    for allocation in sorted(with_names, key=lambda allocation: (allocation.create_index, allocation.id)):
        if id(allocation) in failed_ids:
            failing[get_key(allocation)] = allocation
        elif allocation.client_status in (ClientStatus.RUNNING, ClientStatus.COMPLETE):
            failing.pop(get_key(allocation), None)
    by_reason: dict[str, list[FailedT]] = {}
    # The order is the same for all servers, whatever that of `allocations` is.
    for allocation in sorted(failing.values(), key=lambda each: (-each.modify_time, each.create_index, each.id)):
        if reason := describe_failure(allocation):
            by_reason.setdefault(reason, []).append(allocation)
    return [
        FailureSummary(reason, group[0], len(group), _find_ended_task(group[0]))
        for reason, group in list(by_reason.items())[:MAX_FAILURES_SHOWN]
    ]


def is_restarting(allocation: FailedAllocation) -> bool:
    """Return whether the allocation has not failed, but one of its tasks did and waits for its next start."""
    if allocation.client_status is not ClientStatus.PENDING or allocation.task_states is None:
        return False  # Reading the states takes longer.
    return find_task_failure(allocation.task_states) is not None


def _find_ended_task(allocation: FailedAllocation) -> str:
    """Return the task whose program ended by itself and made the allocation fail, or an empty text."""
    failure = find_task_failure(allocation.task_states)
    is_cause = (
        failure is not None
        and failure.is_end_of_program
        and allocation.client_status is not ClientStatus.LOST
        and not _is_overdue(allocation)
    )
    return failure.task if failure is not None and is_cause else ""


def has_failed(allocation: FailedAllocation) -> bool:
    """Return whether the allocation failed, was lost, or was found unhealthy by its deployment."""
    status = allocation.deployment_status
    is_unhealthy = status is not None and status.healthy is False
    return is_unhealthy or allocation.client_status in (ClientStatus.FAILED, ClientStatus.LOST)


def describe_failure(allocation: FailedAllocation) -> str:
    """Return why an allocation failed, such as `main: Exit Code: 3`; empty if its record does not show it.

    One of a step with `Retry` has the reason why it is not retried too.

    A lost allocation has the reason of its loss, because failures of its tasks before that were retried.
    """
    if allocation.client_status is ClientStatus.LOST:
        stop = allocation.desired_description if allocation.desired_status is not DesiredStatus.RUN else ""
        return stop or allocation.client_description or "its node is down"
    failure = find_task_failure(allocation.task_states)
    # The exit code of a program that the node stopped shows only the signal of the node.
    reason = OVERDUE_REASON if _is_overdue(allocation) else failure.text if failure is not None else ""
    if reason:
        end = allocation.desired_description
        return f"{reason}; {end}" if end.startswith(NOT_RETRIED_PREFIX) else reason
    unhealthy = _find_last_event(allocation.task_states, TaskEventType.ALLOC_UNHEALTHY)
    if unhealthy is not None:
        return unhealthy.text
    description = allocation.client_description
    return (
        description if allocation.client_status is ClientStatus.FAILED and description != _GENERIC_DESCRIPTION else ""
    )


def _is_overdue(allocation: FailedAllocation) -> bool:
    """Return whether its node stopped the allocation because it ran too long."""
    return allocation.client_status is ClientStatus.FAILED and allocation.client_description == OVERDUE_TEXT


def describe_task_failure(states: TaskStates) -> str:
    """Return the text of the failure that `find_task_failure` finds; empty if no task failed."""
    failure = find_task_failure(states)
    return failure.text if failure is not None else ""


def find_task_failure(states: TaskStates) -> TaskFailure | None:
    """Return the failure that explains why tasks of an allocation failed, or None if no task failed.

    Failed tasks come before tasks that ended with them, causes before the ends that the node requested, and failures
    before successful ends. Of equal ones, the last counts.
    """
    found = [
        (state.failed, is_cause, event.time, name, event)
        for name, state in (states or {}).items()
        for event, is_cause in _list_failures(state.events or ())
    ]
    if not found:
        return None
    *_, name, event = max(found, key=lambda each: each[:4])
    return TaskFailure(name, event)


def _list_failures(events: tuple[AnyTaskEvent, ...]) -> list[tuple[AnyTaskEvent, bool]]:
    """Return the events of a task that may explain its failure, oldest first, and whether each is a cause."""
    found: list[tuple[AnyTaskEvent, bool]] = []
    has_request = False
    for event in events:
        if event.type in (TaskEventType.STARTED, TaskEventType.RESTARTING):
            has_request = False
        elif event.type == TaskEventType.RESTART_SIGNALED:
            has_request = True
            found.append((event, True))
        elif event.type in _END_REQUESTS:
            has_request = True
        elif event.type in _FAILURES:
            is_success = event.type == TaskEventType.TERMINATED and _is_successful_end(event)
            is_out_of_memory = (event.details or {}).get("oom_killed") == "true"
            found.append((event, is_out_of_memory or not (has_request or is_success)))
    return found


def _is_successful_end(event: AnyTaskEvent) -> bool:
    details = event.details or {}
    return details.get("exit_code", "0") == "0" and details.get("signal", "0") in ("", "0")


def _find_last_event(states: TaskStates, event_type: TaskEventType) -> TaskFailure | None:
    found = [
        (event.time, name, event)
        for name, state in (states or {}).items()
        for event in state.events or ()
        if event.type == event_type
    ]
    if not found:
        return None
    _, name, event = max(found, key=lambda each: each[:2])
    return TaskFailure(name, event)
