"""What happens to an allocation on its node, and what is done about it."""

import msgspec

from wharf.model.task_state import TaskEventType
from wharf.node.core.outcome import Outcome


class Event(msgspec.Struct, frozen=True):
    """One thing that happened."""


class Said(Event, frozen=True):
    """Something that the task's owner may like to know: it changes nothing."""

    task: str
    kind: TaskEventType
    message: str = ""
    details: dict[str, str] = {}


class StopWanted(Event, frozen=True):
    """Servers want it stopped, or know it no more."""

    skips_delays: bool = False


class Judged(Event, frozen=True):
    """Somebody waits for its health, from now on."""


class FormerEnded(Event, frozen=True):
    """The allocation whose place this one takes has ended, or its node does not know it."""


class Prepared(Event, frozen=True):
    """All that the task needs is there."""

    task: str


class NotPrepared(Event, frozen=True):
    task: str
    why: str
    kind: TaskEventType = TaskEventType.SETUP_FAILURE
    detail: str = "setup_error"
    is_final: bool = False
    """Trying again would come to the same."""


class Started(Event, frozen=True):
    task: str
    run: int


class NotStarted(Event, frozen=True):
    task: str
    run: int
    why: str
    is_final: bool = False
    kind: TaskEventType = TaskEventType.DRIVER_FAILURE
    detail: str = "driver_error"


class Ended(Event, frozen=True):
    task: str
    run: int
    outcome: Outcome


class RestartAsked(Event, frozen=True):
    """A person, a template or a check asks for it. Without names: all that run; `is_all`: those that are dead too."""

    tasks: tuple[str, ...] = ()
    is_all: bool = False
    reason: str = "User requested running tasks to restart"
    is_failure: bool = False
    """It is asked for because the task is ill: its restart policy counts it, and may give it up."""


class SignalAsked(Event, frozen=True):
    """A person sends a signal to tasks that run. Without names: to all of them."""

    signal: str
    tasks: tuple[str, ...] = ()


class ChecksTold(Event, frozen=True):
    """Whether every check that health rests on passes."""

    pass_: bool


class ContactLost(Event, frozen=True):
    """No server has been heard of since this moment of the monotonic clock."""

    since_s: float


class ContactMade(Event, frozen=True):
    pass


class TimePassed(Event, frozen=True):
    """Something may be due."""


class Action(msgspec.Struct, frozen=True):
    """One thing to do about a task. Doing it twice must come to the same as doing it once."""

    task: str


class Prepare(Action, frozen=True):
    """Make its folders, and have all there that it needs."""


class Start(Action, frozen=True):
    run: int


class GiveUp(Action, frozen=True):
    """It is to end before it has begun: what its start waits for need not come any more."""

    run: int


class Signal(Action, frozen=True):
    """Send it a signal, most often to ask it to end. An empty name: the driver's own way to ask."""

    run: int
    name: str


class Kill(Action, frozen=True):
    """End it, with all that it started."""

    run: int
