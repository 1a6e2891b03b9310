"""Endpoints about this server and its cluster: who leads, how it is, what it holds. They pass no barrier."""

import asyncio
from collections.abc import Callable
from hmac import compare_digest
from typing import Any, Final

import msgspec

from wharf.api.answers import Done, Packed
from wharf.api.request import Request
from wharf.engines.port import Health, Unavailable
from wharf.model.cluster import Member
from wharf.model.refusal import Code, Refusal
from wharf.server.peers import SECRET_HEADER
from wharf.server.server import Server
from wharf.state.tables import LEADER, MEMBERS
from wharf.wire import shapes

HEALTH_WITHIN_S: Final = 3.0
"""Whoever asks for our health asks often and waits little: a log that hangs is told as such."""


class Locals:
    """Handlers about this server, without consistency."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def status_leader(self, _request: Request) -> Done:
        replica = self._server.replica
        leader = replica.get(LEADER)
        member = replica.get(MEMBERS, leader.member_id) if leader else None
        return Done(member.address if member else "")

    async def status_peers(self, _request: Request) -> Done:
        return Done([member.address for member in self._server.replica.all(MEMBERS)])

    async def agent_health(self, _request: Request) -> Done:
        health = await self._health()
        known = self._server.reader.knows_leader()
        ok = known and health.writable
        message = "ok" if ok else health.why or "no leader"
        return Done({"server": {"ok": ok, "message": message}}, status=200 if ok else 500)

    async def _health(self) -> Health:
        try:
            async with asyncio.timeout(HEALTH_WITHIN_S):
                return await self._server.engine.health()
        except Unavailable as away:
            return Health(writable=False, why=str(away))
        except TimeoutError:
            return Health(writable=False, why=f"the log has not answered for {HEALTH_WITHIN_S:g} s")

    async def server_ask(self, request: Request) -> Done:
        """A question of another member for our brain. It is answered here or refused, never passed on."""
        given = request.headers.get(SECRET_HEADER.encode(), b"")
        secret = self._server.identity.door_secret.encode()
        if not secret or not compare_digest(given, secret):
            raise Refusal(Code.FORBIDDEN, "Permission denied")
        answered = await self._server.brain.ask(request.value("subject"), request.body)
        return Done(Packed(msgspec.msgpack.encode(answered)))

    async def agent_members(self, _request: Request) -> Done:
        identity = self._server.identity
        members = [shown_member(member) for member in self._server.replica.all(MEMBERS)]
        return Done({"ServerName": identity.name, "ServerRegion": identity.region, "Members": members})

    async def operator_state(self, _request: Request) -> Done:
        replica = self._server.replica
        health = await self._health()
        sizes = {name: replica.count(table) for name, table in replica.tables.items()}
        return Done(shapes.StateSizes(index=replica.index, tables=sizes, engine=msgspec.structs.asdict(health)))

    def table(self) -> dict[str, Callable[[Request], Any]]:
        return {
            "server.ask": self.server_ask,
            "status.leader": self.status_leader,
            "status.peers": self.status_peers,
            "agent.health": self.agent_health,
            "agent.members": self.agent_members,
            "operator.state": self.operator_state,
        }


def shown_member(member: Member) -> dict[str, object]:
    """As others may see it: without what lets a member in, even the name of that."""
    shown: dict[str, object] = msgspec.to_builtins(member)
    del shown["DoorSecret"]
    return shown
