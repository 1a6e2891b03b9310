"""Concurrency leases of one rule, in memory: a running request holds a lease until it is released or expires."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

LEASE_TTL_MS: Final = 30_000
"""A lease that is not renewed expires after this time, so a crashed process cannot block its callers."""
RETRY_DELAY_MS: Final = 1_000
"""The wait that a full concurrency limit reports: a slot can become free at any time."""


class ConcurrencyLeases:
    """The concurrency leases of one rule.

    `leases_by_key` holds for each key the expiry time of each request's lease, the first to expire first.
    """

    __slots__ = ("_unswept_keys", "leases_by_key")

    def __init__(self) -> None:
        self.leases_by_key: dict[str, dict[str, int]] = {}
        self._unswept_keys: Iterator[str] = iter(())

    def __contains__(self, key: str) -> bool:
        return key in self.leases_by_key

    def __len__(self) -> int:
        return len(self.leases_by_key)

    def count_used(self, key: str, now_ms: int) -> int:
        """Return the number of active leases of a key. Expired leases are removed on the way."""
        leases = self.leases_by_key.get(key)
        if not leases:
            return 0
        # Leases are in the order of their expiry: while the first is active, all are, so the loop checks only that one.
        for until_ms in leases.values():
            if until_ms <= now_ms or until_ms - now_ms > LEASE_TTL_MS:
                self._drop_expired(leases, now_ms)
                return len(leases)
            break
        return len(leases)

    @staticmethod
    def _drop_expired(leases: dict[str, int], now_ms: int) -> None:
        """Remove expired leases, and shorten those that a backward clock step made too long."""
        active = {
            request_id: min(until_ms, now_ms + LEASE_TTL_MS)
            for request_id, until_ms in leases.items()
            if until_ms > now_ms
        }
        leases.clear()
        leases.update(active)

    def add(self, key: str, _cost: int, now_ms: int, request_id: str) -> int:
        """Start a lease for a request, or restart the one that it has. Return when to retry."""
        leases = self.leases_by_key.get(key)
        if leases is None:
            self.leases_by_key[key] = {request_id: now_ms + LEASE_TTL_MS}
        else:
            leases.pop(request_id, None)  # Insert it at the end, because it expires last.
            leases[request_id] = now_ms + LEASE_TTL_MS
        return now_ms + RETRY_DELAY_MS

    def take_back(self, _key: str, _amount: int, _now_ms: int) -> None:
        """Do nothing: a slot is freed by the end of its request."""

    def release(self, key: str, request_id: str) -> bool:
        """End the lease of a request. Return whether it had one."""
        leases = self.leases_by_key.get(key)
        if leases is None or leases.pop(request_id, None) is None:
            return False
        if not leases:
            del self.leases_by_key[key]
        return True

    def renew(self, key: str, request_id: str, now_ms: int) -> bool:
        """Extend a lease. Return whether it had expired.

        An expired lease becomes active again, even if the key then exceeds its ceiling.
        """
        leases = self.leases_by_key.setdefault(key, {})
        until_ms = leases.pop(request_id, now_ms)
        leases[request_id] = now_ms + LEASE_TTL_MS
        return until_ms <= now_ms

    def has_lease(self, key: str, request_id: str, now_ms: int) -> bool:
        return self.leases_by_key.get(key, {}).get(request_id, 0) > now_ms

    def get_end_ms(self, _key: str, now_ms: int) -> int:
        """Return when to retry. A slot can become free at any time, so this is always a short time from now."""
        return now_ms + RETRY_DELAY_MS

    def get_free_at_ms(self, _key: str, _required: int, _ceiling: int, now_ms: int) -> int:
        """Return when to retry. A slot can become free at any time, so this is always a short time from now."""
        return now_ms + RETRY_DELAY_MS

    def reset(self, key: str) -> None:
        self.leases_by_key.pop(key, None)

    def evict_idle(self, now_ms: int, *, max_scanned: int) -> list[str]:
        """Scan the next `max_scanned` keys, remove those without active leases, and return the removed keys."""
        batch = list(islice(self._unswept_keys, max_scanned))
        if not batch:
            self._unswept_keys = iter(list(self.leases_by_key))
            batch = list(islice(self._unswept_keys, max_scanned))
        idle = [key for key in batch if self.count_used(key, now_ms) == 0]
        for key in idle:
            self.leases_by_key.pop(key, None)
        return idle

    def keys(self) -> Iterator[str]:
        return iter(list(self.leases_by_key))

    def dump_row(self, _key: str) -> tuple[int, ...] | None:
        return None  # Leases are not saved: their requests end with the process.

    def load_row(self, key: str, numbers: tuple[int, ...]) -> None:
        raise AssertionError(f"leases are never saved, but the snapshot has {key} = {numbers}")
