"""RPC over HTTP to the brains of other members.

A caller proves itself with the member's door secret. That is part of the member's record in the log, so only members
know it, and it changes at every start. A request is handled by that member's own brain or refused, never forwarded.
Probes are calls too: the api process of a member may answer while its brain is frozen.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from wharf.cluster.server.rpc.method import PING, EmptyMessage, RpcReply, RpcTransport
from wharf.contract.client.errors import build_error
from wharf.contract.client.liveness import PROBE_TIMEOUT_S, LivenessProbe
from wharf.contract.client.transport import ClientReply, ClientRequest, Transport, Unreachable
from wharf.contract.model.cluster import Member
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.wire.credentials import SERVER_SECRET_HEADER
from wharf.world import World

RPC_PATH: Final = "/v1/server/ask/"
REPLY_TIMEOUT_S: Final = 20.0
"""Seconds for the reply of another member. Shorter than a client's timeout, so that the client gets the reason."""
UNEXECUTED_CODES: Final = frozenset({RefusalCode.TOO_LARGE, RefusalCode.UNAVAILABLE, RefusalCode.NO_LEADER})
"""Refusals which prove that the call was not executed."""

_EMPTY_MESSAGE: Final = msgspec.msgpack.encode(EmptyMessage())
_decode_reply = msgspec.msgpack.Decoder(RpcReply).decode


class HttpPeerTransports:
    """Carries RPC calls to other members over HTTP. One transport for each address is kept open."""

    def __init__(self, world: World, open_transport: Callable[[str], Transport]) -> None:
        self._world = world
        self._open_transport = open_transport
        self._peers: dict[str, _HttpTransport] = {}

    def transport_to(self, member: Member) -> RpcTransport:
        """Return the transport to this member's brain."""
        peer = self._peers.get(member.address)
        if peer is None:
            peer = self._peers[member.address] = _HttpTransport(
                self._world, self._open_transport(member.address), member
            )
        peer.member = member  # Its secret changes when it starts again.
        return peer

    async def close(self) -> None:
        """Close all connections."""
        for peer in self._peers.values():
            await peer.close()


class _HttpTransport:
    """Carries RPC calls to the brain of the member at one address over HTTP."""

    def __init__(self, world: World, transport: Transport, member: Member) -> None:
        self._transport = transport
        self.member = member
        self._probe = LivenessProbe(world, self._send_probe, member.address)

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def call(self, name: str, body: bytes) -> RpcReply:
        """Send the encoded request `body` for the method `name`, and return the reply.

        Raises `Refusal`: UNAVAILABLE if nothing was executed, OUTCOME_UNKNOWN if the call may have been executed.
        """
        try:
            async with self._probe.end_if_silent():
                reply = await self._transport.send(self._build_request(name, body, REPLY_TIMEOUT_S))
            self._probe.on_reply()
        except Unreachable as error:
            code = RefusalCode.OUTCOME_UNKNOWN if error.is_sent else RefusalCode.UNAVAILABLE
            raise Refusal(code, f"the leader, {self.member.name}, did not reply: {error}") from error
        if reply.status != 200:
            raise self._build_refusal(reply)
        try:
            return _decode_reply(reply.body)
        except msgspec.MsgspecError as error:
            # The call may have been executed.
            text = f"the leader, {self.member.name}, sent an undecodable reply: {error}"
            raise Refusal(RefusalCode.OUTCOME_UNKNOWN, text) from error

    async def _send_probe(self) -> None:
        """Send a call that needs no work. Raises `Unreachable` if the member's brain does not reply."""
        await self._transport.send(self._build_request(PING.name, _EMPTY_MESSAGE, PROBE_TIMEOUT_S))

    def _build_request(self, name: str, body: bytes, timeout_s: float) -> ClientRequest:
        """Return the request that carries a call."""
        headers = {SERVER_SECRET_HEADER.decode(): self.member.door_secret, "content-type": "application/msgpack"}
        return ClientRequest("PUT", RPC_PATH + name, headers=headers, body=body, timeout_s=timeout_s)

    def _build_refusal(self, reply: ClientReply) -> Refusal:
        """Return the refusal for a reply whose status is not 200.

        Unless the reply proves that the call was not executed, its outcome is unknown. If the member is overloaded, so is the
        refusal, with the pause that the member requests.
        """
        error = build_error(reply)
        code, reply_text = error.code, reply.body.decode("utf-8", "replace")
        if code is RefusalCode.FORBIDDEN:
            return Refusal(RefusalCode.UNAVAILABLE, f"the leader, {self.member.name}, rejected this server's secret")
        result_code = (
            RefusalCode.UNAVAILABLE if code in UNEXECUTED_CODES or reply.status < 500 else RefusalCode.OUTCOME_UNKNOWN
        )
        text = f"the leader, {self.member.name}, replied with status {reply.status}: {reply_text}"
        if result_code is RefusalCode.OUTCOME_UNKNOWN:
            return Refusal(result_code, text)
        return Refusal(result_code, text, error.reason, error.retry_after_s)
