"""Request metrics by endpoint class, the filter for published metrics, and resource usage of this process.

The label values come from the endpoint table, so the number of series is limited. The filter affects what is
published, not what is measured.
"""

import math
import os
import resource
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from wharf.contract.model.times import SECOND
from wharf.world import World

BUCKET_LIMITS_MS: Final = (1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0, 2_500.0, 5_000.0)
"""Upper limits of the histogram buckets in milliseconds. One more bucket holds longer durations."""


class RequestSeries(msgspec.Struct, frozen=True, order=True):
    """The labels of one series of request metrics."""

    noun: str
    """The first part of the endpoint name, such as `job`."""
    kind: str
    """The kind of the endpoint, such as `read` or `write`, or `blocked` for a blocking query."""
    status: str
    """The status class, such as `2xx`."""


class DurationHistogram:
    """Counts of request durations by bucket, since the process started."""

    __slots__ = ("buckets", "count", "sum_ms")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BUCKET_LIMITS_MS) + 1)
        self.count = 0
        self.sum_ms = 0.0

    def add(self, took_ms: float) -> None:
        """Count one request that took this many milliseconds."""
        position = 0
        while position < len(BUCKET_LIMITS_MS) and took_ms > BUCKET_LIMITS_MS[position]:
            position += 1
        self.buckets[position] += 1
        self.count += 1
        self.sum_ms += took_ms


class DurationSummary:
    """Count, sum, minimum, maximum and sum of squares of the durations in one interval."""

    __slots__ = ("count", "max_ms", "min_ms", "sum_ms", "sum_squares_ms2")

    def __init__(self) -> None:
        self.count = 0
        self.sum_ms = 0.0
        self.sum_squares_ms2 = 0.0
        self.min_ms = math.inf
        self.max_ms = 0.0

    def add(self, took_ms: float) -> None:
        """Count one request that took this many milliseconds."""
        self.count += 1
        self.sum_ms += took_ms
        self.sum_squares_ms2 += took_ms * took_ms
        self.min_ms = min(self.min_ms, took_ms)
        self.max_ms = max(self.max_ms, took_ms)

    @property
    def mean_ms(self) -> float:
        return self.sum_ms / self.count if self.count else 0.0

    @property
    def deviation_ms(self) -> float:
        """Return the standard deviation of the sample; 0 for fewer than two values."""
        if self.count < 2:
            return 0.0
        return math.sqrt(max(0.0, self.sum_squares_ms2 - self.count * self.mean_ms**2) / (self.count - 1))


class MeterInterval:
    """The durations of requests in one interval, by series."""

    def __init__(self, began_ns: int) -> None:
        self.began_ns = began_ns
        self.summaries: dict[RequestSeries, DurationSummary] = {}


