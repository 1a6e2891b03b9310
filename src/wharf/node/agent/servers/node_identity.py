"""The node's own signed identity: by it the node proves to others who it is. Servers know it by its secret."""

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgspec

from wharf.contract.client import AsyncClient, Unreachable
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.wire.nodes import channel
from wharf.contract.wire.nodes.messages import SignedIdentity
from wharf.node.agent.servers.session import NodeCredentials
from wharf.node.channel.endpoint import ChannelReply
from wharf.node.channel.files import JSON_CONTENT_TYPE, VerbHandler
from wharf.world import World

log = logging.getLogger(__name__)

RETRY_DELAY_S: Final = 5.0
TIME_CLAIMS: Final = ("iat", "nbf", "exp")
SHOWN_CLAIMS: Final = (
    *(*TIME_CLAIMS, "jti", "iss", "aud", "sub"),
    *("nomad_node_id", "nomad_node_class", "nomad_node_pool", "nomad_node_datacenter"),
)


class SignedNodeIdentity:
    """Kept in memory alone: an agent that begins asks for another."""

    def __init__(
        self, world: World, client: AsyncClient, identity: NodeCredentials, on_change: Callable[[], None]
    ) -> None:
        self._world = world
        self._client = client
        self._identity = identity
        self._on_change = on_change
        self._signed: SignedIdentity | None = None
        self.signing_key_id = ""
        """Of the key that signed it; empty before there is one."""

    async def keep_renewed(self) -> None:
        """Until cancelled, have one that holds."""
        said = ""
        while True:
            signed = self._signed
            if signed is not None:
                middle_ns = signed.issued + (signed.expires - signed.issued) // 2
                await asyncio.sleep(max(0.0, (middle_ns - self._world.now_ns()) / 1e9))
                if self._signed is not signed:
                    continue  # It was renewed meanwhile.
            try:
                await self.renew_identity()
            except (Refusal, Unreachable) as error:
                if said != str(error):
                    said = str(error)
                    log.info("the node's identity is not signed: %s", error)
                await asyncio.sleep(RETRY_DELAY_S)

    async def renew_identity(self) -> None:
        """Raises Refusal and Unreachable."""
        reply = await self._client.node_agents.sign_own_identity(self._identity.id, self._identity.secret_id)
        self._signed = reply.identity.with_local_times(self._world.now_ns())
        if reply.signing_key_id != self.signing_key_id:
            self.signing_key_id = reply.signing_key_id
            self._on_change()

    def handlers(self) -> dict[str, VerbHandler]:
        return {"identity": self._told, "identity_renew": self._renew}

    async def _told(self, _question: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        if self._signed is None:
            raise Refusal(RefusalCode.UNAVAILABLE, "no identity of this node is signed yet; ask again in a moment")
        return ChannelReply(JSON_CONTENT_TYPE, msgspec.json.encode({"Claims": decode_claims(self._signed.jwt)}))

    async def _renew(self, question: channel.ChannelRequest, inputs: AsyncIterator[bytes]) -> ChannelReply:
        try:
            await self.renew_identity()
        except Unreachable as error:
            raise Refusal(RefusalCode.UNAVAILABLE, f"the node's identity cannot be renewed now: {error}") from error
        return await self._told(question, inputs)


def decode_claims(jwt: str) -> dict[str, Any]:
    """What it says, without the signature: shown, it proves nothing."""
    middle = jwt.split(".")[1]
    said = json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
    return {name: float(said[name]) if name in TIME_CLAIMS else said[name] for name in SHOWN_CLAIMS if name in said}
