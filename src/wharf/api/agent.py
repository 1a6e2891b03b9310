"""Endpoints about the agent that answers. They pass no barrier."""

from typing import Final

import msgspec

from wharf.api.answers import Act, Done, Reading
from wharf.api.health import health_of
from wharf.api.request import Request
from wharf.model.cluster import Member
from wharf.server.server import Server
from wharf.state.tables import MEMBERS

READS: Final[dict[str, Reading]] = {}


class Agent:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def health(self, _request: Request) -> Done:
        health = await health_of(self._server.engine)
        known = self._server.reader.knows_leader()
        ok = known and health.writable
        message = "ok" if ok else health.why or "no leader"
        return Done({"server": {"ok": ok, "message": message}}, status=200 if ok else 500)

    async def members(self, _request: Request) -> Done:
        identity = self._server.identity
        members = [shown_member(member) for member in self._server.replica.all(MEMBERS)]
        return Done({"ServerName": identity.name, "ServerRegion": identity.region, "Members": members})


def acts_of(server: Server) -> dict[str, Act]:
    return {"agent.health": Agent(server).health, "agent.members": Agent(server).members}


def shown_member(member: Member) -> dict[str, object]:
    """As others may see it: without what lets a member in, even the name of that."""
    shown: dict[str, object] = msgspec.to_builtins(member)
    del shown["DoorSecret"]
    return shown
