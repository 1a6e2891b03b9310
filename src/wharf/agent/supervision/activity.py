"""Decides whether a silent child process is busy or hangs, and for how long it may be silent.

Pure: it compares two samples of a process. `activity_reader` takes the samples.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

MIN_CPU_SHARE: Final = 0.02
"""The part of a processor core that a process must use to count as busy. Background threads of libraries use less."""


class Activity(enum.Enum):
    """What a process did between two samples."""

    BUSY = "busy"  # It used CPU time, waited for a free processor, or waited for the disk.
    IDLE = "idle"  # It slept and used no CPU time: its event loop waits for something that does not come.
    STOPPED = "stopped"  # A signal or a debugger has stopped it.
    UNKNOWN = "unknown"  # The system does not show what it did.


class ActivitySample(msgspec.Struct, frozen=True):
    """The state of a process at one time, as the kernel shows it."""

    state: str
    """The state letter of its main thread, which runs the event loop: `R`, `S`, `D`, `T` and so on."""
    cpu_s: float
    """The CPU time that all its threads have used since it started."""
    taken_at_s: float
    """Monotonic time of the sample."""


_ACTIVITY_BY_STATE: Final[Mapping[str, Activity]] = MappingProxyType({
    "R": Activity.BUSY,  # Runs, or waits for a processor: on a crowded machine it uses little CPU time.
    "D": Activity.BUSY,  # Waits for the disk, or for memory that was swapped out.
    "T": Activity.STOPPED,  # SIGSTOP
    "t": Activity.STOPPED,  # A debugger.
})  # fmt: skip
"""States that decide alone. In all other states, the CPU time decides."""


def classify_activity(earlier: ActivitySample | None, later: ActivitySample | None) -> Activity:
    """Return what the process did between two samples; `None` is a sample that could not be taken."""
    if later is None:
        return Activity.UNKNOWN
    if later.state in _ACTIVITY_BY_STATE:
        return _ACTIVITY_BY_STATE[later.state]
    if earlier is None:
        return Activity.UNKNOWN
    elapsed_s = later.taken_at_s - earlier.taken_at_s
    return Activity.BUSY if later.cpu_s - earlier.cpu_s >= MIN_CPU_SHARE * elapsed_s else Activity.IDLE


class SilenceLimits(msgspec.Struct, frozen=True):
    """For how long a process may send no sign of life before it is killed, by its activity."""

    max_busy_s: float = 60.0
    """While it is busy. Its work may be long, but nobody else is served meanwhile."""
    max_idle_s: float = 20.0
    """Since it was busy last. It hangs, and waiting longer does not help."""
    max_unknown_s: float = 20.0
    """While the system does not show what it does, so that it may be busy."""


def find_exceeded_limit(
    activity: Activity, limits: SilenceLimits, *, silent_s: float, inactive_s: float
) -> float | None:
    """Return the limit in seconds that a silent process has exceeded, or `None`.

    `silent_s`: the time since its last sign of life. `inactive_s`: the time since it was last busy or sent one.
    """
    match activity:
        case Activity.BUSY:
            measured_s, limit_s = silent_s, limits.max_busy_s
        case Activity.IDLE | Activity.STOPPED:
            measured_s, limit_s = inactive_s, limits.max_idle_s
        case Activity.UNKNOWN:
            measured_s, limit_s = silent_s, limits.max_unknown_s
    if measured_s >= limit_s:
        return limit_s
    # A process that is busy for a moment every now and then hangs too.
    return limits.max_busy_s if silent_s >= limits.max_busy_s else None
