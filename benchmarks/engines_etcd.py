"""The log in etcd, one member: commits and barriers through the engine, beside a bare loop of the same client stubs."""

import asyncio
import http.client
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from benchmarks.figures import Figure, Figures
from tests.engines.etcd_server import EtcdCluster, running_etcd
from wharf.engines import etcd_messages as messages
from wharf.engines.etcd import EtcdEngine
from wharf.engines.etcd_client import EtcdChannel
from wharf.engines.etcd_settings import EtcdSettings
from wharf.engines.port import Change, Committed, LogWrite
from wharf.model.changes import Cause, CauseKind
from wharf.world import RealWorld

RECORD_BYTES = 300
ROUND_S = 2.0
ROUNDS = 3
CALLERS = 100
BATCHES_AT_ONCE = 8
BARE_BATCH = 128
BARRIERS = 1_000

_CAUSE = Cause(CauseKind.REQUEST, "r")
_world = RealWorld()


def measure() -> Figures:
    with tempfile.TemporaryDirectory() as folder, running_etcd(Path(folder)) as etcd:
        return uvloop.run(measure_all(etcd))


async def measure_all(etcd: EtcdCluster) -> Figures:
    settings = EtcdSettings(endpoints=etcd.endpoints)
    engine = EtcdEngine(settings, _world)
    await engine.open()
    bare = EtcdChannel(etcd.endpoints[0], None)
    data = os.urandom(RECORD_BYTES)
    width = engine.bounds.changes

    async def commit_one(number: int) -> int:
        return await commit(engine, [Change("evaluations", f"key{number}", data)])

    async def commit_batch(_number: int) -> int:
        return await commit(engine, [Change("allocations", _world.new_id(), data) for _ in range(width)])

    async def put_one(number: int) -> int:
        return await put_bare(bare, [f"/bare/evaluations/key{number}"], data)

    async def put_batch(_number: int) -> int:
        return await put_bare(bare, [f"/bare/allocations/{_world.new_id()}" for _ in range(BARE_BATCH)], data)

    ones, bare_ones, batches, bare_batches = [], [], [], []
    try:
        await commit_one(0)
        for _ in range(ROUNDS):  # Turn by turn, so that a slow disk is slow for all.
            bare_ones.append(await rate(put_one, callers=CALLERS))
            ones.append(await rate(commit_one, callers=CALLERS))
            bare_batches.append(await rate(put_batch, callers=BATCHES_AT_ONCE))
            batches.append(await rate(commit_batch, callers=BATCHES_AT_ONCE))
        followed = await rate_followed(engine, commit_one)
        barrier_ms, reads = await barriers(engine, etcd)
        loaded = await load_rate(engine)
    finally:
        await bare.channel.close()
        await engine.close()
    return {
        f"{CALLERS} callers, one record each": Figure(
            value=statistics.median(ones), unit="commits/s", baseline=statistics.median(bare_ones), at_least=0.5
        ),
        f"batches of {width} (bare: {BARE_BATCH})": Figure(
            value=statistics.median(batches), unit="changes/s", baseline=statistics.median(bare_batches), at_least=0.5
        ),
        f"{CALLERS} callers, one follower in the same process": Figure(value=followed, unit="commits/s"),
        f"{BARRIERS:,} barriers at once": Figure(
            value=barrier_ms, unit="ms", at_most=10, note=f"the most reads of etcd in a round: {reads}"
        ),
        "loading rows": Figure(value=loaded, unit="rows/s"),
    }


async def commit(engine: EtcdEngine, changes: list[Change]) -> int:
    outcome = await engine.commit(LogWrite(_world.new_id(), "benchmark", _CAUSE, (), changes))
    assert isinstance(outcome, Committed), outcome
    return len(changes)


async def put_bare(channel: EtcdChannel, keys: list[str], data: bytes) -> int:
    """What the stubs alone do: the same records in one transaction, nothing compared and nothing remembered."""
    puts = [messages.put(key.encode(), data) for key in keys]
    await channel.txn(messages.transaction(success=puts), timeout=5)
    return len(keys)


async def rate(work: Callable[[int], Awaitable[int]], *, callers: int) -> float:
    until = time.perf_counter() + ROUND_S

    async def call() -> int:
        done = 0
        while time.perf_counter() < until:
            done += await work(done)
        return done

    began = time.perf_counter()
    counts = await asyncio.gather(*(call() for _ in range(callers)))
    return sum(counts) / (time.perf_counter() - began)


async def rate_followed(engine: EtcdEngine, work: Callable[[int], Awaitable[int]]) -> float:
    after = await engine.barrier()

    async def follow() -> None:
        async for _ in engine.follow(after):
            pass

    following = _world.start(follow(), name="follower")
    measured = await rate(work, callers=CALLERS)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    return measured


async def barriers(engine: EtcdEngine, etcd: EtcdCluster) -> tuple[float, int]:
    rounds_ms = []
    reads = 0
    for _ in range(20):
        before = transactions(etcd)
        began = time.perf_counter()
        await asyncio.gather(*(engine.barrier() for _ in range(BARRIERS)))
        rounds_ms.append((time.perf_counter() - began) * 1_000)
        reads = max(reads, transactions(etcd) - before)
    return statistics.median(rounds_ms), reads


def transactions(etcd: EtcdCluster) -> int:
    """How many transactions etcd has answered, by its own count."""
    host, port = etcd.endpoints[0].split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=5)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found = re.search(
        r'^grpc_server_handled_total\{grpc_code="OK",grpc_method="Txn",[^}]*\} (\S+)$', text, re.MULTILINE
    )
    return int(float(found.group(1))) if found else 0


async def load_rate(engine: EtcdEngine) -> float:
    began = time.perf_counter()
    rows = 0
    loading = engine.load()
    async for some in loading.slices():
        rows += len(some)
    return rows / (time.perf_counter() - began)


if __name__ == "__main__":
    from benchmarks.__main__ import main

    sys.exit(main(["engines_etcd"]))
