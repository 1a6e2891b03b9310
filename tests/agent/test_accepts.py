"""Connections are accepted together, so that a user does not wait behind the requests of all nodes that came earlier."""

import asyncio
import socket
from contextlib import ExitStack
from typing import Any

import uvloop

from tests.ports import free_ports
from wharf.agent.http.server import ACCEPTS_PER_ITERATION, HttpServer
from wharf.agent.sockets import listen_tcp
from wharf.config.settings import AgentSettings
from wharf.world import RealWorld

HOST = "127.0.0.1"
CONNECTIONS = 20 * ACCEPTS_PER_ITERATION
MAX_ITERATIONS = CONNECTIONS // ACCEPTS_PER_ITERATION + 10
"""Iterations of the event loop in which all connections must be accepted, and the request of the last one begun."""


class CountingPort:
    """A port whose application records in which iteration of the event loop each request begins."""

    def __init__(self) -> None:
        self.iteration = 0
        self.iteration_by_path: dict[str, int] = {}
        self.all_begun = asyncio.Event()

    async def __call__(self, scope: Any, _receive: Any, send: Any) -> None:
        self.iteration_by_path[scope["path"]] = self.iteration
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        if len(self.iteration_by_path) == CONNECTIONS:
            self.all_begun.set()

    async def count_iterations(self) -> None:
        while True:
            self.iteration += 1
            await asyncio.sleep(0)


def test_waiting_connections_are_accepted_many_in_each_iteration_of_the_loop() -> None:
    async def test() -> int:
        port, (number,) = CountingPort(), free_ports(1)
        listening = listen_tcp(HOST, number)
        http = HttpServer(RealWorld(), port, AgentSettings(), listening.detach())
        stop = asyncio.Event()
        with ExitStack() as stack:
            for position in range(CONNECTIONS):
                client = stack.enter_context(socket.create_connection((HOST, number)))
                client.sendall(f"GET /{position} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            await http.open()
            counting = asyncio.ensure_future(port.count_iterations())
            await asyncio.wait_for(port.all_begun.wait(), 30)
            counting.cancel()
            serving = asyncio.ensure_future(http.serve(stop))
        stop.set()
        await serving
        return port.iteration_by_path[f"/{CONNECTIONS - 1}"]

    assert uvloop.run(test()) <= MAX_ITERATIONS
