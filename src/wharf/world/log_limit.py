"""Limits log lines that could repeat with every request, such as on a full disk: one a minute for each cause."""

from collections.abc import Hashable
from typing import Final

from wharf.world.ports import World

LOG_INTERVAL_S: Final = 60.0
"""A cause is logged once in this time. Protects the log in a flood, and the disk that may be full already."""
MAX_CAUSES: Final = 64
"""Limits memory. After more causes than that, all are forgotten, and each is logged again once."""


class LogLimit:
    """Decides which of the repeated events of one kind are logged."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._logged_at_s: dict[Hashable, float] = {}
        self._left_out: dict[Hashable, int] = {}

    def count_event(self, cause: Hashable = "") -> int | None:
        """Count an event. Return `None` if it is not logged, else how many of this cause were not logged before it."""
        now_s = self._world.monotonic_s()
        logged_at_s = self._logged_at_s.get(cause)
        if logged_at_s is not None and now_s - logged_at_s < LOG_INTERVAL_S:
            self._left_out[cause] = self._left_out.get(cause, 0) + 1
            return None
        if len(self._logged_at_s) >= MAX_CAUSES:
            self._logged_at_s.clear()
            self._left_out.clear()
        self._logged_at_s[cause] = now_s
        return self._left_out.pop(cause, 0)
