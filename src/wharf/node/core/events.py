"""The events that can happen to an allocation on its node, and the actions that follow from them."""

import msgspec

from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.node.core.outcome import Outcome


class AllocationEvent(msgspec.Struct, frozen=True):
    """Base class of the events that can happen to an allocation on its node."""


class TaskEventOccurred(AllocationEvent, frozen=True):
    """An event that is only added to the task's history, where users see it."""

    task: str
    event_type: TaskEventType
    message: str = ""
    details: dict[str, str] = {}


class AllocationStopRequested(AllocationEvent, frozen=True):
    """The event that servers request the stop of the allocation, or no longer know it."""

    skips_delays: bool = False  # tasks are stopped without their shutdown delays


class HealthWatchStarted(AllocationEvent, frozen=True):
    """The event that a deployment or a drain begins to wait for the health of the allocation."""


class PredecessorEnded(AllocationEvent, frozen=True):
    """The event that the allocation that this one replaces has ended, or is unknown to this node."""


class TaskPrepared(AllocationEvent, frozen=True):
    """The event that everything that the task needs is prepared."""

    task: str


class TaskPreparationFailed(AllocationEvent, frozen=True):
    """The event that the task could not be prepared."""

    task: str
    reason: str
    event_type: TaskEventType = TaskEventType.SETUP_FAILURE  # the type of the event in the task's history
    detail_name: str = "setup_error"  # the detail of that event that contains `reason`
    is_final: bool = False
    """Whether another attempt would fail in the same way."""


class TaskStarted(AllocationEvent, frozen=True):
    """The event that the driver has started a run of the task."""

    task: str
    run: int  # the number of the start


class TaskStartFailed(AllocationEvent, frozen=True):
    """The event that the driver could not start a run of the task."""

    task: str
    run: int  # the number of the start
    reason: str
    is_final: bool = False  # another attempt would fail too
    event_type: TaskEventType = TaskEventType.DRIVER_FAILURE  # the type of the event in the task's history
    detail_name: str = "driver_error"  # the detail of that event that contains `reason`


class TaskEnded(AllocationEvent, frozen=True):
    """The event that a run of the task has ended."""

    task: str
    run: int  # the number of the start
    outcome: Outcome


class RestartRequested(AllocationEvent, frozen=True):
    """The event that a user, a template or a check requests a restart of tasks."""

    tasks: tuple[str, ...] = ()  # names; empty: all running tasks
    is_including_dead_tasks: bool = False  # with empty `tasks`, dead tasks start again too
    reason: str = "User requested running tasks to restart"
    is_failure: bool = False
    """The restart is requested because the task is unhealthy: the restart policy counts it and may refuse it."""


class SignalRequested(AllocationEvent, frozen=True):
    """The event that a user sends a signal to running tasks."""

    signal: str  # such as SIGHUP
    tasks: tuple[str, ...] = ()  # names; empty: all running tasks


class ChecksChanged(AllocationEvent, frozen=True):
    """The event that the checks that the allocation's health depends on have begun or stopped to pass."""

    is_passing: bool  # whether all of them pass now


class ServerContactLost(AllocationEvent, frozen=True):
    """The event that no server has replied for some time."""

    since_s: float  # time of the last reply, on the monotonic clock


class ServerContactRestored(AllocationEvent, frozen=True):
    """The event that a server has replied again."""


class DeadlineReached(AllocationEvent, frozen=True):
    """The event that time has passed, so that a deadline of the allocation may be due."""


class NodeTaskAction(msgspec.Struct, frozen=True):
    """Base class of the actions on a task. An action that is performed twice must have the same effect as once."""

    task: str


class PrepareTask(NodeTaskAction, frozen=True):
    """The action to create the task's folders and prepare everything that it needs."""


class StartTask(NodeTaskAction, frozen=True):
    """The action to have the driver start the task."""

    run: int  # the number of the start


class CancelStart(NodeTaskAction, frozen=True):
    """The action to abort a start that is not finished, including what it still waits for."""

    run: int  # the number of the start


class SignalTask(NodeTaskAction, frozen=True):
    """The action to send a signal, usually to request that the task ends."""

    run: int  # the number of the start
    name: str  # the signal, such as SIGINT; empty: the driver's default way to stop a task


class KillTask(NodeTaskAction, frozen=True):
    """The action to kill the task with all processes that it started."""

    run: int  # the number of the start
