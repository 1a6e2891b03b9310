"""The node's signed identity: a token with which the node proves its identity to third parties.

To servers, the node authenticates with its secret instead.
"""

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgspec

from wharf.contract.client import AsyncClient, Unreachable
from wharf.contract.client.errors import get_requested_delay_s
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.wire.nodes import channel
from wharf.contract.wire.nodes.messages import SignedIdentity
from wharf.node.agent.servers.repeated_failures import RepeatedFailures
from wharf.node.channel.endpoint import JSON_CONTENT_TYPE, ChannelReply, VerbHandler
from wharf.node.credentials import NodeCredentials
from wharf.world import World
from wharf.world.backoff import Backoff

log = logging.getLogger(__name__)

MIN_RETRY_DELAY_S: Final = 5.0
"""The longest delay after a first failed attempt to get an identity; it doubles with each further failure."""
MAX_RETRY_DELAY_S: Final = 60.0
"""The longest delay between two attempts to get an identity. Limits the load of servers that are overloaded."""
TIME_CLAIMS: Final = ("iat", "nbf", "exp")
"""Claims that are times in seconds."""
SHOWN_CLAIMS: Final = (
    *(*TIME_CLAIMS, "jti", "iss", "aud", "sub"),
    *("nomad_node_id", "nomad_node_class", "nomad_node_pool", "nomad_node_datacenter"),
)
"""The claims that the API shows; the signature is never shown."""


class SignedNodeIdentity:
    """The node's signed identity. It is stored in memory only: a restarted agent requests a new one."""

    def __init__(
        self, world: World, client: AsyncClient, identity: NodeCredentials, on_change: Callable[[], None]
    ) -> None:
        self._world = world
        self._client = client
        self._identity = identity
        self._on_change = on_change
        self._signed: SignedIdentity | None = None
        self.signing_key_id = ""
        """The id of the key that signed it; empty before the first one."""

    async def keep_renewed(self) -> None:
        """Request an identity, and a new one each time when half of its lifetime has ended. Runs until canceled.

        A failed request is repeated after a growing delay.
        """
        failures = RepeatedFailures()
        backoff = Backoff(self._world.random, min_s=MIN_RETRY_DELAY_S, max_s=MAX_RETRY_DELAY_S)
        while True:
            signed = self._signed
            if signed is not None:
                renew_at_ns = signed.issued + (signed.expires - signed.issued) // 2
                # Capped at the configured time, in case the clock was set back.
                wait_ns = min(renew_at_ns - self._world.now_ns(), renew_at_ns - signed.issued)
                await asyncio.sleep(max(0.0, wait_ns / 1e9))
                if self._signed is not signed:
                    continue  # A request renewed it meanwhile.
            try:
                await self.renew_identity()
                backoff.reset()
                failures.clear()
            except (Refusal, Unreachable) as error:
                if failures.is_new(error):
                    log.info("failed to renew the node's identity error=%s", error)
                await asyncio.sleep(backoff.next_delay_s(get_requested_delay_s(error)))

    async def renew_identity(self) -> None:
        """Have a server sign a new identity and store it. Raises `Refusal` and `Unreachable`.

        Calls `on_change` if it was signed with another key than the identity before.
        """
        reply = await self._client.node_agents.sign_own_identity(self._identity.id, self._identity.secret_id)
        self._signed = reply.identity.with_local_times(self._world.now_ns())
        if reply.signing_key_id != self.signing_key_id:
            self.signing_key_id = reply.signing_key_id
            self._on_change()

    def handlers(self) -> dict[str, VerbHandler]:
        """Return the handlers for reading and renewing the identity, by verb of the node channel."""
        return {"identity": self._read, "identity_renew": self._renew}

    async def _read(self, _request: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        """Return the claims of the identity as JSON. Raises `Refusal` if there is no identity yet."""
        if self._signed is None:
            raise Refusal(RefusalCode.UNAVAILABLE, "this node has no signed identity yet. Try again in a few seconds")
        return ChannelReply(JSON_CONTENT_TYPE, msgspec.json.encode({"Claims": decode_claims(self._signed.jwt)}))

    async def _renew(self, request: channel.ChannelRequest, inputs: AsyncIterator[bytes]) -> ChannelReply:
        """Renew the identity and return its claims as JSON. Raises `Refusal`."""
        try:
            await self.renew_identity()
        except Unreachable as error:
            raise Refusal(RefusalCode.UNAVAILABLE, f"failed to renew the node's identity: {error}") from error
        return await self._read(request, inputs)


def decode_claims(jwt: str) -> dict[str, Any]:
    """Return those claims of a JSON Web Token that the API shows. The signature is not checked."""
    payload = jwt.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return {
        name: float(claims[name]) if name in TIME_CLAIMS else claims[name] for name in SHOWN_CLAIMS if name in claims
    }
