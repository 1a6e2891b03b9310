"""Requests that name another server of this region: passed on to it whole, and its reply back as it comes."""

from collections.abc import AsyncIterator
from urllib.parse import quote

from wharf.api.answers import Done, Streamed
from wharf.api.request import Request
from wharf.client.exchange import Unreachable
from wharf.client.passage import Outgoing
from wharf.model.cluster import Member
from wharf.model.refusal import Code, Refusal
from wharf.server.passing import Arrived
from wharf.server.server import Server
from wharf.state.tables import LEADER, MEMBERS

LEADER_WORD = "leader"


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
    query = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in request.query.items())
    path = path_of(request)
    # How the body is compressed is settled between us and the caller, and again between us and the other server.
    headers = [(name, value) for name, value in request.headers.items() if name != b"accept-encoding"]
    outgoing = Outgoing(request.endpoint.method, f"{path}?{query}".encode() if query else path.encode(), headers)
    return await replied(await server.passing.to_member(member.address, outgoing))


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
