"""RPC over HTTP to the brains of other members.

A caller proves itself with the member's door secret. That is part of the member's record in the log, so only members
know it, and it changes at every start. A request is handled by that member's own brain or refused, never forwarded.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from wharf.cluster.server.rpc.method import RpcReply, RpcTransport
from wharf.contract.client.liveness import PROBE_PATH, PROBE_TIMEOUT_S, LivenessProbe
from wharf.contract.client.transport import ClientReply, ClientRequest, Transport, Unreachable
from wharf.contract.model.cluster import Member
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.wire.credentials import SERVER_SECRET_HEADER
from wharf.contract.wire.errors import CODE_HEADER, build_refusal
from wharf.world import World

RPC_PATH: Final = "/v1/server/ask/"
REPLY_TIMEOUT_S: Final = 20.0
"""Seconds for the reply of another member. Shorter than a client's timeout, so that the client gets the reason."""
UNEXECUTED_CODES: Final = frozenset({RefusalCode.TOO_LARGE, RefusalCode.UNAVAILABLE, RefusalCode.NO_LEADER})
"""Refusals which prove that the call was not executed."""

_decode_reply = msgspec.msgpack.Decoder(RpcReply).decode


class HttpPeerTransports:
    """Carries RPC calls to other members over HTTP. One transport for each address is kept open."""

    def __init__(self, world: World, open_transport: Callable[[str], Transport]) -> None:
        self._world = world
        self._open_transport = open_transport
        self._transports: dict[str, tuple[Transport, LivenessProbe]] = {}

    def transport_to(self, member: Member) -> RpcTransport:
        """Return the transport to this member's brain."""
        opened = self._transports.get(member.address)
        if opened is None:
            transport = self._open_transport(member.address)
            probe = LivenessProbe(self._world, partial(_send_probe, transport), member.address)
            opened = self._transports[member.address] = transport, probe
        return _HttpTransport(*opened, member)

    async def close(self) -> None:
        """Close all connections."""
        for transport, _ in self._transports.values():
            await transport.close()


class _HttpTransport:
    """Carries RPC calls to the brain of one member over HTTP."""

    def __init__(self, transport: Transport, probe: LivenessProbe, member: Member) -> None:
        self._transport = transport
        self._probe = probe
        self._member = member

    async def call(self, name: str, body: bytes) -> RpcReply:
        """Send the encoded request `body` for the method `name`, and return the reply.

        Raises `Refusal`: UNAVAILABLE if nothing was executed, OUTCOME_UNKNOWN if the call may have been executed.
        """
        headers = {SERVER_SECRET_HEADER.decode(): self._member.door_secret, "content-type": "application/msgpack"}
        try:
            request = ClientRequest("PUT", RPC_PATH + name, headers=headers, body=body, timeout_s=REPLY_TIMEOUT_S)
            async with self._probe.end_if_silent():
                reply = await self._transport.send(request)
            self._probe.on_reply()
        except Unreachable as error:
            code = RefusalCode.OUTCOME_UNKNOWN if error.is_sent else RefusalCode.UNAVAILABLE
            raise Refusal(code, f"the leader, {self._member.name}, did not reply: {error}") from error
        if reply.status != 200:
            raise self._build_refusal(reply)
        try:
            return _decode_reply(reply.body)
        except msgspec.MsgspecError as error:
            # The call may have been executed.
            text = f"the leader, {self._member.name}, sent an undecodable reply: {error}"
            raise Refusal(RefusalCode.OUTCOME_UNKNOWN, text) from error

    def _build_refusal(self, reply: ClientReply) -> Refusal:
        """Return the refusal for a reply whose status is not 200.

        Unless the reply proves that the call was not executed, its outcome is unknown.
        """
        text = reply.body.decode("utf-8", "replace")
        code = build_refusal(reply.status, text, code=reply.headers.get(CODE_HEADER, "")).code
        if code is RefusalCode.FORBIDDEN:
            return Refusal(RefusalCode.UNAVAILABLE, f"the leader, {self._member.name}, rejected this server's secret")
        result_code = (
            RefusalCode.UNAVAILABLE if code in UNEXECUTED_CODES or reply.status < 500 else RefusalCode.OUTCOME_UNKNOWN
        )
        return Refusal(result_code, f"the leader, {self._member.name}, replied with status {reply.status}: {text}")


async def _send_probe(transport: Transport) -> None:
    """Send a request that needs no work. Raises `Unreachable` if the member does not reply."""
    await transport.send(ClientRequest("GET", PROBE_PATH, timeout_s=PROBE_TIMEOUT_S))
