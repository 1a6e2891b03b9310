"""Clients that could block a server: incomplete requests, and unread replies and streams.

The server's memory stays bounded, it continues to reply to other clients, and it frees all resources of a client that
disconnects. The latency of other clients is printed; a test fails only if the server blocks.
"""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.agent.processes import RunningAgent, running
from tests.reliability.callers import (
    FILES,
    HOST,
    LatencyProbe,
    allow_sockets,
    ask,
    memory_mb,
    open_sockets,
    run_in_groups,
)
from tests.waiting import wait_on_loop_until

OTHERS_WITHIN_MS = 30_000.0
"""Maximum latency of other clients. Only a blocked server reaches it, because cores are shared."""
RECEIVES_BYTES = 4_096
BIG_BYTES = 200_000

INCOMPLETE_HEAD = b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 200
LONG_INCOMPLETE_HEAD = b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 60_000
INCOMPLETE_BODY = (
    b"PUT /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + b'{"Job":{"ID":"' + b"a" * 5_000
)


class Caller:
    """A connection that never reads, with the smallest possible receive buffer."""

    def __init__(self) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVES_BYTES)
        self.socket.setblocking(False)

    async def connect(self, port: int, data: bytes) -> "Caller":
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self.socket, (HOST, port))
        await loop.sock_sendall(self.socket, data)
        return self

    async def trickle(self, byte: bytes = b"a") -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, byte)

    def close(self) -> None:
        self.socket.close()


async def open_connections(port: int, count: int, data: bytes) -> list[Caller]:
    async def call(_: int) -> Caller:
        return await Caller().connect(port, data)

    return await run_in_groups(count, call)


def get(target: str) -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def build_big_meta(beginning: str) -> dict[str, str]:
    """Return meta of `BIG_BYTES`, in texts that are below the limit of one text."""
    return {"text": beginning + "x" * (BIG_BYTES // 2), "more": "x" * (BIG_BYTES // 2)}


async def register_jobs(port: int) -> None:
    small = {"Job": {"ID": "small", "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "mock"}]}]}}
    big = {"Job": small["Job"] | {"ID": "big", "Meta": build_big_meta("")}}
    for job in (small, big):
        assert (await ask(port, "/v1/jobs", method="PUT", body=json.dumps(job).encode())).status == 200


async def cause_events(port: int, times: int) -> None:
    """Write the job `big` this many times, so that each event contains a large record."""
    groups = [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "mock"}]}]
    for number in range(times):
        body = {"Job": {"ID": "big", "TaskGroups": groups, "Meta": build_big_meta(f"{number}")}}
        assert (await ask(port, "/v1/jobs", method="PUT", body=json.dumps(body).encode())).status == 200


ConnectionAction = Callable[[int, list[Caller]], Awaitable[None]]


async def check_harm(
    agent: RunningAgent,
    misuse: str,
    data: bytes,
    *,
    count: int,
    max_memory_mb: float,
    meanwhile: ConnectionAction | None = None,
) -> None:
    """Open `count` misbehaving connections and measure memory of the server and latency of other clients."""
    port, pid = int(agent.address.rpartition(":")[2]), agent.child("api")
    assert pid is not None, "the api runs"
    await register_jobs(port)
    baseline = LatencyProbe(port)
    await baseline.measure(100)
    sockets, before_mb = open_sockets(pid), memory_mb(pid)

    connections = await open_connections(port, count, data)
    probe = LatencyProbe(port)
    measuring = asyncio.create_task(probe.measure(200))
    if meanwhile is not None:
        await meanwhile(port, connections)
    await measuring
    more_mb = memory_mb(pid) - before_mb
    print(
        f"\n{count} {misuse}: {more_mb:+.0f} MB; other clients {probe.get_percentile_ms(0.5):.1f} ms, 99% {probe.get_percentile_ms(0.99):.1f} ms, at most "
        f"{max(probe.latencies_ms):.0f} ms (before: {baseline.get_percentile_ms(0.5):.1f}, {baseline.get_percentile_ms(0.99):.1f}, {max(baseline.latencies_ms):.0f})"
    )
    for caller in connections:
        caller.close()

    assert probe.error_statuses == []
    assert max(probe.latencies_ms) < OTHERS_WITHIN_MS
    assert more_mb < max_memory_mb
    await wait_on_loop_until(lambda: open_sockets(pid) <= sockets + 2, what="the connections are closed")
    assert agent.child("api") == pid


async def trickle(_port: int, connections: list[Caller]) -> None:
    for _ in range(10):
        for caller in connections:
            await caller.trickle()
        await asyncio.sleep(0.05)


async def cause_some_events(port: int, _connections: list[Caller]) -> None:
    await cause_events(port, 60)


async def cause_many_events(port: int, _connections: list[Caller]) -> None:
    await cause_events(port, 400)


def scenario(folder: Path, *steps: Callable[[RunningAgent], Awaitable[None]]) -> None:
    allow_sockets(FILES)
    with running(folder, "dev", "--port", "0") as agent:
        agent.wait_ready()

        async def run_steps() -> None:
            for step in steps:
                await step(agent)

        asyncio.run(run_steps())


def test_incomplete_requests_do_not_delay_other_clients(tmp_path: Path) -> None:
    scenario(
        tmp_path / "a",
        lambda agent: check_harm(agent, "heads cut in the middle", INCOMPLETE_HEAD, count=1_000, max_memory_mb=100),
        lambda agent: check_harm(
            agent, "bodies that trickle", INCOMPLETE_BODY, count=500, max_memory_mb=100, meanwhile=trickle
        ),
    )  # fmt: skip


def test_unread_replies_and_streams_do_not_delay_other_clients(tmp_path: Path) -> None:
    scenario(
        tmp_path / "a",
        lambda agent: check_harm(
            agent, "replies that are not read", get("/v1/job/big") * 20, count=200, max_memory_mb=200
        ),
        lambda agent: check_harm(
            agent, "streams of events that are not read", get("/v1/event/stream"), count=100, max_memory_mb=250,
            meanwhile=cause_some_events,
        ),
        lambda agent: check_harm(
            agent, "monitors that are not read", get("/v1/agent/monitor?log_level=trace"), count=50, max_memory_mb=200,
            meanwhile=cause_some_events,
        ),
    )  # fmt: skip


@pytest.mark.faults
def test_thousands_of_bad_clients_do_not_delay_other_clients(tmp_path: Path) -> None:
    scenario(
        tmp_path / "a",
        lambda agent: check_harm(agent, "heads cut in the middle", INCOMPLETE_HEAD, count=5_000, max_memory_mb=300),
        lambda agent: check_harm(agent, "long heads cut in the middle", LONG_INCOMPLETE_HEAD, count=1_000, max_memory_mb=400),
        lambda agent: check_harm(agent, "bodies that trickle", INCOMPLETE_BODY, count=2_000, max_memory_mb=300, meanwhile=trickle),
        lambda agent: check_harm(
            agent, "replies that are not read", get("/v1/job/big") * 20, count=1_000, max_memory_mb=700
        ),
        lambda agent: check_harm(
            agent, "streams of events that are not read", get("/v1/event/stream"), count=500, max_memory_mb=700,
            meanwhile=cause_many_events,
        ),
        lambda agent: check_harm(
            agent, "monitors that are not read", get("/v1/agent/monitor?log_level=trace"), count=200, max_memory_mb=400,
            meanwhile=cause_many_events,
        ),
    )  # fmt: skip
