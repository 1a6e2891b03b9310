"""One admitted request, from its decision to its last byte: what it is told, what its work costs, when its slot is free.

Its work is the time that passes less the time spent waiting for the caller. Whoever carries the request says when that is.
"""

from collections.abc import Callable

from wharf.limits.core.caller import Caller
from wharf.limits.core.decision import Decision


class Passage:
    __slots__ = (
        "_since_s",
        "_work_s",
        "caller",
        "charged_ms",
        "decision",
        "ended",
        "id",
        "is_conditional",
        "measured_ms",
        "on_long",
        "started_s",
    )

    def __init__(
        self, request_id: str, decision: Decision | None, caller: Caller, *, is_conditional: bool, now_s: float
    ) -> None:
        self.id = request_id
        self.decision = decision
        """None while limits are off."""
        self.caller = caller
        self.is_conditional = is_conditional
        self.started_s = now_s
        self.charged_ms = 0
        """What was charged of its work while it ran."""
        self.measured_ms: int | None = None
        """Its work, if the service says."""
        self.ended = False
        self.on_long: Callable[[], None] | None = None
        """Called once when the request has run for a second."""
        self._work_s = 0.0
        self._since_s: float | None = now_s

    def wait(self, now_s: float) -> None:
        """The caller is waited for from now on."""
        if self._since_s is not None:
            self._work_s += now_s - self._since_s
            self._since_s = None

    def work(self, now_s: float) -> None:
        """The service works from now on."""
        if self._since_s is None:
            self._since_s = now_s

    def worked_ms(self, now_s: float) -> float:
        running_s = 0.0 if self._since_s is None else now_s - self._since_s
        return (self._work_s + running_s) * 1_000
