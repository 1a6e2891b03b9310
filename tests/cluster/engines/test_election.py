"""The election on the memory engine, in virtual time: partitions, paused leaders, and two processes with one member id."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.loop import SimulatedLoop
from tests.cluster.engines.contract import a_write, commit, load, put, records
from wharf.cluster.engines.election import (
    LEADER_KEY,
    LEADER_TABLE,
    MEMBERS_TABLE,
    SUCCESSOR_TIMEOUT_S,
    Election,
    Leadership,
    MemberIdInUse,
)
from wharf.cluster.engines.memory.engine import MemoryEngine, MemoryLease
from wharf.cluster.engines.memory.faults import (
    DelayFault,
    EngineOperation,
    Fault,
    FaultInjector,
    LoseReplyFault,
    LoseRequestFault,
)
from wharf.cluster.engines.memory.log import MemoryLog
from wharf.cluster.engines.port import Committed, EncodedChange, FollowerBehind, LogUnavailable, WriteConflict
from wharf.world import SimulatedWorld

TTL_S = 9.0
MARGIN_S = 2.0
LONG_MARGIN_S = 4.0
"""Of a leader that stops long before its lease expires, as the lease does after an outage of etcd."""


class FollowedView:
    """The leader's record and the record of one member, as a replica follows them in the log."""

    def __init__(self, engine: MemoryEngine, member_id: str, own: bytes) -> None:
        self._engine = engine
        self._member_key = (MEMBERS_TABLE, member_id)
        self._own = own
        self._version = 0
        self._member_id = member_id
        self._successor = b""
        self._member: tuple[int, bytes | None] = (0, None)
        self._index = 0
        self._changed = asyncio.Event()

    def get_leader_version(self) -> int:
        return self._version

    async def wait_leader_changed(self, version: int) -> None:
        while self._version == version:
            self._changed.clear()
            await self._changed.wait()

    def is_successor(self) -> bool:
        return self._successor == self._member_id.encode()

    def get_member_version(self) -> int:
        return self._member[0]

    async def wait_member_changed(self, version: int) -> None:
        while self.get_member_version() == version:
            self._changed.clear()
            await self._changed.wait()

    def get_index(self) -> int:
        return self._index

    def describe_conflict(self) -> str:
        _, record = self._member
        return "" if record is None or record == self._own else f"the server-id is in use by {record.decode()}"

    async def wait_conflict_ended(self) -> None:
        while self.describe_conflict():
            self._changed.clear()
            await self._changed.wait()

    async def follow(self) -> None:
        """Follow the log, also across restores and disconnections."""
        index = 0
        while True:
            try:
                async for batch in self._engine.follow(index):
                    index = batch.index
                    for change in batch.changes:
                        if (change.table, change.key) == (LEADER_TABLE, LEADER_KEY):
                            self._version = 0 if change.data is None else index
                            self._successor = (change.data or b"").partition(b" offers ")[2]
                        elif (change.table, change.key) == self._member_key:
                            self._member = (0 if change.data is None else index, change.data)
                    self._index = index
                    self._changed.set()
            except FollowerBehind:
                index = await self._load()
            except LogUnavailable:
                await asyncio.sleep(0.1)

    async def _load(self) -> int:
        """Load the records again after the log was restored. Return the index of the load."""
        rows, position = await load(self._engine)
        self._version, leader = rows.get((LEADER_TABLE, LEADER_KEY), (0, b""))
        self._successor = leader.partition(b" offers ")[2]
        self._member = rows.get(self._member_key, (0, None))
        self._index = position.index
        self._changed.set()
        return position.index


