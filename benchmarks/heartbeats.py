"""Heartbeats of 1,000 nodes while the leader plans jobs with 10,000 allocations, on a whole server on SQLite.

Each node sends a heartbeat every 10 to 20 s. With default settings, 1,000 nodes send half as many.
`python -m benchmarks.heartbeats [NODES]` sets the number of nodes on which the allocations are placed. The heartbeats of
other nodes are measured, which get no allocations and have a process of their own: the times contain few delays of the
nodes' side, such as that of a process that starts 10,000 allocations.
"""

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import uvloop

from benchmarks.agent_process import AgentProcess, run_agent
from benchmarks.figures import Figure, Figures, print_table
from benchmarks.placing_cluster import ServerCaller, make_job
from wharf.contract.client import NO_RETRIES, AsyncClient, ClientReply, ClientRequest, Unreachable
from wharf.contract.client.transport import StreamedReply
from wharf.contract.model.times import SECOND
from wharf.contract.wire.nodes.messages import NodeUpdateResponse
from wharf.node.credentials import NodeCredentials
from wharf.node.fake_fleet import FakeFleet
from wharf.node.fake_node import FakeMachine
from wharf.node.fake_transport import FakeNodeTransport
from wharf.world import RealWorld

NODES: Final = 1_000
MEASURED_NODES: Final = 300
MEASURED_DATACENTER: Final = "measured"
JOB_DATACENTER: Final = "dc1"
ALLOCATIONS: Final = 10_000
HEARTBEAT_TTL_S: Final = 10
"""The shortest TTL. By default, it would be 20 s for 1,000 nodes."""
MAX_TTL_PART: Final = 1 / 3
"""No heartbeat may take longer than this part of its TTL."""
TIMEOUT_S: Final = 180.0
POLL_INTERVAL_S: Final = 0.25
OWN_DELAY_INTERVAL_S: Final = 0.02
QUIET_S: Final = 10.0
"""How long heartbeats are measured before the first job, for comparison."""
JOBS: Final[Mapping[str, Mapping[str, Any]]] = {
    "a job of 10,000": {},
    "a job of 10,000 with spread and affinities": {
        "Spreads": [{"Attribute": "${node.unique.name}", "Weight": 50}],
        "Affinities": [{"LTarget": "${node.unique.name}", "RTarget": "node-7", "Operand": "=", "Weight": 30}],
    },
}
"""Fields of the group of each job. The second one takes several times as long to plan."""


class Heartbeat(msgspec.Struct, frozen=True):
    """One heartbeat of a fake node."""

    took_s: float
    ttl_s: float
    """The TTL in the reply; 0 without a reply."""


class TimedTransport:
    """A transport of fake nodes that measures their heartbeats."""

    def __init__(self, inner: FakeNodeTransport, heartbeats: list[Heartbeat]) -> None:
        self._inner = inner
        self._heartbeats = heartbeats

    async def send(self, request: ClientRequest) -> ClientReply:
        if not request.path.endswith("/heartbeat"):
            return await self._inner.send(request)
        sent_s, ttl_s = time.monotonic(), 0.0
        try:
            reply = await self._inner.send(request)
            if reply.status == 200:
                ttl_s = msgspec.json.decode(reply.body, type=NodeUpdateResponse).heartbeat_ttl / SECOND
        except Unreachable:
            self._heartbeats.append(Heartbeat(time.monotonic() - sent_s, 0.0))
            raise
        self._heartbeats.append(Heartbeat(time.monotonic() - sent_s, ttl_s))
        return reply

    async def open(self, request: ClientRequest) -> StreamedReply:
        return await self._inner.open(request)

    async def close(self) -> None:
        await self._inner.close()


def list_members(
    world: RealWorld, count: int, *, datacenter: str = JOB_DATACENTER
) -> list[tuple[FakeMachine, NodeCredentials]]:
    """Return fake nodes with new identities."""
    return [
        (FakeMachine(name=f"{datacenter}-{number}", datacenter=datacenter), NodeCredentials(world.new_id(), world.new_secret()))
        for number in range(count)
    ]  # fmt: skip


async def run_nodes(url: str, count: int) -> None:
    """Run the nodes on which the allocations are placed, until this process is ended."""
    world = RealWorld()
    fleet = FakeFleet(
        world,
        lambda: AsyncClient(world, [FakeNodeTransport(world, url)], retry_policy=NO_RETRIES),
        list_members(world, count),
        max_concurrent_requests=4 * count,
    )
    await fleet.run()


