"""A real store process in the contract suite, with engines attached over its socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.cluster.engines.contract import FreshLog
from tests.cluster.engines.store_process import StoreProcess
from wharf.cluster.engines.store.engine import RemoteEngine
from wharf.world import RealWorld


class FreshRemoteLog:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._engines: list[RemoteEngine] = []
        self._store = self._start()

    async def open_engine(self) -> RemoteEngine:
        engine = RemoteEngine(RealWorld(), self._store.socket_path, open_timeout_s=20.0)
        await engine.open()
        self._engines.append(engine)
        return engine

    async def reopen(self) -> RemoteEngine:
        await self.close()
        self._store = self._start()
        return await self.open_engine()

    async def write_elsewhere(self) -> None:
        """Do nothing: the file is not shared."""

    async def close(self) -> None:
        for engine in self._engines:
            await engine.close()
        self._store.end()

    def _start(self) -> StoreProcess:
        # Without a minimum tail, a compaction deletes batches at once.
        return StoreProcess(self._folder, tail_changes=0)


class RemoteKind:
    name = "remote"
    programs = ()
    ttl_s = 0.2
    allows_many_engines = True

    @asynccontextmanager
    async def fresh(self, folder: Path) -> AsyncIterator[FreshLog]:
        log = FreshRemoteLog(folder / "log")
        try:
            yield log
        finally:
            await log.close()


KIND = RemoteKind()
