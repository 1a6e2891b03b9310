"""The election on a real etcd. `test_election` tests all of its cases in virtual time."""

import asyncio

import pytest

from tests.cluster.engines.contract import commit, put, unchanged
from tests.cluster.engines.kind_etcd import fresh_settings, shared_server
from tests.waiting import wait_on_loop_until
from wharf.cluster.engines.election import LEADER_KEY, LEADER_TABLE, MEMBERS_TABLE, Election
from wharf.cluster.engines.etcd.engine import EtcdEngine
from wharf.world import RealWorld

pytestmark = pytest.mark.needs_program("etcd")

TTL_S = 2.0


class Member:
    """A server that takes part in elections, and the view of its replica."""

    def __init__(self, name: str, engine: EtcdEngine, world: RealWorld) -> None:
        self.member_id = name
        self.engine = engine
        self._version = 0
        self._successor = b""
        self._member_version = 0
        self._index = 0
        self._changed = asyncio.Event()
        self.election = Election(world, engine, self, self, ttl_s=TTL_S, margin_s=TTL_S / 4)

    def build_member_record(self) -> bytes:
        return b"member"

    def build_leader_record(self, *, successor: str = "") -> bytes:
        return f"{self.member_id} offers {successor}".encode() if successor else self.member_id.encode()

    def get_leader_version(self) -> int:
        return self._version

    async def wait_leader_changed(self, version: int) -> None:
        while self._version == version:
            self._changed.clear()
            await self._changed.wait()

    def is_successor(self) -> bool:
        return self._successor == self.member_id.encode()

    def get_member_version(self) -> int:
        return self._member_version

    async def wait_member_changed(self, version: int) -> None:
        while self._member_version == version:
            self._changed.clear()
            await self._changed.wait()

    def get_index(self) -> int:
        return self._index

    def describe_conflict(self) -> str:
        return ""

    async def wait_conflict_ended(self) -> None:
        return

    async def follow(self) -> None:
        async for batch in self.engine.follow(0):
            for change in batch.changes:
                if (change.table, change.key) == (LEADER_TABLE, LEADER_KEY):
                    self._version = 0 if change.data is None else batch.index
                    self._successor = (change.data or b"").partition(b" offers ")[2]
                elif (change.table, change.key) == (MEMBERS_TABLE, self.member_id):
                    self._member_version = 0 if change.data is None else batch.index
            self._index = batch.index
            self._changed.set()


async def test_the_leadership_changes_after_a_transfer_a_silent_leader_and_a_resignation() -> None:
    world = RealWorld()
    settings = fresh_settings(shared_server())
    engines = [EtcdEngine(settings, world) for _ in range(2)]
    for engine in engines:
        await engine.open()
    first_member, second_member = (
        Member(name, engine, world) for name, engine in zip(("one", "two"), engines, strict=True)
    )
    await commit(first_member.engine, put("founded"))
    following = [world.start_task(member.follow(), name="replica") for member in (first_member, second_member)]

    first = await first_member.election.campaign()
    second_campaign = world.start_task(second_member.election.campaign(), name="campaign of two")
    assert await first.transfer("two")
    second = await second_campaign
    assert (first.is_held(), second.is_held()) == (False, True)

    third_campaign = world.start_task(first_member.election.campaign(), name="campaign of one")
    await second_member.engine.close()  # Its lease is neither renewed nor revoked.
    third = await third_campaign
    await wait_on_loop_until(lambda: not second.is_held(), what="the silent leader has stopped by itself")
    assert third.is_held()
    assert third.version > second.version > first.version
    await commit(first_member.engine, put("by the leader"), conditions=[third.build_condition()])
    assert third.build_condition() == unchanged(LEADER_KEY, third.version, table=LEADER_TABLE)
    await third.resign()
    fourth = await first_member.election.campaign()
    assert (third.is_held(), fourth.is_held()) == (False, True)

    for task in following:
        task.cancel()
    await asyncio.gather(*following, return_exceptions=True)
    await first_member.engine.close()
