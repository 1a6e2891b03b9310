"""Counts what was answered and how long it took, by class of endpoint: sums since the start, and over intervals.

Classes and statuses come from the endpoint table, so there are never more series than it has nouns.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from wharf.model.durations import SECOND
from wharf.world import World

BOUNDS_MS: Final = (1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0, 2_500.0, 5_000.0)
"""Upper bounds of the buckets of a histogram; a last one takes all that is longer."""


class Series(msgspec.Struct, frozen=True, order=True):
    """Which answers are counted together. `kind`: read, local, write, ask; `status`: `2xx` and so on."""

    noun: str
    kind: str
    status: str


class Histogram:
    """Durations since the start."""

    __slots__ = ("buckets", "count", "sum_ms")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS_MS) + 1)
        self.count = 0
        self.sum_ms = 0.0

    def add(self, took_ms: float) -> None:
        position = 0
        while position < len(BOUNDS_MS) and took_ms > BOUNDS_MS[position]:
            position += 1
        self.buckets[position] += 1
        self.count += 1
        self.sum_ms += took_ms


class Summed:
    """Durations of one interval."""

    __slots__ = ("count", "least_ms", "most_ms", "squares", "sum_ms")

    def __init__(self) -> None:
        self.count = 0
        self.sum_ms = 0.0
        self.squares = 0.0
        self.least_ms = math.inf
        self.most_ms = 0.0

    def add(self, took_ms: float) -> None:
        self.count += 1
        self.sum_ms += took_ms
        self.squares += took_ms * took_ms
        self.least_ms = min(self.least_ms, took_ms)
        self.most_ms = max(self.most_ms, took_ms)

    @property
    def mean_ms(self) -> float:
        return self.sum_ms / self.count if self.count else 0.0

    @property
    def deviation_ms(self) -> float:
        """Of the sample, as clients know it."""
        if self.count < 2:
            return 0.0
        return math.sqrt(max(0.0, self.squares - self.count * self.mean_ms**2) / (self.count - 1))


class Interval:
    def __init__(self, began_ns: int) -> None:
        self.began_ns = began_ns
        self.answers: dict[Series, Summed] = {}


class Meter:
    def __init__(self, world: World, *, interval_s: float = 10.0, kept_s: float = 60.0) -> None:
        """`kept_s`: for how long a finished interval can be told; the last one always can."""
        self._world = world
        self.interval_s = interval_s
        self.histograms: dict[Series, Histogram] = {}
        self._current = Interval(world.now_ns())
        self._ends_s = world.monotonic_s() + interval_s
        self._finished: deque[Interval] = deque(maxlen=max(1, int(kept_s // interval_s)))

    def now_s(self) -> float:
        """For `answered`."""
        return self._world.monotonic_s()

    def answered(self, series: Series, *, began_s: float) -> None:
        now_s = self._world.monotonic_s()
        if now_s >= self._ends_s:
            self._turn(now_s)
        took_ms = (now_s - began_s) * 1_000
        histogram = self.histograms.get(series)
        if histogram is None:
            histogram = self.histograms[series] = Histogram()
        histogram.add(took_ms)
        summed = self._current.answers.get(series)
        if summed is None:
            summed = self._current.answers[series] = Summed()
        summed.add(took_ms)

    def interval(self) -> Interval:
        """The last finished one; the one that runs, as long as none is."""
        return self.interval_ago(0.0) or self._current

    def interval_ago(self, ago_s: float) -> Interval | None:
        """The last one that had finished so long ago; None: none had, or it is not kept any more."""
        now_s = self._world.monotonic_s()
        if now_s >= self._ends_s:
            self._turn(now_s)
        since_the_last_s = now_s - (self._ends_s - self.interval_s)
        turns = max(0, math.ceil((ago_s - since_the_last_s) / self.interval_s))
        return self._finished[-1 - turns] if turns < len(self._finished) else None

    def totals(self) -> Sequence[tuple[Series, Histogram]]:
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

    def _beginning(self, at_s: float, now_s: float) -> Interval:
        return Interval(self._world.now_ns() - round((now_s - at_s) * SECOND))
