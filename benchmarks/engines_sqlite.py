"""The log of one machine: durable commits through the store process, and loads, beside a bare `sqlite3` loop."""

import asyncio
import multiprocessing
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import apsw
import uvloop

from benchmarks.figures import Figure, Figures
from wharf.cluster.engines.port import Committed, EncodedChange, EncodedWrite
from wharf.cluster.engines.sqlite.store import SqliteStore
from wharf.cluster.engines.store.engine import RemoteEngine
from wharf.cluster.engines.store.server import StoreProcessSettings, run_store
from wharf.contract.model.log import Cause, CauseKind
from wharf.world import RealWorld

RECORD_BYTES = 300
ROUND_S = 2.0
ROUND_COUNT = 3
CALLER_COUNT = 64
ALLOCATION_COUNT = 1_000_000
ALLOCATION_BYTES = 700

_CAUSE = Cause(CauseKind.REQUEST, "r")
_world = RealWorld()


def measure(allocations: int = ALLOCATION_COUNT) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        figures = uvloop.run(measure_commits(Path(folder)))
    with tempfile.TemporaryDirectory() as folder:
        figures |= uvloop.run(measure_start(Path(folder), allocations))
    return figures


async def measure_commits(folder: Path) -> Figures:
    store = start_store(folder / "log")
    engine = RemoteEngine(_world, StoreProcessSettings(folder=str(folder / "log")).get_socket_path(), open_timeout_s=20)
    await engine.open()
    try:
        bare, apsw_bare, inside, one = [], [], [], []
        for number in range(ROUND_COUNT):  # Turn by turn, so that a slow disk is slow for all.
            bare.append(run_bare_loop(folder / f"bare{number}.db"))
            apsw_bare.append(run_bare_apsw_loop(folder / f"apsw{number}.db"))
            inside.append(run_store_loop(folder / f"inside{number}"))
            one.append(await run_callers_loop(engine, callers=1))
        with_follower, follower = await follow_along(engine, lambda: run_callers_loop(engine, callers=1))
        many = [await run_callers_loop(engine, callers=CALLER_COUNT) for _ in range(ROUND_COUNT)]
        many_followed, _ = await follow_along(engine, lambda: run_callers_loop(engine, callers=CALLER_COUNT))
        batches = [await run_batches_loop(engine) for _ in range(ROUND_COUNT)]
        followed, lag = await follow_along(engine, lambda: run_batches_loop(engine))
        barrier_ms = await run_barrier_loop(engine)
    finally:
        await engine.close()
        stop_process(store)
    return {
        "one caller": Figure(
            value=statistics.median(one), unit="commits/s", baseline=statistics.median(bare), at_least=0.6
        ),
        "one caller, in the store itself": Figure(
            value=statistics.median(inside),
            unit="commits/s",
            baseline=statistics.median(bare),
            note="without the socket and the two event loops",
        ),
        "one caller, one follower": Figure(
            value=with_follower,
            unit="commits/s",
            baseline=statistics.median(bare),
            note=f"the feed ended {follower * 1000:.0f} ms after the last commit",
        ),
        "bare apsw loop": Figure(
            value=statistics.median(apsw_bare), unit="commits/s", baseline=statistics.median(bare)
        ),
        f"{CALLER_COUNT} callers": Figure(value=statistics.median(many), unit="commits/s", at_least=15_000),
        f"{CALLER_COUNT} callers, one follower": Figure(value=many_followed, unit="commits/s"),
        "batches of 1,000": Figure(value=statistics.median(batches), unit="changes/s"),
        "batches of 1,000, one follower": Figure(
            value=followed,
            unit="changes/s",
            at_least=40_000,
            note=f"the feed ended {lag * 1000:.0f} ms after the last commit",
        ),
        "barrier": Figure(value=barrier_ms, unit="ms"),
    }


async def measure_start(folder: Path, allocations: int) -> Figures:
    store = start_store(folder / "log")
    path = StoreProcessSettings(folder=str(folder / "log")).get_socket_path()
    engine = RemoteEngine(_world, path, open_timeout_s=60)
    await engine.open()
    data = os.urandom(ALLOCATION_BYTES)
    began = time.perf_counter()
    for start in range(0, allocations, 8_000):
        await asyncio.gather(
            *(
                engine.commit(make_write([EncodedChange("allocations", _world.new_id(), data) for _ in range(1_000)]))
                for _ in range(start, min(start + 8_000, allocations), 1_000)
            )
        )
    filled_s = time.perf_counter() - began
    await engine.close()
    stop_process(store)
    began = time.perf_counter()
    store = start_store(folder / "log")
    engine = RemoteEngine(_world, path, open_timeout_s=60)
    await engine.open()
    opened_s = time.perf_counter() - began
    try:
        began = time.perf_counter()
        rows = 0
        loading = engine.load()
        async for some in loading.iter_slices():
            rows += len(some)
        loaded_s = time.perf_counter() - began
        assert rows == allocations
        memory_mb = measure_resident_mb(store)
        slowed = await load_and_commit(engine)
    finally:
        await engine.close()
        stop_process(store)
    return {
        "filling, batches of 1,000": Figure(value=allocations / filled_s, unit="changes/s"),
        f"the store opens {allocations:,} records": Figure(value=opened_s, unit="s"),
        "its memory": Figure(value=memory_mb, unit="MB", at_most=1_200),
        "loading rows through the socket": Figure(value=rows / loaded_s, unit="rows/s", at_least=150_000),
        "one caller during a load": Figure(value=slowed, unit="commits/s"),
    }


