"""The SQLite engine in the contract suite, in the process of the tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.cluster.engines.contract import FreshLog
from wharf.cluster.engines.sqlite.engine import SqliteEngine
from wharf.world import RealWorld


class FreshSqliteLog:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._engines: list[SqliteEngine] = []

    async def open_engine(self) -> SqliteEngine:
        # Without a minimum tail, a compaction deletes batches at once.
        engine = SqliteEngine(RealWorld(), self._folder, min_tail_changes=0)
        await engine.open()
        self._engines.append(engine)
        return engine

    async def reopen(self) -> SqliteEngine:
        await self.close()
        return await self.open_engine()

    async def write_elsewhere(self) -> None:
        """Do nothing: the file is not shared."""

    async def close(self) -> None:
        for engine in self._engines:
            await engine.close()


class SqliteKind:
    name = "sqlite"
    programs = ()
    ttl_s = 0.05
    allows_many_engines = False

    @asynccontextmanager
    async def fresh(self, folder: Path) -> AsyncIterator[FreshLog]:
        log = FreshSqliteLog(folder / "log")
        yield log
        await log.close()


KIND = SqliteKind()
