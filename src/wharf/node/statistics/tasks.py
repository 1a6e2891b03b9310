"""Measures the resource usage of a task: memory and CPU of its processes, as a sum and for each.

The driver says which processes belong to the task. CPU percentages cover the time since the last call; if that was
long ago, a short time just now.
"""

import asyncio
import os
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from wharf.node.processes import PROC, read_stat_fields
from wharf.world import World

FIRST_SAMPLE_S: Final = 0.1
"""Seconds to measure if no recent sample exists to compare with."""
MAX_SAMPLE_AGE_S: Final = 30.0
"""Seconds after which a sample is too old to compare with."""
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
MEASURED_MEMORY_FIELDS: Final = ("RSS", "Swap")
"""The memory fields of the API that are measured; the others are always 0."""
MEASURED_CPU_FIELDS: Final = ("System Mode", "User Mode", "Percent")
"""The CPU fields of the API that are measured; the others are always 0."""


@runtime_checkable
class MeasurableDriver(Protocol):
    """A driver that can list the processes of a run. A run is one start of a task."""

    def processes_of(self, run: str) -> list[int]:
        """Return the ids of all processes of the run; empty if it does not run."""
        ...


class ProcessUsage(NamedTuple):
    """The CPU time and the memory that one process uses."""

    user_ticks: int  # CPU time since its start, in clock ticks
    system_ticks: int  # CPU time in the kernel since its start, in clock ticks
    rss: int  # memory in bytes
    swap: int  # in bytes


class TaskMeter:
    """Measures the resource usage of tasks. `mhz` is the speed of one processor."""

    def __init__(self, world: World, *, mhz: int) -> None:
        self._world = world
        self._mhz = mhz
        self._samples: dict[int, tuple[float, ProcessUsage]] = {}

    async def read_statistics(self, pids: list[int]) -> dict[str, Any]:  # JSON.
        """Return the usage of the processes of a task, as a sum and for each, in the format of the API.

        If a process was not measured lately, a first sample is taken, which takes `FIRST_SAMPLE_S`.
        """
        now_s = self._world.monotonic_s()
        if any(pid not in self._samples or now_s - self._samples[pid][0] > MAX_SAMPLE_AGE_S for pid in pids):
            self._take_sample(pids)
            await asyncio.sleep(FIRST_SAMPLE_S)
        usage_by_pid = {}
        previous, current = self._samples, self._take_sample(pids)
        for pid, (at_s, usage) in current.items():
            earlier_s, earlier_usage = previous.get(pid, (at_s, usage))
            usage_by_pid[pid] = self._build_process_usage(usage, earlier_usage, max(at_s - earlier_s, 1e-3))
        return {
            "ResourceUsage": sum_usage(list(usage_by_pid.values())),
            "Timestamp": self._world.now_ns(),
            "Pids": {str(pid): usage for pid, usage in usage_by_pid.items()},
        }

    def _take_sample(self, pids: list[int]) -> dict[int, tuple[float, ProcessUsage]]:
        """Return the current usage of each existing process with the time of reading, and store it; drop old samples."""
        now_s = self._world.monotonic_s()
        current = {pid: (now_s, usage) for pid in pids if (usage := read_process_usage(pid)) is not None}
        recent = {pid: sample for pid, sample in self._samples.items() if now_s - sample[0] <= MAX_SAMPLE_AGE_S}
        self._samples = recent | current
        return current

    def _build_process_usage(self, usage: ProcessUsage, earlier: ProcessUsage, duration_s: float) -> dict[str, Any]:
        """Return the usage of one process between two readings, in the format of the API."""
        user = 100.0 * (usage.user_ticks - earlier.user_ticks) / TICKS_PER_S / duration_s
        system = 100.0 * (usage.system_ticks - earlier.system_ticks) / TICKS_PER_S / duration_s
        return build_usage(
            rss=usage.rss,
            swap=usage.swap,
            user=user,
            system=system,
            ticks=(user + system) / 100 * self._mhz,
            is_measured=True,
        )


def build_usage(*, rss: int, swap: int, user: float, system: float, ticks: float, is_measured: bool) -> dict[str, Any]:
    """Return resource usage in the format of the API.

    `rss` and `swap` are bytes, `user` and `system` percentages of one processor, and `ticks` MHz. `is_measured` of
    False marks all values as not measured.
    """
    return {
        "MemoryStats": {
            "RSS": rss,
            "Cache": 0,
            "Swap": swap,
            "MappedFile": 0,
            "Usage": 0,
            "MaxUsage": 0,
            "KernelUsage": 0,
            "KernelMaxUsage": 0,
            "Measured": list(MEASURED_MEMORY_FIELDS) if is_measured else None,
        },
        "CpuStats": {
            "SystemMode": system,
            "UserMode": user,
            "TotalTicks": ticks,
            "ThrottledPeriods": 0,
            "ThrottledTime": 0,
            "Percent": user + system,
            "Measured": list(MEASURED_CPU_FIELDS) if is_measured else None,
        },
        "DeviceStats": None,
    }


def build_empty_usage() -> dict[str, Any]:
    """Return the resource usage of a task that is not measured: all values are 0."""
    return build_usage(rss=0, swap=0, user=0.0, system=0.0, ticks=0.0, is_measured=False)


def sum_usage(usages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the sum of several resource usages in the format of the API; all values are 0 if there are none."""

    def sum_field(part: str, name: str) -> Any:  # A count or a share.
        """Return the sum of the field `name` in the section `part` over all usages."""
        return sum(usage[part][name] for usage in usages)

    if not usages:
        return build_empty_usage()
    return build_usage(
        rss=sum_field("MemoryStats", "RSS"),
        swap=sum_field("MemoryStats", "Swap"),
        user=sum_field("CpuStats", "UserMode"),
        system=sum_field("CpuStats", "SystemMode"),
        ticks=sum_field("CpuStats", "TotalTicks"),
        is_measured=any(usage["CpuStats"]["Measured"] for usage in usages),
    )


def read_process_usage(pid: int) -> ProcessUsage | None:
    """Return the CPU time and memory of a process; `None` if it does not exist."""
    fields = read_stat_fields(pid)
    try:
        status = (PROC / str(pid) / "status").read_text()
    except OSError:
        return None
    if fields is None:
        return None
    swap = next((int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmSwap:")), 0)
    return ProcessUsage(int(fields[11]), int(fields[12]), int(fields[21]) * PAGE_BYTES, swap)
