"""Leases of a log that serves one machine. They live while their owner is attached, and for their time to live
afterwards.

An owner is one engine in one process. While it has at least one connection, its leases do not expire. After it has lost
the last one, or after a restart of the store, it can return within the time to live of each lease.
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
"""Delay before the end of a lease is written again, when the log accepted no writes."""

_log = logging.getLogger(__name__)


class LeaseTracker:
    """Ends the leases of owners that have not returned in time."""

    def __init__(self, store: AsyncSqliteStore) -> None:
        """Start a timer for every lease. The store must be open."""
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._attached_owners: Counter[str] = Counter()
        self._end_timers: dict[int, asyncio.TimerHandle] = {}
        for lease in store.sync_store.leases.values():
            self._schedule_end(lease)

    def attach(self, owner: str) -> None:
        """Record a new connection of this engine (`owner`), and stop the timers that would end its leases."""
        self._attached_owners[owner] += 1
        for lease in self._list_owner_leases(owner):
            timer = self._end_timers.pop(lease.id, None)
            if timer is not None:
                timer.cancel()

    def detach(self, owner: str) -> None:
        """Remove a connection of the owner; after the last one, start the timers of its leases."""
        self._attached_owners[owner] -= 1
        if self._attached_owners[owner] > 0:
            return
        del self._attached_owners[owner]
        for lease in self._list_owner_leases(owner):
            self._schedule_end(lease)

    async def grant_lease(self, *, owner: str, ttl_s: float) -> int:
        """Grant a lease and return its id. Raises `LogUnavailable`."""
        lease = await self._store.run_on_store(
            partial(self._store.sync_store.grant_lease, ttl_ms=max(1, round(ttl_s * 1000)), owner=owner)
        )
        if owner not in self._attached_owners:  # The owner detached during the grant.
            self._schedule_end(lease)
        return lease.id

    async def revoke_lease(self, lease: int) -> None:
        """End a lease now. Raises `LogUnavailable`."""
        await self._store.run_on_store(partial(self._store.sync_store.end_lease, lease))
        timer = self._end_timers.pop(lease, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        for timer in self._end_timers.values():
            timer.cancel()
        self._end_timers.clear()

    def _list_owner_leases(self, owner: str) -> list[GrantedLease]:
        return [lease for lease in self._store.sync_store.leases.values() if lease.owner == owner]

    def _schedule_end(self, lease: GrantedLease) -> None:
        self._end_timers[lease.id] = self._loop.call_later(lease.ttl_ms / 1000, self._end_lease, lease)

    def _end_lease(self, lease: GrantedLease) -> None:
        """End a lease whose owner has not returned."""
        self._end_timers.pop(lease.id, None)
        if lease.owner in self._attached_owners or self._store.stopped.is_set():
            return
        _log.info("lease expired lease=%d", lease.id)
        self._store.run_on_store(partial(self._store.sync_store.end_lease, lease.id)).add_done_callback(
            partial(self._on_end_done, lease)
        )

    def _on_end_done(self, lease: GrantedLease, done: asyncio.Future[WriteGroupResult]) -> None:
        """Schedule another attempt if the end of the lease could not be written."""
        if done.cancelled() or done.exception() is None:
            return
        if isinstance(done.exception(), LogUnavailable) and not self._store.stopped.is_set():
            # The log accepts no writes at the moment. The lease's records must still be deleted, so retry.
            self._end_timers[lease.id] = self._loop.call_later(LEASE_END_RETRY_S, self._end_lease, lease)
