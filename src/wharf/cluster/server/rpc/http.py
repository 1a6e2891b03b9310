"""The ways to the brains of other members: the same questions, over HTTP to the member's address.

A member lets in whoever says its door secret. That lies in its record in the log, so only those who can read the log
know it, and it changes with every start. What arrives is answered by the member's own brain or refused; it is never
passed on again.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from wharf.cluster.server.rpc.leader import RpcReply, RpcTransport
from wharf.contract.client.transport import ClientReply, ClientRequest, Transport, Unreachable
from wharf.contract.model.cluster import Member
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.wire.errors import CODE_HEADER, build_refusal

RPC_PATH: Final = "/v1/server/ask/"
SECRET_HEADER: Final = "x-cluster-door-secret"
REPLY_TIMEOUT_S: Final = 30.0
UNEXECUTED_CODES: Final = frozenset({RefusalCode.TOO_LARGE, RefusalCode.UNAVAILABLE, RefusalCode.NO_LEADER})

_read_answered = msgspec.msgpack.Decoder(RpcReply).decode


class HttpPeerTransports:
    """Keeps one exchange for each address."""

    def __init__(self, exchange_to: Callable[[str], Transport]) -> None:
        self._exchange_to = exchange_to
        self._exchanges: dict[str, Transport] = {}

    def transport_to(self, member: Member) -> RpcTransport:
        exchange = self._exchanges.get(member.address)
        if exchange is None:
            exchange = self._exchanges[member.address] = self._exchange_to(member.address)
        return _HttpLink(exchange, member)

    async def close(self) -> None:
        for exchange in self._exchanges.values():
            await exchange.close()


class _HttpLink:
    def __init__(self, exchange: Transport, member: Member) -> None:
        self._exchange = exchange
        self._member = member

    async def call(self, name: str, body: bytes) -> RpcReply:
        headers = {SECRET_HEADER: self._member.door_secret, "content-type": "application/msgpack"}
        try:
            asked = ClientRequest("PUT", RPC_PATH + name, headers=headers, body=body, timeout_s=REPLY_TIMEOUT_S)
            reply = await self._exchange.send(asked)
        except Unreachable as error:
            code = RefusalCode.OUTCOME_UNKNOWN if error.is_sent else RefusalCode.UNAVAILABLE
            raise Refusal(code, f"the leader, {self._member.name}, did not answer: {error}") from error
        if reply.status != 200:
            raise self._refusal(reply)
        try:
            return _read_answered(reply.body)
        except msgspec.MsgspecError as error:
            # It answered something, so it may have done what was asked.
            text = f"the leader, {self._member.name}, gave an answer that makes no sense: {error}"
            raise Refusal(RefusalCode.OUTCOME_UNKNOWN, text) from error

    def _refusal(self, reply: ClientReply) -> Refusal:
        """What went wrong before or behind its door. Only some replies say that nothing happened; what its brain did is
        unknown behind all others.
        """
        text = reply.body.decode("utf-8", "replace")
        code = build_refusal(reply.status, text, code=reply.headers.get(CODE_HEADER, "")).code
        if code is RefusalCode.FORBIDDEN:
            return Refusal(RefusalCode.UNAVAILABLE, f"the leader, {self._member.name}, did not let this server in")
        told = (
            RefusalCode.UNAVAILABLE if code in UNEXECUTED_CODES or reply.status < 500 else RefusalCode.OUTCOME_UNKNOWN
        )
        return Refusal(told, f"the leader, {self._member.name}, answered {reply.status}: {text}")
