"""The figures of a task: what its processes use of memory and of the processors, in all and each by itself.

Which processes those are, its driver says. Shares of a processor are those since the last look, or of a moment just now
where nobody has looked at that process for a while.
"""

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from wharf.world import World

PROC: Final = Path("/proc")
FIRST_SAMPLE_S: Final = 0.1
MAX_SAMPLE_AGE_S: Final = 30.0
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
MEASURED_MEMORY_FIELDS: Final = ("RSS", "Swap")
MEASURED_CPU_FIELDS: Final = ("System Mode", "User Mode", "Percent")


@runtime_checkable
class MeasurableDriver(Protocol):
    """A driver that knows the processes of its tasks."""

    def processes_of(self, run: str) -> list[int]: ...


class ProcessUsage(NamedTuple):
    user_ticks: int
    system_ticks: int
    rss: int
    swap: int


class TaskMeter:
    """`mhz`: of one processor, for figures in those."""

    def __init__(self, world: World, *, mhz: int) -> None:
        self._world = world
        self._mhz = mhz
        self._before: dict[int, tuple[float, ProcessUsage]] = {}

    async def read_statistics(self, pids: list[int]) -> dict[str, Any]:  # In the words of the interface.
        """Of one task, by its processes."""
        now_s = self._world.monotonic_s()
        if any(pid not in self._before or now_s - self._before[pid][0] > MAX_SAMPLE_AGE_S for pid in pids):
            self._look(pids)
            await asyncio.sleep(FIRST_SAMPLE_S)
        found = {}
        before, now = self._before, self._look(pids)
        for pid, (at_s, use) in now.items():
            earlier_s, earlier = before.get(pid, (at_s, use))
            found[pid] = self._figures(use, earlier, max(at_s - earlier_s, 1e-3))
        return {
            "ResourceUsage": sum_usage(list(found.values())),
            "Timestamp": self._world.now_ns(),
            "Pids": {str(pid): figures for pid, figures in found.items()},
        }

    def _look(self, pids: list[int]) -> dict[int, tuple[float, ProcessUsage]]:
        now_s = self._world.monotonic_s()
        now = {pid: (now_s, use) for pid in pids if (use := read_process_usage(pid)) is not None}
        known = {pid: looked for pid, looked in self._before.items() if now_s - looked[0] <= MAX_SAMPLE_AGE_S}
        self._before = known | now
        return now

    def _figures(self, use: ProcessUsage, earlier: ProcessUsage, length_s: float) -> dict[str, Any]:
        user = 100.0 * (use.user_ticks - earlier.user_ticks) / TICKS_PER_S / length_s
        system = 100.0 * (use.system_ticks - earlier.system_ticks) / TICKS_PER_S / length_s
        return build_usage(
            rss=use.rss,
            swap=use.swap,
            user=user,
            system=system,
            ticks=(user + system) / 100 * self._mhz,
            is_measured=True,
        )


def build_usage(*, rss: int, swap: int, user: float, system: float, ticks: float, is_measured: bool) -> dict[str, Any]:
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
    return build_usage(rss=0, swap=0, user=0.0, system=0.0, ticks=0.0, is_measured=False)


def sum_usage(figures: list[dict[str, Any]]) -> dict[str, Any]:
    def of(part: str, name: str) -> Any:  # A count or a share.
        return sum(each[part][name] for each in figures)

    if not figures:
        return build_empty_usage()
    return build_usage(
        rss=of("MemoryStats", "RSS"),
        swap=of("MemoryStats", "Swap"),
        user=of("CpuStats", "UserMode"),
        system=of("CpuStats", "SystemMode"),
        ticks=of("CpuStats", "TotalTicks"),
        is_measured=any(each["CpuStats"]["Measured"] for each in figures),
    )


def read_process_usage(pid: int) -> ProcessUsage | None:
    """None where the process is gone."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
        status = (PROC / str(pid) / "status").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    swap = next((int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmSwap:")), 0)
    return ProcessUsage(int(fields[11]), int(fields[12]), int(fields[21]) * PAGE_BYTES, swap)


def find_cgroup(pid: int, run: str) -> Path | None:
    """A control group that was made for this run; None where there is none."""
    return next(iter(list_cgroups(pid, run)), None)


def list_cgroups(pid: int, run: str) -> list[Path]:
    """All control groups that were made for this run: one for each of the first version's trees."""
    try:
        lines = (PROC / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return []
    parts = [line.split(":", 2) for line in lines]
    return [
        Path("/sys/fs/cgroup", controllers.removeprefix("name="), path.lstrip("/"))
        for _, controllers, path in parts
        if path.endswith(f"/{run}")
    ]


def list_container_processes(pid: int, container: str) -> list[int]:
    """By its first process; none where that is another's by now, or is not to be seen from here. Engines name the
    control group of a container after it."""
    try:
        lines = (PROC / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if container in path:
            procs = Path("/sys/fs/cgroup", controllers.removeprefix("name="), path.lstrip("/"), "cgroup.procs")
            with contextlib.suppress(OSError):
                return [int(line) for line in procs.read_text().split()]
    return []


def list_process_tree(pid: int) -> list[int]:
    """The process with all that descend from it, or are in its session."""
    children: dict[int, list[int]] = {}
    in_session = []
    for name in os.listdir(PROC):
        if not name.isdecimal():
            continue
        try:
            text = (PROC / name / "stat").read_text()
        except OSError:
            continue
        fields = text[text.rindex(")") + 2 :].split()
        children.setdefault(int(fields[1]), []).append(int(name))
        if int(fields[3]) == pid:
            in_session.append(int(name))
    found = dict.fromkeys([pid, *in_session])
    left = list(found)
    while left:
        for child in children.get(left.pop(), ()):
            if child not in found:
                found[child] = None
                left.append(child)
    return list(found)


def list_run_processes(pid: int, run: str) -> list[int]:
    """Of a run, by its first process: those of its control group, or else those that descend from it."""
    group = find_cgroup(pid, run)
    if group is not None:
        try:
            found = [int(line) for line in (group / "cgroup.procs").read_text().split()]
        except OSError:
            found = []
        if found:
            return found
    return list_process_tree(pid) if (PROC / str(pid)).exists() else []
