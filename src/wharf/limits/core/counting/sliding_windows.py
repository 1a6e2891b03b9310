"""Sliding windows in slices, and meters that may go into debt. The arithmetic of one rule's counts, in memory.

A window of n slices counts the slice of now and n before it, the oldest whole: what happened in the last window is in
it for certain, so there is never more than the ceiling in any window. A meter counts one slice less, so that nothing
stays longer than a window.
"""

from collections.abc import Iterator
from itertools import islice

import msgspec


class SlidingWindow(msgspec.Struct, gc=False):
    """The count of one key. Starts are moments, not numbers of slices: so they survive a change of the rule.

    Most keys have one slice only, and there may be a million of them: a list is made for the second.
    """

    width_ms: int
    kept_ms: int
    last_start_ms: int
    last_count: int
    older_total: int = 0
    older: list[int] | None = None
    """Start and count by turns, the oldest first."""

    def is_expired(self, now_ms: int) -> bool:
        return self.last_start_ms + self.kept_ms <= now_ms

    def iterate_slices(self) -> Iterator[tuple[int, int]]:
        """Start and count of each slice, the oldest first."""
        numbers = iter(self.older or ())
        yield from zip(numbers, numbers, strict=True)
        yield self.last_start_ms, self.last_count

    def drop_expired(self, now_ms: int) -> None:
        """Drop what is over. Called when the first slice may be."""
        older = self.older
        if older is None or self.is_expired(now_ms):
            self.last_count, self.older_total, self.older = 0, 0, None
            return
        gone = 0
        while gone < len(older) and older[gone] + self.kept_ms <= now_ms:
            self.older_total -= older[gone + 1]
            gone += 2
        self.older = older[gone:] or None

    def adjust_to_clock_step(self, now_ms: int) -> None:
        """Time has stepped back: what was counted later than now is counted as of now. Nothing is dropped."""
        current_ms = now_ms - now_ms % self.width_ms
        earlier = [number for pair in self.iterate_slices() if pair[0] < current_ms for number in pair]
        later = sum(count for start_ms, count in self.iterate_slices() if start_ms >= current_ms)
        self.older, self.older_total = earlier or None, sum(earlier[1::2])
        self.last_start_ms, self.last_count = current_ms, later


class SlidingWindows:
    """The counts of one rule by key. A slice goes when the slice of now is `kept_ms` after it."""

    __slots__ = ("_start_ms", "_swept", "counts", "kept_ms", "length_ms", "width_ms")

    def __init__(self, length_ms: int, slices: int, *, is_meter: bool) -> None:
        self.length_ms = length_ms
        self.width_ms = -(-length_ms // slices)
        self.kept_ms = self.width_ms * (slices if is_meter else slices + 1)
        self.counts: dict[str, SlidingWindow] = {}
        self._start_ms = 0
        self._swept: Iterator[str] = iter(())

    def __contains__(self, key: str) -> bool:
        return key in self.counts

    def __len__(self) -> int:
        return len(self.counts)

    def count_used(self, key: str, now_ms: int) -> int:
        slices = self.counts.get(key)
        if slices is None:
            return 0
        older = slices.older
        if (older[0] if older else slices.last_start_ms) + slices.kept_ms <= now_ms:
            slices.drop_expired(now_ms)
        elif slices.last_start_ms > now_ms:
            slices.adjust_to_clock_step(now_ms)
        return slices.older_total + slices.last_count

    def add(self, key: str, cost: int, now_ms: int, _request_id: str) -> None:
        slices = self.counts.get(key)
        if slices is None:
            self.counts[key] = SlidingWindow(self.width_ms, self.kept_ms, self._start_of(now_ms), cost)
        elif slices.is_expired(now_ms):
            # Nothing is counted: a changed width or length applies from here on.
            slices.width_ms, slices.kept_ms = self.width_ms, self.kept_ms
            slices.last_start_ms, slices.last_count = self._start_of(now_ms), cost
            slices.older_total, slices.older = 0, None
        elif now_ms < slices.last_start_ms + slices.width_ms:
            slices.last_count += cost  # Also after a step back: the newest slice is never left behind.
        else:
            slices.older = [*(slices.older or ()), slices.last_start_ms, slices.last_count]
            slices.older_total += slices.last_count
            slices.last_start_ms, slices.last_count = now_ms - now_ms % slices.width_ms, cost

    def _start_of(self, now_ms: int) -> int:
        """The start of the slice of now: one number for all keys, which counts when there are millions."""
        start_ms = now_ms - now_ms % self.width_ms
        if start_ms != self._start_ms:
            self._start_ms = start_ms
        return self._start_ms

    def get_end_ms(self, key: str, now_ms: int) -> int:
        """When nothing of today's count is left."""
        slices = self.counts.get(key)
        if slices is None or slices.is_expired(now_ms):
            return now_ms + self.length_ms
        return slices.last_start_ms + slices.kept_ms

    def get_free_at_ms(self, key: str, required: int, ceiling: int, now_ms: int) -> int:
        """When there will be room for what is needed, if nobody else comes."""
        slices = self.counts.get(key)
        if slices is None:
            return now_ms
        left = slices.older_total + slices.last_count
        for start_ms, count in slices.iterate_slices():
            left -= count
            if left + required <= ceiling:
                return start_ms + slices.kept_ms
        return self.get_end_ms(key, now_ms)

    def reset(self, key: str) -> None:
        self.counts.pop(key, None)

    def evict_idle(self, now_ms: int, *, max_scanned: int) -> list[str]:
        """Forget keys of which nothing is counted any more. Each call goes on where the last one ended."""
        some = list(islice(self._swept, max_scanned))
        if not some:
            self._swept = iter(list(self.counts))
            some = list(islice(self._swept, max_scanned))
        over = [key for key in some if (slices := self.counts.get(key)) is not None and slices.is_expired(now_ms)]
        for key in over:
            del self.counts[key]
        return over

    def keys(self) -> Iterator[str]:
        return iter(self.counts)

    def dump_row(self, key: str) -> tuple[int, ...] | None:
        slices = self.counts.get(key)
        if slices is None:
            return None
        return (slices.width_ms, slices.kept_ms, *(number for pair in slices.iterate_slices() for number in pair))

    def load_row(self, key: str, numbers: tuple[int, ...]) -> None:
        width_ms, kept_ms, *pairs = numbers
        *older, last_start_ms, last_count = pairs
        self.counts[key] = SlidingWindow(width_ms, kept_ms, last_start_ms, last_count, sum(older[1::2]), older or None)
