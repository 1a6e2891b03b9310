"""Short fault tests of etcd: killed, compacted, restored and full. The long tests are in `tests/faults`."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.cluster.engines.contract import a_write, commit, drop, load, put, records, unchanged, written
from tests.cluster.engines.etcd_server import EtcdCluster, running_etcd
from tests.cluster.engines.workload import Follower, Workload
from tests.waiting import wait_on_loop_until
from wharf.cluster.engines.etcd.engine import EtcdEngine
from wharf.cluster.engines.etcd.settings import EtcdSettings
from wharf.cluster.engines.port import Committed, FollowerBehind, LogUnavailable, WriteConflict, WriteRejected
from wharf.world import RealWorld

pytestmark = pytest.mark.needs_program("etcd")

ROOT = Path(__file__).parents[3]
FAILOVER_TIMEOUT_S = 60.0
"""How long etcd may take to elect another member on a loaded machine."""


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    with running_etcd(tmp_path / "etcd") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """Three members, for all tests here; each leaves them running."""
    with running_etcd(tmp_path_factory.mktemp("etcd"), members=3) as cluster:
        yield cluster


@asynccontextmanager
async def open_engines(cluster: EtcdCluster, count: int, *, prefix: str = "/wharf") -> AsyncIterator[list[EtcdEngine]]:
    """Engines that each begin with another member."""
    opened: list[EtcdEngine] = []
    try:
        for number in range(count):
            offset = number % len(cluster.endpoints)
            endpoints = (*cluster.endpoints[offset:], *cluster.endpoints[:offset])
            settings = EtcdSettings(endpoints=endpoints, prefix=prefix, request_timeout_s=3.0, dial_timeout_s=1.0)
            engine = EtcdEngine(settings, RealWorld())
            await engine.open()
            opened.append(engine)
        yield opened
    finally:
        for engine in opened:
            await engine.close()


async def test_restarting_the_only_member_loses_and_repeats_no_write(etcd: EtcdCluster) -> None:
    async with open_engines(etcd, 3) as opened, Workload(opened[:2] * 3, opened) as workload:
        await workload.until_written(60)
        for _ in range(3):
            etcd.kill()
            await asyncio.to_thread(etcd.start)
            await workload.until_written(30)

        await workload.prove()
        assert [follower.loads for follower in workload.followers] == [0, 0, 0]


async def test_killing_any_of_three_members_loses_and_repeats_no_write(three: EtcdCluster) -> None:
    async with open_engines(three, 3, prefix="/one-killed") as opened, Workload(opened * 2, opened) as workload:
        await workload.until_written(50)
        for victim in (three.members[0], three.leader()):
            victim.kill()
            await workload.until_written(50)
            await asyncio.to_thread(three.start, victim)
            await workload.until_written(50)

        await workload.prove()
        assert [follower.loads for follower in workload.followers] == [0, 0, 0]


async def test_restarting_all_three_members_loses_and_repeats_no_write(three: EtcdCluster) -> None:
    async with open_engines(three, 3, prefix="/all-killed") as opened, Workload(opened * 2, opened) as workload:
        await workload.until_written(50)
        three.kill()
        await asyncio.to_thread(three.start)
        await workload.until_written(50)

        await workload.prove()


async def test_requests_move_from_a_frozen_member_to_another(three: EtcdCluster) -> None:
    async with open_engines(three, 1, prefix="/frozen") as (engine,):
        await commit(engine, put("a"))
        three.members[0].pause()
        try:
            outcome = await engine.commit(a_write(put("b")))
            # The request may be lost in the frozen member, and further ones until another member leads.
            assert not isinstance(outcome, WriteConflict | WriteRejected)
            async with asyncio.timeout(FAILOVER_TIMEOUT_S):
                while not isinstance(await engine.commit(a_write(put("c"))), Committed):
                    pass
            assert ("jobs", "c") in await records(engine)
        finally:
            three.members[0].resume()


async def test_an_engine_without_its_etcd_is_unavailable_in_time_and_its_last_contact_stays(
    etcd: EtcdCluster,
) -> None:
    async with open_engines(etcd, 1) as (engine,):
        await commit(engine, put("a"))
        etcd.kill()
        contact_s = engine.get_last_contact_s()
        with pytest.raises(LogUnavailable, match=r"etcd at 127\.0\.0\.1"):
            await engine.barrier()
        with pytest.raises(LogUnavailable):
            await load(engine)
        assert engine.get_last_contact_s() == contact_s
        assert not (await engine.read_health()).writable
        etcd.start()
        await commit(engine, put("b"))


async def test_opening_an_engine_without_etcd_reports_that_etcd_cannot_be_reached() -> None:
    engine = EtcdEngine(EtcdSettings(endpoints=("127.0.0.1:1",), dial_timeout_s=0.2), RealWorld())

    with pytest.raises(LogUnavailable, match=r"etcd at 127\.0\.0\.1:1 cannot be reached"):
        await engine.open()


async def test_a_follower_that_was_away_while_the_log_was_compacted_loads_again_and_agrees(etcd: EtcdCluster) -> None:
    async with open_engines(etcd, 2) as (writer, away):
        index = await commit(writer, put("a"), put("gone"))
        await away.close()
        await commit(writer, drop("gone"))
        await commit(writer, put("b"))
        last = await commit(writer, put("c"))
        await writer.compact(last)
        await away.open()

        with pytest.raises(FollowerBehind):
            await anext(away.follow(index))
        follower = Follower(away)
        follower.index = index
        following = asyncio.ensure_future(follower.follow_on())
        await wait_on_loop_until(lambda: follower.index >= last, what="the follower has caught up")
        following.cancel()
        assert follower.loads == 1
        assert follower.rows == (await load(writer))[0]


async def test_keys_of_other_programs_on_the_same_etcd_do_no_harm(etcd: EtcdCluster) -> None:
    async with (
        open_engines(etcd, 1, prefix="/wharf") as (ours,),
        open_engines(etcd, 1, prefix="/wharf2") as (theirs,),
        Workload([ours] * 3, [ours]) as workload,
        Workload([theirs] * 3, [theirs]) as other_workload,
    ):
        await workload.until_written(100)
        await other_workload.until_written(1)
        await theirs.compact((await load(theirs))[1].index)
        await workload.until_written(20)

        await workload.prove()
        await other_workload.prove()


async def test_an_etcd_restored_from_an_older_copy_begins_a_new_epoch_above_every_reported_index(
    etcd: EtcdCluster,
) -> None:
    async with open_engines(etcd, 2) as (first_engine, second_engine):
        await commit(first_engine, put("a", b"old"), put("n", table="nodes"))
        snapshot = etcd.save_snapshot()
        for _ in range(20):
            lost_index = await commit(first_engine, put("a", b"lost"), put("b", b"lost"))
        feeds = [engine.follow(lost_index) for engine in (first_engine, second_engine)]
        waiting = [asyncio.ensure_future(anext(feed)) for feed in feeds]
        etcd.restore_snapshot(snapshot)

        for follower in waiting:
            with pytest.raises(FollowerBehind):
                await follower
        states = [await load(engine) for engine in (first_engine, second_engine)]
        assert states[0][0] == states[1][0]
        rows, position = states[0]
        assert {row_key: data for row_key, (_, data) in rows.items()} == {
            ("jobs", "a"): b"old",
            ("nodes", "n"): b"data",
        }
        assert position.epoch == 1
        assert all(version > lost_index for version, _ in rows.values())
        assert all(changed > lost_index for changed in position.last_changes.values())
        assert await first_engine.barrier() > lost_index
        # What was decided before the restore conflicts; what is decided after it does not.
        assert isinstance(
            await first_engine.commit(a_write(put("a"), conditions=[unchanged("a", lost_index)])), WriteConflict
        )
        version, _ = rows["jobs", "a"]
        assert await commit(second_engine, put("a", b"new"), conditions=[unchanged("a", version)]) > position.index


async def test_a_row_in_etcd_keeps_its_index_over_repeated_restores_of_older_copies(
    etcd: EtcdCluster,
) -> None:
    async with open_engines(etcd, 2) as (first_engine, second_engine):
        indexes = {("jobs", "a"): await commit(first_engine, put("a"))}
        for key in ("b", "c"):
            snapshot = etcd.save_snapshot()
            await commit(first_engine, put("a", b"lost"), put(key, b"lost"))
            await first_engine.barrier()
            etcd.restore_snapshot(snapshot)
            await records(first_engine)  # Whoever looks finds the copy out.
            indexes["jobs", key] = await commit(first_engine, put(key))

        assert indexes == await written(first_engine) == await written(second_engine)
        rows, position = await load(second_engine)
        assert position.epoch == 2
        assert {row_key for row_key, (version, _) in rows.items() if version > indexes[row_key]} == {
            ("jobs", "a"),
            ("jobs", "b"),
        }


async def test_a_restored_etcd_is_detected_even_if_its_index_exceeds_that_of_the_engine(etcd: EtcdCluster) -> None:
    async with open_engines(etcd, 1) as (ours,):
        await commit(ours, put("a", b"old"))
        snapshot = etcd.save_snapshot()
        lost_index = await commit(ours, put("a", b"lost"))
        # Our engine is kept from seeing the restored log before somebody else has written much to it.
        await ours.close()
        etcd.restore_snapshot(snapshot)
        async with open_engines(etcd, 1) as (stranger,):
            for number in range(20):
                await commit(stranger, put("a", str(number).encode()))
        await ours.open()

        with pytest.raises(FollowerBehind):
            await anext(ours.follow(lost_index))
        rows, position = await load(ours)
        assert rows["jobs", "a"][1] == b"19"
        assert position.epoch == 1
        assert rows["jobs", "a"][0] > lost_index


async def test_an_etcd_without_space_refuses_writes_and_serves_reads(tmp_path: Path) -> None:
    with running_etcd(tmp_path / "etcd", options=[f"--quota-backend-bytes={4 * 1024 * 1024}"]) as etcd:
        async with open_engines(etcd, 1) as (engine,):
            index = await commit(engine, put("a"))
            writes = 0
            outcome = await engine.commit(a_write(put("big", bytes(500_000))))
            while isinstance(outcome, Committed):
                writes += 1
                assert writes < 40, "etcd never reached its quota"
                outcome = await engine.commit(a_write(put("big", bytes(500_000))))

            assert isinstance(outcome, WriteRejected)
            assert "quota" in outcome.why
            rows, position = await load(engine)
            assert ("jobs", "a") in rows
            assert await engine.barrier() >= index
            health = await engine.read_health()
            assert (health.writable, "NOSPACE" in health.why) == (False, True)
            assert (await engine.find_write("never", since=index)) is None
            # An operator makes room: compact, defragment, disarm the alarm.
            await engine.compact(position.index)
            etcd.ctl("defrag")
            etcd.ctl("alarm", "disarm")
            await commit(engine, put("b"))
            assert (await engine.read_health()).writable


async def test_a_paused_leader_process_cannot_write_after_it_resumes(etcd: EtcdCluster) -> None:
    command = [sys.executable, "-m", "tests.cluster.engines.paused_leader", etcd.endpoints[0], "/wharf", "2"]
    async with open_engines(etcd, 1) as (engine,):
        founded = await commit(engine, put("founded"))
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, cwd=ROOT)
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            output_line = (await process.stdout.readline()).decode()
            version = int(output_line.removeprefix("leader "))
            feed = engine.follow(founded)
            assert (await anext(feed)).index == version
            process.send_signal(signal.SIGSTOP)
            ended = await anext(feed)
            assert [drop("leader", table="leader")] == list(ended.changes)
            vacant = unchanged("leader", 0, table="leader")
            await commit(engine, put("leader", b"next", table="leader"), conditions=[vacant])
            process.send_signal(signal.SIGCONT)
            process.stdin.write(b"go on\n")

            assert (await process.stdout.readline()).split() == [b"WriteConflict", b"False"]
            assert ("jobs", "state") not in await records(engine)
            assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def test_a_long_computation_on_the_event_loop_does_not_expire_a_lease(etcd: EtcdCluster) -> None:
    async with open_engines(etcd, 2) as (engine, other_engine):
        await commit(engine, put("founded"))
        lease = await engine.grant_lease(2.0)
        await commit(engine, put("a"), lease=lease.id)
        world = RealWorld()
        until_s = world.monotonic_s() + 3.5
        while world.monotonic_s() < until_s:
            pass  # The loop is held for longer than the lease.

        assert lease.get_valid_until_s() > world.monotonic_s()
        assert ("jobs", "a") in await records(other_engine)
