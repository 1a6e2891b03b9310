"""Sliding windows in slices, and meters, of one rule, in memory.

A window of n slices counts the current slice and the n before it. The oldest slice counts fully although a part of it
is older than the window, so no window ever exceeds the ceiling. A meter counts one slice less, so that no charge
counts longer than a window.
"""

from collections.abc import Iterator
from itertools import islice

import msgspec

from wharf.limits.core.counting.segmented_dict import SegmentedDict


class SlidingWindow(msgspec.Struct, gc=False):
    """The counter of one key: how much was charged in each slice of time.

    Slices are stored with their start times, not slice numbers, so that they survive a change of the rule. Most keys
    have only one slice, and there can be a million keys; the list is created for the second slice.
    """

    width_ms: int
    """The length of a slice."""
    retention_ms: int
    """How long after its start a slice counts."""
    last_start_ms: int
    """The start of the newest slice, in Unix milliseconds."""
    last_count: int
    """The count of the newest slice."""
    older_total: int = 0
    """The sum of the counts in `older`."""
    older: list[int] | None = None
    """All slices but the newest, the oldest first, as a flat list: start, count, start, count."""

    def is_expired(self, now_ms: int) -> bool:
        return self.last_start_ms + self.retention_ms <= now_ms

    def iterate_slices(self) -> Iterator[tuple[int, int]]:
        """Yield the start in Unix milliseconds and the count of each slice, the oldest first."""
        numbers = iter(self.older or ())
        yield from zip(numbers, numbers, strict=True)
        yield self.last_start_ms, self.last_count

    def drop_expired(self, now_ms: int) -> None:
        """Remove the slices that have expired at `now_ms`. If all have, the counts are set to zero."""
        older = self.older
        if older is None or self.is_expired(now_ms):
            self.last_count, self.older_total, self.older = 0, 0, None
            return
        expired_length = 0
        while expired_length < len(older) and older[expired_length] + self.retention_ms <= now_ms:
            self.older_total -= older[expired_length + 1]
            expired_length += 2
        self.older = older[expired_length:] or None

    def adjust_to_clock_step(self, now_ms: int) -> None:
        """Move counts that are later than `now_ms` into the current slice, after the clock stepped back."""
        current_ms = now_ms - now_ms % self.width_ms
        earlier_pairs = [number for pair in self.iterate_slices() if pair[0] < current_ms for number in pair]
        later_count = sum(count for start_ms, count in self.iterate_slices() if start_ms >= current_ms)
        self.older, self.older_total = earlier_pairs or None, sum(earlier_pairs[1::2])
        self.last_start_ms, self.last_count = current_ms, later_count


