"""Restores over HTTP: limits of uploads, one at a time, no files left behind, and replies of the log that are lost."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from tests.agent.processes import children_of
from tests.cluster.engines.contract import commit, put, records
from tests.cluster.server.snapshot_files import write_zeros
from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time
from tests.waiting import wait_until
from wharf.agent.errors import CommandError
from wharf.agent.snapshots import commands
from wharf.agent.snapshots.transfer import MAX_SAVED, SnapshotTransfer
from wharf.cluster.engines.memory.engine import MemoryEngine
from wharf.cluster.engines.memory.log import MemoryLog
from wharf.cluster.engines.port import LogPosition, LogUnavailable, RestoreOutcomeUnknown, StoredRecord
from wharf.cluster.engines.snapshot_file import SnapshotLimits
from wharf.cluster.state.codec import encode_record
from wharf.cluster.state.tables import CLUSTER_FORMAT
from wharf.contract.model.cluster import RecordFormat
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.world import RealWorld

WORLD = RealWorld()
LIMITS = SnapshotLimits(100_000_000)
A_FORMAT = put("format", encode_record(CLUSTER_FORMAT, RecordFormat(version=1)), table="format")


class InterruptedEngine(MemoryEngine):
    """An engine whose restores end with this error, after or before the log was replaced."""

    error: LogUnavailable

    async def restore(self, records: AsyncIterator[Sequence[StoredRecord]], position: LogPosition) -> int:
        if isinstance(self.error, RestoreOutcomeUnknown):
            await super().restore(records, position)
        raise self.error


async def restore(folder: Path, error: LogUnavailable) -> str:
    """Save a snapshot, restore it with this error, and return the code and the text of the refusal."""
    engine = InterruptedEngine(WORLD, MemoryLog(WORLD))
    engine.error = error
    await engine.open()
    try:
        await commit(engine, A_FORMAT)
        transfer = SnapshotTransfer(WORLD, folder, LIMITS)
        saved = await transfer.save(engine)
        with pytest.raises(Refusal) as refusal:
            await transfer.restore(engine, saved.parts, [])
        return f"{refusal.value.code.name}: {refusal.value.text}"
    finally:
        await engine.close()


def in_real_time(test: Callable[[Path], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """Run an async test on a real event loop, because it starts processes."""

    @wraps(test)
    def run(tmp_path: Path) -> None:
        asyncio.run(test(tmp_path))

    return run


def test_a_restore_whose_reply_was_lost_has_an_unknown_outcome(tmp_path: Path) -> None:
    text = asyncio.run(restore(tmp_path, RestoreOutcomeUnknown("the store went away")))

    assert text == (
        "OUTCOME_UNKNOWN: it is unknown whether the snapshot was restored (the store went away); check whether the state is "
        "that of the snapshot, such as with `wharf job status`; restoring it again is safe"
    )


def test_a_restore_that_certainly_failed_is_unavailable(tmp_path: Path) -> None:
    text = asyncio.run(restore(tmp_path, LogUnavailable("the store went away")))

    assert text == "UNAVAILABLE: failed to restore from snapshot: the store went away"


def test_the_command_reports_an_unknown_outcome_too(tmp_path: Path) -> None:
    async def run() -> None:
        engine = InterruptedEngine(WORLD, MemoryLog(WORLD))
        engine.error = RestoreOutcomeUnknown("the store went away")
        await engine.open()
        await commit(engine, A_FORMAT)
        await commands.save_snapshot(engine, tmp_path / "a.snap", world=WORLD)
        try:
            with pytest.raises(CommandError, match="it is unknown whether the snapshot was restored"):
                await commands.restore_snapshot(engine, tmp_path / "a.snap", LIMITS)
        finally:
            await engine.close()

    asyncio.run(run())


@in_virtual_time
async def test_a_restore_that_this_server_cannot_see_yet_has_an_unknown_outcome() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")

        with pytest.raises(Refusal) as refusal:
            await server.server.writer.wait_until_visible(10**9)

        assert refusal.value.code is RefusalCode.OUTCOME_UNKNOWN


async def upload(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def get_refusal(folder: Path, parts: AsyncIterator[bytes], limits: SnapshotLimits = LIMITS) -> Refusal:
    """Restore an upload into a log with one record, and return the refusal. Neither log nor folder may change."""
    engine = MemoryEngine(WORLD, MemoryLog(WORLD))
    await engine.open()
    try:
        await commit(engine, put("existing"))
        with pytest.raises(Refusal) as refusal:
            await SnapshotTransfer(WORLD, folder, limits).restore(engine, parts, [])
        assert await records(engine) == {("jobs", "existing"): b"data"}
        assert list_names(folder, "*/") == []
        return refusal.value
    finally:
        await engine.close()


@in_real_time
async def test_an_upload_that_unpacks_to_more_than_the_limit_is_refused(tmp_path: Path) -> None:
    bomb = write_zeros(tmp_path / "bomb.tgz", 200_000_000).read_bytes()

    refusal = await get_refusal(tmp_path, upload(bomb))

    assert refusal.code is RefusalCode.INVALID
    assert refusal.text.startswith(
        "failed to restore from snapshot: the snapshot that was sent has more than 100,000,000 bytes when it is unpacked"
    )


@in_real_time
async def test_an_upload_above_the_limit_ends_at_the_limit(tmp_path: Path) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(1_000_000)

    refusal = await get_refusal(tmp_path, endless(), SnapshotLimits(10_000_000))

    assert (refusal.code, refusal.text) == (
        RefusalCode.TOO_LARGE,
        "the snapshot is larger than 10,000,000 bytes, the limit of snapshots.max_size",
    )


@in_real_time
async def test_an_upload_that_is_no_snapshot_is_refused(tmp_path: Path) -> None:
    refusal = await get_refusal(tmp_path, upload(b"no", b" archive"))

    assert refusal.text.startswith("failed to restore from snapshot: failed to decompress snapshot: it is neither")


@in_real_time
async def test_an_upload_that_ends_early_leaves_no_file(tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise Refusal(RefusalCode.INVALID, "the client went away")

    assert (await get_refusal(tmp_path, broken())).text == "the client went away"


@in_real_time
async def test_a_second_restore_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    is_first_running, may_end = asyncio.Event(), asyncio.Event()

    async def waiting() -> AsyncIterator[bytes]:
        is_first_running.set()
        await may_end.wait()
        yield b""

    first = asyncio.ensure_future(get_refusal(tmp_path, waiting()))
    await is_first_running.wait()
    engine = MemoryEngine(WORLD, MemoryLog(WORLD))
    transfer = SnapshotTransfer(WORLD, tmp_path, LIMITS, process_name="api-2")
    with pytest.raises(Refusal, match="another snapshot is being restored on this server") as second:
        await transfer.restore(engine, upload(b""), [])
    may_end.set()

    assert second.value.code is RefusalCode.UNAVAILABLE
    assert "it is empty" in (await first).text
    assert "it is empty" in (await get_refusal(tmp_path, upload(b""))).text


@in_real_time
async def test_a_check_whose_process_is_killed_changes_nothing(tmp_path: Path) -> None:
    large = write_zeros(tmp_path / "large.tgz", 2_000_000_000).read_bytes()

    async def kill_check() -> None:
        os.kill(await find_check(), signal.SIGKILL)

    killing = asyncio.ensure_future(kill_check())
    refusal = await get_refusal(tmp_path, upload(large), SnapshotLimits(4_000_000_000))
    await killing

    assert (refusal.code, refusal.text) == (
        RefusalCode.UNAVAILABLE,
        "failed to restore from snapshot: the process that checks the snapshot ended with exit code -9",
    )


@in_real_time
async def test_a_canceled_restore_ends_its_process_and_leaves_no_file(tmp_path: Path) -> None:
    large = write_zeros(tmp_path / "large.tgz", 2_000_000_000).read_bytes()
    engine = MemoryEngine(WORLD, MemoryLog(WORLD))
    restoring = asyncio.ensure_future(
        SnapshotTransfer(WORLD, tmp_path, SnapshotLimits(4_000_000_000)).restore(engine, upload(large), [])
    )
    pid = await find_check()

    restoring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await restoring

    assert not is_check(pid)
    assert list_names(tmp_path) == ["large.tgz", "restore.lock"]


def test_the_files_of_a_killed_process_are_deleted_when_it_starts_again(tmp_path: Path) -> None:
    for name in ("passing-api-2-x", "passing-api-20-x"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "archive.tgz").touch()

    SnapshotTransfer(WORLD, tmp_path, LIMITS, process_name="api-2")

    assert list_names(tmp_path) == ["passing-api-20-x"]


@in_real_time
async def test_no_more_snapshots_are_saved_at_a_time_than_the_limit(tmp_path: Path) -> None:
    engine = MemoryEngine(WORLD, MemoryLog(WORLD))
    await engine.open()
    transfer = SnapshotTransfer(WORLD, tmp_path, LIMITS)
    saved = [await transfer.save(engine) for _ in range(MAX_SAVED)]
    with pytest.raises(Refusal, match="4 snapshots are being saved or downloaded") as refusal:
        await transfer.save(engine)
    for each in saved:
        assert b"".join([part async for part in each.parts]) != b""

    assert refusal.value.code is RefusalCode.UNAVAILABLE
    assert list_names(tmp_path) == []
    await (await transfer.save(engine)).parts.aclose()
    await engine.close()


def list_names(folder: Path, pattern: str = "*") -> list[str]:
    return sorted(path.name for path in folder.glob(pattern) if path.is_dir() or not pattern.endswith("/"))


def is_check(pid: int) -> bool:
    """Whether this is a process that checks a snapshot."""
    try:
        return b"check_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


async def find_check() -> int:
    """Wait for a process that checks a snapshot, and return its id."""

    def list_checks() -> list[int]:
        return [pid for pid in children_of(os.getpid()) if is_check(pid)]

    checks = await asyncio.to_thread(wait_until, list_checks, what="a process checks the snapshot")
    return checks[0]