class Member:
    """A server that takes part in elections."""

    def __init__(
        self,
        name: str,
        log: MemoryLog,
        world: SimulatedWorld,
        *,
        single_server: bool = False,
        address: str = "",
        margin_s: float = MARGIN_S,
    ) -> None:
        self.member_id = name
        self.address = address
        self.world = world
        self.faults = FaultInjector()
        self.engine = MemoryEngine(world, log, faults=self.faults, is_single_server=single_server, timeout_s=1.0)
        self.view = FollowedView(self.engine, name, self.build_member_record())
        self.election = Election(world, self.engine, self, self.view, ttl_s=TTL_S, margin_s=margin_s)
        self.term: Leadership | None = None
        self.terms: list[Leadership] = []

    def build_member_record(self) -> bytes:
        return f"member {self.member_id}{self.address}".encode()

    def build_leader_record(self, *, successor: str = "") -> bytes:
        return f"{self.member_id} offers {successor}".encode() if successor else self.member_id.encode()

    async def run_campaigns(self) -> None:
        """Campaign, lead until the term is lost, and repeat."""
        while True:
            self.term = await self.election.campaign()
            self.terms.append(self.term)
            await self.term.wait_lost()
            self.term = None

    def leads(self) -> bool:
        return self.term is not None and self.term.is_held()

    async def write_as_leader(self, term: Leadership) -> bool:
        outcome = await self.engine.commit(
            a_write(put("state", self.member_id.encode()), conditions=[term.build_condition()])
        )
        assert isinstance(outcome, Committed | WriteConflict), outcome
        return isinstance(outcome, Committed)


