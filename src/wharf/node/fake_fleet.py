"""The fake nodes of one process: starts them a few at a time, and limits the requests that they send at once.

A thousand real nodes have a thousand processors; the fake nodes of a process share one. If all of them started in the
same moment, most requests would time out before this process could send them. What a fake node does is in `fake_node`.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from wharf.contract.client import AsyncClient
from wharf.node.credentials import NodeCredentials
from wharf.node.fake_node import FakeMachine, FakeNode
from wharf.world import World

MAX_STARTING_NODES: Final = 32
"""Fake nodes that register at the same time. More would only wait longer, for this process and for the servers."""
MAX_START_S: Final = 10.0
"""How long a fake node that cannot register keeps others from starting. It then goes on in the background."""
MAX_CONCURRENT_REQUESTS: Final = 64
"""Requests that the fake nodes of a process send at the same time, except blocking queries. Limits the timeouts after
an outage, when all nodes have something to send."""
NODES_PER_CLIENT: Final = 50
"""Fake nodes that share connections, so that most requests need no new one. A fault of a connection affects few of them."""


class FakeFleet:
    """The fake nodes of one process, with their connections to servers."""

    def __init__(
        self,
        world: World,
        create_client: Callable[[], AsyncClient],
        members: Sequence[tuple[FakeMachine, NodeCredentials]],
        *,
        nodes_per_client: int = NODES_PER_CLIENT,
        max_concurrent_requests: int = MAX_CONCURRENT_REQUESTS,
    ) -> None:
        """`create_client` returns a new client, which `nodes_per_client` nodes share; the fleet closes it."""
        self._world = world
        self._starting_slots = asyncio.Semaphore(MAX_STARTING_NODES)
        request_slots = asyncio.Semaphore(max_concurrent_requests)
        self._clients: list[AsyncClient] = []
        self._nodes: list[FakeNode] = []
        for start in range(0, len(members), nodes_per_client):
            client = create_client()
            self._clients.append(client)
            self._nodes += [
                FakeNode(world, client, machine, identity=identity, request_slots=request_slots)
                for machine, identity in members[start : start + nodes_per_client]
            ]

    @property
    def size(self) -> int:
        """The number of fake nodes."""
        return len(self._nodes)

    async def run(self) -> None:
        """Run all fake nodes until canceled. At most `MAX_STARTING_NODES` register at the same time."""
        tasks = [self._world.start_task(self._run_node(node), name=f"node {node.id}") for node in self._nodes]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def close(self) -> None:
        """Close all connections to servers."""
        for client in self._clients:
            await client.close()

    async def _run_node(self, node: FakeNode) -> None:
        """Wait for a starting slot and run the node. The slot is released once the node is registered."""
        running: asyncio.Task[None] | None = None
        try:
            async with self._starting_slots:
                running = self._world.start_task(node.run(), name=f"session {node.id}")
                with suppress(TimeoutError):
                    async with asyncio.timeout(MAX_START_S):
                        await node.is_registered.wait()
            await running
        finally:
            if running is not None:
                running.cancel()
