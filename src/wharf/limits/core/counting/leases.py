"""How many requests run at once: leases that are released once, or run out. The arithmetic of one rule, in memory."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

LEASE_TTL_MS: Final = 30_000
RENEWED_EVERY_MS: Final = 10_000
RETRY_DELAY_MS: Final = 1_000
"""A full concurrency limit says: a second. A slot may be free at any moment."""


class ConcurrencyLeases:
    """The leases of one rule: by key, by request. Requests stand in the order in which their leases run out."""

    __slots__ = ("_swept", "held")

    def __init__(self) -> None:
        self.held: dict[str, dict[str, int]] = {}
        self._swept: Iterator[str] = iter(())

    def __contains__(self, key: str) -> bool:
        return key in self.held

    def __len__(self) -> int:
        return len(self.held)

    def count_used(self, key: str, now_ms: int) -> int:
        held = self.held.get(key)
        if not held:
            return 0
        for until_ms in held.values():  # The first is enough, unless it has run out.
            if until_ms <= now_ms or until_ms - now_ms > LEASE_TTL_MS:
                self._drop_expired(held, now_ms)
                return len(held)
            break
        return len(held)

    @staticmethod
    def _drop_expired(held: dict[str, int], now_ms: int) -> None:
        kept = {
            request_id: min(until_ms, now_ms + LEASE_TTL_MS)
            for request_id, until_ms in held.items()
            if until_ms > now_ms
        }
        held.clear()
        held.update(kept)

    def add(self, key: str, _cost: int, now_ms: int, request_id: str) -> None:
        held = self.held.get(key)
        if held is None:
            self.held[key] = {request_id: now_ms + LEASE_TTL_MS}
        else:
            held.pop(request_id, None)  # So that it stands last, with those that run out last.
            held[request_id] = now_ms + LEASE_TTL_MS

    def release(self, key: str, request_id: str) -> bool:
        held = self.held.get(key)
        if held is None or held.pop(request_id, None) is None:
            return False
        if not held:
            del self.held[key]
        return True

    def renew(self, key: str, request_id: str, now_ms: int) -> bool:
        """Hold on to a slot. True if its lease had run out: it is counted again, above the ceiling if need be."""
        held = self.held.setdefault(key, {})
        until_ms = held.pop(request_id, now_ms)
        held[request_id] = now_ms + LEASE_TTL_MS
        return until_ms <= now_ms

    def has_lease(self, key: str, request_id: str, now_ms: int) -> bool:
        return self.held.get(key, {}).get(request_id, 0) > now_ms

    def get_end_ms(self, _key: str, now_ms: int) -> int:
        return now_ms + RETRY_DELAY_MS

    def get_free_at_ms(self, _key: str, _needs: int, _ceiling: int, now_ms: int) -> int:
        return now_ms + RETRY_DELAY_MS

    def reset(self, key: str) -> None:
        self.held.pop(key, None)

    def evict_idle(self, now_ms: int, *, max_scanned: int) -> list[str]:
        some = list(islice(self._swept, max_scanned))
        if not some:
            self._swept = iter(list(self.held))
            some = list(islice(self._swept, max_scanned))
        idle = [key for key in some if self.count_used(key, now_ms) == 0]
        for key in idle:
            self.held.pop(key, None)
        return idle

    def keys(self) -> Iterator[str]:
        return iter(self.held)

    def dump_row(self, _key: str) -> tuple[int, ...] | None:
        return None  # The requests that held them end with the process.

    def load_row(self, key: str, numbers: tuple[int, ...]) -> None:
        raise AssertionError(f"leases are not saved, and so {key} = {numbers} is none of ours")
