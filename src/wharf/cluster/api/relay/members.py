"""Relaying of requests to other servers of the region and to other processes of this server, unchanged."""

from collections.abc import AsyncIterator, Collection, Mapping
from types import MappingProxyType
from typing import Final
from urllib.parse import quote

import msgspec

from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionResult, StreamedBody
from wharf.cluster.server.node_channels.directory import FIND_NODE, FindNodeRequest
from wharf.cluster.server.node_channels.port import build_no_node_path
from wharf.cluster.server.relay import MEMBER_HOP, PROCESS_HOP, RelayedReply
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import LEADER, MEMBERS
from wharf.contract.client.relay.port import RelayRequest
from wharf.contract.client.transport import Unreachable
from wharf.contract.model.body_limits import cut_echo
from wharf.contract.model.cluster import Member
from wharf.contract.model.refusal import Refusal, RefusalCode, not_found
from wharf.contract.wire.errors import CODE_HEADER, DETAIL_HEADER, REASON_HEADER

LEADER_NAME: Final = "leader"
NO_CHANGED_PARAMETERS: Final[Mapping[str, object]] = MappingProxyType({})
REFUSAL_HEADERS: Final = (CODE_HEADER.encode(), REASON_HEADER.encode(), DETAIL_HEADER.encode())
HOP_HEADERS: Final = frozenset((b"accept-encoding", b"content-encoding", b"content-length", b"transfer-encoding"))
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


def find_member_secret(replica: Replica, address: str) -> str:
    """Return the secret of the member at this address; "" if no member has the address."""
    return next((member.door_secret for member in replica.iter_all(MEMBERS) if member.address == address), "")


async def relay_to_member(server: Server, request: Request, member: Member) -> ActionResult | None:
    """Relay the request to the member and return its reply, or return `None` if the member is this server."""
    if member.id == server.identity.member_id:
        return None
    return await build_relayed_result(await server.relay.send_to_member(member.address, build_relayed_request(request)))


async def relay_to_named_member(server: Server, request: Request) -> ActionResult | None:
    """Relay the request to the member that its parameter `server_id` names, and return its reply.

    Return `None` if it names none, or this server. Raises `Refusal` if the name is unknown.
    """
    name = request.get_text("server_id")
    if not name:
        return None
    member = find_member(server, name)
    if member is None:
        raise not_found(f"no server has the ID or name {cut_echo(name)}")
    return await relay_to_member(server, request, member)


class NodeHolder(msgspec.Struct, frozen=True):
    """The process that has the connection to a node."""

    address: str
    """Where to send requests to this process."""
    hop: bytes
    """Value for the hop header: whether this is a process of this server or of another member."""


async def find_node_holder(server: Server, node_id: str) -> NodeHolder:
    """Return the other process that has the connection to the node, as the leader knows it.

    Raises `NoNodePath` if no other process is known to have it.
    """
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


async def relay_to_node_holder(
    server: Server, request: Request, node_id: str, changed_parameters: Mapping[str, object] = NO_CHANGED_PARAMETERS
) -> ActionResult:
    """Relay the request to the process that has the connection to the node, and return its reply. Raises `Refusal`.

    `changed_parameters` replace parameters of the request.
    """
    holder = await find_node_holder(server, node_id)
    relayed = build_relayed_request(request, changed_parameters=changed_parameters)
    return await build_relayed_result(await server.relay.send_to_member(holder.address, relayed, hop=holder.hop))


def build_relayed_request(
    request: Request,
    *,
    method: str = "",
    excluded_parameters: Collection[str] = (),
    changed_parameters: Mapping[str, object] = NO_CHANGED_PARAMETERS,
) -> RelayRequest:
    """Return the request as a message to another server. An empty `method` means the endpoint's method.

    The excluded query parameters are omitted, and `changed_parameters` replace the others.
    """
    changed_texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in changed_parameters.items()
    }
    query = "&".join(
        f"{quote(name, safe='')}={quote(value, safe='')}"
        for name, value in {**request.query, **changed_texts}.items()
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
        headers=[(name, headers[name]) for name in REFUSAL_HEADERS if name in headers],
    )


async def _iterate_parts(relayed_reply: RelayedReply) -> AsyncIterator[bytes]:
    """Yield the parts of a relayed reply and close it at the end. Raises `Refusal` if the connection is lost."""
    try:
        async for part in relayed_reply:
            yield part
    except Unreachable as error:
        raise Refusal(RefusalCode.UNAVAILABLE, str(error)) from error
    finally:
        await relayed_reply.aclose()


def build_request_path(request: Request) -> str:
    """Return the percent-encoded path of the request, built from its endpoint and path values."""
    path = request.endpoint.path
    for name, value in request.path_values.items():
        path = path.replace(f"{{{name}...}}", quote(value)).replace(f"{{{name}}}", quote(value, safe=""))
    return path
