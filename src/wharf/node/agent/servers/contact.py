"""The time at which a node lost contact with its servers. Groups with `stop_on_client_after` stop some time after it.

A node of a large fleet sends a heartbeat only every few minutes, so the last heartbeat is often older than the loss. Contact is
lost when a request of any kind fails and no later request is answered. Servers declare a node down some time after its
heartbeat was due, even if they answered other requests. So contact counts as lost by then at the latest.
"""

import asyncio
from typing import Final

from wharf.contract.client import ClientReply, ClientRequest, Transport, Unreachable
from wharf.contract.client.transport import StreamedReply
from wharf.world import World

MIN_UNANSWERED_S: Final = 4.0
"""Contact counts as lost this long after a heartbeat was due, if none was acknowledged. The shortest grace that is recommended
for servers."""
UNANSWERED_PART: Final = 0.1
"""The same time as a part of the TTL, for long TTLs: half of the grace that servers grant."""


class ServerContact:
    """When servers answered this node, and when a request failed. All times are monotonic."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._failed_since_s: float | None = None
        """When the first request failed after the last reply; `None` if none has."""
        self._limit_s = world.monotonic_s()
        """Contact counts as lost at this time at the latest, unless a heartbeat is acknowledged before."""

    def on_heartbeat_acknowledged(self, sent_s: float, ttl_s: float) -> None:
        """Record that servers acknowledged the heartbeat that was sent at `sent_s`."""
        self._failed_since_s = None
        self._limit_s = sent_s + ttl_s + max(MIN_UNANSWERED_S, ttl_s * UNANSWERED_PART)

    def on_reply(self) -> None:
        """Record that a server answered a request of any kind."""
        self._failed_since_s = None

    def on_failure(self) -> None:
        """Record that a request got no reply."""
        if self._failed_since_s is None:
            self._failed_since_s = self._world.monotonic_s()

    def get_lost_since_s(self) -> float:
        """Return when contact was lost. Call it after a heartbeat that was not acknowledged."""
        failed_since_s = self._world.monotonic_s() if self._failed_since_s is None else self._failed_since_s
        return min(failed_since_s, self._limit_s)


class ObservedTransport:
    """A transport of the API client that records replies and failures in a `ServerContact`."""

    def __init__(self, transport: Transport, contact: ServerContact) -> None:
        self._transport = transport
        self._contact = contact

    async def send(self, request: ClientRequest) -> ClientReply:
        """Send a request and return the reply."""
        try:
            reply = await self._transport.send(request)
        except (Unreachable, asyncio.CancelledError):  # A call that leaves a silent server is canceled.
            self._contact.on_failure()
            raise
        self._contact.on_reply()
        return reply

    async def open(self, request: ClientRequest) -> StreamedReply:
        """Open a stream."""
        return await self._transport.open(request)

    async def close(self) -> None:
        """Do nothing: the wrapped transport belongs to the client."""
