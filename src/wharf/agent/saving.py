"""Saving and restoring the whole state: what of it goes into a snapshot, and what a restored one must not bring along.

Who is a member and who leads is of the moment: those records live on leases, and a restored copy would never end. They
carry secrets of the running servers too. So they are left out both ways.
"""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from wharf import __version__
from wharf.agent import snapshots
from wharf.agent.log_access import engine_for_command
from wharf.agent.refusal import Refused
from wharf.config.settings import Settings
from wharf.engines.election import LEADER_TABLE, MEMBERS_TABLE
from wharf.engines.port import Engine, Load, Row, Standing, Unavailable
from wharf.engines.snapshot import (
    SnapshotFacts,
    SnapshotRefused,
    inspect_snapshot,
    restore_snapshot,
    save_snapshot,
)
from wharf.model.cluster import Format
from wharf.state.codec import Damaged, Decoder, NewerFormat
from wharf.state.formats import NEWEST_FORMAT
from wharf.state.tables import ALL_TABLES
from wharf.world import RealWorld, World

OF_THE_MOMENT: Final = frozenset((LEADER_TABLE, MEMBERS_TABLE))
__all__ = ["SnapshotFacts", "inspect", "restore", "restore_by_command", "save", "save_by_command"]


async def save(engine: Engine, path: Path, *, world: World) -> SnapshotFacts:
    """Raises Refused."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return await save_snapshot(_Lasting(engine), path, world=world, program=f"wharf {__version__}")
    except OSError as error:
        raise Refused(f"the folder {path.parent} cannot be made: {error.strerror}") from error
    except (SnapshotRefused, Unavailable) as error:
        raise Refused(str(error)) from error


def inspect(path: Path) -> SnapshotFacts:
    """Read the whole file and check it. Raises Refused."""
    try:
        return inspect_snapshot(path)
    except SnapshotRefused as error:
        raise Refused(str(error)) from error


async def restore(engine: Engine, path: Path) -> int:
    """Replace all that the engine's log holds, and answer the index where it stands then.

    Every record is read before anything is replaced. Raises Refused.
    """
    try:
        await restore_snapshot(_Proof(), path)
        return await restore_snapshot(_Lasting(engine), path)
    except (SnapshotRefused, Unavailable) as error:
        raise Refused(str(error)) from error
    except (Damaged, NewerFormat) as error:
        raise Refused(f"the snapshot {path} cannot be restored by this program: {error}") from error


async def save_by_command(
    settings: Settings, file: Path | None, *, may_replace: bool = False
) -> tuple[Path, SnapshotFacts]:
    """Beside a running agent or without one. It makes no folder, for a misspelt path would go unseen. Raises Refused."""
    world = RealWorld()
    path = file or Path(snapshots.name_at(world.now_ns()))
    if not path.parent.is_dir():
        raise Refused(f"there is no folder {path.parent}: make it first")
    if path.exists() and not may_replace:
        raise Refused(f"{path} is there already: choose another name, or replace it with --force")
    async with _opened(settings, world, may_be_new=False) as engine:
        return path, await save(engine, path, world=world)


async def restore_by_command(settings: Settings, file: Path) -> int:
    """Raises Refused."""
    async with _opened(settings, RealWorld(), may_be_new=True) as engine:
        return await restore(engine, file)


@contextlib.asynccontextmanager
async def _opened(settings: Settings, world: World, *, may_be_new: bool) -> AsyncIterator[Engine]:
    engine = engine_for_command(settings, world, may_be_new=may_be_new)
    try:
        await engine.open()
    except Unavailable as error:
        raise Refused(str(error)) from error
    try:
        yield engine
    finally:
        await engine.close()


class _Lasting:
    """An engine without what is of the moment."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def load(self) -> "_LastingLoad":
        return _LastingLoad(self._engine.load())

    async def restore(self, rows: AsyncIterator[Sequence[Row]], standing: Standing) -> int:
        return await self._engine.restore(_lasting(rows), standing)


class _LastingLoad:
    def __init__(self, load: Load) -> None:
        self._load = load

    def slices(self) -> AsyncIterator[Sequence[Row]]:
        return _lasting(self._load.slices())

    async def standing(self) -> Standing:
        return await self._load.standing()


async def _lasting(slices: AsyncIterator[Sequence[Row]]) -> AsyncGenerator[Sequence[Row], None]:
    async for rows in slices:
        yield [row for row in rows if row.table not in OF_THE_MOMENT]


class _Proof:
    """Takes a restore and keeps nothing: it reads every record as a replica would."""

    def __init__(self) -> None:
        self._decoders = {table.name: Decoder(table, opens_packed=True) for table in ALL_TABLES}

    async def restore(self, rows: AsyncIterator[Sequence[Row]], standing: Standing) -> int:
        async for some in rows:
            for row in some:
                self._read(row)
        return standing.index

    def _read(self, row: Row) -> None:
        decoder = self._decoders.get(row.table)
        if decoder is None:
            raise NewerFormat(f"it has a table {row.table} that this program does not know")
        record = decoder.record(row.key, row.data, row.version)
        if isinstance(record, Format) and record.version > NEWEST_FORMAT:
            raise NewerFormat(f"its format is {record.version}; this program reads up to {NEWEST_FORMAT}")
