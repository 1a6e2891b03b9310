"""A stand-in for the product's election, until `engines.election` is there: a leader's record on a lease.

It is the shortest thing that keeps the promises of `server.leadership`; nothing else of the product is played here.
"""

import asyncio
from typing import Final

from simulation.loop import SimulatedLoop
from wharf.engines.port import Behind, Committed, Lease, Unavailable
from wharf.model.changes import THIS, Cause, CauseKind, Condition, Write
from wharf.model.cluster import Leader, Member
from wharf.model.refusal import Refusal
from wharf.server.server import Server
from wharf.state.tables import LEADER, MEMBERS
from wharf.state.watches import whole

TTL_S: Final = 9.0
MARGIN_S: Final = 2.0
LOOK_S: Final = 0.5


class HeldLeadership:
    def __init__(self, server: Server, lease: Lease, index: int) -> None:
        self._server = server
        self._lease = lease
        self._index = index

    def is_held(self) -> bool:
        return self._server.world.monotonic_s() < self._lease.valid_until_s() - MARGIN_S

    def condition(self) -> Condition:
        return Condition(LEADER.name, LEADER.name, self._index)

    async def lost(self) -> None:
        while self.is_held() and self._server.replica.version(LEADER) in (0, self._index):
            await asyncio.sleep(LOOK_S)


class Candidate:
    """Campaigns by creating the leader's record on a lease of its own, where none stands."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def campaign(self) -> HeldLeadership:
        while True:
            try:
                await self._until_vacant()
                lease = await self._server.engine.grant(TTL_S)
                leader = Leader(
                    member_id=self._server.identity.member_id,
                    elected_at=self._server.world.now_ns(),
                    create_index=THIS,
                )
                write = Write(
                    "leader-elected",
                    Cause(CauseKind.TIMER, "election"),
                    [LEADER.put(leader)],
                    [Condition(LEADER.name, LEADER.name, 0)],
                )
                outcome = await self._server.writer.commit(write, lease=lease.id)
                if isinstance(outcome, Committed):
                    return HeldLeadership(self._server, lease, outcome.index)
                await lease.revoke()
            except (Refusal, Unavailable, Behind):
                await asyncio.sleep(LOOK_S)

    async def _until_vacant(self) -> None:
        replica = self._server.replica
        changed = asyncio.Event()
        subscription = replica.watches.subscribe([whole(LEADER)], changed.set)
        try:
            while replica.get(LEADER) is not None:
                changed.clear()
                subscription.rearm()
                await changed.wait()
        finally:
            subscription.end()


async def be_member(server: Server) -> None:
    """Keep this server's member record on a lease."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    while True:
        try:
            lease = await server.engine.grant(TTL_S)
            identity = server.identity
            member = Member(id=identity.member_id, name=identity.name, address=identity.address, create_index=THIS)
            write = Write("member-joined", Cause(CauseKind.TIMER, "member"), [MEMBERS.put(member)])
            if isinstance(await server.writer.commit(write, lease=lease.id), Committed):
                while server.world.monotonic_s() < lease.valid_until_s():
                    await asyncio.sleep(LOOK_S)
        except (Refusal, Unavailable, Behind):
            await asyncio.sleep(LOOK_S)
