"""Short fault tests of etcd: killed, compacted, restored and full. The long tests are in `tests/faults`."""

import asyncio
import re
import signal
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.cluster.engines.contract import a_write, commit, drop, load, put, records, unchanged, written
from tests.cluster.engines.etcd_server import EtcdCluster, running_etcd
from tests.cluster.engines.workload import Follower, Workload
from tests.waiting import wait_on_loop_until, wait_until
from wharf.cluster.engines.etcd import engine as engine_module
from wharf.cluster.engines.etcd import member_watch
from wharf.cluster.engines.etcd.engine import EtcdEngine
from wharf.cluster.engines.etcd.settings import EtcdSettings
from wharf.cluster.engines.port import (
    Committed,
    FollowerBehind,
    LogHealth,
    LogUnavailable,
    WriteConflict,
    WriteOutcomeUnknown,
    WriteRejected,
)
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
def three_members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """A cluster of three members, shared by the tests of this file. Each test leaves all members running."""
    with running_etcd(tmp_path_factory.mktemp("etcd"), members=3) as cluster:
        yield cluster


@asynccontextmanager
async def open_engines(
    cluster: EtcdCluster, count: int, *, prefix: str = "/wharf", quota_bytes: int = 2**31
) -> AsyncIterator[list[EtcdEngine]]:
    """Open engines, each with a different preferred member."""
    opened: list[EtcdEngine] = []
    try:
        for number in range(count):
            offset = number % len(cluster.endpoints)
            endpoints = (*cluster.endpoints[offset:], *cluster.endpoints[:offset])
            settings = EtcdSettings(
                endpoints=endpoints, prefix=prefix, request_timeout_s=3.0, dial_timeout_s=1.0, quota_bytes=quota_bytes
            )
            engine = EtcdEngine(settings, RealWorld())
            await engine.open()
            opened.append(engine)
        yield opened
    finally:
        for engine in opened:
            await engine.close()


async def test_restarting_the_only_member_loses_and_repeats_no_write(etcd: EtcdCluster) -> None:
    async with open_engines(etcd, 3) as opened, Workload(opened[:2] * 3, opened) as workload:
        await workload.wait_for_writes(60)
        for _ in range(3):
            etcd.kill()
            await asyncio.to_thread(etcd.start)
            await workload.wait_for_writes(30)

        await workload.stop_and_check()
        assert [follower.loads for follower in workload.followers] == [0, 0, 0]


async def test_killing_any_of_three_members_loses_and_repeats_no_write(three_members: EtcdCluster) -> None:
    async with open_engines(three_members, 3, prefix="/one-killed") as opened, Workload(opened * 2, opened) as workload:
        await workload.wait_for_writes(50)
        for victim in (three_members.members[0], three_members.leader()):
            victim.kill()
            await workload.wait_for_writes(50)
            await asyncio.to_thread(three_members.start, victim)
            await workload.wait_for_writes(50)

        await workload.stop_and_check()
        assert [follower.loads for follower in workload.followers] == [0, 0, 0]


async def test_the_health_names_a_lost_member_until_it_replies_again(
    three_members: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_watch, "CHECK_INTERVAL_S", 0.5)
    lost = three_members.members[1]
    async with open_engines(three_members, 1, prefix="/lost") as (engine,):
        before = await engine.read_health()
        await asyncio.to_thread(lost.kill)
        warned = await wait_for_warning(engine, is_expected=True)
        await asyncio.to_thread(three_members.start, lost)
        after = await wait_for_warning(engine, is_expected=False)

    assert (before.why, after.why) == ("", "")
    assert re.fullmatch(
        rf"the etcd member {lost.endpoint} has not replied since \S+Z\. "
        r"With one more loss, etcd accepts no writes: start it again, or replace it",
        warned.why,
    )
    assert warned.writable
    assert re.match(r"1 of 3 etcd members has not been usable since \S+Z\. With one more", warned.public_why)


async def wait_for_warning(engine: EtcdEngine, *, is_expected: bool) -> LogHealth:
    """Return the health once it has a warning, or once it has none."""
    loop = asyncio.get_running_loop()

    def find_health() -> LogHealth | None:
        health = asyncio.run_coroutine_threadsafe(engine.read_health(), loop).result()
        return health if bool(health.why) is is_expected else None

    what = "the health has a warning" if is_expected else "the health has no warning"
    return await asyncio.to_thread(wait_until, find_health, what=what)


