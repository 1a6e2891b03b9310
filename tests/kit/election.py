"""An election that tests control: a campaign succeeds at once, and the test ends the term."""

import asyncio

from wharf.cluster.engines.election import Election, Leadership
from wharf.cluster.server.server import Server
from wharf.cluster.state.tables import LEADER, MEMBERS
from wharf.contract.model.cluster import Leader, Member
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Condition, Write


class ControlledTerm(Leadership):
    """A term that lasts until the test ends it."""

    def __init__(self, index: int) -> None:
        self._index = index
        self.successor = ""
        self._lost_event = asyncio.Event()

    def is_held(self) -> bool:
        return not self._lost_event.is_set()

    def get_end_reason(self) -> str:
        return "" if self.is_held() else "the test ended the term"

    def build_condition(self) -> Condition:
        return Condition(LEADER.name, LEADER.name, self._index)

    async def wait_lost(self) -> None:
        await self._lost_event.wait()

    def lose(self) -> None:
        self._lost_event.set()

    async def transfer(self, successor: str) -> bool:
        """End the term. The test starts the campaign of the successor."""
        self.successor = successor
        self._lost_event.set()
        return True


class ControlledElection(Election):
    """An election in which the first campaign succeeds at once. Each later one waits for `allow_campaign`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._campaign_allowed = asyncio.Event()
        self._campaign_allowed.set()
        self.term: ControlledTerm | None = None
        self.campaigns = 0

    def allow_campaign(self) -> None:
        self._campaign_allowed.set()

    async def campaign(self) -> ControlledTerm:
        """Write the leader record, and return a term that the test controls."""
        self.campaigns += 1
        await self._campaign_allowed.wait()
        self._campaign_allowed.clear()
        member = Member(
            id=self._server.identity.member_id, address=self._server.identity.address, create_index=WRITE_INDEX
        )
        leader = Leader(member_id=member.id, create_index=WRITE_INDEX)
        write = Write("elected", Cause(CauseKind.LEASE), [LEADER.build_put(leader), MEMBERS.build_put(member)])
        outcome = await self._server.writer.commit(write)
        self.term = ControlledTerm(outcome.index)  # type: ignore[union-attr]  # without conditions there is no conflict
        return self.term
