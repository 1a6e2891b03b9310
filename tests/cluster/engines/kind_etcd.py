"""The etcd engine in the contract suite: one real server for all tests, and a separate prefix for each test."""

import atexit
import functools
import itertools
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.cluster.engines.contract import FreshLog
from tests.cluster.engines.etcd_server import EtcdCluster
from wharf.cluster.engines.etcd import messages
from wharf.cluster.engines.etcd.client import EtcdClient
from wharf.cluster.engines.etcd.engine import EtcdEngine
from wharf.cluster.engines.etcd.settings import EtcdSettings
from wharf.cluster.engines.port import LogEngine
from wharf.world import RealWorld

_numbers = itertools.count(1)


@functools.cache
def shared_server() -> EtcdCluster:
    """Return the server of all tests. The first call starts it; it is killed when the test process ends."""
    # etcd syncs its disk at every write. These tests do not test the disk, so a folder in memory saves time.
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="wharf-etcd-", dir=memory if os.access(memory, os.W_OK) else None))
    cluster = EtcdCluster(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(cluster.kill)
    cluster.start()
    return cluster


def fresh_settings(cluster: EtcdCluster) -> EtcdSettings:
    """Return settings with an unused prefix."""
    return EtcdSettings(endpoints=cluster.endpoints, prefix=f"/test/{next(_numbers)}", page_rows=100)


class FreshEtcdLog:
    def __init__(self) -> None:
        self.cluster = shared_server()
        self.settings = fresh_settings(self.cluster)
        self._engines: list[EtcdEngine] = []

    async def open_engine(self) -> LogEngine:
        engine = EtcdEngine(self.settings, RealWorld())
        await engine.open()
        self._engines.append(engine)
        return engine

    async def reopen(self) -> LogEngine:
        await self.close()
        return await self.open_engine()

    async def write_elsewhere(self) -> None:
        # Keys below and above our prefix, and one that begins with it.
        client = EtcdClient(self.settings, RealWorld())
        client.open()
        keys = [b"/aaa", self.settings.prefix.encode() + b"0", b"/zzz"]
        await client.commit_transaction(
            messages.build_transaction(success=[messages.build_put(key, b"foreign") for key in keys])
        )
        await client.close()

    async def close(self) -> None:
        engines, self._engines = self._engines, []
        for engine in engines:
            await engine.close()


class EtcdKind:
    name = "etcd"
    programs = ("etcd",)
    ttl_s = 2.0
    allows_many_engines = True

    @asynccontextmanager
    async def fresh(self, folder: Path) -> AsyncIterator[FreshLog]:  # noqa: ARG002 (`EngineKind` requires it)
        log = FreshEtcdLog()
        try:
            yield log
        finally:
            await log.close()


KIND = EtcdKind()
