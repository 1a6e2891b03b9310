"""Leases of a log that serves one machine: they live as long as their owner is attached, and a while longer.

An owner is one engine in one process. While at least one connection of it is there, its leases never run out. Once the
last is gone, or the store itself was started anew, it has the lease's time to come back.
"""

import asyncio
import logging
from collections import Counter
from functools import partial
from typing import Final

from wharf.cluster.engines.port import LogUnavailable
from wharf.cluster.engines.sqlite.async_store import AsyncSqliteStore
from wharf.cluster.engines.sqlite.store import GrantedLease, WriteGroupResult

LEASE_END_RETRY_S: Final = 1.0

_log = logging.getLogger(__name__)


class LeaseTracker:
    def __init__(self, store: AsyncSqliteStore) -> None:
        """The hub is open."""
        self._hub = store
        self._loop = asyncio.get_running_loop()
        self._attached: Counter[str] = Counter()
        self._endings: dict[int, asyncio.TimerHandle] = {}
        for lease in store.sync_store.leases.values():
            self._end_later(lease)

    def attach(self, owner: str) -> None:
        self._attached[owner] += 1
        for lease in self._leases_of(owner):
            ending = self._endings.pop(lease.id, None)
            if ending is not None:
                ending.cancel()

    def detach(self, owner: str) -> None:
        self._attached[owner] -= 1
        if self._attached[owner] > 0:
            return
        del self._attached[owner]
        for lease in self._leases_of(owner):
            self._end_later(lease)

    async def grant_lease(self, *, owner: str, ttl_s: float) -> int:
        """Raises `Unavailable`."""
        lease = await self._hub.run_on_store(
            partial(self._hub.sync_store.grant_lease, ttl_ms=max(1, round(ttl_s * 1000)), owner=owner)
        )
        if owner not in self._attached:  # Gone while it was granted.
            self._end_later(lease)
        return lease.id

    async def revoke_lease(self, lease: int) -> None:
        """Raises `Unavailable`."""
        await self._hub.run_on_store(partial(self._hub.sync_store.end_lease, lease))
        ending = self._endings.pop(lease, None)
        if ending is not None:
            ending.cancel()

    def close(self) -> None:
        for ending in self._endings.values():
            ending.cancel()
        self._endings.clear()

    def _leases_of(self, owner: str) -> list[GrantedLease]:
        return [lease for lease in self._hub.sync_store.leases.values() if lease.owner == owner]

    def _end_later(self, lease: GrantedLease) -> None:
        self._endings[lease.id] = self._loop.call_later(lease.ttl_ms / 1000, self._end, lease)

    def _end(self, lease: GrantedLease) -> None:
        self._endings.pop(lease.id, None)
        if lease.owner in self._attached or self._hub.stopped.is_set():
            return
        _log.info("lease %d has ended: its owner is gone", lease.id)
        self._hub.run_on_store(partial(self._hub.sync_store.end_lease, lease.id)).add_done_callback(
            partial(self._ended, lease)
        )

    def _ended(self, lease: GrantedLease, done: asyncio.Future[WriteGroupResult]) -> None:
        if done.cancelled() or done.exception() is None:
            return
        if isinstance(done.exception(), LogUnavailable) and not self._hub.stopped.is_set():
            # The log takes no writes just now. What hangs on the lease must vanish all the same, so try until it does.
            self._endings[lease.id] = self._loop.call_later(LEASE_END_RETRY_S, self._end, lease)
