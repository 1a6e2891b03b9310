"""The results of running calls and of calls that ended recently, so that no request id is charged twice."""

from typing import Final

import msgspec

from wharf.limits.core.store_calls import StoreCall, TakeResult

MAX_REMEMBERED_RESULTS: Final = 32_768
"""Limits the memory for results of ended requests, in entries of one generation; two generations are kept."""
RESULT_TTL_MS: Final = 60_000
"""How long the result of an ended request is remembered at least, for repeated calls and refunds."""
DROPPED_PER_RESULT: Final = 256
"""Old results that are freed with each new one, in 0.4 ms: to free a whole generation at once takes 45 ms. To free fewer
at a time would delay the garbage collection, which counts allocations minus deallocations, and make it longer."""


class RecentCall(msgspec.Struct, eq=False, gc=False):
    """A store call with its result."""

    call: StoreCall
    result: TakeResult
    is_refunded: bool = False
    """Whether the primary charge was refunded. This happens only once."""


class RecentResults:
    """The store calls of running and recently ended requests, by request id.

    Ended calls are stored in two generations. When the newer one is full or old, the older one is dropped, a few calls at
    a time.
    """

    __slots__ = ("_dropped", "_ended", "_ended_before", "_ended_since_ms", "running")

    def __init__(self) -> None:
        self.running: Final[dict[str, RecentCall]] = {}
        """Admitted calls that were not released."""
        self._ended: dict[str, RecentCall] = {}
        self._ended_before: dict[str, RecentCall] = {}
        self._ended_since_ms = 0
        self._dropped: list[dict[str, RecentCall]] = []
        """Generations that are no longer searched, and whose memory is being freed."""

    def find(self, request_id: str) -> RecentCall | None:
        """Return the store call (a `RecentCall`) that was made for a running or recently ended request; `None` if it is
        unknown."""
        return self.running.get(request_id) or self._ended.get(request_id) or self._ended_before.get(request_id)

    def remember_ended(self, entry: RecentCall, now_ms: int = 0) -> None:
        """Store the call of an ended request.

        If the newer generation is full, or older than `RESULT_TTL_MS`, this drops the older generation. Without `now_ms`,
        generations do not age.
        """
        if len(self._ended) >= MAX_REMEMBERED_RESULTS or now_ms - self._ended_since_ms > RESULT_TTL_MS:
            self._dropped.append(self._ended_before)
            self._ended_before, self._ended = self._ended, {}
            self._ended_since_ms = now_ms
        self._ended[entry.call.id] = entry
        if self._dropped:
            self.free_dropped(DROPPED_PER_RESULT)

    def free_dropped(self, max_results: int) -> bool:
        """Free the memory of this number of dropped results. Return whether more of them remain."""
        for _ in range(max_results):
            while self._dropped and not self._dropped[-1]:
                self._dropped.pop()
            if not self._dropped:
                return False
            self._dropped[-1].popitem()
        return True
