"""The client of RPC: calls the leader's brain, wherever it runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import msgspec

from wharf.cluster.server.log.preview import forbid_in_preview
from wharf.cluster.server.rpc.method import PeerTransports, RpcMethod, RpcReply, RpcTransport
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import LEADER, MEMBERS
from wharf.cluster.state.watches import watch_key
from wharf.contract.model.refusal import Refusal, RefusalCode, no_leader

RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")

LEADER_CHANGE_GRACE_S: Final = 1.0
"""Seconds in which a former leader may still reply to a call.

A leader that transferred its leadership replies at once. A frozen one never does, and would hold the caller until the
reply timeout.
"""
MAX_LEADERS_PER_CALL: Final = 3
"""How many leaders one repeatable call may try. Protects callers while servers lead in turn."""

_encode = msgspec.msgpack.Encoder().encode


class LeaderClient:
    """Sends RPC calls to the leader's brain, or to the brain of a named member."""

    def __init__(
        self, replica: Replica, member_id: str, own_transport: RpcTransport, peers: PeerTransports | None
    ) -> None:
        self._replica = replica
        self._member_id = member_id
        self._own_transport = own_transport
        self._peers = peers

    async def call(self, method: RpcMethod[RequestT, ReplyT], request: RequestT) -> ReplyT:
        """Call a method of the leader's brain and return its reply. Raises `Refusal`.

        If another server becomes the leader before the reply, a repeatable method is called there. The outcome of other
        methods is then unknown.
        """
        forbid_in_preview()
        return _decode_reply(
            method, await self.call_encoded(method.name, _encode(request), is_repeatable=method.is_repeatable)
        )

    async def call_encoded(self, name: str, body: bytes, *, is_repeatable: bool) -> RpcReply:
        """Call the method with this name with an encoded request, and return its reply. See `call`."""
        for _ in range(MAX_LEADERS_PER_CALL):
            transport = self._leader_transport()
            try:
                async with self._end_on_leader_change():
                    return await transport.call(name, body)
            except TimeoutError:
                if not is_repeatable:
                    text = "another server became the leader before the reply; check the current state before you retry"
                    raise Refusal(RefusalCode.OUTCOME_UNKNOWN, text) from None
        raise no_leader()

    async def call_member(self, member_id: str, method: RpcMethod[RequestT, ReplyT], request: RequestT) -> ReplyT:
        """Call a method that needs no leader on the brain of this member, and return its reply. Raises `Refusal`."""
        return _decode_reply(method, await self.call_member_encoded(member_id, method.name, _encode(request)))

    async def call_member_encoded(self, member_id: str, name: str, body: bytes) -> RpcReply:
        """Call the method with this name with an encoded request, and return its reply. See `call_member`."""
        transport = self._own_transport
        if member_id != self._member_id and self._peers is not None:
            member = self._replica.get(MEMBERS, member_id)
            if member is None:
                raise Refusal(RefusalCode.UNAVAILABLE, f"{member_id} is not a member of this cluster")
            transport = self._peers.transport_to(member)
        return await transport.call(name, body)

    @asynccontextmanager
    async def _end_on_leader_change(self) -> AsyncIterator[None]:
        """Return a context manager that raises `TimeoutError` some time after another member became the leader."""
        loop, former_id = asyncio.get_running_loop(), self.get_leader_id()
        limit = asyncio.timeout(None)

        def check_leader() -> None:
            subscription.rearm()
            if not subscription.is_closed and limit.when() is None and self.get_leader_id() not in ("", former_id):
                limit.reschedule(loop.time() + LEADER_CHANGE_GRACE_S)

        def on_change() -> None:
            loop.call_soon(check_leader)  # The batch is still being applied.

        subscription = self._replica.watches.subscribe([watch_key(LEADER)], on_change)
        try:
            async with limit:
                yield
        finally:
            subscription.close()

    def get_leader_id(self) -> str:
        """Return the id of the leading member, or an empty text if there is none."""
        leader = self._replica.get(LEADER)
        return leader.member_id if leader is not None else ""

    def _leader_transport(self) -> RpcTransport:
        """Return the transport to the leader's brain. Raises `Refusal` if no leader is known."""
        leader = self._replica.get(LEADER)
        if leader is None:
            raise no_leader()
        if leader.member_id == self._member_id or self._peers is None:
            return self._own_transport
        member = self._replica.get(MEMBERS, leader.member_id)
        if member is None:
            raise no_leader()
        return self._peers.transport_to(member)


def _decode_reply(method: RpcMethod[RequestT, ReplyT], reply: RpcReply) -> ReplyT:
    """Return the decoded reply of a call. Raises the `Refusal` that it holds."""
    if reply.code is not None:
        raise Refusal(reply.code, reply.text, reply.reason, reply.retry_after_s)
    return method.decode_reply(reply.body)