def run_bare_loop(path: Path) -> float:
    """What SQLite alone does: one record, one durable commit, no other process."""
    connection = sqlite3.connect(path, isolation_level=None)
    execute = connection.execute
    rate = commit_alone(lambda sql, values: execute(sql, values))
    connection.close()
    return rate


def run_bare_apsw_loop(path: Path) -> float:
    connection = apsw.Connection(str(path))
    execute = connection.execute
    rate = commit_alone(lambda sql, values: execute(sql, values))
    connection.close()
    return rate


def commit_alone(execute: Callable[[str, tuple[object, ...]], object]) -> float:
    execute("PRAGMA journal_mode = WAL", ())
    execute("PRAGMA synchronous = FULL", ())
    execute("CREATE TABLE records (key BLOB PRIMARY KEY, version INTEGER, data BLOB) WITHOUT ROWID", ())
    data = os.urandom(RECORD_BYTES)
    count = 0
    began = time.perf_counter()
    while (now := time.perf_counter()) < began + ROUND_S:
        count += 1
        execute("BEGIN IMMEDIATE", ())
        execute("INSERT INTO records VALUES (?, ?, ?)", (b"key%d" % count, count, data))
        execute("COMMIT", ())
    return count / (now - began)


def run_store_loop(folder: Path) -> float:
    """What the store does for one caller, without the socket and the two event loops: the difference is theirs."""
    store = SqliteStore(folder, clock=time.monotonic)
    store.open()
    data = os.urandom(RECORD_BYTES)
    count = 0
    began = time.perf_counter()
    while (now := time.perf_counter()) < began + ROUND_S:
        count += 1
        store.commit_group([make_write([EncodedChange("evaluations", f"key{count}", data)])])
        if store.should_maintain():
            store.run_maintenance_step()
    store.close()
    return count / (now - began)


async def run_callers_loop(engine: RemoteEngine, *, callers: int) -> float:
    data = os.urandom(RECORD_BYTES)
    until = time.perf_counter() + ROUND_S

    async def call() -> int:
        count = 0
        while time.perf_counter() < until:
            outcome = await engine.commit(make_write([EncodedChange("evaluations", f"key{count}", data)]))
            assert isinstance(outcome, Committed), outcome
            count += 1
        return count

    began = time.perf_counter()
    counts = await asyncio.gather(*(call() for _ in range(callers)))
    return sum(counts) / (time.perf_counter() - began)


async def run_batches_loop(engine: RemoteEngine) -> float:
    """Two at a time, as a plan applier does that decides the next while the last is on its way."""
    data = os.urandom(RECORD_BYTES)
    until = time.perf_counter() + ROUND_S

    async def call() -> int:
        count = 0
        while time.perf_counter() < until:
            changes = [EncodedChange("allocations", _world.new_id(), data) for _ in range(1_000)]
            assert isinstance(await engine.commit(make_write(changes)), Committed)
            count += len(changes)
        return count

    began = time.perf_counter()
    counts = await asyncio.gather(call(), call())
    return sum(counts) / (time.perf_counter() - began)


async def follow_along(engine: RemoteEngine, work: Callable[[], Awaitable[float]]) -> tuple[float, float]:
    """What `work` measures while somebody follows, and how long after it the follower had everything."""
    after = await engine.barrier()
    last = -1
    done = asyncio.Event()

    async def follow() -> None:
        async for batch in engine.follow(after):
            if batch.index == last:
                done.set()
            seen[0] = batch.index

    seen = [after]
    following = asyncio.ensure_future(follow())
    rate = await work()
    began = time.perf_counter()
    last = await engine.barrier()
    if seen[0] < last:
        await done.wait()
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following
    return rate, time.perf_counter() - began


async def run_barrier_loop(engine: RemoteEngine) -> float:
    took = []
    for _ in range(2_000):
        began = time.perf_counter()
        await engine.barrier()
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1000


async def load_and_commit(engine: RemoteEngine) -> float:
    async def load() -> None:
        while True:
            async for _ in engine.load().iter_slices():
                pass

    loading = asyncio.ensure_future(load())
    rate = await run_callers_loop(engine, callers=1)
    loading.cancel()
    with suppress(asyncio.CancelledError):
        await loading
    return rate


def make_write(changes: Sequence[EncodedChange]) -> EncodedWrite:
    return EncodedWrite(_world.new_id(), "benchmark", _CAUSE, (), changes)


def start_store(folder: Path) -> multiprocessing.Process:
    # Started anew, not forked: the loop of this process is none of its business.
    process = multiprocessing.get_context("spawn").Process(
        target=run_store, args=(StoreProcessSettings(folder=str(folder)),)
    )
    process.start()
    return process  # type: ignore[return-value]  # typeshed tells apart the ways of starting


def stop_process(process: multiprocessing.Process) -> None:
    process.terminate()
    process.join()


def measure_resident_mb(process: multiprocessing.Process) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return float("nan")


if __name__ == "__main__":
    from benchmarks.__main__ import main

    sys.exit(main(["engines_sqlite", *sys.argv[1:]]))
