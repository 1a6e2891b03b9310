"""Endpoints that tell who leads and who is there. They pass no barrier."""

from typing import Final

from wharf.api.answers import Act, Done, Reading
from wharf.api.request import Request
from wharf.server.server import Server
from wharf.state.tables import LEADER, MEMBERS

READS: Final[dict[str, Reading]] = {}


class Status:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def leader(self, _request: Request) -> Done:
        return Done(leader_address(self._server))

    async def peers(self, _request: Request) -> Done:
        return Done(sorted(member.address for member in self._server.replica.all(MEMBERS)))


def leader_address(server: Server) -> str:
    """Empty when nobody leads."""
    leader = server.replica.get(LEADER)
    member = server.replica.get(MEMBERS, leader.member_id) if leader else None
    return member.address if member else ""


def acts_of(server: Server) -> dict[str, Act]:
    return {"status.leader": Status(server).leader, "status.peers": Status(server).peers}
