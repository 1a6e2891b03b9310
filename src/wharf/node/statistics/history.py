"""The resource usage of the last ten minutes: of the machine and of each run, as samples at intervals.

A measurement of everything takes milliseconds, so it is done seldom and with the cheapest source: the counters of the
run's control group if it has one, otherwise those of its processes.
"""

from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from wharf.node.processes import list_cgroups, read_stat_fields
from wharf.node.statistics.machine import read_memory, read_ticks
from wharf.node.statistics.tasks import PAGE_BYTES, TICKS_PER_S

SAMPLE_INTERVAL_S: Final = 10.0
"""Seconds between samples."""
MAX_SAMPLES: Final = 61
"""Samples that are kept of each run: ten minutes. Limits the memory of the node agent."""


class UsageSample(NamedTuple):
    """The CPU and memory usage of the machine or a run at one time."""

    at_ns: int  # wall clock time
    percent: float
    """Of one processor; for the machine, of all processors."""
    bytes: int  # used memory


class CpuReading(NamedTuple):
    """The value of a CPU time counter, and the time at which it was read."""

    at_s: float  # on the monotonic clock
    cpu_s: float  # used CPU time


class UsageHistory:
    """The usage samples of the last ten minutes, of the machine and of each run.

    A run is one start of a task.
    """

    def __init__(self) -> None:
        self._machine: deque[UsageSample] = deque(maxlen=MAX_SAMPLES)
        self._ticks: tuple[int, int] | None = None
        self._runs: dict[str, deque[UsageSample]] = {}
        self._cpu_readings: dict[str, CpuReading] = {}

    def record_machine(self, at_ns: int) -> None:
        """Measure the machine and add a sample. The first call adds none, because a sample needs two readings."""
        ticks = read_ticks().values()
        current = (sum(cpu.idle for cpu in ticks), sum(cpu.total for cpu in ticks))
        if self._ticks is not None and current[1] > self._ticks[1]:
            idle, total = current[0] - self._ticks[0], current[1] - self._ticks[1]
            percent = max(0.0, 100.0 * (total - idle) / total)
            self._machine.append(UsageSample(at_ns, percent, read_memory()["Used"]))
        self._ticks = current

    def record_run(self, run: str, pids: list[int], *, at_ns: int, at_s: float) -> None:
        """Measure the processes of a run and add a sample.

        The first call adds none, because a sample needs two readings. `at_ns` and `at_s` are the time on the wall clock
        and the monotonic clock.
        """
        usage = read_run_usage(run, pids)
        if usage is None:
            return
        cpu_s, memory = usage
        previous = self._cpu_readings.get(run)
        self._cpu_readings[run] = CpuReading(at_s, cpu_s)
        if previous is not None and at_s > previous.at_s:
            # The counters of processes that have ended are gone, so the sum may fall.
            percent = max(0.0, 100.0 * (cpu_s - previous.cpu_s) / (at_s - previous.at_s))
            self._runs.setdefault(run, deque(maxlen=MAX_SAMPLES)).append(UsageSample(at_ns, percent, memory))

    def drop_other_runs(self, runs: Iterable[str]) -> None:
        """Delete the samples of all runs that are not in `runs`."""
        current_runs = frozenset(runs)
        for run in [run for run in self._cpu_readings if run not in current_runs]:
            del self._cpu_readings[run]
            self._runs.pop(run, None)

    def list_machine_samples(self, since_ns: int) -> list[UsageSample]:
        """Return the samples of the machine since the wall clock time `since_ns`, oldest first."""
        return [sample for sample in self._machine if sample.at_ns >= since_ns]

    def list_run_samples(self, run: str, since_ns: int) -> list[UsageSample]:
        """Return the samples of a run since the wall clock time `since_ns`, oldest first."""
        return [sample for sample in self._runs.get(run, ()) if sample.at_ns >= since_ns]


def read_run_usage(run: str, pids: list[int]) -> tuple[float, int] | None:
    """Return (CPU seconds used so far, bytes of memory used now) of a run; `None` if none of its processes exists.

    The CPU time is that of its control group, if it has one, which includes ended processes.
    """
    cpu_s, memory, has_process = 0.0, 0, False
    for pid in pids:
        fields = read_stat_fields(pid)
        if fields is None:
            continue
        # Fields 14 to 17: CPU time of the process and of its children that have ended.
        cpu_s += sum(int(field) for field in fields[11:15]) / TICKS_PER_S
        memory += int(fields[21]) * PAGE_BYTES
        has_process = True
    if not has_process:
        return None
    cgroup_cpu_s = _read_cgroup_cpu_s(run, pids[0])
    return (cpu_s if cgroup_cpu_s is None else cgroup_cpu_s), memory


def _read_cgroup_cpu_s(run: str, pid: int) -> float | None:
    """Return the CPU seconds of the run's control group; `None` if it has none."""
    for group in list_cgroups(pid, run):
        for name, read in (("cpu.stat", _read_cpu_stat), ("cpuacct.usage", _read_cpuacct)):
            try:
                cpu_s = read(group / name)
            except (OSError, ValueError):
                continue
            if cpu_s is not None:
                return cpu_s
    return None


def _read_cpu_stat(file: Path) -> float | None:
    """Return the CPU seconds in `cpu.stat` of cgroup version 2; `None` if the file has none, as in version 1."""
    for line in file.read_text().splitlines():
        if line.startswith("usage_usec "):
            return int(line.split()[1]) / 1e6
    return None


def _read_cpuacct(file: Path) -> float | None:
    """Return the CPU seconds in `cpuacct.usage` of cgroup version 1."""
    return int(file.read_text()) / 1e9


def render_samples(samples: list[UsageSample], *, mhz: int) -> list[dict[str, Any]]:  # JSON.
    """Return the samples in the format of the API. `mhz` is the CPU speed that corresponds to 100 percent."""
    return [
        {"Timestamp": at_ns, "Percent": percent, "TotalTicks": percent / 100 * mhz, "Memory": memory}
        for at_ns, percent, memory in samples
    ]


def sum_histories(histories: list[list[UsageSample]]) -> list[UsageSample]:
    """Return one history whose samples are the sums of those of several runs with the same time, oldest first."""
    sums: dict[int, tuple[float, int]] = {}
    for history in histories:
        for at_ns, percent, memory in history:
            previous = sums.get(at_ns, (0.0, 0))
            sums[at_ns] = (previous[0] + percent, previous[1] + memory)
    return [UsageSample(at_ns, *sums[at_ns]) for at_ns in sorted(sums)]
