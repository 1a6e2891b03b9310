"""The log and the replica together: batches through store and replica, and a start with a million records."""

import asyncio
import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import uvloop

from benchmarks.engines_sqlite import measure_resident_mb, start_store, stop_process
from benchmarks.figures import Figure, Figures
from benchmarks.replica import AllocationSource
from wharf.agent.roles.server import LoadedStateFreezer, tune_garbage_collector
from wharf.cluster.engines.port import Committed, EncodedChange, EncodedWrite
from wharf.cluster.engines.store.engine import RemoteEngine
from wharf.cluster.engines.store.server import StoreProcessSettings
from wharf.cluster.server.log.follower import Follower
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALL_TABLES, ALLOCATIONS
from wharf.contract.model.log import Cause, CauseKind
from wharf.world import RealWorld

BATCH_COUNT: Final = 200
ALLOCATION_COUNT: Final = 1_000_000
_CAUSE: Final = Cause(CauseKind.EVALUATION, "bench")


def measure(allocations: int = ALLOCATION_COUNT) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        return uvloop.run(_measure(Path(folder) / "log", allocations))


async def _measure(folder: Path, allocations: int) -> Figures:
    store = start_store(folder)
    figures = await _measure_batches(folder)
    await _fill(folder, allocations - BATCH_COUNT * 1_000)
    stop_process(store)
    return figures | await _measure_start(folder, allocations)


async def _measure_batches(folder: Path) -> Figures:
    """Commit batches and apply them to a replica in the same process, as the brain does with its plans."""
    world = RealWorld()
    engine = await _open(world, folder)
    follower = Follower(world, engine, Replica(ALL_TABLES))
    following = asyncio.ensure_future(follower.run())
    await follower.loaded_event.wait()
    source = AllocationSource()
    batches = [source.make_placed_batch() for _ in range(BATCH_COUNT)]
    started_s = time.perf_counter()
    index = 0
    # Two commits are in flight, as for a leader that plans while the log commits.
    for first in range(0, BATCH_COUNT, 2):
        index = max(await asyncio.gather(*(_commit(world, engine, batch) for batch in batches[first : first + 2])))
    await follower.wait_until_applied(index)
    duration_s = time.perf_counter() - started_s
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await engine.close()
    changes = BATCH_COUNT * 1_000
    return {
        "batches of 1,000 through store and replica": Figure(
            value=changes / duration_s,
            unit="changes/s",
            at_least=40_000,
            note="complete allocations of 1.2 kB, three indexes",
        )
    }


async def _fill(folder: Path, allocations: int) -> None:
    """Commit this number of new allocations."""
    world = RealWorld()
    engine = await _open(world, folder)
    source = AllocationSource(salt=1)
    for _ in range(allocations // 1_000):
        await _commit(world, engine, source.make_placed_batch())
    await engine.close()


async def _measure_start(folder: Path, allocations: int) -> Figures:
    """Measure the start of a store process and a serving process, until the replica is loaded."""
    started_s = time.perf_counter()
    store = start_store(folder)
    loop = asyncio.get_running_loop()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        serving = loop.run_in_executor(None, pool.apply, _serve, (str(folder), allocations))
        serving_mb = await serving
        duration_s = time.perf_counter() - started_s
    store_mb = measure_resident_mb(store)
    stop_process(store)
    return {
        f"start with {allocations:,} allocations": Figure(value=duration_s, unit="s", at_most=15),
        "memory of the serving process": Figure(value=serving_mb, unit="MB", at_most=1_200),
        "memory of the store": Figure(value=store_mb, unit="MB", at_most=1_200),
    }


def _serve(folder: str, allocations: int) -> float:
    """Load the replica in a new process. Return the peak memory of the process in MB."""
    tune_garbage_collector()
    uvloop.run(_load(Path(folder), allocations))
    LoadedStateFreezer().freeze()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def _load(folder: Path, allocations: int) -> None:
    """Load a replica from the store, and check its number of allocations."""
    world = RealWorld()
    engine = await _open(world, folder)
    replica = Replica(ALL_TABLES)
    follower = Follower(world, engine, replica)
    following = asyncio.ensure_future(follower.run())
    await follower.loaded_event.wait()
    assert replica.count_records(ALLOCATIONS) == allocations, replica.count_records(ALLOCATIONS)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await engine.close()


async def _open(world: RealWorld, folder: Path) -> RemoteEngine:
    engine = RemoteEngine(world, StoreProcessSettings(folder=str(folder)).get_socket_path(), open_timeout_s=60)
    await engine.open()
    return engine


async def _commit(world: RealWorld, engine: RemoteEngine, changes: list[EncodedChange]) -> int:
    outcome = await engine.commit(EncodedWrite(world.new_id(), "plan", _CAUSE, (), changes))
    assert isinstance(outcome, Committed), outcome
    return outcome.index


if __name__ == "__main__":
    from benchmarks.__main__ import main

    sys.exit(main(["log_to_state", *sys.argv[1:]]))
