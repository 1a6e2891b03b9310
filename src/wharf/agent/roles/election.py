"""This server as a candidate in elections: the records it writes, and the replica's view of leader and members."""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from wharf import __version__
from wharf.cluster.engines.election import Election
from wharf.cluster.engines.port import EncodedChange
from wharf.cluster.server.server import Server
from wharf.cluster.state.codec import encode_record
from wharf.cluster.state.formats import NEWEST_FORMAT, get_active_format
from wharf.cluster.state.tables import KNOWN_SERVERS, LEADER, MEMBERS
from wharf.cluster.state.watches import WatchTarget, watch_key, watch_table
from wharf.contract.model.cluster import FIRST_FORMAT, Leader, Member
from wharf.contract.model.log import WRITE_INDEX

LEADER_TTL_S: Final = 9.0
"""How long a leader that sends nothing keeps its leadership."""
LEADER_TTL_MARGIN_S: Final = 2.0


class ServerCandidate:
    """Builds the records that this server writes to the log in elections."""

    def __init__(self, server: Server, folder: str) -> None:
        self._server = server
        self._folder = folder
        self._started_ns = server.world.now_ns()
        self.member_id = server.identity.member_id

    def build_member_record(self) -> bytes:
        """Return the encoded record of this server as a member."""
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
        record = msgspec.structs.replace(member, create_index=WRITE_INDEX, modify_index=WRITE_INDEX)
        return encode_record(MEMBERS, record, cluster_format=get_active_format(self._server.replica))

    def build_leader_record(self, *, successor: str = "") -> bytes:
        """Return the encoded record of this server as leader.

        `successor` is the id of the server that should lead next, or empty.
        """
        leader = Leader(member_id=self.member_id, elected_at=self._server.world.now_ns(), heir=successor)
        record = msgspec.structs.replace(leader, create_index=WRITE_INDEX, modify_index=WRITE_INDEX)
        return encode_record(LEADER, record, cluster_format=get_active_format(self._server.replica))


class ElectionView:
    """The records of the leader and of this server's id, as they are in the replica."""

    def __init__(self, server: Server, folder: str) -> None:
        self._folder = folder
        self._replica = server.replica
        self._identity = server.identity

    def get_leader_version(self) -> int:
        return self._replica.get_version(LEADER)

    async def wait_leader_changed(self, version: int) -> None:
        await self._wait_until(watch_table(LEADER), lambda: self.get_leader_version() != version)

    def is_successor(self) -> bool:
        leader = self._replica.get(LEADER)
        return leader is not None and leader.heir == self._identity.member_id

    def get_member_version(self) -> int:
        return self._replica.get_version(MEMBERS, self._identity.member_id)

    async def wait_member_changed(self, version: int) -> None:
        await self._wait_until(
            watch_key(MEMBERS, self._identity.member_id), lambda: self.get_member_version() != version
        )

    def get_index(self) -> int:
        return self._replica.index

    def describe_conflict(self) -> str:
        """Return which other server has this server's id or name, and what to do; an empty text if none has."""
        if holder := self._find_id_holder():
            return (
                f"the server-id {holder.id} is in use by {holder.name or 'another server'} at {holder.address}; if this "
                "data folder is a copy of that server's, remove `server-id` from this data folder"
            )
        if holder := self._find_name_holder():
            return (
                f'the server name "{holder.name}" is in use by the running server at {holder.address}: set another `name` '
                "in the configuration of this server, or stop the other one first"
            )
        return ""

    def _find_id_holder(self) -> Member | None:
        """Return the record of another server with this server's id, or `None`.

        A record with this server's secret belongs to this agent. A record with the same address and data folder belongs
        to an earlier run of the agent, because only one agent can lock the folder. Address or folder alone is not enough:
        hosts may advertise the same address, and cloned machines have the same folder.
        """
        record, own = self._replica.get(MEMBERS, self._identity.member_id), self._identity
        if record is None or (own.door_secret and record.door_secret == own.door_secret):
            return None
        return None if record.address == own.address and record.folder in ("", self._folder) else record

    def _find_name_holder(self) -> Member | None:
        """Return the record of a server with this server's name and region but another id, or `None`."""
        own = self._identity
        for record in self._replica.iter_all(MEMBERS):
            if (record.name, record.region) == (own.name, own.region) and record.id != own.member_id:
                return record
        return None

    async def wait_conflict_ended(self) -> None:
        await self._wait_until(watch_table(MEMBERS), lambda: not self.describe_conflict())

    async def _wait_until(self, watched: WatchTarget, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds, checking it whenever the watched records change."""
        changed = asyncio.Event()
        subscription = self._replica.watches.subscribe([watched], changed.set)
        try:
            while not condition():
                changed.clear()
                subscription.rearm()
                await changed.wait()
        finally:
            subscription.close()


def build_farewell(server: Server) -> tuple[EncodedChange, ...]:
    """Return the changes by which this server leaves the cluster, besides the deletion of its member record."""
    if get_active_format(server.replica) < KNOWN_SERVERS.since_format:
        return ()
    return (EncodedChange(KNOWN_SERVERS.name, KNOWN_SERVERS.build_key(server.identity.member_id), None),)


def build_election(server: Server, *, folder: str) -> Election:
    """Return this server's participant in the elections of a leader.

    `folder` is the id of its data folder, from `compute_folder_id`.
    """
    candidate, view = ServerCandidate(server, folder), ElectionView(server, folder)
    return Election(server.world, server.engine, candidate, view, ttl_s=LEADER_TTL_S, margin_s=LEADER_TTL_MARGIN_S)
