"""What goes into a snapshot, and what a restored one does not bring along."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from tests.builders import a_job
from tests.engines.contract import EngineKind, commit, kinds
from wharf.agent import saving
from wharf.agent.refusal import Refused
from wharf.engines.memory import MemoryEngine
from wharf.engines.memory_log import MemoryLog
from wharf.engines.port import Change, Engine, LogWrite
from wharf.engines.snapshot import save_snapshot
from wharf.model.changes import THIS, Cause, CauseKind
from wharf.model.cluster import Format, Leader, Member
from wharf.model.namespace import Namespace
from wharf.state import Replica
from wharf.state.codec import encode
from wharf.state.tables import ALL_TABLES, FORMAT, JOBS, LEADER, MEMBERS, NAMESPACES
from wharf.world import RealWorld

WORLD = RealWorld()


def with_log(work: Callable[[Engine], Awaitable[None]], *changes: Change) -> None:
    """`work` on a log that holds what `changes` put."""

    async def run() -> None:
        engine = MemoryEngine(WORLD, MemoryLog(WORLD))
        await engine.open()
        try:
            await engine.commit(LogWrite(WORLD.new_id(), "test", Cause(CauseKind.REQUEST, "r"), (), changes, 0))
            await work(engine)
        finally:
            await engine.close()

    asyncio.run(run())


A_NAMESPACE = Change("namespaces", "default", encode(NAMESPACES, Namespace(name="default")))
A_MEMBER = Change("members", "m", encode(MEMBERS, Member(id="m", door_secret="open sesame")))
A_LEADER = Change("leader", "leader", encode(LEADER, Leader(member_id="m")))


async def tables_of(engine: Engine) -> set[str]:
    return {row.table async for rows in engine.load().slices() for row in rows}


def test_a_snapshot_holds_the_state_but_not_who_leads_and_who_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a.snap"

    async def work(engine: Engine) -> None:
        facts = await saving.save(engine, path, world=WORLD)

        assert facts.trailer.rows == {"namespaces": 1}

    with_log(work, A_NAMESPACE, A_MEMBER, A_LEADER)


def test_a_restored_snapshot_brings_no_leader_along_that_would_never_end(tmp_path: Path) -> None:
    path = tmp_path / "a.snap"

    async def work(engine: Engine) -> None:
        # As a program would have saved it that does not leave them out.
        await save_snapshot(engine, path, world=WORLD, program="another")
        await saving.restore(engine, path)

        assert await tables_of(engine) == {"namespaces"}

    with_log(work, A_NAMESPACE, A_MEMBER, A_LEADER)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            Change("format", "format", encode(FORMAT, Format(version=99))),
            "its format is 99; this program reads up to 1",
        ),
        (Change("ships", "s", b"\x80"), "it has a table ships that this program does not know"),
        (Change("namespaces", "x", b"\x09\x80"), "has form 9; this program reads up to"),
        (Change("namespaces", "x", msgspec.msgpack.encode({"Name": 5})), "is damaged"),
    ],
)
def test_a_snapshot_that_this_program_cannot_read_changes_nothing(
    tmp_path: Path, change: Change, sentence: str
) -> None:
    path = tmp_path / "a.snap"

    async def save(engine: Engine) -> None:
        await save_snapshot(engine, path, world=WORLD, program="another")

    async def restore(engine: Engine) -> None:
        with pytest.raises(Refused, match=sentence):
            await saving.restore(engine, path)

        assert await tables_of(engine) == {"namespaces", "leader"}

    with_log(save, change)
    with_log(restore, A_NAMESPACE, A_LEADER)


@pytest.mark.parametrize("kind", kinds())
def test_what_others_hold_of_a_record_is_still_so_after_a_restore(tmp_path: Path, kind: EngineKind) -> None:
    """A job that nothing wrote a second time is still in the life that its allocations say."""
    path, replica = tmp_path / "a.snap", Replica(ALL_TABLES)

    async def run() -> None:
        async with kind.fresh(tmp_path / "log") as log:
            engine = await log.door()
            written = await commit(engine, Change("jobs", "default\0shop", encode(JOBS, a_job(create_index=THIS))))
            await saving.save(engine, path, world=WORLD)
            await commit(engine, Change("jobs", "default\0shop", None))
            await saving.restore(engine, path)
            loading = engine.load()
            rows = [row async for some in loading.slices() for row in some]
            replica.load(rows, await loading.standing())

            job = replica.get(JOBS, "default", "shop")
            assert job is not None
            assert (job.create_index, job.modify_index > written) == (written, True)

    asyncio.run(run())


def test_a_damaged_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.snap").write_bytes(b"WHARFSNAPSHOT\n\x00\x01 and then nothing of use")

    with pytest.raises(Refused, match="is damaged"):
        saving.inspect(tmp_path / "a.snap")
