"""The events that can happen to an allocation on its node, and the actions that follow from them."""

import msgspec

from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.node.core.outcome import Outcome


class AllocationEvent(msgspec.Struct, frozen=True):
    """Base class of everything that can happen to an allocation."""


class TaskEventOccurred(AllocationEvent, frozen=True):
    """An event to be shown in the task's history; it changes nothing else."""

    task: str
    event_type: TaskEventType
    message: str = ""
    details: dict[str, str] = {}


class AllocationStopRequested(AllocationEvent, frozen=True):
    """Servers want the allocation stopped, or no longer know it. `skips_delays` skips shutdown delays."""

    skips_delays: bool = False


class HealthWatchStarted(AllocationEvent, frozen=True):
    """A deployment or a drain begins to wait for the health of the allocation."""


class PredecessorEnded(AllocationEvent, frozen=True):
    """The allocation that this one replaces has ended, or this node does not know it."""


class TaskPrepared(AllocationEvent, frozen=True):
    """Everything that the task needs is prepared."""

    task: str


class TaskPreparationFailed(AllocationEvent, frozen=True):
    """The task could not be prepared; `event_type` and `detail_name` say how its history shows `reason`."""

    task: str
    reason: str
    event_type: TaskEventType = TaskEventType.SETUP_FAILURE
    detail_name: str = "setup_error"
    is_final: bool = False
    """Whether another attempt would fail in the same way."""


class TaskStarted(AllocationEvent, frozen=True):
    """The driver has started run number `run` of the task."""

    task: str
    run: int


class TaskStartFailed(AllocationEvent, frozen=True):
    """The driver could not start run number `run`; `is_final` means that another attempt would fail too."""

    task: str
    run: int
    reason: str
    is_final: bool = False
    event_type: TaskEventType = TaskEventType.DRIVER_FAILURE
    detail_name: str = "driver_error"


class TaskEnded(AllocationEvent, frozen=True):
    """Run number `run` of the task has ended."""

    task: str
    run: int
    outcome: Outcome


class RestartRequested(AllocationEvent, frozen=True):
    """A user, a template or a check requests a restart.

    Without task names it applies to all running tasks; with `is_including_dead_tasks` to dead ones as well.
    """

    tasks: tuple[str, ...] = ()
    is_including_dead_tasks: bool = False
    reason: str = "User requested running tasks to restart"
    is_failure: bool = False
    """The restart is requested because the task is unhealthy: the restart policy counts it and may refuse it."""


class SignalRequested(AllocationEvent, frozen=True):
    """A user sends a signal to running tasks; without task names to all of them."""

    signal: str
    tasks: tuple[str, ...] = ()


class ChecksChanged(AllocationEvent, frozen=True):
    """`is_passing` says whether all checks that count for the health of the allocation pass now."""

    is_passing: bool


class ServerContactLost(AllocationEvent, frozen=True):
    """No server has replied since `since_s`, in seconds of the monotonic clock."""

    since_s: float


class ServerContactRestored(AllocationEvent, frozen=True):
    """A server has replied again."""


class DeadlineReached(AllocationEvent, frozen=True):
    """Time has passed; a deadline of the allocation may be due."""


class NodeTaskAction(msgspec.Struct, frozen=True):
    """One action on a task. To perform it twice must have the same effect as once."""

    task: str


class PrepareTask(NodeTaskAction, frozen=True):
    """Create the task's folders and prepare everything that it needs."""


class StartTask(NodeTaskAction, frozen=True):
    """Have the driver start run number `run`."""

    run: int


class CancelStart(NodeTaskAction, frozen=True):
    """Abort a start that is not finished, including what it still waits for."""

    run: int


class SignalTask(NodeTaskAction, frozen=True):
    """Send a signal, usually to ask the task to end. An empty name selects the driver's default way to ask."""

    run: int
    name: str


class KillTask(NodeTaskAction, frozen=True):
    """Kill the task with all processes that it started."""

    run: int
