"""One admitted request, from its decision to its last byte: what it is told, what its work costs, when its slot is free.

Its work is the time that passes less the time spent waiting for the caller. Whoever carries the request says when that is.
"""

from collections.abc import Callable

import msgspec

from wharf.limits.core.caller import Caller
from wharf.limits.core.decision import Decision


class Passage(msgspec.Struct, eq=False, gc=False):
    # Whoever sets `on_long` makes a circle; it is broken at the end, so that there is nothing to collect.
    id: str
    decision: Decision | None
    """None while limits are off."""
    caller: Caller
    is_conditional: bool
    started_s: float
    since_s: float | None
    """Since when the service works; None while the caller is waited for."""
    work_s: float = 0.0
    """What it worked before that."""
    charged_ms: int = 0
    """What was charged of its work while it ran."""
    measured_ms: int | None = None
    """Its work, if the service says."""
    ended: bool = False
    on_long: Callable[[], None] | None = None
    """Called once when the request has run for a second."""

    def wait(self, now_s: float) -> None:
        """The caller is waited for from now on."""
        if self.since_s is not None:
            self.work_s += now_s - self.since_s
            self.since_s = None

    def work(self, now_s: float) -> None:
        """The service works from now on."""
        if self.since_s is None:
            self.since_s = now_s

    def worked_ms(self, now_s: float) -> float:
        running_s = 0.0 if self.since_s is None else now_s - self.since_s
        return (self.work_s + running_s) * 1_000
