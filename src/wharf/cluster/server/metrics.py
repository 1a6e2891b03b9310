"""Counts what was answered and how long it took, by class of endpoint: sums since the start, and over intervals.

Classes and statuses come from the endpoint table, so there are never more series than it has nouns.

Which figures are published, and under which labels: what the configuration says of it.

Nothing is measured less for it; it is only not told.

What this process costs: memory, processor time, open files. Read from the kernel when asked, and at no other time.
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
"""Upper bounds of the buckets of a histogram; a last one takes all that is longer."""


class RequestSeries(msgspec.Struct, frozen=True, order=True):
    """Which answers are counted together. `kind`: read, local, write, ask; `status`: `2xx` and so on."""

    noun: str
    kind: str
    status: str


class DurationHistogram:
    """Durations since the start."""

    __slots__ = ("buckets", "count", "sum_ms")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BUCKET_LIMITS_MS) + 1)
        self.count = 0
        self.sum_ms = 0.0

    def add(self, took_ms: float) -> None:
        position = 0
        while position < len(BUCKET_LIMITS_MS) and took_ms > BUCKET_LIMITS_MS[position]:
            position += 1
        self.buckets[position] += 1
        self.count += 1
        self.sum_ms += took_ms


class DurationSummary:
    """Durations of one interval."""

    __slots__ = ("count", "max_ms", "min_ms", "sum_ms", "sum_squares_ms2")

    def __init__(self) -> None:
        self.count = 0
        self.sum_ms = 0.0
        self.sum_squares_ms2 = 0.0
        self.min_ms = math.inf
        self.max_ms = 0.0

    def add(self, took_ms: float) -> None:
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
        """Of the sample, as clients know it."""
        if self.count < 2:
            return 0.0
        return math.sqrt(max(0.0, self.sum_squares_ms2 - self.count * self.mean_ms**2) / (self.count - 1))


class MeterInterval:
    def __init__(self, began_ns: int) -> None:
        self.began_ns = began_ns
        self.summaries: dict[RequestSeries, DurationSummary] = {}


class RequestMeter:
    def __init__(self, world: World, *, interval_s: float = 10.0, retention_s: float = 60.0) -> None:
        """`kept_s`: for how long a finished interval can be told; the last one always can."""
        self._world = world
        self.interval_s = interval_s
        self.histograms: dict[RequestSeries, DurationHistogram] = {}
        self._current = MeterInterval(world.now_ns())
        self._ends_s = world.monotonic_s() + interval_s
        self._finished: deque[MeterInterval] = deque(maxlen=max(1, int(retention_s // interval_s)))

    def now_s(self) -> float:
        """For `answered`."""
        return self._world.monotonic_s()

    def record_request(self, series: RequestSeries, *, began_s: float) -> None:
        now_s = self._world.monotonic_s()
        if now_s >= self._ends_s:
            self._turn(now_s)
        took_ms = (now_s - began_s) * 1_000
        histogram = self.histograms.get(series)
        if histogram is None:
            histogram = self.histograms[series] = DurationHistogram()
        histogram.add(took_ms)
        summed = self._current.summaries.get(series)
        if summed is None:
            summed = self._current.summaries[series] = DurationSummary()
        summed.add(took_ms)

    def last_interval(self) -> MeterInterval:
        """The last finished one; the one that runs, as long as none is."""
        return self.find_interval(0.0) or self._current

    def find_interval(self, ago_s: float) -> MeterInterval | None:
        """The last one that had finished so long ago; None: none had, or it is not kept any more."""
        now_s = self._world.monotonic_s()
        if now_s >= self._ends_s:
            self._turn(now_s)
        since_the_last_s = now_s - (self._ends_s - self.interval_s)
        turns = max(0, math.ceil((ago_s - since_the_last_s) / self.interval_s))
        return self._finished[-1 - turns] if turns < len(self._finished) else None

    def list_totals(self) -> Sequence[tuple[RequestSeries, DurationHistogram]]:
        return sorted(self.histograms.items(), key=lambda item: item[0])

    def _turn(self, now_s: float) -> None:
        """The interval that ran is over; after a silence, so are some in which nothing was answered."""
        missed = int((now_s - self._ends_s) // self.interval_s)
        self._finished.append(self._current)
        kept = min(missed, self._finished.maxlen or missed)
        for turn in range(missed - kept, missed):
            self._finished.append(self._beginning(self._ends_s + turn * self.interval_s, now_s))
        self._current = self._beginning(self._ends_s + missed * self.interval_s, now_s)
        self._ends_s += (missed + 1) * self.interval_s

    def _beginning(self, at_s: float, now_s: float) -> MeterInterval:
        return MeterInterval(self._world.now_ns() - round((now_s - at_s) * SECOND))


PUBLISH_SIGN: Final = "+"
WITHHOLD_SIGN: Final = "-"


class MetricFilter(msgspec.Struct, frozen=True):
    """`prefixes`: each after `+` or `-`. `host`: a label of every gauge, where it is not empty."""

    prefixes: Sequence[str] = ()
    is_published_by_default: bool = True
    host: str = ""

    def is_published(self, name: str) -> bool:
        """The longest prefix of the name decides; of two that say both, the one that withholds."""
        said = [prefix for prefix in self.prefixes if name.startswith(prefix[1:])]
        if not said:
            return self.is_published_by_default
        longest = max(len(prefix) for prefix in said)
        return not any(prefix[:1] == WITHHOLD_SIGN for prefix in said if len(prefix) == longest)

    def add_host_label(self, labels: dict[str, str]) -> dict[str, str]:
        return {**labels, "host": self.host} if self.host else labels


def find_prefix_problem(prefix: str) -> str:
    """What is wrong with a prefix as people write it; empty where nothing is."""
    if prefix[:1] in (PUBLISH_SIGN, WITHHOLD_SIGN) and prefix[1:].strip():
        return ""
    return f'expected prefixes of names after + or -, such as "-wharf.http", given "{prefix}"'


class ProcessMetrics(msgspec.Struct, frozen=True):
    resident_bytes: int = 0
    peak_bytes: int = 0
    cpu_s: float = 0.0
    open_files: int = 0


def measure_process() -> ProcessMetrics:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    resident, open_files = 0, 0
    with suppress(OSError, ValueError, IndexError):  # Only Linux tells these two.
        resident = int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
        open_files = len(os.listdir("/proc/self/fd"))
    return ProcessMetrics(
        resident_bytes=resident,
        peak_bytes=usage.ru_maxrss * 1024,
        cpu_s=usage.ru_utime + usage.ru_stime,
        open_files=open_files,
    )
