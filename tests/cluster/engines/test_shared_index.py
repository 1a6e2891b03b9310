"""The index that the store publishes in shared memory."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.builders import some_job_settings
from tests.cluster.engines.contract import a_write, commit, put
from tests.kit.settings import USUAL_SEARCH_LIMITS
from tests.waiting import wait_on_loop_until
from wharf.cluster.engines.port import Committed, LogUnavailable, WriteOutcome
from wharf.cluster.engines.sqlite.async_store import AsyncSqliteStore
from wharf.cluster.engines.sqlite.store import SqliteStore
from wharf.cluster.engines.store.engine import RemoteEngine
from wharf.cluster.engines.store.server import StoreProcessSettings, StoreServer
from wharf.cluster.engines.store.shared_index import SharedIndex, create_shared_index, open_shared_index
from wharf.cluster.server.server import Server, ServerIdentity
from wharf.cluster.state.tables import LEADER
from wharf.contract.model.cluster import Leader
from wharf.contract.model.log import Cause, CauseKind, Write
from wharf.world import RealWorld

WORLD = RealWorld()


@pytest.fixture
def shared_index() -> SharedIndex:
    index = open_shared_index(create_shared_index())
    assert index is not None
    return index


@asynccontextmanager
async def serving(folder: Path, shared_index: SharedIndex) -> AsyncIterator[StoreServer]:
    server = StoreServer(StoreProcessSettings(folder=str(folder)), WORLD, shared_index)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def attached(folder: Path, shared_index: SharedIndex | None) -> AsyncIterator[RemoteEngine]:
    path = StoreProcessSettings(folder=str(folder)).get_socket_path()
    engine = RemoteEngine(WORLD, path, shared_index=shared_index)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


async def test_an_index_is_published_before_its_write_is_acknowledged(tmp_path: Path) -> None:
    events: list[int | WriteOutcome] = []
    store = AsyncSqliteStore(
        SqliteStore(tmp_path, clock=WORLD.monotonic_s), encode=lambda _: b"", publish_index=events.append
    )
    await store.open()
    events.clear()
    acknowledged = asyncio.Event()

    def on_outcome(outcome: WriteOutcome) -> None:
        events.append(outcome)
        acknowledged.set()

    store.submit_write(a_write(put("a")), on_outcome)
    await acknowledged.wait()
    await store.close()

    outcome = events[1]
    assert isinstance(outcome, Committed)
    assert events == [outcome.index, outcome]


async def test_every_engine_of_a_store_sees_the_index_of_an_acknowledged_write(
    tmp_path: Path, shared_index: SharedIndex
) -> None:
    async with (
        serving(tmp_path, shared_index),
        attached(tmp_path, shared_index) as writer,
        attached(tmp_path, shared_index) as reader,
    ):
        for key in "abc":
            newest = await commit(writer, put(key))

            assert reader.read_published_index() == newest


async def test_a_restarted_store_publishes_the_index_of_its_log(tmp_path: Path, shared_index: SharedIndex) -> None:
    async with serving(tmp_path, shared_index), attached(tmp_path, shared_index) as engine:
        newest = await commit(engine, put("a"))
    shared_index.publish(0)

    async with serving(tmp_path, shared_index), attached(tmp_path, shared_index) as engine:
        assert engine.read_published_index() == newest


async def test_an_engine_without_a_store_reports_no_published_index(tmp_path: Path, shared_index: SharedIndex) -> None:
    async with serving(tmp_path, shared_index) as server, attached(tmp_path, shared_index) as engine:
        await commit(engine, put("a"))
        await server.close()
        await wait_on_loop_until(lambda: engine.read_published_index() is None, what="the engine has lost the store")

        with pytest.raises(LogUnavailable):
            await engine.barrier()


async def test_an_engine_without_shared_memory_reports_no_published_index(
    tmp_path: Path, shared_index: SharedIndex
) -> None:
    async with serving(tmp_path, shared_index), attached(tmp_path, None) as engine:
        await commit(engine, put("a"))

        assert engine.read_published_index() is None


def test_shared_memory_keeps_no_descriptor_open() -> None:
    descriptor = create_shared_index()

    opened = open_shared_index(descriptor)

    assert opened is not None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    assert open_shared_index(-1) is None


async def test_a_default_read_waits_until_the_replica_has_the_published_index(
    tmp_path: Path, shared_index: SharedIndex
) -> None:
    async with serving(tmp_path, shared_index), attached(tmp_path, shared_index) as engine:
        server = Server(
            WORLD,
            engine,
            ServerIdentity("m1", "m1"),
            job_settings=some_job_settings(),
            search_limits=USUAL_SEARCH_LIMITS,
        )
        following = asyncio.ensure_future(server.follower.run())
        await server.bootstrap_cluster()
        leader = Write("elected", Cause(CauseKind.LEASE), [LEADER.build_put(Leader(member_id="m1"))])
        outcome = await server.writer.commit(leader)
        assert isinstance(outcome, Committed)
        await server.reader.catch_up()
        assert server.replica.index == outcome.index

        shared_index.publish(outcome.index + 1)
        reading = asyncio.ensure_future(server.reader.catch_up())
        await engine.barrier()
        is_waiting = not reading.done()
        await server.writer.commit(leader)
        await reading
        following.cancel()

        assert is_waiting
        assert server.replica.index == outcome.index + 1