async def test_restarting_all_three_members_loses_and_repeats_no_write(three_members: EtcdCluster) -> None:
    async with open_engines(three_members, 3, prefix="/all-killed") as opened, Workload(opened * 2, opened) as workload:
        await workload.wait_for_writes(50)
        three_members.kill()
        await asyncio.to_thread(three_members.start)
        await workload.wait_for_writes(50)

        await workload.stop_and_check()


async def test_requests_move_from_a_frozen_member_to_another(three_members: EtcdCluster) -> None:
    async with open_engines(three_members, 1, prefix="/frozen") as (engine,):
        await commit(engine, put("a"))
        three_members.members[0].pause()
        try:
            outcome = await engine.commit(a_write(put("b")))
            # Requests may be lost in the frozen member until another member leads.
            assert not isinstance(outcome, WriteConflict | WriteRejected)
            async with asyncio.timeout(FAILOVER_TIMEOUT_S):
                while not isinstance(await engine.commit(a_write(put("c"))), Committed):
                    pass
            assert ("jobs", "c") in await records(engine)
        finally:
            three_members.members[0].resume()


async def test_reads_and_the_feed_leave_a_frozen_member_within_three_seconds(three_members: EtcdCluster) -> None:
    leader = three_members.leader()
    frozen, other = [member for member in three_members.members if member is not leader]
    settings = EtcdSettings(endpoints=(frozen.endpoint, other.endpoint, leader.endpoint), prefix="/frozen-follower")
    reader, writer = (
        EtcdEngine(settings, RealWorld()),
        EtcdEngine(replace(settings, endpoints=(leader.endpoint,)), RealWorld()),
    )
    await reader.open()
    await writer.open()
    try:
        index = await commit(writer, put("a"))
        feed = reader.follow(0)
        assert (await anext(feed)).index == index
        frozen.pause()
        start_s = time.monotonic()
        await reader.barrier()
        assert time.monotonic() - start_s < 3.0

        index = await commit(writer, put("b"))

        assert (await anext(feed)).index == index
        assert time.monotonic() - start_s < 4.0
    finally:
        frozen.resume()
        await reader.close()
        await writer.close()


