"""A duty of the leader: gives up the leadership if no call can reach this brain, and another server may lead.

All calls to the leader, also those of other servers, pass through the api processes of its server. The network may also
drop the calls of all other servers.
"""

import asyncio
from typing import Final

from wharf.cluster.controllers.reception import PULSE_INTERVAL_S
from wharf.cluster.server.brain import Brain
from wharf.cluster.state.tables import LEADER, MEMBERS

MAX_ISOLATION_S: Final = 8.0
"""How long all api processes of the leader may be silent before another server leads.

An api process that was killed or hangs is replaced sooner. One that is busy may be silent for a minute.
"""
MAX_PEER_ISOLATION_S: Final = 12.0
"""How long no other server may reach the leader, although all of them are members of the cluster.

Longer than the lease of a member, 9 s: a server that is frozen or dead is no member any more after that. One that still
renews its lease but does not reach the leader shows that the leader is cut off.
"""


class IsolationDuty:
    """Transfers the leadership to a random other server while no call can reach this brain."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain
        brain.duties.append(self.run)

    async def run(self) -> None:
        """Check at short intervals, while this server leads, whether another server should lead."""
        while self._brain.is_leading:
            monitor = self._brain.node_monitor
            if (
                monitor.measure_isolation_s() >= MAX_ISOLATION_S
                or monitor.measure_peer_isolation_s() >= MAX_PEER_ISOLATION_S
            ):
                await self._transfer()
            await asyncio.sleep(PULSE_INTERVAL_S)

    async def _transfer(self) -> None:
        """Transfer the leadership. Does nothing if this server is the only one."""
        replica = self._brain.replica
        leader = replica.get(LEADER)
        own_id = leader.member_id if leader is not None else ""
        successors = sorted(member.id for member in replica.iter_all(MEMBERS) if member.id != own_id)
        if own_id and successors:
            await self._brain.transfer_leadership(self._brain.world.random.choice(successors))
