"""Alerts sent to an address that an operator names. A receiver that is away costs an alert and a line in the log, no more."""

import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from wharf.limits.desk.alerts import Alert

log = logging.getLogger(__name__)

WITHIN_S: Final = 5.0


class Webhook:
    def __init__(self, url: str) -> None:
        self.failures = 0
        self._url = url

    async def send(self, alerts: Sequence[Alert]) -> None:
        """One POST with all of them: `{"alerts": [...]}`."""
        import httpx2  # Only where alerts are sent: it takes long to load.

        try:
            async with httpx2.AsyncClient(timeout=WITHIN_S) as client:
                body = msgspec.json.encode({"alerts": alerts})
                reply = await client.post(self._url, content=body, headers={"content-type": "application/json"})
                reply.raise_for_status()
        except httpx2.HTTPError as problem:
            self.failures += 1
            log.warning("%d alerts could not be sent to the webhook: %s", len(alerts), problem)
