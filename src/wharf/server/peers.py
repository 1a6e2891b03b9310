"""The ways to the brains of other members: the same questions, over HTTP to the member's address.

A member lets in whoever says its door secret. That lies in its record in the log, so only those who can read the log
know it, and it changes with every start. What arrives is answered by the member's own brain or refused; it is never
passed on again.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from wharf.client.exchange import Exchange, Reply, Request, Unreachable
from wharf.model.cluster import Member
from wharf.model.refusal import Code, Refusal
from wharf.server.asking import Answered, Link
from wharf.wire.errors import CODE_HEADER, refusal_of

PATH: Final = "/v1/server/ask/"
SECRET_HEADER: Final = "x-cluster-door-secret"
TIMEOUT_S: Final = 30.0
NOTHING_HAPPENED: Final = frozenset({Code.TOO_LARGE, Code.UNAVAILABLE, Code.NO_LEADER})

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
            asked = Request("PUT", PATH + name, headers=headers, body=body, timeout_s=TIMEOUT_S)
            reply = await self._exchange.send(asked)
        except Unreachable as error:
            code = Code.UNDECIDED if error.sent else Code.UNAVAILABLE
            raise Refusal(code, f"the leader, {self._member.name}, did not answer: {error}") from error
        if reply.status != 200:
            raise self._refusal(reply)
        try:
            return _read_answered(reply.body)
        except msgspec.MsgspecError as error:
            # It answered something, so it may have done what was asked.
            text = f"the leader, {self._member.name}, gave an answer that makes no sense: {error}"
            raise Refusal(Code.UNDECIDED, text) from error

    def _refusal(self, reply: Reply) -> Refusal:
        """What went wrong before or behind its door. Only some replies say that nothing happened; what its brain did is
        unknown behind all others.
        """
        text = reply.body.decode("utf-8", "replace")
        code = refusal_of(reply.status, text, code=reply.headers.get(CODE_HEADER, "")).code
        if code is Code.FORBIDDEN:
            return Refusal(Code.UNAVAILABLE, f"the leader, {self._member.name}, did not let this server in")
        told = Code.UNAVAILABLE if code in NOTHING_HAPPENED or reply.status < 500 else Code.UNDECIDED
        return Refusal(told, f"the leader, {self._member.name}, answered {reply.status}: {text}")
