"""Fixed windows: opened by the first charge, with a stored end. The arithmetic of one rule's windows, in memory."""

from collections.abc import Iterator
from itertools import islice

import msgspec


class FixedWindow(msgspec.Struct, gc=False):
    count: int
    end_ms: int
    length_ms: int
    """The length that it was opened with: a changed length applies from the next window."""


class FixedWindows:
    """The windows of one rule by key. A window is over at `end <= now`; an idle key is stored by nobody."""

    __slots__ = ("length_ms", "windows")

    def __init__(self, length_ms: int) -> None:
        self.length_ms = length_ms
        self.windows: dict[str, FixedWindow] = {}

    def __contains__(self, key: str) -> bool:
        return key in self.windows

    def __len__(self) -> int:
        return len(self.windows)

    def count_used(self, key: str, now_ms: int) -> int:
        window = self.windows.get(key)
        if window is None or window.end_ms <= now_ms:
            return 0
        if window.end_ms - now_ms > window.length_ms:
            # Time has stepped back. The window is not over and none is opened; it ends a whole length from now.
            window.end_ms = now_ms + window.length_ms
        return window.count

    def add(self, key: str, cost: int, now_ms: int, _request_id: str) -> None:
        window = self.windows.get(key)
        if window is None:
            self.windows[key] = FixedWindow(cost, now_ms + self.length_ms, self.length_ms)
        elif window.end_ms <= now_ms:
            # Put in anew and not changed in place: so the order of the table is the order of the ends.
            del self.windows[key]
            self.windows[key] = FixedWindow(cost, now_ms + self.length_ms, self.length_ms)
        else:
            window.count += cost

    def get_end_ms(self, key: str, now_ms: int) -> int:
        """When the count starts again; an idle key is told as a window that would be opened now."""
        window = self.windows.get(key)
        if window is None or window.end_ms <= now_ms:
            return now_ms + self.length_ms
        return min(window.end_ms, now_ms + window.length_ms)

    def get_free_at_ms(self, key: str, _needs: int, _ceiling: int, now_ms: int) -> int:
        return self.get_end_ms(key, now_ms)

    def refund(self, key: str, cost: int, end_ms: int) -> bool:
        """Undo a charge, if the window that it went into is still the one that stands."""
        window = self.windows.get(key)
        if window is None or window.end_ms != end_ms:
            return False
        window.count = max(0, window.count - cost)
        return True

    def reset(self, key: str) -> None:
        self.windows.pop(key, None)

    def evict_idle(self, now_ms: int, *, max_scanned: int) -> list[str]:
        """Forget windows that are over, from the oldest on."""
        over: list[str] = []
        for key, window in islice(self.windows.items(), max_scanned):
            if window.end_ms > now_ms:
                break
            over.append(key)
        for key in over:
            del self.windows[key]
        return over

    def keys(self) -> Iterator[str]:
        return iter(self.windows)

    def dump_row(self, key: str) -> tuple[int, ...] | None:
        window = self.windows.get(key)
        return None if window is None else (window.count, window.end_ms, window.length_ms)

    def load_row(self, key: str, numbers: tuple[int, ...]) -> None:
        count, end_ms, length_ms = numbers
        # Most windows have the rule's own length: they share its number, which counts when there are millions.
        self.windows[key] = FixedWindow(count, end_ms, self.length_ms if length_ms == self.length_ms else length_ms)