class SlidingWindows:
    """The sliding windows of one rule by key. A slice expires `retention_ms` after its start."""

    __slots__ = (
        "_start_ms",
        "_unswept_keys",
        "counts",
        "length_ms",
        "retention_ms",
        "width_ms",
    )

    def __init__(self, length_ms: int, slices: int, *, is_meter: bool) -> None:
        self.length_ms = length_ms
        self.width_ms = -(-length_ms // slices)
        self.retention_ms = self.width_ms * (slices if is_meter else slices + 1)
        self.counts: SegmentedDict[str, SlidingWindow] = SegmentedDict()
        self._start_ms = 0
        self._unswept_keys: Iterator[str] = iter(())

    def __contains__(self, key: str) -> bool:
        return self.counts.get(key) is not None

    def __len__(self) -> int:
        return self.counts.count

    def count_used(self, key: str, now_ms: int) -> int:
        """Return the sum of all slices of a key that have not expired. Expired slices are removed on the way."""
        window = self.counts.get(key)
        if window is None:
            return 0
        older = window.older
        if (older[0] if older else window.last_start_ms) + window.retention_ms <= now_ms:
            window.drop_expired(now_ms)
        elif window.last_start_ms > now_ms:
            window.adjust_to_clock_step(now_ms)
        return window.older_total + window.last_count

    def add(self, key: str, cost: int, now_ms: int, _request_id: str) -> int:
        """Add `cost` to the current slice of a key; open a slice or a window if none is current. Return when it expires."""
        window = self.counts.get(key)
        if window is None:
            window = SlidingWindow(self.width_ms, self.retention_ms, self._get_slice_start_ms(now_ms), cost)
            self.counts.add_new(key, window)
        elif window.is_expired(now_ms):
            # The count has expired, so a changed width or length of the rule applies from here on.
            window.width_ms, window.retention_ms = self.width_ms, self.retention_ms
            window.last_start_ms, window.last_count = self._get_slice_start_ms(now_ms), cost
            window.older_total, window.older = 0, None
        elif now_ms < window.last_start_ms + window.width_ms:
            window.last_count += cost  # Also after a backward clock step: the newest slice stays current.
        else:
            window.older = [*(window.older or ()), window.last_start_ms, window.last_count]
            window.older_total += window.last_count
            window.last_start_ms, window.last_count = now_ms - now_ms % window.width_ms, cost
        return window.last_start_ms + window.retention_ms

    def _get_slice_start_ms(self, now_ms: int) -> int:
        """Return the start of the current slice in Unix milliseconds.

        All keys of a slice share one int object, which saves memory with millions of keys.
        """
        start_ms = now_ms - now_ms % self.width_ms
        if start_ms != self._start_ms:
            self._start_ms = start_ms
        return self._start_ms

    def get_end_ms(self, key: str, now_ms: int) -> int:
        """Return when the last slice of a key expires; for an idle key, when a window that opened now would end."""
        window = self.counts.get(key)
        if window is None or window.is_expired(now_ms):
            return now_ms + self.length_ms
        return window.last_start_ms + window.retention_ms

    def get_free_at_ms(self, key: str, required: int, ceiling: int, now_ms: int) -> int:
        """Return when `required` more units fit below the ceiling, if nothing else is charged until then.

        The oldest slices expire first, so their counts are subtracted one after the other until the rest is small enough.
        """
        window = self.counts.get(key)
        if window is None:
            return now_ms
        remaining_count = window.older_total + window.last_count
        for start_ms, count in window.iterate_slices():
            remaining_count -= count
            if remaining_count + required <= ceiling:
                return start_ms + window.retention_ms
        return self.get_end_ms(key, now_ms)

    def take_back(self, key: str, amount: int, now_ms: int) -> None:
        """Subtract usage from the slices of a key, the newest first; no count falls below 0."""
        if not self.count_used(key, now_ms):
            return
        window = self.counts[key]
        part = min(window.last_count, amount)
        window.last_count -= part
        older = window.older or []
        for index in range(len(older) - 1, 0, -2):
            amount -= part
            part = min(older[index], amount)
            older[index] -= part
            window.older_total -= part

    def reset(self, key: str) -> None:
        if key in self:
            del self.counts[key]

    def evict_idle(self, now_ms: int, *, max_scanned: int) -> list[str]:
        """Scan the next `max_scanned` keys, remove those whose slices have all expired, and return the removed keys."""
        batch = list(islice(self._unswept_keys, max_scanned))
        if not batch:
            self._unswept_keys = iter(self.counts)
            batch = list(islice(self._unswept_keys, max_scanned))
        expired = [key for key in batch if (window := self.counts.get(key)) is not None and window.is_expired(now_ms)]
        for key in expired:
            del self.counts[key]
        return expired

    def keys(self) -> Iterator[str]:
        return iter(self.counts)

    def dump_row(self, key: str) -> tuple[int, ...] | None:
        """Return the numbers of a key for a snapshot: width, retention, then start and count of each slice."""
        window = self.counts.get(key)
        if window is None:
            return None
        return (window.width_ms, window.retention_ms, *(number for pair in window.iterate_slices() for number in pair))

    def load_row(self, key: str, numbers: tuple[int, ...]) -> None:
        """Restore a key from a snapshot: `numbers` are width, retention, then start and count of each slice, oldest first."""
        width_ms, retention_ms, *pairs = numbers
        *older, last_start_ms, last_count = pairs
        self.counts[key] = SlidingWindow(
            width_ms, retention_ms, last_start_ms, last_count, sum(older[1::2]), older or None
        )
