"""This server as a candidate: what it says of itself in the log, and what its replica knows of the leader."""

import asyncio
from collections.abc import Callable
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
from wharf.state.watches import Watched, one, whole

TTL_S: Final = 9.0
"""How long a leader that fell silent is waited for."""
MARGIN_S: Final = 2.0


class ServerCandidate:
    def __init__(self, server: Server, folder: str) -> None:
        self._server = server
        self._folder = folder
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
            folder=self._folder,
            door_secret=identity.door_secret,
        )
        record = msgspec.structs.replace(member, create_index=THIS, modify_index=THIS)
        return encode(MEMBERS, record, cluster_format=format_in_force(self._server.replica))

    def leader_record(self, *, heir: str = "") -> bytes:
        leader = Leader(member_id=self.member_id, elected_at=self._server.world.now_ns(), heir=heir)
        record = msgspec.structs.replace(leader, create_index=THIS, modify_index=THIS)
        return encode(LEADER, record, cluster_format=format_in_force(self._server.replica))


class ReplicaView:
    """The leader's record and the one under our id, as this process has heard of them."""

    def __init__(self, server: Server, folder: str) -> None:
        self._folder = folder
        self._replica = server.replica
        self._identity = server.identity

    def version(self) -> int:
        return self._replica.version(LEADER)

    async def moved_from(self, version: int) -> None:
        await self._changed(whole(LEADER), lambda: self.version() != version)

    def is_heir(self) -> bool:
        leader = self._replica.get(LEADER)
        return leader is not None and leader.heir == self._identity.member_id

    def member_version(self) -> int:
        return self._replica.version(MEMBERS, self._identity.member_id)

    async def member_moved_from(self, version: int) -> None:
        await self._changed(one(MEMBERS, self._identity.member_id), lambda: self.member_version() != version)

    def other_holder(self) -> str:
        """A record with our secret is of a process of this agent. One of our address and our data folder is of the agent
        before it, whose lock is held by this one. Neither of the two is enough: hosts may advertise the same address, and
        machines that were cloned whole have the same folder.
        """
        record, own = self._replica.get(MEMBERS, self._identity.member_id), self._identity
        if record is None or (own.door_secret and record.door_secret == own.door_secret):
            return ""
        if record.address == own.address and record.folder in ("", self._folder):
            return ""
        return f"{record.name or 'another server'} at {record.address}"

    async def _changed(self, watched: Watched, is_so: Callable[[], bool]) -> None:
        changed = asyncio.Event()
        subscription = self._replica.watches.subscribe([watched], changed.set)
        try:
            while not is_so():
                changed.clear()
                subscription.rearm()
                await changed.wait()
        finally:
            subscription.end()


def election_of(server: Server, *, folder: str) -> Election:
    """`folder` names the data folder and the machine it lies on: a copy of it has another name."""
    candidate, view = ServerCandidate(server, folder), ReplicaView(server, folder)
    return Election(server.world, server.engine, candidate, view, ttl_s=TTL_S, margin_s=MARGIN_S)