class MeasuredFleet:
    """A server with fake nodes whose heartbeats are measured. `nodes` is the number of all nodes of the server."""

    def __init__(self, agent: AgentProcess, nodes: int) -> None:
        self.heartbeats: list[Heartbeat] = []
        self._own_delay_s = 0.0
        self._world = world = RealWorld()
        self._agent = agent
        self._nodes = nodes
        members = list_members(world, MEASURED_NODES, datacenter=MEASURED_DATACENTER)
        self.fleet = FakeFleet(world, self._create_client, members, max_concurrent_requests=4 * MEASURED_NODES)

    def _create_client(self) -> AsyncClient:
        transport = TimedTransport(FakeNodeTransport(self._world, self._agent.url), self.heartbeats)
        return AsyncClient(self._world, [transport], retry_policy=NO_RETRIES)

    async def wait_ready(self) -> None:
        await self._wait_until(lambda: self.count_ready() == self._nodes, "all nodes are ready")

    def count_ready(self) -> int:
        return sum(node["Status"] == "ready" for node in self._get("/v1/nodes?stale"))

    def _get(self, path: str) -> Any:
        """Send a read over a new connection, because the server closes a connection that is unused for 5 s."""
        return ServerCaller(self._agent).get(path)

    async def place_job(self, job: dict[str, Any]) -> float:
        """Register a job and wait until all its allocations are placed and run. Return the seconds to their placement."""
        began_s, path = time.monotonic(), f"/v1/job/{job['ID']}/summary?stale"
        await asyncio.to_thread(ServerCaller(self._agent).put, "/v1/jobs", {"Job": job})

        def count(*states: str) -> int:
            group = self._get(path)["Summary"]["group"]
            return sum(int(group[state]) for state in states)

        await self._wait_until(lambda: count("Starting", "Running") == ALLOCATIONS, "all allocations are placed")
        placed_s = time.monotonic() - began_s
        await self._wait_until(lambda: count("Running") == ALLOCATIONS, "all allocations run")
        return placed_s

    async def _wait_until(self, is_reached: Any, what: str) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not await asyncio.to_thread(is_reached):
            assert time.monotonic() < deadline_s, f"not within {TIMEOUT_S:g} s: {what}"
            await asyncio.sleep(POLL_INTERVAL_S)

    async def watch_own_delay(self) -> None:
        """Measure how late the event loop of this process is, until cancelled."""
        while True:
            due_s = time.monotonic() + OWN_DELAY_INTERVAL_S
            await asyncio.sleep(OWN_DELAY_INTERVAL_S)
            self._own_delay_s = max(self._own_delay_s, time.monotonic() - due_s)

    def take_figures(self, name: str, note: str) -> Figures:
        """Return the figures of the heartbeats since the last call."""
        heartbeats, self.heartbeats[:] = list(self.heartbeats), []
        own_delay_s, self._own_delay_s = self._own_delay_s, 0.0
        answered = [each for each in heartbeats if each.ttl_s]
        times_ms = [each.took_s * 1_000 for each in answered]
        return {
            f"{name}: longest part of a TTL that a heartbeat took": Figure(
                value=max(each.took_s / each.ttl_s for each in answered), unit="of the TTL", at_most=MAX_TTL_PART,
                note=f"{len(heartbeats)} heartbeats; median {statistics.median(times_ms):.1f} ms, 99th percentile "
                f"{statistics.quantiles(times_ms, n=100)[-1]:.0f} ms, longest {max(times_ms):.0f} ms; this process was up to {own_delay_s * 1_000:.0f} ms late{note}",
            ),
            f"{name}: failed heartbeats": Figure(value=len(heartbeats) - len(answered), unit="", at_most=0),
        }  # fmt: skip


async def measure_heartbeats(agent: AgentProcess, nodes: int) -> Figures:
    """Start the nodes, and measure their heartbeats while nothing happens and while each job is planned and started."""
    measured = MeasuredFleet(agent, nodes)
    running = [asyncio.create_task(measured.fleet.run()), asyncio.create_task(measured.watch_own_delay())]
    try:
        await measured.wait_ready()
        measured.heartbeats.clear()
        await asyncio.sleep(QUIET_S)
        figures = measured.take_figures("idle", "")
        for number, (name, fields) in enumerate(JOBS.items()):
            job = make_job(f"job-{number}", ALLOCATIONS, kind="service", **fields) | {"Datacenters": [JOB_DATACENTER]}
            placed_s = await measured.place_job(job)
            figures |= measured.take_figures(name, f"; placed in {placed_s:.1f} s")
        figures["nodes that are not ready afterwards"] = Figure(
            value=nodes - await asyncio.to_thread(measured.count_ready), unit="nodes", at_most=0
        )
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await measured.fleet.close()
    return figures


def measure_nodes(nodes: int) -> Figures:
    """Measure while jobs are placed on this number of nodes."""
    all_nodes = nodes + MEASURED_NODES
    with run_agent(heartbeat_ttl=f"{HEARTBEAT_TTL_S}s", max_heartbeats_per_second=all_nodes / HEARTBEAT_TTL_S) as agent:
        fleet = subprocess.Popen([sys.executable, "-m", "benchmarks.heartbeats", str(nodes), agent.url])
        try:
            return uvloop.run(measure_heartbeats(agent, all_nodes))
        finally:
            fleet.kill()
            fleet.wait()


def measure() -> Figures:
    return measure_nodes(NODES)


def main(arguments: list[str]) -> None:
    """Measure, or run nodes if the arguments contain the address of a server."""
    node_count = int(arguments[0]) if arguments else NODES
    if len(arguments) > 1:
        uvloop.run(run_nodes(arguments[1], node_count))
    else:
        print_table(measure_nodes(node_count))


if __name__ == "__main__":
    main(sys.argv[1:])
