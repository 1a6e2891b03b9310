"""The file of one folder in the contract suite, opened in the process of the tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.cluster.engines.contract import FreshLog
from wharf.cluster.engines.sqlite.engine import SqliteEngine
from wharf.world import RealWorld


class FreshSqliteLog:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._doors: list[SqliteEngine] = []

    async def door(self) -> SqliteEngine:
        # No tail is promised, so that a compaction shows at once.
        door = SqliteEngine(RealWorld(), self._folder, min_tail_changes=0)
        await door.open()
        self._doors.append(door)
        return door

    async def reopen(self) -> SqliteEngine:
        await self.close()
        return await self.door()

    async def write_elsewhere(self) -> None:
        """Nobody else writes into our file."""

    async def close(self) -> None:
        for door in self._doors:
            await door.close()


class SqliteKind:
    name = "sqlite"
    programs = ()
    ttl_s = 0.05
    has_many_doors = False

    @asynccontextmanager
    async def fresh(self, folder: Path) -> AsyncIterator[FreshLog]:
        log = FreshSqliteLog(folder / "log")
        yield log
        await log.close()


KIND = SqliteKind()
