"""Who is near a limit: told once a window at 80 per cent and once at 95, so that somebody can act before anyone is refused.

Here it is noticed and kept until it is sent. How much may wait is bounded.

Alerts sent to an address that an operator names. A receiver that is away costs an alert and a line in the log, no more.
"""

import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.decision import LimitDecision

ALERT_LEVELS_PERCENT: Final = (95, 80)
MAX_PENDING_ALERTS: Final = 1_000
MAX_REMEMBERED_ALERTS: Final = 50_000


class Alert(msgspec.Struct, frozen=True):
    caller: str
    resource: str
    percent: int
    """The level that was reached: 80 or 95."""
    used: int
    limit: int
    reset: int
    """Epoch second at which the window ends."""


class AlertQueue:
    def __init__(self) -> None:
        self.dropped_alerts = 0
        self._waiting: list[Alert] = []
        self._said: dict[tuple[str, str, int], int] = {}

    def check_usage(self, decision: LimitDecision, caller: Caller) -> None:
        """Look at the primary bucket of an admitted request."""
        limit, used = decision.limit, decision.used
        level = next((percent for percent in ALERT_LEVELS_PERCENT if used * 100 >= limit * percent), 0)
        if not level:
            return
        key = (decision.bucket_charge.name, decision.bucket_charge.key, decision.reset_s)
        if self._said.get(key, 0) >= level:
            return
        if len(self._said) >= MAX_REMEMBERED_ALERTS:
            del self._said[next(iter(self._said))]
        self._said[key] = level
        if len(self._waiting) >= MAX_PENDING_ALERTS:
            self.dropped_alerts += 1
            return
        self._waiting.append(Alert(caller.owner, decision.plan.resource, level, used, limit, decision.reset_s))

    def take_pending(self) -> list[Alert]:
        """What is to be sent now."""
        some, self._waiting = self._waiting, []
        return some


log = logging.getLogger(__name__)

SEND_TIMEOUT_S: Final = 5.0


class Webhook:
    def __init__(self, url: str) -> None:
        self.failures = 0
        self._url = url

    async def send(self, alerts: Sequence[Alert]) -> None:
        """One POST with all of them: `{"alerts": [...]}`."""
        import httpx2  # Only where alerts are sent: it takes long to load.

        try:
            async with httpx2.AsyncClient(timeout=SEND_TIMEOUT_S) as client:
                body = msgspec.json.encode({"alerts": alerts})
                reply = await client.post(self._url, content=body, headers={"content-type": "application/json"})
                reply.raise_for_status()
        except httpx2.HTTPError as problem:
            self.failures += 1
            log.warning("%d alerts could not be sent to the webhook: %s", len(alerts), problem)
