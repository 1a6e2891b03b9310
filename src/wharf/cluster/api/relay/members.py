"""Relaying of requests to other servers of the region and to other processes of this server, unchanged."""

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
"""Compression and body framing are negotiated separately for each hop."""


def find_member(server: Server, name: str) -> Member | None:
    """Return the member with the id, name or `name.region`, or the leader for "leader"; `None` if none matches."""
    replica = server.replica
    if name == LEADER_NAME:
        leader = replica.get(LEADER)
        return replica.get(MEMBERS, leader.member_id) if leader else None
    for member in replica.iter_all(MEMBERS):
        if name in (member.id, member.name, f"{member.name}.{member.region}"):
            return member
    return None


async def relay_to_member(server: Server, request: Request, member: Member) -> ActionResult | None:
    """Relay the request and return the member's reply, or `None` if the member is this server."""
    if member.id == server.identity.member_id:
        return None
    return await build_relayed_result(await server.relay.send_to_member(member.address, build_relayed_request(request)))


class NodeHolder(msgspec.Struct, frozen=True):
    """The process that holds a node's connection: its address, and the kind of hop that reaches it."""

    address: str
    hop: bytes


async def find_node_holder(server: Server, node_id: str) -> NodeHolder:
    """Return the other process that holds the node's connection. Raises a `Refusal` if none is known."""
    reporter = server.local_channels.reporter
    if reporter is None:
        raise build_no_node_path()
    address = (await server.leader.call(FIND_NODE, FindNodeRequest(node_id))).place
    if address is None or address == reporter.address:
        raise build_no_node_path()
    if address.member_id == reporter.address.member_id:
        return NodeHolder(server.local_channels.address_of(address.process), PROCESS_HOP)
    member = server.replica.get(MEMBERS, address.member_id)
    if member is None:
        raise build_no_node_path()
    return NodeHolder(member.address, MEMBER_HOP)


async def relay_to_node_holder(server: Server, request: Request, node_id: str) -> ActionResult:
    """Relay the request to the process that holds the node's connection. Raises `Refusal`."""
    holder = await find_node_holder(server, node_id)
    return await build_relayed_result(
        await server.relay.send_to_member(holder.address, build_relayed_request(request), hop=holder.hop)
    )


def build_relayed_request(
    request: Request, *, method: str = "", excluded_parameters: Collection[str] = ()
) -> RelayRequest:
    """Return the request to send to another server, without the excluded parameters."""
    query = "&".join(
        f"{quote(name, safe='')}={quote(value, safe='')}"
        for name, value in request.query.items()
        if name not in excluded_parameters
    )
    path = build_request_path(request)
    headers = [(name, value) for name, value in request.headers.items() if name not in HOP_HEADERS]
    body = None
    if request.body:
        headers.append((b"content-length", str(len(request.body)).encode()))
        body = _iterate_once(request.body)
    target = f"{path}?{query}" if query else path
    return RelayRequest(method or request.endpoint.method, target.encode(), headers, body)


async def _iterate_once(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def build_relayed_result(relayed_reply: RelayedReply) -> ActionResult:
    """Return a relayed reply as a streamed result. Refusals keep their status and text."""
    headers = {name.lower(): value for name, value in relayed_reply.headers}
    content_type = headers.get(b"content-type", b"").decode("latin-1")
    return ActionResult(
        StreamedBody(_iterate_parts(relayed_reply), content_type or "application/octet-stream"),
        status=relayed_reply.status,
    )


async def _iterate_parts(relayed_reply: RelayedReply) -> AsyncIterator[bytes]:
    try:
        async for part in relayed_reply:
            yield part
    except Unreachable as error:
        raise Refusal(RefusalCode.UNAVAILABLE, str(error)) from error
    finally:
        await relayed_reply.aclose()


def build_request_path(request: Request) -> str:
    """Return the path of the request, percent-encoded."""
    path = request.endpoint.path
    for name, value in request.path_values.items():
        path = path.replace(f"{{{name}...}}", quote(value)).replace(f"{{{name}}}", quote(value, safe=""))
    return path
