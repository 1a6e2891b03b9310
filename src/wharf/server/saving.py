"""Saving and restoring the whole state: what of it goes into a snapshot, and what a restored one must not bring along.

Who is a member and who leads is of the moment: those records live on leases, and a restored copy would never end. They
carry secrets of the running servers too. So they are left out both ways. And a restored row must not say another index
than it did where it was saved, so it is settled first.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from wharf import __version__
from wharf.engines.election import LEADER_TABLE, MEMBERS_TABLE
from wharf.engines.port import Engine, Load, Row, Standing
from wharf.engines.snapshot import SnapshotFacts, SnapshotRefused, restore_snapshot, save_snapshot
from wharf.model.cluster import Format
from wharf.state.codec import Damaged, Decoder, NewerFormat
from wharf.state.formats import NEWEST_FORMAT
from wharf.state.settling import Settling
from wharf.state.tables import ALL_TABLES
from wharf.world import World

OF_THE_MOMENT: Final = frozenset((LEADER_TABLE, MEMBERS_TABLE))

SETTLED_AT_ONCE: Final = 250
"""Rows in one step of the loop: about three milliseconds."""

KEYRING_NEEDED: Final = (
    "the key of its cluster's keyring (keyring.key) to read what is sealed: tokens, variables, logins"
)


class SavingRefused(Exception):
    """A sentence: what is wrong with the file, or where it was to go."""


async def save(engine: Engine, path: Path, *, world: World) -> SnapshotFacts:
    """Write the state as of now to a new file. Raises `SavingRefused`, or `Unavailable` of the engine."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        program = f"wharf {__version__}"
        return await save_snapshot(_Lasting(engine), path, world=world, program=program, needs=[KEYRING_NEEDED])
    except OSError as error:
        raise SavingRefused(f"the folder {path.parent} cannot be made: {error.strerror}") from error
    except SnapshotRefused as error:
        raise SavingRefused(str(error)) from error


async def restore(engine: Engine, path: Path) -> int:
    """Replace all that the engine's log holds, and answer the index where it stands then.

    Every record is read before anything is replaced. Raises `SavingRefused`, or `Unavailable` of the engine.
    """
    try:
        await restore_snapshot(_Proof(), path)
        return await restore_snapshot(_Lasting(engine), path)
    except SnapshotRefused as error:
        raise SavingRefused(str(error)) from error
    except (Damaged, NewerFormat) as error:
        raise SavingRefused(f"the snapshot {path} cannot be restored by this program: {error}") from error


class _Lasting:
    """An engine without what is of the moment."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def load(self) -> "_LastingLoad":
        return _LastingLoad(self._engine.load())

    async def restore(self, rows: AsyncIterator[Sequence[Row]], standing: Standing) -> int:
        return await self._engine.restore(_settled(_lasting(rows)), standing)


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


async def _settled(slices: AsyncIterator[Sequence[Row]]) -> AsyncGenerator[Sequence[Row], None]:
    settling = Settling(ALL_TABLES)
    async for rows in slices:
        for start in range(0, len(rows), SETTLED_AT_ONCE):
            yield [settling.settled(row) for row in rows[start : start + SETTLED_AT_ONCE]]
            await asyncio.sleep(0)


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
