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
from wharf.engines.port import Change, Committed, LogWrite
from wharf.engines.remote import RemoteEngine
from wharf.engines.sqlite_store import Store
from wharf.engines.store import StoreSettings, run_store
from wharf.model.changes import Cause, CauseKind
from wharf.world import RealWorld

RECORD_BYTES = 300
ROUND_S = 2.0
ROUNDS = 3
CALLERS = 64
ALLOCATIONS = 1_000_000
ALLOCATION_BYTES = 700

_CAUSE = Cause(CauseKind.REQUEST, "r")
_world = RealWorld()


def measure(allocations: int = ALLOCATIONS) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        figures = uvloop.run(measure_commits(Path(folder)))
    with tempfile.TemporaryDirectory() as folder:
        figures |= uvloop.run(measure_start(Path(folder), allocations))
    return figures


async def measure_commits(folder: Path) -> Figures:
    store = start_store(folder / "log")
    engine = RemoteEngine(_world, StoreSettings(folder=str(folder / "log")).socket_path(), patience_s=20)
    await engine.open()
    try:
        bare, apsw_bare, inside, one = [], [], [], []
        for number in range(ROUNDS):  # Turn by turn, so that a slow disk is slow for all.
            bare.append(bare_loop(folder / f"bare{number}.db"))
            apsw_bare.append(bare_apsw_loop(folder / f"apsw{number}.db"))
            inside.append(store_loop(folder / f"inside{number}"))
            one.append(await callers_loop(engine, callers=1))
        with_follower, follower = await follow_along(engine, lambda: callers_loop(engine, callers=1))
        many = [await callers_loop(engine, callers=CALLERS) for _ in range(ROUNDS)]
        many_followed, _ = await follow_along(engine, lambda: callers_loop(engine, callers=CALLERS))
        batches = [await batches_loop(engine) for _ in range(ROUNDS)]
        followed, lag = await follow_along(engine, lambda: batches_loop(engine))
        barrier_ms = await barrier_loop(engine)
    finally:
        await engine.close()
        end(store)
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
        f"{CALLERS} callers": Figure(value=statistics.median(many), unit="commits/s", at_least=15_000),
        f"{CALLERS} callers, one follower": Figure(value=many_followed, unit="commits/s"),
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
    path = StoreSettings(folder=str(folder / "log")).socket_path()
    engine = RemoteEngine(_world, path, patience_s=60)
    await engine.open()
    data = os.urandom(ALLOCATION_BYTES)
    began = time.perf_counter()
    for start in range(0, allocations, 8_000):
        await asyncio.gather(
            *(
                engine.commit(a_write([Change("allocations", _world.new_id(), data) for _ in range(1_000)]))
                for _ in range(start, min(start + 8_000, allocations), 1_000)
            )
        )
    filled_s = time.perf_counter() - began
    await engine.close()
    end(store)
    began = time.perf_counter()
    store = start_store(folder / "log")
    engine = RemoteEngine(_world, path, patience_s=60)
    await engine.open()
    opened_s = time.perf_counter() - began
    try:
        began = time.perf_counter()
        rows = 0
        loading = engine.load()
        async for some in loading.slices():
            rows += len(some)
        loaded_s = time.perf_counter() - began
        assert rows == allocations
        memory_mb = resident_mb(store)
        slowed = await load_and_commit(engine)
    finally:
        await engine.close()
        end(store)
    return {
        "filling, batches of 1,000": Figure(value=allocations / filled_s, unit="changes/s"),
        f"the store opens {allocations:,} records": Figure(value=opened_s, unit="s"),
        "its memory": Figure(value=memory_mb, unit="MB", at_most=1_200),
        "loading rows through the socket": Figure(value=rows / loaded_s, unit="rows/s", at_least=150_000),
        "one caller during a load": Figure(value=slowed, unit="commits/s"),
    }


def bare_loop(path: Path) -> float:
    """What SQLite alone does: one record, one durable commit, no other process."""
    connection = sqlite3.connect(path, isolation_level=None)
    execute = connection.execute
    rate = commit_alone(lambda sql, values: execute(sql, values))
    connection.close()
    return rate


def bare_apsw_loop(path: Path) -> float:
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


def store_loop(folder: Path) -> float:
    """What the store does for one caller, without the socket and the two event loops: the difference is theirs."""
    store = Store(folder, clock=time.monotonic)
    store.open()
    data = os.urandom(RECORD_BYTES)
    count = 0
    began = time.perf_counter()
    while (now := time.perf_counter()) < began + ROUND_S:
        count += 1
        store.commit_group([a_write([Change("evaluations", f"key{count}", data)])])
        if store.needs_tidying():
            store.tidy()
    store.close()
    return count / (now - began)


async def callers_loop(engine: RemoteEngine, *, callers: int) -> float:
    data = os.urandom(RECORD_BYTES)
    until = time.perf_counter() + ROUND_S

    async def call() -> int:
        count = 0
        while time.perf_counter() < until:
            outcome = await engine.commit(a_write([Change("evaluations", f"key{count}", data)]))
            assert isinstance(outcome, Committed), outcome
            count += 1
        return count

    began = time.perf_counter()
    counts = await asyncio.gather(*(call() for _ in range(callers)))
    return sum(counts) / (time.perf_counter() - began)


async def batches_loop(engine: RemoteEngine) -> float:
    """Two at a time, as a plan applier does that decides the next while the last is on its way."""
    data = os.urandom(RECORD_BYTES)
    until = time.perf_counter() + ROUND_S

    async def call() -> int:
        count = 0
        while time.perf_counter() < until:
            changes = [Change("allocations", _world.new_id(), data) for _ in range(1_000)]
            assert isinstance(await engine.commit(a_write(changes)), Committed)
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


async def barrier_loop(engine: RemoteEngine) -> float:
    took = []
    for _ in range(2_000):
        began = time.perf_counter()
        await engine.barrier()
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1000


async def load_and_commit(engine: RemoteEngine) -> float:
    async def load() -> None:
        while True:
            async for _ in engine.load().slices():
                pass

    loading = asyncio.ensure_future(load())
    rate = await callers_loop(engine, callers=1)
    loading.cancel()
    with suppress(asyncio.CancelledError):
        await loading
    return rate


def a_write(changes: Sequence[Change]) -> LogWrite:
    return LogWrite(_world.new_id(), "benchmark", _CAUSE, (), changes)


def start_store(folder: Path) -> multiprocessing.Process:
    # Started anew, not forked: the loop of this process is none of its business.
    process = multiprocessing.get_context("spawn").Process(target=run_store, args=(StoreSettings(folder=str(folder)),))
    process.start()
    return process  # type: ignore[return-value]  # typeshed tells apart the ways of starting


def end(process: multiprocessing.Process) -> None:
    process.terminate()
    process.join()


def resident_mb(process: multiprocessing.Process) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return float("nan")


if __name__ == "__main__":
    from benchmarks.__main__ import main

    sys.exit(main(["engines_sqlite", *sys.argv[1:]]))
