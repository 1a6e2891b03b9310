"""Passes the heartbeats that one api process receives to the leader, many in one call.

While one call is in flight, the next heartbeats are gathered. A fleet that returns after an outage therefore costs the
leader a few calls, not thousands.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from wharf.cluster.server.log.preview import forbid_in_preview
from wharf.cluster.server.rpc.handlers.nodes import (
    RECORD_HEARTBEAT,
    RECORD_HEARTBEATS,
    HeartbeatRequest,
    HeartbeatsRequest,
    NodeLease,
)
from wharf.cluster.server.rpc.leader_client import LeaderClient
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.world import World

MAX_HEARTBEATS_PER_CALL: Final = 1_000
"""Limits how long one call holds the leader's event loop: about 10 ms."""

_Waiter = asyncio.Future[NodeLease | None]
"""The caller of one heartbeat. `None`: the node needs a call of its own."""


class HeartbeatForwarder:
    """Gathers the heartbeats of one api process and passes them to the leader in calls that follow each other."""

    def __init__(self, world: World, get_leader: Callable[[], LeaderClient]) -> None:
        self._world = world
        self._get_leader = get_leader
        self._waiting: list[tuple[str, _Waiter]] = []
        self._task: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._failure_count = 0

    async def record(self, node_id: str) -> NodeLease:
        """Pass the heartbeat of a node to the leader and return the node's lease. Raises `Refusal`."""
        forbid_in_preview()
        waiter: _Waiter = asyncio.get_running_loop().create_future()
        self._waiting.append((node_id, waiter))
        if self._task is None:
            self._idle.clear()
            self._task = self._world.start_task(self._run(), name="heartbeats")
        lease = await waiter
        if lease is not None:
            return lease
        return await self._get_leader().call(RECORD_HEARTBEAT, HeartbeatRequest(node_id))

    async def flush(self) -> bool:
        """Wait until all heartbeats so far have been passed on. Return whether the leader has received them all."""
        if self._task is None:
            return True
        failure_count = self._failure_count
        last_waiter: asyncio.Future[NodeLease | None] | None = self._waiting[-1][1] if self._waiting else None
        if last_waiter is not None:
            await asyncio.wait([last_waiter])
        else:
            await self._idle.wait()
        return failure_count == self._failure_count

    async def _run(self) -> None:
        """Pass on heartbeats until none waits."""
        try:
            while self._waiting:
                batch, self._waiting = (
                    self._waiting[:MAX_HEARTBEATS_PER_CALL],
                    self._waiting[MAX_HEARTBEATS_PER_CALL:],
                )
                await self._pass_on(batch)
        finally:
            self._task = None
            self._idle.set()

    async def _pass_on(self, batch: Sequence[tuple[str, _Waiter]]) -> None:
        """Pass these heartbeats to the leader and give each caller its result."""
        leases: Sequence[NodeLease | None] = [None] * len(batch)
        failure: Exception | None = None
        try:
            request = HeartbeatsRequest(tuple(node_id for node_id, _ in batch))
            leases = (await self._get_leader().call(RECORD_HEARTBEATS, request)).leases
        except Refusal as refusal:
            if refusal.code is not RefusalCode.INVALID:  # A leader of an older version does not have this method.
                failure = refusal
        except Exception as error:  # Each caller must get a result.
            failure = error
        self._failure_count += failure is not None
        for (_, waiter), lease in zip(batch, leases, strict=True):
            if waiter.done():  # The caller was cancelled.
                continue
            if failure is not None:
                waiter.set_exception(failure)
            else:
                waiter.set_result(lease)
