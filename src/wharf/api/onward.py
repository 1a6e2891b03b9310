"""Requests that another server of this region answers, or another process of this one: passed on whole, and the reply
back as it comes."""

from collections.abc import AsyncIterator, Collection
from typing import Final
from urllib.parse import quote

import msgspec

from wharf.api.answers import Done, Streamed
from wharf.api.request import Request
from wharf.client.exchange import Unreachable
from wharf.client.passage import Outgoing
from wharf.model.cluster import Member
from wharf.model.refusal import Code, Refusal
from wharf.server.node_channels import no_path
from wharf.server.passing import WITHIN_MEMBER, WITHIN_REGION, Arrived
from wharf.server.server import Server
from wharf.server.whereabouts import WHERE_IS, WhereIs
from wharf.state.tables import LEADER, MEMBERS

LEADER_WORD: Final = "leader"
OF_THE_WAY: Final = frozenset((b"accept-encoding", b"content-length", b"transfer-encoding"))


def member_called(server: Server, name: str) -> Member | None:
    """By its id, its name, its name with the region, or as whoever leads; None: there is no such member."""
    replica = server.replica
    if name == LEADER_WORD:
        leader = replica.get(LEADER)
        return replica.get(MEMBERS, leader.member_id) if leader else None
    for member in replica.all(MEMBERS):
        if name in (member.id, member.name, f"{member.name}.{member.region}"):
            return member
    return None


async def passed_on(server: Server, request: Request, member: Member) -> Done | None:
    """The reply of that member; None when it is this one, which answers by itself."""
    if member.id == server.identity.member_id:
        return None
    return await replied(await server.passing.to_member(member.address, outgoing_of(request)))


class Holder(msgspec.Struct, frozen=True):
    """Where the connection of a node is: the address, and the hop that leads there."""

    address: str
    hop: bytes


async def holder_of(server: Server, node_id: str) -> Holder:
    """Whoever else holds the node's connection. Raises `no_path` where nobody is known to."""
    telling = server.held.telling
    if telling is None:
        raise no_path()
    place = (await server.leader.ask(WHERE_IS, WhereIs(node_id))).place
    if place is None or place == telling.place:
        raise no_path()
    if place.member_id == telling.place.member_id:
        return Holder(server.held.address_of(place.process), WITHIN_MEMBER)
    member = server.replica.get(MEMBERS, place.member_id)
    if member is None:
        raise no_path()
    return Holder(member.address, WITHIN_REGION)


async def passed_to_holder(server: Server, request: Request, node_id: str) -> Done:
    """The reply of whoever holds the node's connection. Raises Refusal."""
    holder = await holder_of(server, node_id)
    return await replied(await server.passing.to_member(holder.address, outgoing_of(request), hop=holder.hop))


def outgoing_of(request: Request, *, method: str = "", without: Collection[str] = ()) -> Outgoing:
    """The request as it goes on to another server, but for some of its parameters."""
    query = "&".join(
        f"{quote(name, safe='')}={quote(value, safe='')}"
        for name, value in request.query.items()
        if name not in without
    )
    path = path_of(request)
    # How bodies are compressed and cut is settled between us and the caller, and again between us and the other server.
    headers = [(name, value) for name, value in request.headers.items() if name not in OF_THE_WAY]
    body = None
    if request.body:
        headers.append((b"content-length", str(len(request.body)).encode()))
        body = _whole(request.body)
    target = f"{path}?{query}" if query else path
    return Outgoing(method or request.endpoint.method, target.encode(), headers, body)


async def _whole(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def replied(arrived: Arrived) -> Done:
    """A reply that arrived, as one of ours. What is refused there is refused here, with the same text."""
    headers = {name.lower(): value for name, value in arrived.headers}
    content_type = headers.get(b"content-type", b"").decode("latin-1")
    return Done(Streamed(_parts(arrived), content_type or "application/octet-stream"), status=arrived.status)


async def _parts(arrived: Arrived) -> AsyncIterator[bytes]:
    try:
        async for part in arrived:
            yield part
    except Unreachable as error:
        raise Refusal(Code.UNAVAILABLE, str(error)) from error
    finally:
        await arrived.aclose()


def path_of(request: Request) -> str:
    path = request.endpoint.path
    for name, value in request.path_values.items():
        path = path.replace(f"{{{name}...}}", quote(value)).replace(f"{{{name}}}", quote(value, safe=""))
    return path
