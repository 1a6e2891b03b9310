"""A node that returns with many remembered allocations: restart of its agent, and contact after a missed heartbeat.

`python -m benchmarks.returning_node [COUNT]` sets the number of allocations. Their records and the node's journal are
generated, because running 120,000 tasks takes an hour.
"""

import asyncio
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from benchmarks.engines_sqlite import start_store, stop_process
from benchmarks.figures import Figure, Figures, print_table
from benchmarks.node import NodeBenchmarkCluster, make_job, wait_until
from wharf.agent.data_folder import STORE_FOLDER
from wharf.cluster.engines.port import Committed
from wharf.cluster.engines.store.engine import RemoteEngine
from wharf.cluster.engines.store.server import StoreProcessSettings
from wharf.cluster.server.log.follower import Follower
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALL_TABLES, ALLOCATIONS
from wharf.contract.model.log import Cause, CauseKind, Write
from wharf.node.agent.allocations.journal import SettledAllocation, decode_entries, frame_entry
from wharf.world import RealWorld

ALLOCATION_COUNT: Final = 120_000
BATCH_SIZE: Final = 1_000
AWAY_LIMIT_S: Final = 120.0
"""Limit for servers to declare a frozen node down."""


def measure(count: int = ALLOCATION_COUNT) -> Figures:
    """Measure the return of a node after a kill of its agent, and after it was frozen until it was declared down."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = NodeBenchmarkCluster(folder)
        first.send("PUT", "/v1/jobs", make_job("short", "/bin/true"))
        wait_until(lambda: any(each["ClientStatus"] == "complete" for each in first.get("/v1/allocations")), 60)
        time.sleep(1)  # The node has stored the acknowledgment.
        first.stop()
        generate_ended_allocations(folder, count)
        cluster = NodeBenchmarkCluster(folder)
        try:
            assert len(cluster.get("/v1/allocations?per_page=1")) == 1
            cluster.send("PUT", "/v1/jobs", make_job("long", "/bin/sleep", "100000", kind="service"))
            _wait_until_running(cluster, "long")
            return {
                f"node with {count:,} ended allocations: killed agent to a new task": _measure_kill(cluster),
                f"node with {count:,} ended allocations: end of a freeze to a new task": _measure_freeze(cluster),
            }
        finally:
            cluster.stop()


def generate_ended_allocations(folder: Path, count: int) -> None:
    """Copy the ended allocation of a stopped agent `count` times, in the log of the server and the journal of the node."""
    journal_path = folder / "data" / "node" / "journal"
    journal = journal_path.read_bytes()
    settled = [entry for entry in decode_entries(journal)[0] if isinstance(entry, SettledAllocation)][-1]
    ids = [str(UUID(int=(7 << 100) + number)) for number in range(count)]
    store = start_store(folder / "data" / STORE_FOLDER)
    try:
        asyncio.run(_commit_copies(folder / "data" / STORE_FOLDER, settled.record.id, ids))
    finally:
        stop_process(store)
    encode = msgspec.msgpack.Encoder().encode
    copies = (replace(settled, record=replace(settled.record, id=id)) for id in ids)
    journal_path.write_bytes(journal + b"".join(frame_entry(encode(copy)) for copy in copies))


async def _commit_copies(folder: Path, template_id: str, ids: list[str]) -> None:
    """Commit a copy of the allocation `template_id` for each id."""
    world = RealWorld()
    engine = RemoteEngine(world, StoreProcessSettings(folder=str(folder)).get_socket_path(), open_timeout_s=60)
    await engine.open()
    replica = Replica(ALL_TABLES)
    follower = Follower(world, engine, replica)
    following = asyncio.ensure_future(follower.run())
    await follower.loaded_event.wait()
    template = replica.get(ALLOCATIONS, template_id)
    assert template is not None
    cause = Cause(CauseKind.EVALUATION, "benchmark")
    for begin in range(0, len(ids), BATCH_SIZE):
        changes = [
            ALLOCATIONS.build_put(replace(template, id=id, name=f"short.g[{number}]"))
            for number, id in enumerate(ids[begin : begin + BATCH_SIZE], begin)
        ]
        outcome = await engine.commit(replica.encode_write(Write("plan", cause, changes), write_id=world.new_id()))
        assert isinstance(outcome, Committed), outcome
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await engine.close()


def _wait_until_running(cluster: NodeBenchmarkCluster, job: str) -> None:
    """Wait until an allocation of the job runs."""

    def is_running() -> bool:
        try:
            return any(each["ClientStatus"] == "running" for each in cluster.get(f"/v1/job/{job}/allocations"))
        except OSError:
            return False

    wait_until(is_running, 600, interval_s=0.1)


def _run_new_job(cluster: NodeBenchmarkCluster, name: str) -> None:
    """Register a job and wait until it runs."""
    cluster.send("PUT", "/v1/jobs", make_job(name, "/bin/sleep", "100000", kind="service"))
    _wait_until_running(cluster, name)


def _measure_kill(cluster: NodeBenchmarkCluster) -> Figure:
    """Kill the node process, and measure the time until a job that is registered at once runs."""
    node = cluster.find_role_pid("node")
    started_s = time.perf_counter()
    os.kill(node, signal.SIGKILL)
    _run_new_job(cluster, "after-kill")
    return _build_figure(started_s, _read_core_wait_s(cluster.find_role_pid("node")))


def _measure_freeze(cluster: NodeBenchmarkCluster) -> Figure:
    """Freeze the node process until it is down. Measure the time from its continuation until a new job runs."""
    node = cluster.find_role_pid("node")
    supervisor = cluster.process.pid
    os.kill(supervisor, signal.SIGSTOP)  # It would kill a child that hangs.
    os.kill(node, signal.SIGSTOP)
    try:
        wait_until(lambda: cluster.get("/v1/nodes")[0]["Status"] == "down", AWAY_LIMIT_S, interval_s=0.1)
    finally:
        os.kill(node, signal.SIGCONT)
        started_s, waited_before_s = time.perf_counter(), _read_core_wait_s(node)
        os.kill(supervisor, signal.SIGCONT)
    _run_new_job(cluster, "after-freeze")
    return _build_figure(started_s, _read_core_wait_s(node) - waited_before_s)


def _read_core_wait_s(pid: int) -> float:
    """Return how long the process could run, but waited because other programs used all cores."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def _build_figure(started_s: float, waited_s: float) -> Figure:
    """Return the time since the start without the time in which the node waited for a core."""
    passed_s = time.perf_counter() - started_s
    note = f"{passed_s:.1f} s on the clock; {waited_s:.1f} s of them, the node waited for a core"
    return Figure(value=round(passed_s - waited_s, 2), unit="s", at_most=10.0, note=note)


if __name__ == "__main__":
    print_table(measure(*map(int, sys.argv[1:])))
