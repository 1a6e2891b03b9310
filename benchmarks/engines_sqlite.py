"""The log in SQLite: durable commits through the store process, and loads. The baseline is a bare `sqlite3` loop."""

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
    """Measure commits of one and of many callers, batches, followers and barriers."""
    store = start_store(folder / "log")
    engine = RemoteEngine(_world, StoreProcessSettings(folder=str(folder / "log")).get_socket_path(), open_timeout_s=20)
    await engine.open()
    try:
        bare_rates, apsw_rates, store_rates, single_rates = [], [], [], []
        for number in range(ROUND_COUNT):  # Run alternately, so that a slow disk affects all of them.
            bare_rates.append(run_bare_loop(folder / f"bare{number}.db"))
            apsw_rates.append(run_bare_apsw_loop(folder / f"apsw{number}.db"))
            store_rates.append(run_store_loop(folder / f"inside{number}"))
            single_rates.append(await run_callers_loop(engine, callers=1))
        followed_single_rate, single_lag_s = await follow_along(engine, lambda: run_callers_loop(engine, callers=1))
        parallel_rates = [await run_callers_loop(engine, callers=CALLER_COUNT) for _ in range(ROUND_COUNT)]
        followed_parallel_rate, _ = await follow_along(engine, lambda: run_callers_loop(engine, callers=CALLER_COUNT))
        batch_rates = [await run_batches_loop(engine) for _ in range(ROUND_COUNT)]
        followed_batch_rate, batch_lag_s = await follow_along(engine, lambda: run_batches_loop(engine))
        barrier_ms = await run_barrier_loop(engine)
    finally:
        await engine.close()
        stop_process(store)
    return {
        "one caller": Figure(
            value=statistics.median(single_rates),
            unit="commits/s",
            baseline=statistics.median(bare_rates),
            at_least=0.6,
        ),
        "one caller, in the process of the store": Figure(
            value=statistics.median(store_rates),
            unit="commits/s",
            baseline=statistics.median(bare_rates),
            note="without the socket and the two event loops",
        ),
        "one caller, one follower": Figure(
            value=followed_single_rate,
            unit="commits/s",
            baseline=statistics.median(bare_rates),
            note=f"the follower was done {single_lag_s * 1000:.0f} ms after the last commit",
        ),
        "bare apsw loop": Figure(
            value=statistics.median(apsw_rates), unit="commits/s", baseline=statistics.median(bare_rates)
        ),
        f"{CALLER_COUNT} callers": Figure(value=statistics.median(parallel_rates), unit="commits/s", at_least=15_000),
        f"{CALLER_COUNT} callers, one follower": Figure(value=followed_parallel_rate, unit="commits/s"),
        "batches of 1,000": Figure(value=statistics.median(batch_rates), unit="changes/s"),
        "batches of 1,000, one follower": Figure(
            value=followed_batch_rate,
            unit="changes/s",
            at_least=40_000,
            note=f"the follower was done {batch_lag_s * 1000:.0f} ms after the last commit",
        ),
        "barrier": Figure(value=barrier_ms, unit="ms"),
    }


async def measure_start(folder: Path, allocations: int) -> Figures:
    """Fill the log, restart the store, and measure its start, its memory and a complete load."""
    store = start_store(folder / "log")
    path = StoreProcessSettings(folder=str(folder / "log")).get_socket_path()
    engine = RemoteEngine(_world, path, open_timeout_s=60)
    await engine.open()
    data = os.urandom(ALLOCATION_BYTES)
    started_s = time.perf_counter()
    for start in range(0, allocations, 8_000):
        await asyncio.gather(
            *(
                engine.commit(make_write([EncodedChange("allocations", _world.new_id(), data) for _ in range(1_000)]))
                for _ in range(start, min(start + 8_000, allocations), 1_000)
            )
        )
    fill_s = time.perf_counter() - started_s
    await engine.close()
    stop_process(store)
    started_s = time.perf_counter()
    store = start_store(folder / "log")
    engine = RemoteEngine(_world, path, open_timeout_s=60)
    await engine.open()
    open_s = time.perf_counter() - started_s
    try:
        started_s = time.perf_counter()
        rows = 0
        loading = engine.load()
        async for records in loading.iter_slices():
            rows += len(records)
        load_s = time.perf_counter() - started_s
        assert rows == allocations
        memory_mb = measure_resident_mb(store)
        rate_during_load = await load_and_commit(engine)
    finally:
        await engine.close()
        stop_process(store)
    return {
        "filling the log, batches of 1,000": Figure(value=allocations / fill_s, unit="changes/s"),
        f"the store opens {allocations:,} records": Figure(value=open_s, unit="s"),
        "memory of the store": Figure(value=memory_mb, unit="MB", at_most=1_200),
        "loading rows through the socket": Figure(value=rows / load_s, unit="rows/s", at_least=150_000),
        "one caller during a load": Figure(value=rate_during_load, unit="commits/s"),
    }


