"""The election of the only server there can be: it is leader as soon as it says so.

For engines with `single_server`. `wharf.engines.election` takes its place once it is there, for all engines.
"""

import asyncio
import logging
from typing import Final

from wharf.engines.port import Behind, Committed, Unavailable
from wharf.model.changes import THIS, Cause, CauseKind, Condition, Write
from wharf.model.cluster import Leader
from wharf.model.refusal import Refusal
from wharf.server.server import Server
from wharf.state.tables import LEADER
from wharf.state.watches import whole

AGAIN_S: Final = 0.5

log = logging.getLogger(__name__)


class SoleLeadership:
    """Held until the brain of a later start has written its own record."""

    def __init__(self, server: Server, index: int) -> None:
        self._server = server
        self._index = index

    def is_held(self) -> bool:
        # Until our own election has come back through the log, an older record is still there.
        return self._server.replica.version(LEADER) <= self._index

    def condition(self) -> Condition:
        return Condition(LEADER.name, LEADER.name, self._index)

    async def lost(self) -> None:
        changed = asyncio.Event()
        subscription = self._server.replica.watches.subscribe([whole(LEADER)], changed.set)
        try:
            while self.is_held():
                changed.clear()
                subscription.rearm()
                await changed.wait()
        finally:
            subscription.end()


class SoleElection:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def campaign(self) -> SoleLeadership:
        server = self._server
        while True:
            leader = Leader(member_id=server.identity.member_id, elected_at=server.world.now_ns(), create_index=THIS)
            write = Write("leader-elected", Cause(CauseKind.TIMER, "election"), [LEADER.put(leader)])
            try:
                outcome = await server.writer.commit(write)
            except (Refusal, Unavailable, Behind) as error:
                log.warning("not elected yet", extra={"why": str(error)})
            else:
                if isinstance(outcome, Committed):
                    return SoleLeadership(server, outcome.index)
            await asyncio.sleep(AGAIN_S)