class RequestMeter:
    """Counts requests and their durations, in total and per interval."""

    def __init__(self, world: World, *, interval_s: float = 10.0, retention_s: float = 60.0) -> None:
        """`retention_s`: how long finished intervals are retained. The last finished one is always retained."""
        self._world = world
        self.interval_s = interval_s
        self.histograms: dict[RequestSeries, DurationHistogram] = {}
        self._current = MeterInterval(world.now_ns())
        self._ends_s = world.monotonic_s() + interval_s
        self._finished: deque[MeterInterval] = deque(maxlen=max(1, int(retention_s // interval_s)))

    def now_s(self) -> float:
        """Return the monotonic time in seconds, to pass to `record_request` as `began_s`."""
        return self._world.monotonic_s()

    def record_request(self, series: RequestSeries, *, began_s: float) -> None:
        """Record one finished request that started at `began_s`."""
        now_s = self._world.monotonic_s()
        if now_s >= self._ends_s:
            self._finish_intervals(now_s)
        took_ms = (now_s - began_s) * 1_000
        histogram = self.histograms.get(series)
        if histogram is None:
            histogram = self.histograms[series] = DurationHistogram()
        histogram.add(took_ms)
        summary = self._current.summaries.get(series)
        if summary is None:
            summary = self._current.summaries[series] = DurationSummary()
        summary.add(took_ms)

    def last_interval(self) -> MeterInterval:
        """Return the last finished interval, or the current one if none has finished."""
        return self.find_interval(0.0) or self._current

    def find_interval(self, ago_s: float) -> MeterInterval | None:
        """Return the interval that was the last finished one `ago_s` seconds ago.

        Returns `None` if no interval had finished then or it is no longer retained.
        """
        now_s = self._world.monotonic_s()
        if now_s >= self._ends_s:
            self._finish_intervals(now_s)
        elapsed_s = now_s - (self._ends_s - self.interval_s)
        intervals_back = max(0, math.ceil((ago_s - elapsed_s) / self.interval_s))
        return self._finished[-1 - intervals_back] if intervals_back < len(self._finished) else None

    def list_totals(self) -> Sequence[tuple[RequestSeries, DurationHistogram]]:
        """Return the histograms since the start, sorted by series."""
        return sorted(self.histograms.items(), key=lambda item: item[0])

    def _finish_intervals(self, now_s: float) -> None:
        """Finish the current interval and start a new one at the current time.

        For each interval that passed without a request, an empty one is added.
        """
        empty_count = int((now_s - self._ends_s) // self.interval_s)
        self._finished.append(self._current)
        kept_count = min(empty_count, self._finished.maxlen or empty_count)
        for number in range(empty_count - kept_count, empty_count):
            self._finished.append(self._start_interval(self._ends_s + number * self.interval_s, now_s))
        self._current = self._start_interval(self._ends_s + empty_count * self.interval_s, now_s)
        self._ends_s += (empty_count + 1) * self.interval_s

    def _start_interval(self, started_s: float, now_s: float) -> MeterInterval:
        """Return an empty interval that began at the monotonic time `started_s`."""
        return MeterInterval(self._world.now_ns() - round((now_s - started_s) * SECOND))


PUBLISH_SIGN: Final = "+"
WITHHOLD_SIGN: Final = "-"


class MetricFilter(msgspec.Struct, frozen=True):
    """Which metrics are published, and the `host` label of gauges. It does not affect what is measured."""

    prefixes: Sequence[str] = ()
    """Prefixes of metric names, each after `+` (publish) or `-` (withhold)."""
    is_published_by_default: bool = True
    host: str = ""
    """Value of the label `host` of every gauge; empty means no such label."""

    def is_published(self, name: str) -> bool:
        """Whether to publish this metric. The longest matching prefix decides; at equal length, `-` wins."""
        matching = [prefix for prefix in self.prefixes if name.startswith(prefix[1:])]
        if not matching:
            return self.is_published_by_default
        longest = max(len(prefix) for prefix in matching)
        return not any(prefix[:1] == WITHHOLD_SIGN for prefix in matching if len(prefix) == longest)

    def add_host_label(self, labels: dict[str, str]) -> dict[str, str]:
        return {**labels, "host": self.host} if self.host else labels


def find_prefix_problem(prefix: str) -> str:
    """Return what is wrong with a configured prefix; an empty string if it is valid."""
    if prefix[:1] in (PUBLISH_SIGN, WITHHOLD_SIGN) and prefix[1:].strip():
        return ""
    return f'expected a metric name prefix after + or -, such as "-wharf.http", got "{prefix}"'


class ProcessMetrics(msgspec.Struct, frozen=True):
    """Resource usage of one process: memory, processor time and open files."""

    resident_bytes: int = 0
    peak_bytes: int = 0
    cpu_s: float = 0.0
    open_files: int = 0


def measure_process() -> ProcessMetrics:
    """Read the resource usage of this process from the kernel."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    resident, open_files = 0, 0
    with suppress(OSError, ValueError, IndexError):  # Only Linux has these two.
        resident = int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
        open_files = len(os.listdir("/proc/self/fd"))
    return ProcessMetrics(
        resident_bytes=resident,
        peak_bytes=usage.ru_maxrss * 1024,
        cpu_s=usage.ru_utime + usage.ru_stime,
        open_files=open_files,
    )
