"""Saving and restoring snapshots: the tables they contain, and the tables that a restore omits."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from tests.builders import a_job
from tests.cluster.engines.contract import EngineKind, commit, kinds
from wharf.agent.errors import CommandError
from wharf.agent.snapshots import commands
from wharf.cluster.engines.memory.engine import MemoryEngine
from wharf.cluster.engines.memory.log import MemoryLog
from wharf.cluster.engines.port import EncodedChange, EncodedWrite, LogEngine
from wharf.cluster.engines.snapshot_file import SnapshotLimits, save_snapshot
from wharf.cluster.state import Replica
from wharf.cluster.state.codec import encode_record
from wharf.cluster.state.formats import NEWEST_FORMAT
from wharf.cluster.state.tables import ALL_TABLES, CLUSTER_FORMAT, JOBS, LEADER, MEMBERS, NAMESPACES
from wharf.contract.model.cluster import Leader, Member, RecordFormat
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind
from wharf.contract.model.namespaces import Namespace
from wharf.world import RealWorld

WORLD = RealWorld()
LIMITS = SnapshotLimits(100_000_000)


def run_with_log(action: Callable[[LogEngine], Awaitable[None]], *changes: EncodedChange) -> None:
    """Run `action` on a log that contains these changes."""

    async def run() -> None:
        engine = MemoryEngine(WORLD, MemoryLog(WORLD))
        await engine.open()
        try:
            await engine.commit(EncodedWrite(WORLD.new_id(), "test", Cause(CauseKind.REQUEST, "r"), (), changes, 0))
            await action(engine)
        finally:
            await engine.close()

    asyncio.run(run())


A_NAMESPACE = EncodedChange("namespaces", "default", encode_record(NAMESPACES, Namespace(name="default")))
A_FORMAT = EncodedChange("format", "format", encode_record(CLUSTER_FORMAT, RecordFormat(version=1)))
A_MEMBER = EncodedChange("members", "m", encode_record(MEMBERS, Member(id="m", door_secret="open sesame")))
A_LEADER = EncodedChange("leader", "leader", encode_record(LEADER, Leader(member_id="m")))


async def list_tables(engine: LogEngine) -> set[str]:
    return {row.table async for rows in engine.load().iter_slices() for row in rows}


def test_a_snapshot_contains_the_state_without_leader_and_members(tmp_path: Path) -> None:
    path = tmp_path / "a.snap"

    async def action(engine: LogEngine) -> None:
        facts = await commands.save_snapshot(engine, path, world=WORLD)

        assert facts.trailer.rows == {"namespaces": 1}

    run_with_log(action, A_NAMESPACE, A_MEMBER, A_LEADER)


def test_a_restore_omits_the_leader_in_an_old_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "a.snap"

    async def action(engine: LogEngine) -> None:
        # Saved like an older program, which did not omit them.
        await save_snapshot(engine, path, world=WORLD, program="another")
        await commands.restore_snapshot(engine, path, LIMITS)

        assert await list_tables(engine) == {"namespaces", "format"}

    run_with_log(action, A_NAMESPACE, A_MEMBER, A_LEADER, A_FORMAT)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            EncodedChange("format", "format", encode_record(CLUSTER_FORMAT, RecordFormat(version=99))),
            f"its format is 99; this version reads formats up to {NEWEST_FORMAT}",
        ),
        (EncodedChange("ships", "s", b"\x80"), "it has a table 'ships' that this version does not know"),
        (EncodedChange("namespaces", "x", b"\x09\x80"), "has schema version 9; this program reads up to"),
        (EncodedChange("namespaces", "x", msgspec.msgpack.encode({"Name": 5})), "is damaged"),
    ],
)
def test_a_snapshot_that_this_program_cannot_read_changes_nothing(
    tmp_path: Path, change: EncodedChange, message: str
) -> None:
    path = tmp_path / "a.snap"

    async def save(engine: LogEngine) -> None:
        await save_snapshot(engine, path, world=WORLD, program="another")

    async def restore(engine: LogEngine) -> None:
        with pytest.raises(CommandError, match=message):
            await commands.restore_snapshot(engine, path, LIMITS)

        assert await list_tables(engine) == {"namespaces", "leader"}

    run_with_log(save, change)
    run_with_log(restore, A_NAMESPACE, A_LEADER)


@pytest.mark.parametrize("kind", kinds())
def test_references_to_a_record_are_valid_after_a_restore(tmp_path: Path, kind: EngineKind) -> None:
    """A job that was written once keeps the create index that its allocations refer to."""
    path, replica = tmp_path / "a.snap", Replica(ALL_TABLES)

    async def run() -> None:
        async with kind.fresh(tmp_path / "log") as log:
            engine = await log.open_engine()
            written = await commit(
                engine,
                A_FORMAT,
                EncodedChange("jobs", "default\0shop", encode_record(JOBS, a_job(create_index=WRITE_INDEX))),
            )
            await commands.save_snapshot(engine, path, world=WORLD)
            await commit(engine, EncodedChange("jobs", "default\0shop", None))
            await commands.restore_snapshot(engine, path, LIMITS)
            loading = engine.load()
            rows = [row async for batch in loading.iter_slices() for row in batch]
            replica.load_state(rows, await loading.get_position())

            job = replica.get(JOBS, "default", "shop")
            assert job is not None
            assert (job.create_index, job.modify_index > written) == (written, True)

    asyncio.run(run())


def test_a_damaged_snapshot_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.snap").write_bytes(b"WHARFSNAPSHOT\n\x00\x01 and then nothing of use")

    with pytest.raises(CommandError, match="is damaged"):
        commands.inspect_snapshot_file(tmp_path / "a.snap")
