"""The log in etcd with one member: commits and barriers. The baseline is a bare loop with the same client stubs."""

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
from tests.cluster.engines.etcd_server import EtcdCluster, running_etcd
from wharf.cluster.engines.etcd import messages
from wharf.cluster.engines.etcd.client import EtcdChannel
from wharf.cluster.engines.etcd.engine import EtcdEngine
from wharf.cluster.engines.etcd.settings import EtcdSettings
from wharf.cluster.engines.port import Committed, EncodedChange, EncodedWrite
from wharf.contract.model.log import Cause, CauseKind
from wharf.world import RealWorld

RECORD_BYTES = 300
ROUND_S = 2.0
ROUND_COUNT = 3
CALLER_COUNT = 100
MAX_PARALLEL_BATCHES = 8
BARE_BATCH_CHANGES = 128
BARRIER_COUNT = 1_000

_CAUSE = Cause(CauseKind.REQUEST, "r")
_world = RealWorld()


def measure() -> Figures:
    with tempfile.TemporaryDirectory() as folder, running_etcd(Path(folder)) as etcd:
        return uvloop.run(measure_all(etcd))


async def measure_all(etcd: EtcdCluster) -> Figures:
    """Measure single commits, batches, a follower, barriers and a load, with bare writes as baseline."""
    settings = EtcdSettings(endpoints=etcd.endpoints)
    engine = EtcdEngine(settings, _world)
    await engine.open()
    bare = EtcdChannel(etcd.endpoints[0], None)
    data = os.urandom(RECORD_BYTES)
    width = engine.limits.changes

    async def commit_one(number: int) -> int:
        return await commit(engine, [EncodedChange("evaluations", f"key{number}", data)])

    async def commit_batch(_number: int) -> int:
        return await commit(engine, [EncodedChange("allocations", _world.new_id(), data) for _ in range(width)])

    async def put_one(number: int) -> int:
        return await put_bare(bare, [f"/bare/evaluations/key{number}"], data)

    async def put_batch(_number: int) -> int:
        return await put_bare(bare, [f"/bare/allocations/{_world.new_id()}" for _ in range(BARE_BATCH_CHANGES)], data)

    single_rates, bare_single_rates, batch_rates, bare_batch_rates = [], [], [], []
    try:
        await commit_one(0)
        for _ in range(ROUND_COUNT):  # Run alternately, so that a slow disk affects all of them.
            bare_single_rates.append(await measure_rate(put_one, callers=CALLER_COUNT))
            single_rates.append(await measure_rate(commit_one, callers=CALLER_COUNT))
            bare_batch_rates.append(await measure_rate(put_batch, callers=MAX_PARALLEL_BATCHES))
            batch_rates.append(await measure_rate(commit_batch, callers=MAX_PARALLEL_BATCHES))
        followed_rate = await measure_followed_rate(engine, commit_one)
        barrier_ms, reads = await measure_barriers(engine, etcd)
        load_rate = await measure_load_rate(engine)
    finally:
        await bare.channel.close()
        await engine.close()
    return {
        f"{CALLER_COUNT} callers, one record each": Figure(
            value=statistics.median(single_rates),
            unit="commits/s",
            baseline=statistics.median(bare_single_rates),
            at_least=0.5,
        ),
        f"batches of {width} (bare: {BARE_BATCH_CHANGES})": Figure(
            value=statistics.median(batch_rates),
            unit="changes/s",
            baseline=statistics.median(bare_batch_rates),
            at_least=0.5,
        ),
        f"{CALLER_COUNT} callers, one follower in the same process": Figure(value=followed_rate, unit="commits/s"),
        f"{BARRIER_COUNT:,} barriers at once": Figure(
            value=barrier_ms, unit="ms", at_most=10, note=f"at most {reads} reads of etcd in a round"
        ),
        "loading rows": Figure(value=load_rate, unit="rows/s"),
    }


async def commit(engine: EtcdEngine, changes: list[EncodedChange]) -> int:
    outcome = await engine.commit(EncodedWrite(_world.new_id(), "benchmark", _CAUSE, (), changes))
    assert isinstance(outcome, Committed), outcome
    return len(changes)


async def put_bare(channel: EtcdChannel, keys: list[str], data: bytes) -> int:
    """Write the same records in one transaction with the stubs alone, without conditions and bookkeeping."""
    puts = [messages.build_put(key.encode(), data) for key in keys]
    await channel.txn(messages.build_transaction(success=puts), timeout=5)
    return len(keys)


async def measure_rate(operation: Callable[[int], Awaitable[int]], *, callers: int) -> float:
    """Return the sum of the results of `operation` per second, with parallel callers."""
    end_s = time.perf_counter() + ROUND_S

    async def call() -> int:
        count = 0
        while time.perf_counter() < end_s:
            count += await operation(count)
        return count

    started_s = time.perf_counter()
    counts = await asyncio.gather(*(call() for _ in range(callers)))
    return sum(counts) / (time.perf_counter() - started_s)


async def measure_followed_rate(engine: EtcdEngine, operation: Callable[[int], Awaitable[int]]) -> float:
    """Return the rate of `operation` while one follower receives all batches."""
    after = await engine.barrier()

    async def follow() -> None:
        async for _ in engine.follow(after):
            pass

    following = _world.start_task(follow(), name="follower")
    rate = await measure_rate(operation, callers=CALLER_COUNT)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    return rate


async def measure_barriers(engine: EtcdEngine, etcd: EtcdCluster) -> tuple[float, int]:
    """Return the median milliseconds of many simultaneous barriers, and the maximum of etcd transactions for them."""
    rounds_ms = []
    reads = 0
    for _ in range(20):
        before = count_transactions(etcd)
        started_s = time.perf_counter()
        await asyncio.gather(*(engine.barrier() for _ in range(BARRIER_COUNT)))
        rounds_ms.append((time.perf_counter() - started_s) * 1_000)
        reads = max(reads, count_transactions(etcd) - before)
    return statistics.median(rounds_ms), reads


def count_transactions(etcd: EtcdCluster) -> int:
    """Return the number of transactions that etcd has handled, from its own metrics."""
    host, port = etcd.endpoints[0].split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=5)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    match = re.search(
        r'^grpc_server_handled_total\{grpc_code="OK",grpc_method="Txn",[^}]*\} (\S+)$', text, re.MULTILINE
    )
    return int(float(match.group(1))) if match else 0


async def measure_load_rate(engine: EtcdEngine) -> float:
    """Return the rows per second of a complete load."""
    started_s = time.perf_counter()
    rows = 0
    loading = engine.load()
    async for records in loading.iter_slices():
        rows += len(records)
    return rows / (time.perf_counter() - started_s)


if __name__ == "__main__":
    from benchmarks.__main__ import main

    sys.exit(main(["engines_etcd"]))
