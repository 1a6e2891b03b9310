"""Alerts for callers who are near a limit: one when 80 percent of a window's limit are used, and one at 95 percent.

`AlertQueue` detects them and holds them until they are sent; `Webhook` sends them to the URL that an operator configured.
An alert that cannot be sent is logged and dropped.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.decision import LimitDecision

ALERT_LEVELS_PERCENT: Final = (95, 80)
MAX_PENDING_ALERTS: Final = 1_000
"""Alerts that wait to be sent; more are dropped and counted."""
MAX_REMEMBERED_ALERTS: Final = 50_000
"""Windows for which the last alert level is stored; limits memory."""


class Alert(msgspec.Struct, frozen=True):
    """An alert that a caller is near a limit, as the webhook receives it."""

    caller: str
    """The owner of the bucket, such as `user:ada`."""
    resource: str
    """The bucket, such as `core`."""
    percent: int
    """The level that was reached: 80 or 95."""
    used: int
    limit: int
    reset: int
    """Epoch second at which the window ends."""


class AlertQueue:
    """The alerts that are not sent yet, and the highest level that was reported for each window."""

    def __init__(self) -> None:
        self.dropped_alerts = 0
        self._pending: list[Alert] = []
        self._reported_levels: dict[tuple[str, str, int], int] = {}

    def check_usage(self, decision: LimitDecision, caller: Caller) -> None:
        """Add an alert if the primary bucket has reached a level for the first time in its window.

        If too many alerts wait, the alert is dropped and counted.
        """
        limit, used = decision.limit, decision.used
        level = next((percent for percent in ALERT_LEVELS_PERCENT if used * 100 >= limit * percent), 0)
        if not level:
            return
        key = (decision.bucket_charge.name, decision.bucket_charge.key, decision.reset_s)
        if self._reported_levels.get(key, 0) >= level:
            return
        if len(self._reported_levels) >= MAX_REMEMBERED_ALERTS:
            del self._reported_levels[next(iter(self._reported_levels))]
        self._reported_levels[key] = level
        if len(self._pending) >= MAX_PENDING_ALERTS:
            self.dropped_alerts += 1
            return
        self._pending.append(Alert(caller.owner, decision.plan.resource, level, used, limit, decision.reset_s))

    def take_pending(self) -> list[Alert]:
        """Remove and return the alerts to send."""
        pending, self._pending = self._pending, []
        return pending


log = logging.getLogger(__name__)

SEND_TIMEOUT_S: Final = 5.0
"""How long one request to the webhook may take in all; later alerts wait for it."""


class Webhook:
    """Sends alerts to the URL that an operator configured."""

    def __init__(self, url: str) -> None:
        self.failures = 0
        self._url = url

    async def send(self, alerts: Sequence[Alert]) -> None:
        """Send all alerts in one POST request: `{"alerts": [...]}`. Failures are counted and logged, not raised."""
        import httpx2  # Imported here because loading it is slow and few processes send alerts.

        from wharf.world.http_clients import build_async_client
        from wharf.world.tls_contexts import load_client_context

        body = msgspec.json.encode({"alerts": alerts})
        headers = {"content-type": "application/json"}
        try:
            async with (
                asyncio.timeout(SEND_TIMEOUT_S),
                build_async_client(timeout=SEND_TIMEOUT_S, verify=await load_client_context()) as client,
                client.stream("POST", self._url, content=body, headers=headers) as reply,
            ):
                reply.raise_for_status()  # The body is not read.
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError) as error:
            self.failures += 1
            why = str(error) or f"no reply within {SEND_TIMEOUT_S:g} s"
            log.warning("sending alerts to the webhook failed alerts=%d error=%s", len(alerts), why)