class ElectionSetup:
    """A log in memory, its members and the virtual clock."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.world = SimulatedWorld(1, loop.time, member="log")
        self.log = MemoryLog(self.world)
        self._tasks: list[asyncio.Task[None]] = []

    async def add_member(
        self, name: str, *, single_server: bool = False, address: str = "", margin_s: float = MARGIN_S
    ) -> Member:
        world = SimulatedWorld(1, self.loop.time, member=name + address)
        member = Member(name, self.log, world, single_server=single_server, address=address, margin_s=margin_s)
        await member.engine.open()
        self._tasks.append(world.start_task(member.view.follow(), name=f"replica of {name}"))
        return member

    async def bootstrap(self, *names: str) -> list[Member]:
        members = [await self.add_member(name) for name in names]
        await commit(members[0].engine, put("founded"))
        return members

    def start_member(self, member: Member) -> None:
        self._tasks.append(member.world.start_task(member.run_campaigns(), name=f"campaigns of {member.member_id}"))
        self._tasks.append(member.world.start_task(member.election.maintain_membership(), name="membership"))

    async def wait_until(self, state: Callable[[], bool], *, within_s: float = 60.0) -> float:
        """Wait until `state` is true. Return the virtual time."""
        deadline = self.loop.time() + within_s
        while not state():
            assert self.loop.time() < deadline, "the state was not reached in time"
            await asyncio.sleep(0.05)
        return self.loop.time()

    async def close(self, *members: Member) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for member in members:
            await member.engine.close()


def run_scenario(scenario: Callable[[ElectionSetup], Coroutine[Any, Any, None]], *, seed: int = 1) -> None:
    loop = SimulatedLoop(seed)
    asyncio.set_event_loop(None)
    try:
        loop.run_until_complete(scenario(ElectionSetup(loop)))
    finally:
        loop.close()


def test_a_member_alone_is_elected_and_stays_leader() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        (first_member,) = await setup.bootstrap("one")
        setup.start_member(first_member)
        await setup.wait_until(first_member.leads)
        await asyncio.sleep(20 * TTL_S)

        assert first_member.leads()
        assert len(first_member.terms) == 1
        assert await records(first_member.engine) == {
            ("jobs", "founded"): b"data",
            ("leader", "leader"): b"one",
            ("members", "one"): b"member one",
        }
        await setup.close(first_member)

    run_scenario(scenario)


def test_one_of_two_candidates_leads_and_the_other_waits() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        members = await setup.bootstrap("one", "two")
        for member in members:
            setup.start_member(member)
        await setup.wait_until(lambda: any(member.leads() for member in members))
        await asyncio.sleep(5 * TTL_S)

        assert sum(member.leads() for member in members) == 1
        assert sum(len(member.terms) for member in members) == 1
        await setup.close(*members)

    for seed in range(10):
        run_scenario(scenario, seed=seed)


def test_when_the_leader_resigns_another_takes_over_at_once() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        first_member, second_member = await setup.bootstrap("one", "two")
        setup.start_member(first_member)
        await setup.wait_until(first_member.leads)
        setup.start_member(second_member)
        await asyncio.sleep(1.0)
        resigned_s = setup.loop.time()
        assert first_member.term is not None
        await first_member.term.resign()

        assert await setup.wait_until(lambda: first_member.leads() or second_member.leads()) - resigned_s < 1.0
        assert second_member.leads() or len(first_member.terms) == 2
        await setup.close(first_member, second_member)

    run_scenario(scenario)


def test_a_leader_that_transfers_leadership_is_followed_by_its_successor() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        first_member, second_member, third_member = await setup.bootstrap("one", "two", "three")
        setup.start_member(first_member)
        await setup.wait_until(first_member.leads)
        setup.start_member(second_member)
        setup.start_member(third_member)
        await asyncio.sleep(1.0)
        term = first_member.term
        assert term is not None
        began_s = setup.loop.time()

        assert await term.transfer("three")

        assert (
            await setup.wait_until(lambda: first_member.leads() or second_member.leads() or third_member.leads())
            - began_s
            < 0.5
        )
        assert third_member.leads()
        assert term.get_end_reason() == "the leadership was handed over to three"
        assert not await first_member.write_as_leader(term)
        # The previous leader stays a member, and does not take the leadership back.
        await asyncio.sleep(3 * TTL_S)
        assert ("members", "one") in await records(first_member.engine)
        assert third_member.leads()
        await setup.close(first_member, second_member, third_member)

    for seed in range(5):
        run_scenario(scenario, seed=seed)


def test_a_campaign_that_begins_before_the_offer_is_confirmed_waits_for_the_successor() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        first_member, second_member = await setup.bootstrap("one", "two")
        term = await first_member.election.campaign()
        first_member.faults.choose_fault = lambda operation: (
            DelayFault(reply_s=0.5) if operation is EngineOperation.COMMIT else None
        )

        offering = asyncio.ensure_future(term.transfer("two"))
        await setup.wait_until(lambda: second_member.view.is_successor() and first_member.view.get_leader_version() > 0)
        await setup.wait_until(lambda: not term.is_held())
        campaigning = asyncio.ensure_future(first_member.election.campaign())
        assert await offering
        first_member.faults.choose_fault = lambda _operation: None
        await asyncio.sleep(SUCCESSOR_TIMEOUT_S / 2)

        assert not campaigning.done()
        assert second_member.view.is_successor()
        campaigning.cancel()
        await setup.close(first_member, second_member)

    run_scenario(scenario)


def test_if_the_successor_is_gone_another_member_leads_soon() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        first_member, second_member = await setup.bootstrap("one", "two")
        setup.start_member(first_member)
        await setup.wait_until(first_member.leads)
        setup.start_member(second_member)
        await asyncio.sleep(1.0)
        began_s = setup.loop.time()
        assert first_member.term is not None

        assert await first_member.term.transfer("nobody")
        assert not first_member.leads()

        elected_s = await setup.wait_until(lambda: first_member.leads() or second_member.leads())
        assert SUCCESSOR_TIMEOUT_S - 0.1 <= elected_s - began_s < SUCCESSOR_TIMEOUT_S + 1.0
        await setup.close(first_member, second_member)

    run_scenario(scenario)


def test_if_leader_and_successor_die_after_the_offer_the_lease_expires_and_another_leads() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        first_member, second_member = await setup.bootstrap("one", "two")
        setup.start_member(first_member)
        await setup.wait_until(first_member.leads)
        setup.start_member(second_member)
        await asyncio.sleep(1.0)
        assert first_member.term is not None
        assert await first_member.term.transfer("nobody")
        first_member.faults.disconnect()

        await setup.wait_until(second_member.leads, within_s=2 * TTL_S)
        assert not first_member.leads()
        first_member.faults.reconnect()
        await asyncio.sleep(2 * TTL_S)
        assert (first_member.leads(), second_member.leads()) == (False, True)
        await setup.close(first_member, second_member)

    run_scenario(scenario)


def test_an_ended_term_cannot_transfer_leadership() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        first_member, second_member = await setup.bootstrap("one", "two")
        setup.start_member(first_member)
        await setup.wait_until(first_member.leads)
        setup.start_member(second_member)
        await asyncio.sleep(1.0)
        term = first_member.term
        assert term is not None
        assert await term.transfer("two")
        await setup.wait_until(second_member.leads)

        assert not await term.transfer("one")

        await asyncio.sleep(1.0)
        assert second_member.leads()
        await setup.close(first_member, second_member)

    run_scenario(scenario)


@pytest.mark.parametrize("other_names", [(), ("two",)])
def test_a_restored_leader_record_is_not_renewed_by_its_member(
    other_names: tuple[str, ...],
) -> None:
    async def scenario(setup: ElectionSetup) -> None:
        first_member, *followers = await setup.bootstrap("one", *other_names)
        term = await first_member.election.campaign()
        for follower in followers:
            setup.start_member(follower)
        await asyncio.sleep(1.0)

        setup.log.restore_copy(setup.log.make_copy())

        # The previous leader campaigns at once, and does not wait until its old lease expires.
        await setup.wait_until(lambda: not term.is_held())
        setup.start_member(first_member)
        await setup.wait_until(lambda: any(member.leads() for member in (first_member, *followers)), within_s=2 * TTL_S)
        await setup.close(first_member, *followers)

    run_scenario(scenario)


def test_a_leader_cut_off_stops_by_its_margin_before_another_is_elected() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        first_member, second_member = await setup.bootstrap("one", "two")
        setup.start_member(first_member)
        await setup.wait_until(first_member.leads)
        setup.start_member(second_member)
        await asyncio.sleep(1.0)
        first_member.faults.disconnect()

        stopped_s = await setup.wait_until(lambda: not first_member.leads())
        elected_s = await setup.wait_until(second_member.leads)
        assert elected_s - stopped_s >= MARGIN_S - 0.2
        first_member.faults.reconnect()
        await asyncio.sleep(5 * TTL_S)
        assert (first_member.leads(), second_member.leads()) == (False, True)
        await setup.close(first_member, second_member)

    run_scenario(scenario)


def test_a_short_disconnection_does_not_end_the_term() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        first_member, second_member = await setup.bootstrap("one", "two")
        setup.start_member(first_member)
        await setup.wait_until(first_member.leads)
        setup.start_member(second_member)
        for _ in range(10):
            first_member.faults.disconnect()
            await asyncio.sleep(2.0)
            first_member.faults.reconnect()
            await asyncio.sleep(4.0)

        assert (len(first_member.terms), len(second_member.terms)) == (1, 0)
        assert first_member.leads()
        await setup.close(first_member, second_member)

    run_scenario(scenario)


def test_a_paused_leader_cannot_write_after_it_resumes() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        first_member, second_member = await setup.bootstrap("one", "two")
        setup.start_member(first_member)
        await setup.wait_until(first_member.leads)
        paused = first_member.term
        assert paused is not None
        setup.start_member(second_member)
        # A paused process sends and receives nothing: no renewals, and no changes of the log.
        first_member.faults.choose_fault = delay_requests(3 * TTL_S)
        await setup.wait_until(second_member.leads)
        first_member.faults.choose_fault = lambda _: None

        assert not paused.is_held()
        assert second_member.term is not None
        assert [
            await first_member.write_as_leader(paused),
            await second_member.write_as_leader(second_member.term),
        ] == [False, True]
        await setup.close(first_member, second_member)

    run_scenario(scenario)


def delay_requests(delay_s: float) -> Callable[[EngineOperation], Fault | None]:
    return lambda _operation: DelayFault(request_s=delay_s)


@pytest.mark.parametrize("fault", [LoseReplyFault(), LoseRequestFault()], ids=lambda fault: type(fault).__name__)
def test_a_candidate_whose_reply_is_lost_finds_out_whether_it_leads(fault: Fault) -> None:
    async def scenario(setup: ElectionSetup) -> None:
        first_member, second_member = await setup.bootstrap("one", "two")
        faults = [fault] * 2
        first_member.faults.choose_fault = lambda operation: (
            faults.pop() if operation is EngineOperation.COMMIT and faults else None
        )
        setup.start_member(first_member)
        await setup.wait_until(first_member.leads)

        assert first_member.term is not None
        assert first_member.view.get_leader_version() == first_member.term.version
        assert await first_member.write_as_leader(first_member.term)
        assert first_member.faults.counts == {"lose-reply" if isinstance(fault, LoseReplyFault) else "lose-request": 2}
        await setup.close(first_member, second_member)

    run_scenario(scenario)


def test_a_restarted_single_server_leads_at_once() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        before = await setup.add_member("one", single_server=True)
        await commit(before.engine, put("founded"))
        setup.start_member(before)
        await setup.wait_until(before.leads)
        old_term = before.term
        assert old_term is not None
        before.engine.crash()
        after = await setup.add_member("one", single_server=True)
        started_s = setup.loop.time()
        setup.start_member(after)

        assert await setup.wait_until(after.leads) - started_s < 1.0
        assert not await after.write_as_leader(old_term)
        await setup.close(before, after)

    run_scenario(scenario)


def test_a_new_leader_has_seen_all_writes_of_the_previous_leader() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        first_member, second_member = await setup.bootstrap("one", "two")
        setup.start_member(first_member)
        await setup.wait_until(first_member.leads)
        # Its replica receives every change five seconds late.
        second_member.faults.choose_fault = lambda operation: (
            DelayFault(request_s=5.0) if operation is EngineOperation.FEED else None
        )
        setup.start_member(second_member)
        await asyncio.sleep(TTL_S)
        first_member.faults.disconnect()
        await setup.wait_until(second_member.leads, within_s=120.0)

        assert second_member.term is not None
        assert second_member.view.get_leader_version() == second_member.term.version
        await setup.close(first_member, second_member)

    run_scenario(scenario)


# --- terms and leases ---


class FixedLease:
    """A lease that is valid until a given time, and records that it was revoked."""

    def __init__(self, valid_until_s: float) -> None:
        self.id = 77
        self.valid_until_s = valid_until_s
        self.revocations = 0

    def get_valid_until_s(self) -> float:
        return self.valid_until_s

    async def revoke(self) -> None:
        self.revocations += 1


def test_a_term_ends_when_the_margin_begins_or_the_leader_record_changes() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        (member,) = await setup.bootstrap("one")
        term = await member.election.campaign()
        version, now_s = term.version, setup.loop.time()
        find_loss_reason = member.election.find_loss_reason

        assert find_loss_reason(FixedLease(now_s + MARGIN_S + 0.01), version) == ""
        for late in (FixedLease(now_s + MARGIN_S), FixedLease(now_s)):
            assert find_loss_reason(late, version) == "the leader's lease could not be renewed in time"
        for other in (version - 1, version + 1):
            assert find_loss_reason(FixedLease(now_s + TTL_S), other) == "another leader's record replaced ours"
        assert term.is_held()
        await setup.close(member)

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("valid_s", "timeout_s", "waited_s"), [(9.0, None, 7.0), (9.0, 3.0, 3.0), (4.0, 3.0, 2.0), (1.0, 3.0, 0.0)]
)
def test_a_wait_for_a_new_leader_ends_with_the_margin_or_the_timeout(
    valid_s: float, timeout_s: float | None, waited_s: float
) -> None:
    async def scenario(setup: ElectionSetup) -> None:
        (member,) = await setup.bootstrap("one")
        began_s = setup.loop.time()

        lease = FixedLease(began_s + valid_s)
        await member.election.wait_leader_changed(0, lease, timeout_s=timeout_s)

        assert setup.loop.time() - began_s == pytest.approx(waited_s)
        await setup.close(member)

    run_scenario(scenario)


def test_a_wait_for_a_new_leader_ends_when_the_record_changes() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        first_member, second_member = await setup.bootstrap("one", "two")
        began_s = setup.loop.time()
        waiting = asyncio.ensure_future(second_member.election.wait_leader_changed(0, FixedLease(began_s + 60.0)))
        await asyncio.sleep(1.0)
        term = await first_member.election.campaign()
        await waiting

        assert setup.loop.time() - began_s < 1.5
        assert second_member.view.get_leader_version() == term.version
        await setup.close(first_member, second_member)

    run_scenario(scenario)


def test_a_term_that_ended_stays_ended_with_its_first_reason() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        (member,) = await setup.bootstrap("one")
        term = await member.election.campaign()
        assert (term.is_held(), term.get_end_reason()) == (True, "")
        await term.resign()
        assert (term.is_held(), term.get_end_reason()) == (False, "the leader resigned")
        await setup.wait_until(lambda: member.view.get_leader_version() == 0)

        next_term = await member.election.campaign()
        await next_term.resign()
        await term.resign()
        assert term.get_end_reason() == "the leader resigned"
        lost_term = await member.election.campaign()
        assert await lost_term.transfer("two")
        await lost_term.resign()
        assert lost_term.get_end_reason() == "the leadership was handed over to two"
        await setup.close(member)

    run_scenario(scenario)


def test_a_lost_term_releases_its_lease_so_that_others_need_not_wait() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        first_member, second_member = await setup.bootstrap("one", "two")
        term = await first_member.election.campaign()
        losing = asyncio.ensure_future(term.wait_lost())
        await asyncio.sleep(1.0)
        assert not losing.done()
        await commit(second_member.engine, put(LEADER_KEY, b"usurper", table=LEADER_TABLE))
        await asyncio.sleep(0.5)

        assert losing.done()
        assert term.get_end_reason() == "another leader's record replaced ours"
        assert ("members", "one") not in await records(second_member.engine)
        await setup.close(first_member, second_member)

    run_scenario(scenario)


def test_a_member_keeps_its_lease_until_it_is_released() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        (member,) = await setup.bootstrap("one")
        election = member.election
        first = await election.join()
        assert await election.join() is first
        await election.release_lease(first)
        second = await election.join()
        assert second is not first

        await election.release_lease(first)  # As a term does that ended earlier.

        assert await election.join() is second
        assert ("members", "one") in await records(member.engine)
        await election.leave()
        assert ("members", "one") not in await records(member.engine)
        await election.leave()
        assert await election.join() is not second
        await setup.close(member)

    run_scenario(scenario)


def test_a_lease_that_expired_is_replaced_when_the_member_joins_again() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        (member,) = await setup.bootstrap("one")
        first = await member.election.join()
        member.faults.disconnect()
        await asyncio.sleep(TTL_S - MARGIN_S)
        member.faults.reconnect()

        second = await member.election.join()

        assert second is not first
        assert first.get_valid_until_s() == float("-inf")
        assert second.get_valid_until_s() > setup.loop.time() + TTL_S - 1.0
        await setup.close(member)

    run_scenario(scenario)


def test_a_member_joins_as_soon_as_the_log_accepts_writes_again() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        (member,) = await setup.bootstrap("one")
        setup.log.full_reason = "full"
        joining, began_s = asyncio.ensure_future(member.election.join()), setup.loop.time()
        await asyncio.sleep(1.0)
        setup.log.full_reason = ""
        await joining

        assert setup.loop.time() - began_s < 1.5
        assert ("members", "one") in await records(member.engine)
        await setup.close(member)

    run_scenario(scenario)


def test_a_log_that_rejects_the_election_is_logged_once_in_each_outage(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(setup: ElectionSetup) -> None:
        (member,) = await setup.bootstrap("one")
        for _ in range(2):
            setup.log.full_reason = "the quota is used up"
            setup.start_member(member)
            await asyncio.sleep(3.0)
            setup.log.full_reason = ""
            await setup.wait_until(member.leads)
            assert member.term is not None
            await member.term.resign()
        await setup.close(member)

    run_scenario(scenario)

    assert [record.message for record in caplog.records] == [
        "election failed, will retry reason=the quota is used up"
    ] * 2


def test_a_lease_without_a_member_record_is_renewed_until_it_would_be_unsafe() -> None:
    """Renewals go on while the log is full, so the attempts go on too; once they fail, the member gives up."""

    async def scenario(setup: ElectionSetup) -> None:
        (member,) = await setup.bootstrap("one")
        setup.log.full_reason = "full"
        joining = asyncio.ensure_future(member.election.join())
        await asyncio.sleep(3 * TTL_S)
        assert not joining.done()
        member.faults.choose_fault = lambda operation: (
            LoseRequestFault() if operation is EngineOperation.KEEPALIVE else None
        )
        await asyncio.sleep(TTL_S)

        with pytest.raises(LogUnavailable):
            await joining
        setup.log.full_reason = ""
        assert await member.election.join()
        await setup.close(member)

    run_scenario(scenario)


def test_a_leader_whose_offer_is_rejected_goes_on_leading() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        (member,) = await setup.bootstrap("one")
        setup.start_member(member)
        await setup.wait_until(member.leads)
        setup.log.full_reason = "full"
        assert member.term is not None

        assert not await member.term.transfer("two")

        setup.log.full_reason = ""
        await asyncio.sleep(2 * TTL_S)
        assert (member.leads(), len(member.terms)) == (True, 1)
        await setup.close(member)

    run_scenario(scenario)


def test_a_write_of_the_election_whose_outcome_stays_unknown_gives_up_the_lease() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        (member,) = await setup.bootstrap("one")
        term = await member.election.campaign()
        lost: dict[EngineOperation, Fault] = {
            EngineOperation.COMMIT: LoseReplyFault(),
            EngineOperation.FIND: LoseRequestFault(),
        }
        member.faults.choose_fault = lambda operation: lost.get(operation)

        with pytest.raises(LogUnavailable):
            await term.transfer("two")

        member.faults.choose_fault = lambda _operation: None
        assert not term.is_held()
        await setup.wait_until(lambda: member.view.get_leader_version() == 0, within_s=1.0)
        await setup.close(member)

    run_scenario(scenario)


def test_a_former_leader_revokes_its_lease_as_soon_as_the_log_returns() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        first, second = [await setup.add_member(name, margin_s=LONG_MARGIN_S) for name in ("one", "two")]
        await commit(first.engine, put("founded"))
        setup.start_member(first)
        await setup.wait_until(first.leads)
        setup.start_member(second)
        await asyncio.sleep(1.0)
        for member in (first, second):
            member.faults.disconnect()
        ended_s = await setup.wait_until(lambda: not first.leads())
        await asyncio.sleep(1.5)  # The lease could not be revoked when the term ended.
        for member in (first, second):
            member.faults.reconnect()

        led_s = await setup.wait_until(lambda: first.leads() or second.leads())

        assert led_s - ended_s < LONG_MARGIN_S - 1.0
        await setup.close(first, second)

    run_scenario(scenario)


def test_a_candidate_campaigns_soon_after_the_log_returns() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        (member,) = await setup.bootstrap("one")
        member.faults.disconnect()
        setup.start_member(member)
        await asyncio.sleep(10 * TTL_S)
        member.faults.reconnect()
        began_s = setup.loop.time()

        # At most the timeout of the attempt in progress and the longest pause.
        assert await setup.wait_until(member.leads) - began_s < 2.5
        await setup.close(member)

    run_scenario(scenario)


def test_a_member_record_that_the_log_rejects_is_written_once_a_second() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        (member,) = await setup.bootstrap("one")
        setup.start_member(member)
        await setup.wait_until(member.leads)
        commits: list[float] = []

        def count_commits(operation: EngineOperation) -> Fault | None:
            if operation is EngineOperation.COMMIT:
                commits.append(setup.loop.time())
            return None

        await commit(member.engine, EncodedChange(MEMBERS_TABLE, "one", None))
        setup.log.full_reason = "full"
        member.faults.choose_fault = count_commits
        await asyncio.sleep(5.5)
        assert 4 <= len(commits) <= 6
        setup.log.full_reason = ""
        await asyncio.sleep(1.5)

        assert ("members", "one") in await records(member.engine)
        await setup.close(member)

    run_scenario(scenario)


# --- one id, one process ---


def test_a_copy_of_a_living_servers_folder_does_not_join_and_leaves_its_record_alone() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        (first_member,) = await setup.bootstrap("one")
        setup.start_member(first_member)
        await setup.wait_until(first_member.leads)
        copy = await setup.add_member("one", address=" at b:4646")
        await asyncio.sleep(1.0)

        began_s = setup.loop.time()
        with pytest.raises(MemberIdInUse, match="the server-id is in use by member one"):
            await copy.election.join()

        # The record of a dead process would have expired, also if the log was out of reach at first.
        assert setup.loop.time() - began_s == pytest.approx(1.5 * TTL_S, abs=0.1)
        assert (await records(first_member.engine))["members", "one"] == b"member one"
        assert len(first_member.terms) == 1
        await setup.close(first_member, copy)

    run_scenario(scenario)


def test_of_two_servers_that_join_with_one_id_at_once_one_reports_that_it_is_in_use() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        members = [*await setup.bootstrap("one"), await setup.add_member("one", address=" at b:4646")]
        await asyncio.sleep(1.0)

        outcomes = await asyncio.gather(*(member.election.join() for member in members), return_exceptions=True)

        assert [type(outcome) for outcome in outcomes].count(MemberIdInUse) == 1, outcomes
        (winner,) = (
            member for member, outcome in zip(members, outcomes, strict=True) if isinstance(outcome, MemoryLease)
        )
        assert (await records(winner.engine))["members", "one"] == winner.build_member_record()
        await setup.close(*members)

    run_scenario(scenario)


def test_a_copy_without_contact_to_the_log_does_not_report_its_id_as_in_use() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        (first_member,) = await setup.bootstrap("one")
        setup.start_member(first_member)
        await setup.wait_until(first_member.leads)
        moved = await setup.add_member("one", address=" at b:4646")
        await asyncio.sleep(1.0)
        first_member.engine.crash()
        moved.faults.disconnect()

        with pytest.raises(LogUnavailable):
            await moved.election.join()
        moved.faults.reconnect()

        setup.start_member(moved)
        await setup.wait_until(moved.leads)
        await setup.close(first_member, moved)

    run_scenario(scenario)


def test_a_server_restarted_at_the_same_address_does_not_wait() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        old_member, other_member = await setup.bootstrap("one", "two")
        await old_member.election.join()
        old_member.engine.crash()
        after = await setup.add_member("one")
        await asyncio.sleep(0.5)
        began_s = setup.loop.time()

        await after.election.join()

        assert setup.loop.time() - began_s < 0.5
        await asyncio.sleep(2 * TTL_S)
        assert (await records(other_member.engine))["members", "one"] == b"member one"
        await setup.close(old_member, after, other_member)

    run_scenario(scenario)


def test_a_server_restarted_at_another_address_waits_until_its_old_lease_expires() -> None:
    async def scenario(setup: ElectionSetup) -> None:
        old_member, other_member = await setup.bootstrap("one", "two")
        await old_member.election.join()
        old_member.engine.crash()
        after = await setup.add_member("one", address=" at b:4646")
        await asyncio.sleep(0.5)
        began_s = setup.loop.time()

        await after.election.join()

        assert setup.loop.time() - began_s < TTL_S + 1.0
        assert (await records(other_member.engine))["members", "one"] == b"member one at b:4646"
        await setup.close(old_member, after, other_member)

    run_scenario(scenario)


@pytest.mark.parametrize("is_leader", [True, False])
def test_a_member_whose_record_vanishes_writes_it_again(is_leader: bool) -> None:
    async def scenario(setup: ElectionSetup) -> None:
        first_member, second_member = await setup.bootstrap("one", "two")
        setup.start_member(first_member)
        await setup.wait_until(first_member.leads)
        setup.start_member(second_member)
        await asyncio.sleep(1.0)
        member = first_member if is_leader else second_member
        row_key = (MEMBERS_TABLE, member.member_id)
        await commit(first_member.engine, EncodedChange(*row_key, None))
        assert row_key not in await records(first_member.engine)

        await asyncio.sleep(0.5)

        assert (await records(first_member.engine))[row_key] == member.build_member_record()
        assert (len(first_member.terms), len(second_member.terms)) == (1, 0)
        # The record is bound to the lease as before.
        member.engine.crash()
        await asyncio.sleep(2 * TTL_S)
        assert row_key not in await records((second_member if is_leader else first_member).engine)
        await setup.close(first_member, second_member)

    run_scenario(scenario)


@given(seed=st.integers(0, 2**32), cuts=st.lists(st.tuples(st.integers(0, 2), st.floats(0.1, 15.0)), max_size=12))
def test_two_members_never_lead_at_once_under_any_disconnections(seed: int, cuts: list[tuple[int, float]]) -> None:
    async def scenario(setup: ElectionSetup) -> None:
        members = await setup.bootstrap("one", "two", "three")
        for member in members:
            setup.start_member(member)

        async def watch() -> None:
            while True:
                assert sum(member.leads() for member in members) <= 1
                await asyncio.sleep(0.02)

        watching = setup.world.start_task(watch(), name="watch")
        for number, for_s in cuts:
            faults = members[number].faults
            if faults.is_disconnected(now_s=setup.loop.time()):
                faults.reconnect()
            else:
                faults.disconnect()
            await asyncio.sleep(for_s)
        for member in members:
            member.faults.reconnect()
        await setup.wait_until(lambda: any(member.leads() for member in members))
        assert not watching.done()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await setup.close(*members)

    run_scenario(scenario, seed=seed)
