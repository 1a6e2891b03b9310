"""What was measured in the last minutes: of the machine and of each run, a few numbers every so often.

To look at everything costs milliseconds, so it is done seldom, and with the cheapest sources: the counters of a run's
control group where they are, else those of its processes.
"""

from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from wharf.node.statistics.machine import read_memory, read_ticks
from wharf.node.statistics.tasks import PAGE_BYTES, PROC, TICKS_PER_S, list_cgroups

SAMPLE_INTERVAL_S: Final = 10.0
MAX_SAMPLES: Final = 61
"""Ten minutes."""


class UsageSample(NamedTuple):
    at_ns: int
    percent: float
    """Of one processor; of the machine: of all of them."""
    bytes: int


class CpuReading(NamedTuple):
    """What only grows, and when it was read."""

    at_s: float
    cpu_s: float


class UsageHistory:
    """`note_…` at every look; what was not noted at one is forgotten at the next."""

    def __init__(self) -> None:
        self._machine: deque[UsageSample] = deque(maxlen=MAX_SAMPLES)
        self._ticks: tuple[int, int] | None = None
        self._runs: dict[str, deque[UsageSample]] = {}
        self._counted: dict[str, CpuReading] = {}

    def record_machine(self, at_ns: int) -> None:
        ticks = read_ticks().values()
        now = (sum(each.idle for each in ticks), sum(each.total for each in ticks))
        if self._ticks is not None and now[1] > self._ticks[1]:
            idle, total = now[0] - self._ticks[0], now[1] - self._ticks[1]
            percent = max(0.0, 100.0 * (total - idle) / total)
            self._machine.append(UsageSample(at_ns, percent, read_memory()["Used"]))
        self._ticks = now

    def record_run(self, run: str, pids: list[int], *, at_ns: int, at_s: float) -> None:
        found = read_run_usage(run, pids)
        if found is None:
            return
        cpu_s, memory = found
        before = self._counted.get(run)
        self._counted[run] = CpuReading(at_s, cpu_s)
        if before is not None and at_s > before.at_s:
            # Of processes that ended unseen the count is gone: it never counts backwards.
            percent = max(0.0, 100.0 * (cpu_s - before.cpu_s) / (at_s - before.at_s))
            self._runs.setdefault(run, deque(maxlen=MAX_SAMPLES)).append(UsageSample(at_ns, percent, memory))

    def drop_other_runs(self, runs: Iterable[str]) -> None:
        known = frozenset(runs)
        for run in [run for run in self._counted if run not in known]:
            del self._counted[run]
            self._runs.pop(run, None)

    def list_machine_samples(self, since_ns: int) -> list[UsageSample]:
        """The oldest first."""
        return [sample for sample in self._machine if sample.at_ns >= since_ns]

    def list_run_samples(self, run: str, since_ns: int) -> list[UsageSample]:
        return [sample for sample in self._runs.get(run, ()) if sample.at_ns >= since_ns]


def read_run_usage(run: str, pids: list[int]) -> tuple[float, int] | None:
    """Seconds of processor so far, and bytes of memory now; None where none of the processes is there."""
    cpu_s, memory, is_there = 0.0, 0, False
    for pid in pids:
        try:
            text = (PROC / str(pid) / "stat").read_text()
        except OSError:
            continue
        fields = text[text.rindex(")") + 2 :].split()
        # With its children that have ended: their own counts are gone with them.
        cpu_s += sum(int(field) for field in fields[11:15]) / TICKS_PER_S
        memory += int(fields[21]) * PAGE_BYTES
        is_there = True
    if not is_there:
        return None
    counted = _counted_by_group(run, pids[0])
    return (cpu_s if counted is None else counted), memory


def _counted_by_group(run: str, pid: int) -> float | None:
    for group in list_cgroups(pid, run):
        for name, read in (("cpu.stat", _usage_usec), ("cpuacct.usage", _usage_ns)):
            try:
                found = read(group / name)
            except (OSError, ValueError):
                continue
            if found is not None:
                return found
    return None


def _usage_usec(file: Path) -> float | None:
    """Of version 2; version 1 has a file of this name that tells of throttling alone."""
    for line in file.read_text().splitlines():
        if line.startswith("usage_usec "):
            return int(line.split()[1]) / 1e6
    return None


def _usage_ns(file: Path) -> float | None:
    return int(file.read_text()) / 1e9


def render_samples(samples: list[UsageSample], *, mhz: int) -> list[dict[str, Any]]:  # In the words of the interface.
    """`mhz`: of what a hundred percent are."""
    return [
        {"Timestamp": at_ns, "Percent": percent, "TotalTicks": percent / 100 * mhz, "Memory": memory}
        for at_ns, percent, memory in samples
    ]


def sum_histories(histories: list[list[UsageSample]]) -> list[UsageSample]:
    """Of all tasks together: they are looked at in the same moment."""
    at: dict[int, tuple[float, int]] = {}
    for history in histories:
        for at_ns, percent, memory in history:
            before = at.get(at_ns, (0.0, 0))
            at[at_ns] = (before[0] + percent, before[1] + memory)
    return [UsageSample(at_ns, *at[at_ns]) for at_ns in sorted(at)]
