"""Fixed windows of one rule, in memory. The first charge opens a window, whose end is stored."""

from collections.abc import Iterator
from itertools import islice

import msgspec

from wharf.limits.core.counting.segmented_dict import SegmentedDict


class FixedWindow(msgspec.Struct, gc=False):
    """The open window of one key."""

    count: int
    """What was charged since the window opened."""
    end_ms: int
    length_ms: int
    """The length that it was opened with. A changed rule applies from the next window."""


class FixedWindows:
    """The fixed windows of one rule by key. A window has ended if `end_ms <= now_ms`.

    Each segment of `windows` is in the order of the ends of its windows.
    """

    __slots__ = ("_next_segment", "length_ms", "windows")

    def __init__(self, length_ms: int) -> None:
        self.length_ms = length_ms
        self.windows: SegmentedDict[str, FixedWindow] = SegmentedDict()
        self._next_segment = 0
        """The number of the segment that the next eviction examines first."""

    def __contains__(self, key: str) -> bool:
        return self.windows.get(key) is not None

    def __len__(self) -> int:
        return self.windows.count

    def count_used(self, key: str, now_ms: int) -> int:
        """Return the count of the current window of a key; 0 if it has ended."""
        window = self.windows.get(key)
        if window is None or window.end_ms <= now_ms:
            return 0
        if window.end_ms - now_ms > window.length_ms:
            # The clock stepped back. Keep the window, but let it end at most one length from now.
            window.end_ms = now_ms + window.length_ms
        return window.count

    def add(self, key: str, cost: int, now_ms: int, _request_id: str) -> int:
        """Add `cost` to the current window of a key; open a window if none is current. Return the end of the window."""
        window = self.windows.get(key)
        if window is None:
            window = FixedWindow(cost, now_ms + self.length_ms, self.length_ms)
            self.windows.add_new(key, window)
        elif window.end_ms <= now_ms:
            # Delete and insert instead of changing it, so that the segment stays in the order of ends.
            del self.windows[key]
            window = FixedWindow(cost, now_ms + self.length_ms, self.length_ms)
            self.windows.add_new(key, window)
        else:
            window.count += cost
        return window.end_ms

    def get_end_ms(self, key: str, now_ms: int) -> int:
        """Return the end of the window; for an idle key, the end of a window that would open now."""
        window = self.windows.get(key)
        if window is None or window.end_ms <= now_ms:
            return now_ms + self.length_ms
        return min(window.end_ms, now_ms + window.length_ms)

    def get_free_at_ms(self, key: str, _required: int, _ceiling: int, now_ms: int) -> int:
        return self.get_end_ms(key, now_ms)

    def refund(self, key: str, cost: int, end_ms: int) -> bool:
        """Undo a charge if its window, identified by its end, is still open. Return whether it was undone."""
        window = self.windows.get(key)
        if window is None or window.end_ms != end_ms:
            return False
        window.count = max(0, window.count - cost)
        return True

    def take_back(self, key: str, amount: int, now_ms: int) -> None:
        """Subtract usage from the current window of a key, which stays open; the count never falls below 0."""
        window = self.windows.get(key)
        if window is not None and window.end_ms > now_ms:
            window.count = max(0, window.count - amount)

    def reset(self, key: str) -> None:
        if key in self:
            del self.windows[key]

    def evict_idle(self, now_ms: int, *, max_scanned: int) -> list[str]:
        """Remove up to `max_scanned` ended windows, the oldest of each segment first, and return their keys.

        A segment is in the order of the ends of its windows, so its scan stops at the first window that is still open.
        """
        expired: list[str] = []
        segments = self.windows.segments
        for _ in segments:
            number = self._next_segment % len(segments)
            for key, window in islice(segments[number].items(), max_scanned - len(expired)):
                if window.end_ms > now_ms:
                    break
                expired.append(key)
            if len(expired) >= max_scanned:
                break  # The next eviction continues in the same segment.
            self._next_segment = number + 1
        for key in expired:
            del self.windows[key]
        return expired

    def keys(self) -> Iterator[str]:
        return iter(self.windows)

    def dump_row(self, key: str) -> tuple[int, ...] | None:
        """Return the numbers of a key for a snapshot: count, end and length; `None` if the key has no window."""
        window = self.windows.get(key)
        return None if window is None else (window.count, window.end_ms, window.length_ms)

    def load_row(self, key: str, numbers: tuple[int, ...]) -> None:
        """Restore a key from a snapshot: `numbers` are count, end and length of its window."""
        count, end_ms, length_ms = numbers
        # Most windows have the rule's length. Sharing that int object saves memory with millions of windows.
        self.windows[key] = FixedWindow(count, end_ms, self.length_ms if length_ms == self.length_ms else length_ms)
