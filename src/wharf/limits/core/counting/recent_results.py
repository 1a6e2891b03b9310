"""The results of running calls and of calls that ended recently, so that no request id is charged twice."""

from typing import Final

import msgspec

from wharf.limits.core.store_calls import StoreCall, TakeResult

MAX_REMEMBERED_RESULTS: Final = 32_768
"""Limits the memory for results of ended requests, in entries of one generation; two generations are kept."""
RESULT_TTL_MS: Final = 60_000
"""How long the result of an ended request is remembered at least, for repeated calls and refunds."""


class RecentCall(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A store call with its result."""

    call: StoreCall
    result: TakeResult


class RecentResults:
    """The store calls of running and recently ended requests, by request id.

    Ended calls are stored in two generations. When the newer one is full or old, the older one is dropped as a whole.
    """

    __slots__ = ("_ended", "_ended_before", "_ended_since_ms", "running")

    def __init__(self) -> None:
        self.running: Final[dict[str, RecentCall]] = {}
        """Admitted calls that were not released."""
        self._ended: dict[str, RecentCall] = {}
        self._ended_before: dict[str, RecentCall] = {}
        self._ended_since_ms = 0

    def find(self, request_id: str) -> RecentCall | None:
        """Return the store call (a `RecentCall`) that was made for a running or recently ended request; `None` if it is
        unknown."""
        return self.running.get(request_id) or self._ended.get(request_id) or self._ended_before.get(request_id)

    def remember_ended(self, entry: RecentCall, now_ms: int = 0) -> bool:
        """Store the call of an ended request. Return whether this dropped the older generation of ended calls.

        That happens when the newer generation is full, or older than `RESULT_TTL_MS`. Without `now_ms`, generations do
        not age.
        """
        is_new_generation = len(self._ended) >= MAX_REMEMBERED_RESULTS or now_ms - self._ended_since_ms > RESULT_TTL_MS
        if is_new_generation:
            self._ended_before, self._ended = self._ended, {}
            self._ended_since_ms = now_ms
        self._ended[entry.call.id] = entry
        return is_new_generation
