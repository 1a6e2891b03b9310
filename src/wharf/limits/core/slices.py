"""Sliding windows in slices, and meters that may go into debt. The arithmetic of one rule's counts, in memory.

A window of n slices counts the slice of now and n before it, the oldest whole: what happened in the last window is in
it for certain, so there is never more than the ceiling in any window. A meter counts one slice less, so that nothing
stays longer than a window.
"""

from collections.abc import Iterator
from itertools import islice


class Slices:
    """The count of one key. Starts are moments, not numbers of slices: so they survive a change of the rule."""

    __slots__ = ("counts", "kept_ms", "starts", "total", "width_ms")

    def __init__(self, width_ms: int, kept_ms: int) -> None:
        self.width_ms = width_ms
        self.kept_ms = kept_ms
        self.total = 0
        self.starts: list[int] = []
        self.counts: list[int] = []

    def advance(self, now_ms: int) -> None:
        """Drop what is over. Called when the first slice may be."""
        current = now_ms - now_ms % self.width_ms
        gone = 0
        for start in self.starts:
            if start + self.kept_ms > current:
                break
            gone += 1
        self.total -= sum(self.counts[:gone])
        del self.starts[:gone]
        del self.counts[:gone]

    def pull_back(self, now_ms: int) -> None:
        """Time has stepped back: what was counted later than now is counted as of now. Nothing is dropped."""
        current = now_ms - now_ms % self.width_ms
        later = 0
        while self.starts and self.starts[-1] >= current:
            self.starts.pop()
            later += self.counts.pop()
        self.starts.append(current)
        self.counts.append(later)


class SliceCounts:
    """The counts of one rule by key. A slice goes when the slice of now is `kept_ms` after it."""

    __slots__ = ("counts", "kept_ms", "length_ms", "width_ms")

    def __init__(self, length_ms: int, slices: int, *, is_meter: bool) -> None:
        self.length_ms = length_ms
        self.width_ms = -(-length_ms // slices)
        self.kept_ms = self.width_ms * (slices if is_meter else slices + 1)
        self.counts: dict[str, Slices] = {}

    def __contains__(self, key: str) -> bool:
        return key in self.counts

    def __len__(self) -> int:
        return len(self.counts)

    def used(self, key: str, now_ms: int) -> int:
        slices = self.counts.get(key)
        if slices is None or not slices.starts:
            return 0
        if slices.starts[0] + slices.kept_ms <= now_ms:
            slices.advance(now_ms)
        elif slices.starts[-1] > now_ms:
            slices.pull_back(now_ms)
        return slices.total

    def add(self, key: str, cost: int, now_ms: int, _request_id: str) -> None:
        slices = self.counts.get(key)
        if slices is None:
            slices = self.counts[key] = Slices(self.width_ms, self.kept_ms)
        starts = slices.starts
        if not starts:
            # Nothing is counted: a changed width or length applies from here on.
            slices.width_ms, slices.kept_ms = self.width_ms, self.kept_ms
            starts.append(now_ms - now_ms % slices.width_ms)
            slices.counts.append(cost)
        elif now_ms < starts[-1] + slices.width_ms:
            slices.counts[-1] += cost  # Also after a step back: the newest slice is never left behind.
        else:
            starts.append(now_ms - now_ms % slices.width_ms)
            slices.counts.append(cost)
        slices.total += cost

    def end_ms(self, key: str, now_ms: int) -> int:
        """When nothing of today's count is left."""
        slices = self.counts.get(key)
        if slices is None or not slices.starts:
            return now_ms + self.length_ms
        return slices.starts[-1] + slices.kept_ms

    def free_at_ms(self, key: str, needs: int, ceiling: int, now_ms: int) -> int:
        """When there will be room for what is needed, if nobody else comes."""
        slices = self.counts.get(key)
        if slices is None:
            return now_ms
        left = slices.total
        for start, count in zip(slices.starts, slices.counts, strict=True):
            left -= count
            if left + needs <= ceiling:
                return start + slices.kept_ms
        return self.end_ms(key, now_ms)

    def reset(self, key: str) -> None:
        self.counts.pop(key, None)

    def evict_full(self, now_ms: int, *, looked_at_most: int) -> list[str]:
        """Forget keys of which nothing is counted any more."""
        over = [
            key
            for key, slices in islice(self.counts.items(), looked_at_most)
            if not slices.starts or slices.starts[-1] + slices.kept_ms <= now_ms
        ]
        for key in over:
            del self.counts[key]
        return over

    def keys(self) -> Iterator[str]:
        return iter(self.counts)

    def saved(self, key: str) -> tuple[int, ...] | None:
        slices = self.counts.get(key)
        if slices is None:
            return None
        return (slices.width_ms, slices.kept_ms, *slices.starts, *slices.counts)

    def load(self, key: str, numbers: tuple[int, ...]) -> None:
        width_ms, kept_ms, *rest = numbers
        slices = self.counts[key] = Slices(width_ms, kept_ms)
        middle = len(rest) // 2
        slices.starts, slices.counts = rest[:middle], rest[middle:]
        slices.total = sum(slices.counts)
