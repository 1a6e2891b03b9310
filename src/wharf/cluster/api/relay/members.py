"""Requests that another server of this region answers, or another process of this one: passed on whole, and the reply
back as it comes."""

from collections.abc import AsyncIterator, Collection
from typing import Final
from urllib.parse import quote

import msgspec

from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionResult, StreamedBody
from wharf.cluster.server.node_channels.directory import FIND_NODE, FindNodeRequest
from wharf.cluster.server.node_channels.port import build_no_node_path
from wharf.cluster.server.relay import MEMBER_HOP, PROCESS_HOP, RelayedReply
from wharf.cluster.server.server import Server
from wharf.cluster.state.tables import LEADER, MEMBERS
from wharf.contract.client.relay.port import RelayRequest
from wharf.contract.client.transport import Unreachable
from wharf.contract.model.cluster import Member
from wharf.contract.model.refusal import Refusal, RefusalCode

LEADER_NAME: Final = "leader"
HOP_HEADERS: Final = frozenset((b"accept-encoding", b"content-length", b"transfer-encoding"))


def find_member(server: Server, name: str) -> Member | None:
    """By its id, its name, its name with the region, or as whoever leads; None: there is no such member."""
    replica = server.replica
    if name == LEADER_NAME:
        leader = replica.get(LEADER)
        return replica.get(MEMBERS, leader.member_id) if leader else None
    for member in replica.iter_all(MEMBERS):
        if name in (member.id, member.name, f"{member.name}.{member.region}"):
            return member
    return None


async def relay_to_member(server: Server, request: Request, member: Member) -> ActionResult | None:
    """The reply of that member; None when it is this one, which answers by itself."""
    if member.id == server.identity.member_id:
        return None
    return await build_relayed_result(await server.relay.send_to_member(member.address, build_relayed_request(request)))


class NodeHolder(msgspec.Struct, frozen=True):
    """Where the connection of a node is: the address, and the hop that leads there."""

    address: str
    hop: bytes


async def find_node_holder(server: Server, node_id: str) -> NodeHolder:
    """Whoever else holds the node's connection. Raises `no_path` where nobody is known to."""
    telling = server.local_channels.reporter
    if telling is None:
        raise build_no_node_path()
    place = (await server.leader.call(FIND_NODE, FindNodeRequest(node_id))).place
    if place is None or place == telling.address:
        raise build_no_node_path()
    if place.member_id == telling.address.member_id:
        return NodeHolder(server.local_channels.address_of(place.process), PROCESS_HOP)
    member = server.replica.get(MEMBERS, place.member_id)
    if member is None:
        raise build_no_node_path()
    return NodeHolder(member.address, MEMBER_HOP)


async def relay_to_node_holder(server: Server, request: Request, node_id: str) -> ActionResult:
    """The reply of whoever holds the node's connection. Raises Refusal."""
    holder = await find_node_holder(server, node_id)
    return await build_relayed_result(
        await server.relay.send_to_member(holder.address, build_relayed_request(request), hop=holder.hop)
    )


def build_relayed_request(
    request: Request, *, method: str = "", excluded_parameters: Collection[str] = ()
) -> RelayRequest:
    """The request as it goes on to another server, but for some of its parameters."""
    query = "&".join(
        f"{quote(name, safe='')}={quote(value, safe='')}"
        for name, value in request.query.items()
        if name not in excluded_parameters
    )
    path = build_request_path(request)
    # How bodies are compressed and cut is settled between us and the caller, and again between us and the other server.
    headers = [(name, value) for name, value in request.headers.items() if name not in HOP_HEADERS]
    body = None
    if request.body:
        headers.append((b"content-length", str(len(request.body)).encode()))
        body = _whole(request.body)
    target = f"{path}?{query}" if query else path
    return RelayRequest(method or request.endpoint.method, target.encode(), headers, body)


async def _whole(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def build_relayed_result(arrived: RelayedReply) -> ActionResult:
    """A reply that arrived, as one of ours. What is refused there is refused here, with the same text."""
    headers = {name.lower(): value for name, value in arrived.headers}
    content_type = headers.get(b"content-type", b"").decode("latin-1")
    return ActionResult(
        StreamedBody(_parts(arrived), content_type or "application/octet-stream"), status=arrived.status
    )


async def _parts(arrived: RelayedReply) -> AsyncIterator[bytes]:
    try:
        async for part in arrived:
            yield part
    except Unreachable as error:
        raise Refusal(RefusalCode.UNAVAILABLE, str(error)) from error
    finally:
        await arrived.aclose()


def build_request_path(request: Request) -> str:
    path = request.endpoint.path
    for name, value in request.path_values.items():
        path = path.replace(f"{{{name}...}}", quote(value)).replace(f"{{{name}}}", quote(value, safe=""))
    return path
