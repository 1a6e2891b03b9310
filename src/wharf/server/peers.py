"""The ways to the brains of other members: the same questions, over HTTP to the member's address.

A member lets in whoever says its door secret. That lies in its record in the log, so only those who can read the log
know it, and it changes with every start. What arrives is answered by the member's own brain or refused; it is never
passed on again.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from wharf.client.exchange import Exchange, Unreachable
from wharf.model.cluster import Member
from wharf.model.refusal import Code, Refusal
from wharf.server.asking import Answered, Link
from wharf.wire.errors import STATUS_OF

PATH: Final = "/v1/server/ask/"
SECRET_HEADER: Final = "x-cluster-door-secret"
TIMEOUT_S: Final = 30.0
NOTHING_HAPPENED: Final = frozenset({404, 405, STATUS_OF[Code.TOO_LARGE], STATUS_OF[Code.UNAVAILABLE]})

_read_answered = msgspec.msgpack.Decoder(Answered).decode


class HttpPeers:
    """Keeps one exchange for each address."""

    def __init__(self, exchange_to: Callable[[str], Exchange]) -> None:
        self._exchange_to = exchange_to
        self._exchanges: dict[str, Exchange] = {}

    def link(self, member: Member) -> Link:
        exchange = self._exchanges.get(member.address)
        if exchange is None:
            exchange = self._exchanges[member.address] = self._exchange_to(member.address)
        return _HttpLink(exchange, member)

    async def close(self) -> None:
        for exchange in self._exchanges.values():
            await exchange.close()


class _HttpLink:
    def __init__(self, exchange: Exchange, member: Member) -> None:
        self._exchange = exchange
        self._member = member

    async def ask(self, name: str, body: bytes) -> Answered:
        headers = {SECRET_HEADER: self._member.door_secret, "content-type": "application/msgpack"}
        try:
            reply = await self._exchange.send(
                "PUT", PATH + name, query={}, headers=headers, body=body, timeout_s=TIMEOUT_S
            )
        except Unreachable as error:
            code = Code.UNDECIDED if error.sent else Code.UNAVAILABLE
            raise Refusal(code, f"the leader, {self._member.name}, did not answer: {error}") from error
        if reply.status == STATUS_OF[Code.FORBIDDEN]:
            raise Refusal(Code.UNAVAILABLE, f"the leader, {self._member.name}, did not let this server in")
        if reply.status != 200:
            # Only some replies say that nothing happened; what its brain did is unknown behind all others.
            code = Code.UNAVAILABLE if reply.status in NOTHING_HAPPENED else Code.UNDECIDED
            text = reply.body.decode("utf-8", "replace")
            raise Refusal(code, f"the leader, {self._member.name}, answered {reply.status}: {text}")
        return _read_answered(reply.body)
