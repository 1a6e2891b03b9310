"""Fixed windows of one rule, in memory. The first charge opens a window, whose end is stored."""

from collections.abc import Iterator
from itertools import islice

import msgspec


class FixedWindow(msgspec.Struct, gc=False):
    """The open window of one key."""

    count: int
    """What was charged since the window opened."""
    end_ms: int
    length_ms: int
    """The length that it was opened with. A changed rule applies from the next window."""


class FixedWindows:
    """The fixed windows of one rule by key, in the order of their ends. A window has ended if `end_ms <= now_ms`."""

    __slots__ = ("length_ms", "windows")

    def __init__(self, length_ms: int) -> None:
        self.length_ms = length_ms
        self.windows: dict[str, FixedWindow] = {}

    def __contains__(self, key: str) -> bool:
        return key in self.windows

    def __len__(self) -> int:
        return len(self.windows)

    def count_used(self, key: str, now_ms: int) -> int:
        """Return the count of the current window; 0 if it has ended."""
        window = self.windows.get(key)
        if window is None or window.end_ms <= now_ms:
            return 0
        if window.end_ms - now_ms > window.length_ms:
            # The clock stepped back. Keep the window, but let it end at most one length from now.
            window.end_ms = now_ms + window.length_ms
        return window.count

    def add(self, key: str, cost: int, now_ms: int, _request_id: str) -> None:
        """Add `cost` to the current window of a key; open a window if none is current."""
        window = self.windows.get(key)
        if window is None:
            self.windows[key] = FixedWindow(cost, now_ms + self.length_ms, self.length_ms)
        elif window.end_ms <= now_ms:
            # Delete and insert instead of changing it, so that the dict stays in the order of ends.
            del self.windows[key]
            self.windows[key] = FixedWindow(cost, now_ms + self.length_ms, self.length_ms)
        else:
            window.count += cost

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

    def reset(self, key: str) -> None:
        self.windows.pop(key, None)

    def evict_idle(self, now_ms: int, *, max_scanned: int) -> list[str]:
        """Remove up to `max_scanned` ended windows, the oldest first, and return their keys.

        Windows are in the order of their ends, so the scan stops at the first one that is still open.
        """
        expired: list[str] = []
        for key, window in islice(self.windows.items(), max_scanned):
            if window.end_ms > now_ms:
                break
            expired.append(key)
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
