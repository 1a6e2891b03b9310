"""What happens to an allocation on its node, and what is done about it."""

import msgspec

from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.node.core.outcome import Outcome


class AllocationEvent(msgspec.Struct, frozen=True):
    """One thing that happened."""


class TaskEventOccurred(AllocationEvent, frozen=True):
    """Something that the task's owner may like to know: it changes nothing."""

    task: str
    event_type: TaskEventType
    message: str = ""
    details: dict[str, str] = {}


class StopRequested(AllocationEvent, frozen=True):
    """Servers want it stopped, or know it no more."""

    skips_delays: bool = False


class HealthWatchStarted(AllocationEvent, frozen=True):
    """Somebody waits for its health, from now on."""


class PredecessorEnded(AllocationEvent, frozen=True):
    """The allocation whose place this one takes has ended, or its node does not know it."""


class TaskPrepared(AllocationEvent, frozen=True):
    """All that the task needs is there."""

    task: str


class TaskPreparationFailed(AllocationEvent, frozen=True):
    task: str
    reason: str
    event_type: TaskEventType = TaskEventType.SETUP_FAILURE
    detail_name: str = "setup_error"
    is_final: bool = False
    """Trying again would come to the same."""


class TaskStarted(AllocationEvent, frozen=True):
    task: str
    run: int


class TaskStartFailed(AllocationEvent, frozen=True):
    task: str
    run: int
    reason: str
    is_final: bool = False
    event_type: TaskEventType = TaskEventType.DRIVER_FAILURE
    detail_name: str = "driver_error"


class TaskEnded(AllocationEvent, frozen=True):
    task: str
    run: int
    outcome: Outcome


class RestartRequested(AllocationEvent, frozen=True):
    """A person, a template or a check asks for it. Without names: all that run; `is_all`: those that are dead too."""

    tasks: tuple[str, ...] = ()
    is_including_dead_tasks: bool = False
    reason: str = "User requested running tasks to restart"
    is_failure: bool = False
    """It is asked for because the task is ill: its restart policy counts it, and may give it up."""


class SignalRequested(AllocationEvent, frozen=True):
    """A person sends a signal to tasks that run. Without names: to all of them."""

    signal: str
    tasks: tuple[str, ...] = ()


class ChecksChanged(AllocationEvent, frozen=True):
    """Whether every check that health rests on passes."""

    is_passing: bool


class ServerContactLost(AllocationEvent, frozen=True):
    """No server has been heard of since this moment of the monotonic clock."""

    since_s: float


class ServerContactRestored(AllocationEvent, frozen=True):
    pass


class DeadlineReached(AllocationEvent, frozen=True):
    """Something may be due."""


class TaskAction(msgspec.Struct, frozen=True):
    """One thing to do about a task. Doing it twice must come to the same as doing it once."""

    task: str


class PrepareTask(TaskAction, frozen=True):
    """Make its folders, and have all there that it needs."""


class StartTask(TaskAction, frozen=True):
    run: int


class CancelStart(TaskAction, frozen=True):
    """It is to end before it has begun: what its start waits for need not come any more."""

    run: int


class SignalTask(TaskAction, frozen=True):
    """Send it a signal, most often to ask it to end. An empty name: the driver's own way to ask."""

    run: int
    name: str


class KillTask(TaskAction, frozen=True):
    """End it, with all that it started."""

    run: int
