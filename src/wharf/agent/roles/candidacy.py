"""This server as a candidate: what it says of itself in the log, and what its replica knows of the leader."""

import asyncio
from typing import Final

import msgspec

from wharf import __version__
from wharf.engines.election import Election
from wharf.model.changes import THIS
from wharf.model.cluster import Leader, Member
from wharf.model.founding import FIRST_FORMAT
from wharf.server.server import Server
from wharf.state.codec import encode
from wharf.state.formats import NEWEST_FORMAT, format_in_force
from wharf.state.tables import LEADER, MEMBERS
from wharf.state.watches import whole

TTL_S: Final = 9.0
"""How long a leader that fell silent is waited for."""
MARGIN_S: Final = 2.0


class ServerCandidate:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._started_ns = server.world.now_ns()
        self.member_id = server.identity.member_id

    def member_record(self) -> bytes:
        identity = self._server.identity
        member = Member(
            id=identity.member_id,
            name=identity.name,
            region=identity.region,
            datacenter=identity.datacenter,
            address=identity.address,
            build=__version__,
            oldest_format=FIRST_FORMAT,
            newest_format=NEWEST_FORMAT,
            started_at=self._started_ns,
            door_secret=identity.door_secret,
        )
        record = msgspec.structs.replace(member, create_index=THIS, modify_index=THIS)
        return encode(MEMBERS, record, cluster_format=format_in_force(self._server.replica))

    def leader_record(self) -> bytes:
        leader = Leader(member_id=self.member_id, elected_at=self._server.world.now_ns())
        record = msgspec.structs.replace(leader, create_index=THIS, modify_index=THIS)
        return encode(LEADER, record, cluster_format=format_in_force(self._server.replica))


class ReplicaView:
    """The leader's record, as this process has heard of it."""

    def __init__(self, server: Server) -> None:
        self._replica = server.replica

    def version(self) -> int:
        return self._replica.version(LEADER)

    async def moved_from(self, version: int) -> None:
        changed = asyncio.Event()
        subscription = self._replica.watches.subscribe([whole(LEADER)], changed.set)
        try:
            while self.version() == version:
                changed.clear()
                subscription.rearm()
                await changed.wait()
        finally:
            subscription.end()


def election_of(server: Server) -> Election:
    return Election(
        server.world, server.engine, ServerCandidate(server), ReplicaView(server), ttl_s=TTL_S, margin_s=MARGIN_S
    )
