"""How far back the log's feed must reach: followers that were away for less find their place again."""

from collections import deque
from typing import Final

KEPT_S: Final = 600.0


class Horizon:
    """Remembers where the log stood when. Instants are of one monotonic clock."""

    def __init__(self, kept_s: float = KEPT_S) -> None:
        self._kept_s = kept_s
        self._stood: deque[tuple[float, int]] = deque()

    def note(self, now_s: float, index: int) -> None:
        self._stood.append((now_s, index))

    def passed(self, now_s: float) -> int | None:
        """The newest index that was reached longer ago than is kept; told once. None: there is none."""
        index = None
        while self._stood and self._stood[0][0] <= now_s - self._kept_s:
            index = self._stood.popleft()[1]
        return index