def run_bare_loop(path: Path) -> float:
    """Return the rate of durable commits of one record each, with SQLite alone in this process."""
    connection = sqlite3.connect(path, isolation_level=None)
    execute = connection.execute
    rate = run_commit_loop(lambda sql, values: execute(sql, values))
    connection.close()
    return rate


def run_bare_apsw_loop(path: Path) -> float:
    connection = apsw.Connection(str(path))
    execute = connection.execute
    rate = run_commit_loop(lambda sql, values: execute(sql, values))
    connection.close()
    return rate


def run_commit_loop(execute: Callable[[str, tuple[object, ...]], object]) -> float:
    """Return the rate of durable commits of one record each, through this `execute` function."""
    execute("PRAGMA journal_mode = WAL", ())
    execute("PRAGMA synchronous = FULL", ())
    execute("CREATE TABLE records (key BLOB PRIMARY KEY, version INTEGER, data BLOB) WITHOUT ROWID", ())
    data = os.urandom(RECORD_BYTES)
    count = 0
    started_s = time.perf_counter()
    while (now := time.perf_counter()) < started_s + ROUND_S:
        count += 1
        execute("BEGIN IMMEDIATE", ())
        execute("INSERT INTO records VALUES (?, ?, ?)", (b"key%d" % count, count, data))
        execute("COMMIT", ())
    return count / (now - started_s)


def run_store_loop(folder: Path) -> float:
    """Return the rate of commits in the store, called directly without its socket and event loops."""
    store = SqliteStore(folder, clock=time.monotonic)
    store.open()
    data = os.urandom(RECORD_BYTES)
    count = 0
    started_s = time.perf_counter()
    while (now := time.perf_counter()) < started_s + ROUND_S:
        count += 1
        store.commit_group([make_write([EncodedChange("evaluations", f"key{count}", data)])])
        if store.should_maintain():
            store.run_maintenance_step()
    store.close()
    return count / (now - started_s)


async def run_callers_loop(engine: RemoteEngine, *, callers: int) -> float:
    """Return the commits per second of parallel callers, with one record each."""
    data = os.urandom(RECORD_BYTES)
    end_s = time.perf_counter() + ROUND_S

    async def call() -> int:
        count = 0
        while time.perf_counter() < end_s:
            outcome = await engine.commit(make_write([EncodedChange("evaluations", f"key{count}", data)]))
            assert isinstance(outcome, Committed), outcome
            count += 1
        return count

    started_s = time.perf_counter()
    counts = await asyncio.gather(*(call() for _ in range(callers)))
    return sum(counts) / (time.perf_counter() - started_s)


async def run_batches_loop(engine: RemoteEngine) -> float:
    """Return the changes per second of two parallel callers, as a leader commits one batch while it plans the next."""
    data = os.urandom(RECORD_BYTES)
    end_s = time.perf_counter() + ROUND_S

    async def call() -> int:
        count = 0
        while time.perf_counter() < end_s:
            changes = [EncodedChange("allocations", _world.new_id(), data) for _ in range(1_000)]
            assert isinstance(await engine.commit(make_write(changes)), Committed)
            count += len(changes)
        return count

    started_s = time.perf_counter()
    counts = await asyncio.gather(call(), call())
    return sum(counts) / (time.perf_counter() - started_s)


async def follow_along(engine: RemoteEngine, operation: Callable[[], Awaitable[float]]) -> tuple[float, float]:
    """Run `operation` with a follower. Return its rate, and the seconds until the follower has received all commits."""
    after = await engine.barrier()
    last = -1
    done = asyncio.Event()

    async def follow() -> None:
        async for batch in engine.follow(after):
            if batch.index == last:
                done.set()
            received[0] = batch.index

    received = [after]
    following = asyncio.ensure_future(follow())
    rate = await operation()
    started_s = time.perf_counter()
    last = await engine.barrier()
    if received[0] < last:
        await done.wait()
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following
    return rate, time.perf_counter() - started_s


async def run_barrier_loop(engine: RemoteEngine) -> float:
    """Return the median milliseconds of a barrier."""
    durations_s = []
    for _ in range(2_000):
        started_s = time.perf_counter()
        await engine.barrier()
        durations_s.append(time.perf_counter() - started_s)
    return statistics.median(durations_s) * 1000


async def load_and_commit(engine: RemoteEngine) -> float:
    """Return the rate of commits of one caller while another one loads all records again and again."""

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
    """Start a store process for this folder."""
    # A spawned process does not inherit the event loop of this process.
    process = multiprocessing.get_context("spawn").Process(
        target=run_store, args=(StoreProcessSettings(folder=str(folder)),)
    )
    process.start()
    return process  # type: ignore[return-value]  # typeshed has one type for each start method


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
