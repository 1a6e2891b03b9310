"""Who is near a limit: told once a window at 80 per cent and once at 95, so that somebody can act before anyone is refused.

Here it is noticed and kept until it is sent. How much may wait is bounded.
"""

from typing import Final

import msgspec

from wharf.limits.core.caller import Caller
from wharf.limits.core.decision import Decision

LEVELS_PERCENT: Final = (95, 80)
WAITING_MOST: Final = 1_000
REMEMBERED_MOST: Final = 50_000


class Alert(msgspec.Struct, frozen=True):
    caller: str
    resource: str
    percent: int
    """The level that was reached: 80 or 95."""
    used: int
    limit: int
    reset: int
    """Epoch second at which the window ends."""


class Alerts:
    def __init__(self) -> None:
        self.lost = 0
        self._waiting: list[Alert] = []
        self._said: dict[tuple[str, str, int], int] = {}

    def note(self, decision: Decision, caller: Caller) -> None:
        """Look at the primary bucket of an admitted request."""
        limit, used = decision.limit, decision.used
        level = next((percent for percent in LEVELS_PERCENT if used * 100 >= limit * percent), 0)
        if not level:
            return
        key = (decision.shown.name, decision.shown.key, decision.reset_s)
        if self._said.get(key, 0) >= level:
            return
        if len(self._said) >= REMEMBERED_MOST:
            del self._said[next(iter(self._said))]
        self._said[key] = level
        if len(self._waiting) >= WAITING_MOST:
            self.lost += 1
            return
        self._waiting.append(Alert(caller.owner, decision.plan.resource, level, used, limit, decision.reset_s))

    def take(self) -> list[Alert]:
        """What is to be sent now."""
        some, self._waiting = self._waiting, []
        return some
