"""The memory engine in the contract suite, with the write limits of etcd."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.cluster.engines.contract import FreshLog
from wharf.cluster.engines.memory.engine import MemoryEngine
from wharf.cluster.engines.memory.log import ETCD_WRITE_LIMITS, MemoryLog
from wharf.world import RealWorld


class FreshMemoryLog:
    def __init__(self) -> None:
        self._world = RealWorld()
        self._log = MemoryLog(self._world, limits=ETCD_WRITE_LIMITS)
        self._engines: list[MemoryEngine] = []

    async def open_engine(self) -> MemoryEngine:
        engine = MemoryEngine(self._world, self._log, is_single_server=False, slice_rows=10)
        await engine.open()
        self._engines.append(engine)
        return engine

    async def reopen(self) -> MemoryEngine:
        await self.close()
        return await self.open_engine()

    async def write_elsewhere(self) -> None:
        self._log.advance_index()

    async def close(self) -> None:
        for engine in self._engines:
            await engine.close()


class MemoryKind:
    name = "memory"
    programs = ()
    ttl_s = 0.05
    allows_many_engines = True

    @asynccontextmanager
    async def fresh(self, folder: Path) -> AsyncIterator[FreshLog]:  # noqa: ARG002 (`EngineKind` requires it)
        log = FreshMemoryLog()
        yield log
        await log.close()


KIND = MemoryKind()
