"""Clients that could block a server: incomplete requests, and unread replies and streams.

The server's memory stays bounded, others are answered as before, and once the callers are gone nothing is left of them.
How long others waited is printed; it is judged only against standing still.
"""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.agent.processes import RunningAgent, running
from tests.reliability.callers import FILES, HOST, Pulse, allow_sockets, ask, in_groups, memory_mb, open_sockets
from tests.waiting import wait_on_loop_until

OTHERS_WITHIN_MS = 30_000.0
"""Maximum latency of other clients. Only a blocked server reaches it, because cores are shared."""
RECEIVES_BYTES = 4_096
BIG_BYTES = 200_000

A_HEAD_CUT = b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 200
A_LONG_HEAD_CUT = b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 60_000
A_BODY_CUT = b"PUT /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + b'{"Job":{"ID":"' + b"a" * 5_000


class Caller:
    """A connection that never reads on its own, with the smallest possible receive buffer."""

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


async def callers(port: int, count: int, data: bytes) -> list[Caller]:
    async def call(_: int) -> Caller:
        return await Caller().connect(port, data)

    return await in_groups(count, call)


def get(target: str) -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def big_meta(beginning: str) -> dict[str, str]:
    """Return meta of `BIG_BYTES`, in texts that are below the limit of one text."""
    return {"text": beginning + "x" * (BIG_BYTES // 2), "more": "x" * (BIG_BYTES // 2)}


async def prepare(port: int) -> None:
    small = {"Job": {"ID": "small", "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "mock"}]}]}}
    big = {"Job": small["Job"] | {"ID": "big", "Meta": big_meta("")}}
    for job in (small, big):
        assert (await ask(port, "/v1/jobs", method="PUT", body=json.dumps(job).encode())).status == 200


async def change(port: int, times: int) -> None:
    """Cause events that each contain a large record."""
    groups = [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "mock"}]}]
    for number in range(times):
        body = {"Job": {"ID": "big", "TaskGroups": groups, "Meta": big_meta(f"{number}")}}
        assert (await ask(port, "/v1/jobs", method="PUT", body=json.dumps(body).encode())).status == 200


Meanwhile = Callable[[int, list[Caller]], Awaitable[None]]


async def harm(
    agent: RunningAgent,
    misuse: str,
    data: bytes,
    *,
    count: int,
    memory_mb_most: float,
    meanwhile: Meanwhile | None = None,
) -> None:
    """Open `count` misbehaving connections and measure memory of the server and latency of other clients."""
    port, pid = int(agent.address.rpartition(":")[2]), agent.child("api")
    assert pid is not None, "the api runs"
    await prepare(port)
    calm = Pulse(port)
    await calm.beat(100)
    sockets, before_mb = open_sockets(pid), memory_mb(pid)

    made = await callers(port, count, data)
    pulse = Pulse(port)
    beating = asyncio.create_task(pulse.beat(200))
    if meanwhile is not None:
        await meanwhile(port, made)
    await beating
    more_mb = memory_mb(pid) - before_mb
    print(
        f"\n{count} {misuse}: {more_mb:+.0f} MB; others {pulse.at(0.5):.1f} ms, 99% {pulse.at(0.99):.1f} ms, at most "
        f"{max(pulse.took_ms):.0f} ms (before: {calm.at(0.5):.1f}, {calm.at(0.99):.1f}, {max(calm.took_ms):.0f})"
    )
    for caller in made:
        caller.close()

    assert pulse.wrong == []
    assert max(pulse.took_ms) < OTHERS_WITHIN_MS
    assert more_mb < memory_mb_most
    await wait_on_loop_until(lambda: open_sockets(pid) <= sockets + 2, what="the connections are closed")
    assert agent.child("api") == pid


async def trickle(_port: int, made: list[Caller]) -> None:
    for _ in range(10):
        for caller in made:
            await caller.trickle()
        await asyncio.sleep(0.05)


async def change_often(port: int, _made: list[Caller]) -> None:
    await change(port, 60)


async def change_very_often(port: int, _made: list[Caller]) -> None:
    await change(port, 400)


def scenario(folder: Path, *steps: Callable[[RunningAgent], Awaitable[None]]) -> None:
    allow_sockets(FILES)
    with running(folder, "dev", "--port", "0") as agent:
        agent.wait_ready()

        async def tell() -> None:
            for step in steps:
                await step(agent)

        asyncio.run(tell())


def test_incomplete_requests_do_not_delay_other_clients(tmp_path: Path) -> None:
    scenario(
        tmp_path / "a",
        lambda agent: harm(agent, "heads cut in the middle", A_HEAD_CUT, count=1_000, memory_mb_most=100),
        lambda agent: harm(
            agent, "bodies that trickle", A_BODY_CUT, count=500, memory_mb_most=100, meanwhile=trickle
        ),
    )  # fmt: skip


def test_unread_replies_and_streams_do_not_delay_other_clients(tmp_path: Path) -> None:
    scenario(
        tmp_path / "a",
        lambda agent: harm(
            agent, "replies that nobody reads", get("/v1/job/big") * 20, count=200, memory_mb_most=200
        ),
        lambda agent: harm(
            agent, "streams of events that nobody reads", get("/v1/event/stream"), count=100, memory_mb_most=250,
            meanwhile=change_often,
        ),
        lambda agent: harm(
            agent, "monitors that nobody reads", get("/v1/agent/monitor?log_level=trace"), count=50, memory_mb_most=200,
            meanwhile=change_often,
        ),
    )  # fmt: skip


@pytest.mark.faults
def test_thousands_of_bad_clients_do_not_delay_other_clients(tmp_path: Path) -> None:
    scenario(
        tmp_path / "a",
        lambda agent: harm(agent, "heads cut in the middle", A_HEAD_CUT, count=5_000, memory_mb_most=300),
        lambda agent: harm(agent, "long heads cut in the middle", A_LONG_HEAD_CUT, count=1_000, memory_mb_most=400),
        lambda agent: harm(agent, "bodies that trickle", A_BODY_CUT, count=2_000, memory_mb_most=300, meanwhile=trickle),
        lambda agent: harm(
            agent, "replies that nobody reads", get("/v1/job/big") * 20, count=1_000, memory_mb_most=700
        ),
        lambda agent: harm(
            agent, "streams of events that nobody reads", get("/v1/event/stream"), count=500, memory_mb_most=700,
            meanwhile=change_very_often,
        ),
        lambda agent: harm(
            agent, "monitors that nobody reads", get("/v1/agent/monitor?log_level=trace"), count=200, memory_mb_most=400,
            meanwhile=change_very_often,
        ),
    )  # fmt: skip
