"""The client of RPC: calls the leader's brain, wherever it runs."""

from typing import TypeVar

import msgspec

from wharf.cluster.server.log.preview import forbid_in_preview
from wharf.cluster.server.rpc.method import PeerTransports, RpcMethod, RpcTransport
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import LEADER, MEMBERS
from wharf.contract.model.refusal import Refusal, RefusalCode, no_leader

RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")

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
        """Call a method of the leader's brain and return its reply. Raises `Refusal`."""
        forbid_in_preview()
        reply = await self._leader_transport().call(method.name, _encode(request))
        if reply.code is not None:
            raise Refusal(reply.code, reply.text, reply.reason)
        return method.decode_reply(reply.body)

    async def call_member(self, member_id: str, method: RpcMethod[RequestT, ReplyT], request: RequestT) -> ReplyT:
        """Call a method that needs no leader on the brain of this member, and return its reply. Raises `Refusal`."""
        transport = self._own_transport
        if member_id != self._member_id and self._peers is not None:
            member = self._replica.get(MEMBERS, member_id)
            if member is None:
                raise Refusal(RefusalCode.UNAVAILABLE, f"{member_id} is not a member of this cluster")
            transport = self._peers.transport_to(member)
        reply = await transport.call(method.name, _encode(request))
        if reply.code is not None:
            raise Refusal(reply.code, reply.text, reply.reason)
        return method.decode_reply(reply.body)

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
