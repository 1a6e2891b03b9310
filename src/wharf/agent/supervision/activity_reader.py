"""Takes samples of child processes from /proc. On systems without it, the activity of a process stays unknown."""

import os
from typing import Final

from wharf.agent.supervision.activity import ActivitySample
from wharf.node.processes import read_stat_fields

CLOCK_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
# Positions in /proc/PID/stat after the process name.
_STATE: Final = 0
_USER_TICKS: Final = 11
_SYSTEM_TICKS: Final = 12


def take_activity_sample(pid: int, now_s: float) -> ActivitySample | None:
    """Return a sample of the process, or `None` if the system does not show its state."""
    fields = read_stat_fields(pid)
    if fields is None:
        return None
    cpu_ticks = int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
    return ActivitySample(fields[_STATE], cpu_ticks / CLOCK_TICKS_PER_S, now_s)
