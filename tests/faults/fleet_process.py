"""A process with many fake nodes, each with connections of its own.

`python -m tests.faults.fleet_process NAME COUNT ADDRESS...` prints a line of JSON (`FleetState`) several times a second. A line
`cut` on the standard input closes all connections of all nodes at once. The process ends with its standard input.
"""

import asyncio
import sys
from collections.abc import Sequence
from typing import Final

import msgspec
import uvloop

from wharf.contract.client import NO_RETRIES, AsyncClient, ClientReply, ClientRequest, Unreachable
from wharf.contract.client.transport import StreamedReply
from wharf.node.credentials import NodeCredentials
from wharf.node.fake_fleet import FakeFleet
from wharf.node.fake_node import FakeMachine
from wharf.node.fake_transport import FakeNodeTransport
from wharf.world import RealWorld

REPORT_INTERVAL_S: Final = 0.25
ACCEPTED_AFTER_S: Final = 1.0
"""A request for assignments that waits for this long was accepted by a server, which waits for changes."""

REQUESTS_PER_NODE: Final = 4
"""More than a node ever sends at the same time."""


class FleetState(msgspec.Struct):
    """What the nodes of one process observe."""

    nodes: int
    connected: int
    """Nodes whose last request for assignments was accepted by a server."""
    failing: int
    """Nodes whose last heartbeat, report or registration failed."""
    failed_requests: int
    """How many requests have failed since the start."""


class ObservedNode:
    """The requests of one fake node to all its servers."""

    def __init__(self) -> None:
        self.failing_paths: dict[str, None] = {}
        self.polls_since_s: dict[object, float] = {}
        """When each request for assignments that is in flight was sent."""
        self.has_lost_server = True
        """Whether the last request for assignments failed, and no later one was accepted yet."""
        self.failures = 0

    def is_connected(self, now_s: float) -> bool:
        """Return whether a server accepted the last request for assignments."""
        if any(now_s - since_s >= ACCEPTED_AFTER_S for since_s in self.polls_since_s.values()):
            self.has_lost_server = False
        return not self.has_lost_server


class ObservedTransport:
    """A transport of one fake node that records which requests fail."""

    def __init__(self, world: RealWorld, inner: FakeNodeTransport, node: ObservedNode) -> None:
        self._world = world
        self._inner = inner
        self._node = node

    async def send(self, request: ClientRequest) -> ClientReply:
        is_poll = any(name == "index" for name, _ in request.query)
        return await (self._send_poll(request) if is_poll else self._send(request))

    async def _send(self, request: ClientRequest) -> ClientReply:
        try:
            reply = await self._inner.send(request)
        except Unreachable:
            self._record_failure(request)
            raise
        if reply.status >= 400:
            self._record_failure(request)
        else:
            self._node.failing_paths.pop(request.path, None)
        return reply

    def _record_failure(self, request: ClientRequest) -> None:
        self._node.failures += 1
        self._node.failing_paths[request.path] = None

    async def _send_poll(self, request: ClientRequest) -> ClientReply:
        node, token = self._node, object()
        node.polls_since_s[token] = self._world.monotonic_s()
        has_failed = True
        try:
            reply = await self._inner.send(request)
            has_failed = reply.status >= 400
        finally:
            node.polls_since_s.pop(token)
            node.failures += has_failed
            node.has_lost_server = has_failed
        return reply

    async def open(self, request: ClientRequest) -> StreamedReply:
        return await self._inner.open(request)

    async def close(self) -> None:
        await self._inner.close()


class FleetProcess:
    """The fake nodes of this process."""

    def __init__(self, name: str, count: int, addresses: Sequence[str]) -> None:
        self._world = world = RealWorld()
        self._nodes: list[ObservedNode] = []
        self._transports: list[FakeNodeTransport] = []
        self._addresses = addresses
        members = [
            (FakeMachine(name=f"{name}-{number}"), NodeCredentials(world.new_id(), world.new_secret()))
            for number in range(count)
        ]
        self._fleet = FakeFleet(
            world,
            self._create_client,
            members,
            nodes_per_client=1,
            max_concurrent_requests=REQUESTS_PER_NODE * count,  # As real nodes, they do not wait for each other.
        )

    def _create_client(self) -> AsyncClient:
        """Return the client of one node. Nodes use the servers in different orders."""
        node, first = ObservedNode(), len(self._nodes) % len(self._addresses)
        addresses = [*self._addresses[first:], *self._addresses[:first]]
        transports = [FakeNodeTransport(self._world, address) for address in addresses]
        self._nodes.append(node)
        self._transports += transports
        observed = [ObservedTransport(self._world, transport, node) for transport in transports]
        return AsyncClient(self._world, observed, retry_policy=NO_RETRIES)

    async def run(self) -> None:
        """Run the nodes until the standard input ends."""
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        tasks = [asyncio.create_task(self._fleet.run()), asyncio.create_task(self._print_states())]
        while line := await reader.readline():
            if line.strip() == b"cut":
                for transport in self._transports:
                    transport.cut()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._fleet.close()

    async def _print_states(self) -> None:
        while True:
            now_s = self._world.monotonic_s()
            state = FleetState(
                nodes=len(self._nodes),
                connected=sum(node.is_connected(now_s) for node in self._nodes),
                failing=sum(bool(node.failing_paths) for node in self._nodes),
                failed_requests=sum(node.failures for node in self._nodes),
            )
            print(msgspec.json.encode(state).decode(), flush=True)
            await asyncio.sleep(REPORT_INTERVAL_S)


if __name__ == "__main__":
    uvloop.run(FleetProcess(sys.argv[1], int(sys.argv[2]), sys.argv[3:]).run())