async def test_an_engine_without_its_etcd_is_unavailable_and_keeps_its_time_of_last_contact(
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


async def test_a_follower_that_was_offline_during_a_compaction_loads_again_and_has_the_same_records(
    etcd: EtcdCluster,
) -> None:
    async with open_engines(etcd, 2) as (writer, offline):
        index = await commit(writer, put("a"), put("gone"))
        await offline.close()
        await commit(writer, drop("gone"))
        await commit(writer, put("b"))
        last = await commit(writer, put("c"))
        await writer.compact(last)
        await offline.open()

        with pytest.raises(FollowerBehind):
            await anext(offline.follow(index))
        follower = Follower(offline)
        follower.index = index
        following = asyncio.ensure_future(follower.follow_until_cancelled())
        await wait_on_loop_until(lambda: follower.index >= last, what="the follower has caught up")
        following.cancel()
        assert follower.loads == 1
        assert follower.rows == (await load(writer))[0]


async def test_keys_of_other_programs_on_the_same_etcd_have_no_effect(etcd: EtcdCluster) -> None:
    async with (
        open_engines(etcd, 1, prefix="/wharf") as (engine,),
        open_engines(etcd, 1, prefix="/wharf2") as (other_engine,),
        Workload([engine] * 3, [engine]) as workload,
        Workload([other_engine] * 3, [other_engine]) as other_workload,
    ):
        await workload.wait_for_writes(100)
        await other_workload.wait_for_writes(1)
        await other_engine.compact((await load(other_engine))[1].index)
        await workload.wait_for_writes(20)

        await workload.stop_and_check()
        await other_workload.stop_and_check()


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
        # A write with a version from before the restore conflicts. A write with a version from after it succeeds.
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
            await records(first_engine)  # Any read detects that an older copy was restored.
            indexes["jobs", key] = await commit(first_engine, put(key))

        assert indexes == await written(first_engine) == await written(second_engine)
        rows, position = await load(second_engine)
        assert position.epoch == 2
        assert {row_key for row_key, (version, _) in rows.items() if version > indexes[row_key]} == {
            ("jobs", "a"),
            ("jobs", "b"),
        }


async def test_a_restored_etcd_is_detected_even_if_its_index_exceeds_that_of_the_engine(etcd: EtcdCluster) -> None:
    async with open_engines(etcd, 1) as (engine,):
        await commit(engine, put("a", b"old"))
        snapshot = etcd.save_snapshot()
        lost_index = await commit(engine, put("a", b"lost"))
        # Our engine must not read the restored log before another engine has written more batches to it.
        await engine.close()
        etcd.restore_snapshot(snapshot)
        async with open_engines(etcd, 1) as (other_engine,):
            for number in range(20):
                await commit(other_engine, put("a", str(number).encode()))
        await engine.open()

        with pytest.raises(FollowerBehind):
            await anext(engine.follow(lost_index))
        rows, position = await load(engine)
        assert rows["jobs", "a"][1] == b"19"
        assert position.epoch == 1
        assert rows["jobs", "a"][0] > lost_index


async def test_the_health_of_an_etcd_that_is_nearly_full_warns(tmp_path: Path) -> None:
    quota_bytes = 4 * 1024 * 1024
    # With the default batches, etcd reports its size 100 ms late, and may be full by then.
    options = [f"--quota-backend-bytes={quota_bytes}", "--backend-batch-limit=1"]
    with running_etcd(tmp_path / "etcd", options=options) as etcd:
        async with open_engines(etcd, 1, quota_bytes=quota_bytes) as (engine,):
            await commit(engine, put("a"))
            empty = await engine.read_health()
            nearly_full = empty
            while not nearly_full.why:
                await commit(engine, put("big", bytes(100_000)))
                nearly_full = await engine.read_health()

        assert (empty.writable, empty.why, empty.public_why) == (True, "", "")
        assert nearly_full.writable
        assert re.fullmatch(r"etcd has used [89]\d % of its quota of 4,194,304 bytes", nearly_full.public_why)
        assert nearly_full.why.startswith(f"etcd at {etcd.endpoints[0]} has used ")
        assert "Before it refuses writes, defragment it (etcdctl defrag), or raise " in nearly_full.why


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
            assert health.public_why == "etcd has used up its quota and accepts no writes (alarm NOSPACE)"
            assert (await engine.find_write("never", since=index)) is None
            # An operator frees space: compact, defragment, disarm the alarm.
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
            pass  # Block the event loop for longer than the lease.

        assert lease.get_valid_until_s() > world.monotonic_s()
        assert ("jobs", "a") in await records(other_engine)


async def test_a_lease_that_ended_before_a_compaction_by_another_program_ended_at_the_latest_possible_index(
    etcd: EtcdCluster,
) -> None:
    async with open_engines(etcd, 1) as (engine,):
        ended = {}
        for table in ("members", "sessions"):
            lease = await engine.grant_lease(30.0)
            await commit(engine, put("m1", table=table), lease=lease.id)
            await lease.revoke()
            ended[table] = (await load(engine))[1].last_changes[table]
            indexes = [await commit(engine, put(f"{number}")) for number in range(10)]
            if table == "members":
                compacted = indexes[3]
        etcd.ctl("compact", str(compacted))

        last_changes = (await load(engine))[1].last_changes

        # The end of the first lease is not readable any more. It was before the compaction.
        assert ended["members"] < last_changes["members"] <= compacted
        assert last_changes["sessions"] == ended["sessions"]


async def test_the_first_write_after_a_restore_has_an_unknown_outcome_and_the_next_one_a_higher_index(
    etcd: EtcdCluster,
) -> None:
    async with open_engines(etcd, 1) as (engine,):
        await commit(engine, put("a"))
        snapshot = etcd.save_snapshot()
        for _ in range(20):
            lost_index = await commit(engine, put("a", b"lost"))
        etcd.restore_snapshot(snapshot)

        outcome = await engine.commit(a_write(put("b")))

        assert isinstance(outcome, WriteOutcomeUnknown)
        assert "was replaced by an older copy of itself while the write was in flight" in outcome.why
        assert await commit(engine, put("c")) > lost_index
        assert (await load(engine))[1].epoch == 1


async def test_an_idle_engine_keeps_contact_also_after_an_outage(
    etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "_CONTACT_INTERVAL_S", 0.1)
    settings = EtcdSettings(endpoints=etcd.endpoints, request_timeout_s=0.5, dial_timeout_s=0.2)
    engine = EtcdEngine(settings, RealWorld())
    await engine.open()

    async def wait_for_contact() -> None:
        before_s = engine.get_last_contact_s() or 0.0
        await wait_on_loop_until(lambda: (engine.get_last_contact_s() or 0.0) > before_s, what="the contact is renewed")

    for _ in range(3):
        await wait_for_contact()
    etcd.kill()
    # So long that the engine itself fails to reach etcd too.
    until_s = time.monotonic() + 0.5
    while time.monotonic() < until_s:
        with pytest.raises(LogUnavailable):
            await engine.barrier()
    etcd.start()
    for _ in range(3):
        await wait_for_contact()
    await engine.close()
