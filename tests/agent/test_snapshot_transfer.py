"""Restores over HTTP whose reply from the log is lost."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time
from wharf.agent.errors import CommandError
from wharf.agent.snapshots import commands
from wharf.agent.snapshots.transfer import SnapshotTransfer
from wharf.cluster.engines.memory.engine import MemoryEngine
from wharf.cluster.engines.memory.log import MemoryLog
from wharf.cluster.engines.port import LogPosition, LogUnavailable, RestoreOutcomeUnknown, StoredRecord
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.world import RealWorld

WORLD = RealWorld()


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
        transfer = SnapshotTransfer(WORLD, folder)
        saved = await transfer.save(engine)
        with pytest.raises(Refusal) as refusal:
            await transfer.restore(engine, saved.parts)
        return f"{refusal.value.code.name}: {refusal.value.text}"
    finally:
        await engine.close()


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
        await commands.save_snapshot(engine, tmp_path / "a.snap", world=WORLD)
        try:
            with pytest.raises(CommandError, match="it is unknown whether the snapshot was restored"):
                await commands.restore_snapshot(engine, tmp_path / "a.snap")
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
