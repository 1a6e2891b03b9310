"""Leases of the file log in virtual time: they live while their owner is attached, and for their time to live after it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import apsw
import pytest

from simulation.loop import SimulatedLoop
from tests.cluster.engines.contract import a_write, put
from tests.cluster.engines.faulty_disks import FailingDisk
from wharf.cluster.engines.sqlite.async_store import AsyncSqliteStore
from wharf.cluster.engines.sqlite.leases import LEASE_END_RETRY_S, LeaseTracker
from wharf.cluster.engines.sqlite.store import SqliteStore

TTL_S = 10.0


class LeaseSetup:
    """A store on a folder with its leases, on a virtual clock."""

    def __init__(self, loop: SimulatedLoop, folder: Path, vfs: str) -> None:
        self.loop = loop
        self._folder, self._vfs = folder, vfs

    async def open(self) -> None:
        sync_store = SqliteStore(self._folder, clock=self.loop.time, vfs=self._vfs)
        self.store = AsyncSqliteStore(sync_store, encode=lambda batch: batch.id.encode())
        await self.store.open()
        self.leases = LeaseTracker(self.store)

    async def close(self) -> None:
        self.leases.close()
        await self.store.close()

    async def grant(self, owner: str, ttl_s: float = TTL_S) -> int:
        return await self.leases.grant_lease(owner=owner, ttl_s=ttl_s)

    def list_leases(self) -> list[int]:
        return sorted(self.store.sync_store.leases)

    async def find_ends(self, *, within_s: float) -> dict[int, float]:
        """Return after how many seconds each lease ended, in tenths of a second."""
        began_s, ends, alive = self.loop.time(), dict[int, float](), set(self.list_leases())
        while self.loop.time() < began_s + within_s:
            await asyncio.sleep(0.1)
            for lease in alive - set(self.list_leases()):
                ends[lease] = round(self.loop.time() - began_s, 1)
            alive &= set(self.list_leases())
        return ends


Scenario = Callable[[LeaseSetup], Awaitable[None]]


@pytest.fixture
def disk() -> Iterator[FailingDisk]:
    disk = FailingDisk("failing-leases")
    yield disk
    disk.unregister()


@pytest.fixture
def run_scenario(tmp_path: Path, disk: FailingDisk) -> Callable[[Scenario], None]:
    def run(scenario: Scenario) -> None:
        loop = SimulatedLoop(1)

        async def run_it() -> None:
            setup = LeaseSetup(loop, tmp_path / "log", disk.vfs_name)
            await setup.open()
            await scenario(setup)
            await setup.close()

        try:
            loop.run_until_complete(run_it())
        finally:
            loop.close()

    return run


def is_about(actual_s: float, expected_s: float) -> bool:
    return expected_s <= actual_s <= expected_s + 0.21


def test_a_lease_ends_its_time_to_live_after_the_last_connection_of_its_owner(
    run_scenario: Callable[[Scenario], None],
) -> None:
    async def scenario(setup: LeaseSetup) -> None:
        setup.leases.attach("one")
        setup.leases.attach("one")
        setup.leases.attach("two")
        leases = [await setup.grant("one"), await setup.grant("one", 4.0), await setup.grant("two")]
        setup.leases.detach("one")
        assert await setup.find_ends(within_s=3 * TTL_S) == {}

        setup.leases.detach("one")
        ends = await setup.find_ends(within_s=3 * TTL_S)

        assert sorted(ends) == leases[:2]
        assert is_about(ends[leases[0]], TTL_S)
        assert is_about(ends[leases[1]], 4.0)
        assert setup.list_leases() == leases[2:]

    run_scenario(scenario)


def test_an_owner_that_returns_in_time_keeps_its_leases(run_scenario: Callable[[Scenario], None]) -> None:
    async def scenario(setup: LeaseSetup) -> None:
        setup.leases.attach("one")
        setup.leases.attach("two")
        kept, other = await setup.grant("one"), await setup.grant("two")
        setup.leases.detach("one")
        setup.leases.detach("two")
        await asyncio.sleep(TTL_S - 1)
        setup.leases.attach("one")

        assert list(await setup.find_ends(within_s=3 * TTL_S)) == [other]
        assert setup.list_leases() == [kept]
        setup.leases.detach("one")
        assert is_about((await setup.find_ends(within_s=2 * TTL_S))[kept], TTL_S)

    run_scenario(scenario)


def test_a_lease_that_is_granted_after_its_owner_left_ends(run_scenario: Callable[[Scenario], None]) -> None:
    async def scenario(setup: LeaseSetup) -> None:
        late = await setup.grant("gone")

        assert is_about((await setup.find_ends(within_s=2 * TTL_S))[late], TTL_S)

    run_scenario(scenario)


def test_the_records_of_an_expired_lease_are_deleted(run_scenario: Callable[[Scenario], None]) -> None:
    async def scenario(setup: LeaseSetup) -> None:
        lease = await setup.grant("gone")
        setup.store.submit_write(a_write(put("a"), lease=lease), lambda _outcome: None)
        await setup.find_ends(within_s=2 * TTL_S)

        assert setup.store.sync_store.index == 2

    run_scenario(scenario)


@pytest.mark.parametrize(("ttl_s", "ttl_ms"), [(0.0001, 1), (0.0014, 1), (0.0016, 2), (2.5, 2_500)])
def test_a_time_to_live_is_stored_in_whole_milliseconds(
    run_scenario: Callable[[Scenario], None], ttl_s: float, ttl_ms: int
) -> None:
    async def scenario(setup: LeaseSetup) -> None:
        setup.leases.attach("one")
        lease = setup.store.sync_store.leases[await setup.grant("one", ttl_s)]

        assert (lease.ttl_ms, lease.owner) == (ttl_ms, "one")

    run_scenario(scenario)


def test_a_revoked_lease_ends_at_once_and_only_once(run_scenario: Callable[[Scenario], None]) -> None:
    async def scenario(setup: LeaseSetup) -> None:
        lease = await setup.grant("gone")
        setup.store.submit_write(a_write(put("a"), lease=lease), lambda _outcome: None)

        await setup.leases.revoke_lease(lease)
        await setup.leases.revoke_lease(lease)

        assert setup.list_leases() == []
        await asyncio.sleep(2 * TTL_S)
        assert setup.store.sync_store.index == 2

    run_scenario(scenario)


def test_after_a_restart_owners_have_the_time_to_live_to_return(run_scenario: Callable[[Scenario], None]) -> None:
    async def scenario(setup: LeaseSetup) -> None:
        setup.leases.attach("one")
        setup.leases.attach("two")
        lost, kept = await setup.grant("one"), await setup.grant("two")
        await setup.close()
        await asyncio.sleep(3 * TTL_S)
        await setup.open()
        assert setup.list_leases() == [lost, kept]
        setup.leases.attach("two")

        ends = await setup.find_ends(within_s=2 * TTL_S)
        assert list(ends) == [lost]
        assert is_about(ends[lost], TTL_S)

    run_scenario(scenario)


def test_the_end_of_a_lease_is_written_again_until_the_log_accepts_writes(
    run_scenario: Callable[[Scenario], None], disk: FailingDisk
) -> None:
    async def scenario(setup: LeaseSetup) -> None:
        lease = await setup.grant("gone")
        disk.fail = lambda operation, _path: apsw.FullError() if operation == "write" else None
        await asyncio.sleep(TTL_S + 5.5 * LEASE_END_RETRY_S)
        assert setup.list_leases() == [lease]
        disk.fail = lambda _operation, _path: None

        assert lease in await setup.find_ends(within_s=2 * LEASE_END_RETRY_S)

    run_scenario(scenario)


def test_an_owner_that_returns_between_two_attempts_keeps_its_lease(
    run_scenario: Callable[[Scenario], None], disk: FailingDisk
) -> None:
    async def scenario(setup: LeaseSetup) -> None:
        lease = await setup.grant("late")
        disk.fail = lambda operation, _path: apsw.FullError() if operation == "write" else None
        await asyncio.sleep(TTL_S + 0.5 * LEASE_END_RETRY_S)
        disk.fail = lambda _operation, _path: None
        setup.leases.attach("late")

        assert await setup.find_ends(within_s=2 * TTL_S) == {}
        assert setup.list_leases() == [lease]

    run_scenario(scenario)


def test_closing_stops_all_timers(run_scenario: Callable[[Scenario], None]) -> None:
    async def scenario(setup: LeaseSetup) -> None:
        lease = await setup.grant("gone")
        setup.leases.close()

        assert await setup.find_ends(within_s=2 * TTL_S) == {}
        assert setup.list_leases() == [lease]

    run_scenario(scenario)
