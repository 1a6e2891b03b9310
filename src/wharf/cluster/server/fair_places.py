"""A few places that many requests share, in an order that is fair to their owners.

What an owner is, such as the token or the node that sent a request, is decided by the callers.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager

from wharf.contract.model.refusal import Overloaded


class _OwnerRequests:
    """The requests of one owner."""

    __slots__ = ("running_count", "waiting")

    def __init__(self) -> None:
        self.running_count = 0
        self.waiting: deque[asyncio.Future[None]] = deque()


class FairPlaces:
    """Places for requests, and a queue of limited length.

    A free place is for the waiting owner with the fewest running requests. If several have equally few, it is for the one
    that has arrived, or has released a place, the longest time ago.

    If the queue is full, a new request displaces the newest request of the owner with the most waiting requests. The new
    request is refused itself if its own owner would then have at least as many.
    """

    def __init__(
        self,
        max_running: int,
        max_waiting: int,
        build_refusal: Callable[[int], Overloaded],
        *,
        queue_timeout_s: float | None = None,
    ) -> None:
        """`build_refusal` returns the error of a refused request. It is passed the number of waiting requests."""
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._build_refusal = build_refusal
        self._queue_timeout_s = queue_timeout_s
        self._running_count = 0
        self.waiting_count = 0
        """How many requests wait for a place."""
        self._owners: dict[Hashable, _OwnerRequests] = {}
        """The owners with requests. The one that has arrived or released a place last is at the end."""

    @asynccontextmanager
    async def enter(self, owner: Hashable) -> AsyncIterator[None]:
        """Hold a place. Raises the refusal if too many requests wait, or this one waits for too long."""
        try:
            await self._take(owner)
        except TimeoutError:
            raise self._build_refusal(self.waiting_count) from None
        try:
            yield
        finally:
            self._leave(owner)

    async def _take(self, owner: Hashable) -> None:
        """Take a place, or wait for one. Raises the refusal if too many requests wait, or `TimeoutError`."""
        if self._running_count < self._max_running:
            self._begin(owner)
            return
        if self.waiting_count >= self._max_waiting:
            self._displace(owner)
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owners.setdefault(owner, _OwnerRequests()).waiting.append(place)
        self.waiting_count += 1
        try:
            async with asyncio.timeout(self._queue_timeout_s):
                await place
        except BaseException:
            if place.done() and not place.cancelled() and place.exception() is None:
                self._leave(owner)  # The place was handed over just now.
            else:
                self._remove(owner, place)
            raise

    def _displace(self, owner: Hashable) -> None:
        """Refuse the newest request of the owner with the most waiting requests.

        Raises the refusal if `owner` would then have at least as many.
        """
        own_count = len(self._owners[owner].waiting) if owner in self._owners else 0
        largest = max(self._owners.values(), key=lambda each: len(each.waiting))
        refusal = self._build_refusal(self.waiting_count)
        if len(largest.waiting) <= own_count + 1:
            raise refusal
        place = largest.waiting.pop()
        self.waiting_count -= 1
        if not place.done():
            place.set_exception(refusal)

    def _remove(self, owner: Hashable, place: "asyncio.Future[None]") -> None:
        """Remove a request that no longer waits."""
        state = self._owners.get(owner)
        if state is None:
            return
        if place in state.waiting:
            state.waiting.remove(place)
            self.waiting_count -= 1
        if not state.running_count and not state.waiting:
            del self._owners[owner]

    def _begin(self, owner: Hashable) -> None:
        """Count a request that runs from now on."""
        self._owners.setdefault(owner, _OwnerRequests()).running_count += 1
        self._running_count += 1

    def _leave(self, owner: Hashable) -> None:
        """Release a place, and hand it over to the next waiting request."""
        state = self._owners.pop(owner)
        state.running_count -= 1
        self._running_count -= 1
        if state.running_count or state.waiting:
            self._owners[owner] = state  # At the end.
        while self.waiting_count:
            waiting = [(owner, state) for owner, state in self._owners.items() if state.waiting]
            next_owner, next_state = min(waiting, key=lambda entry: entry[1].running_count)
            place = next_state.waiting.popleft()
            self.waiting_count -= 1
            if not place.done():  # Its task may be cancelled.
                self._begin(next_owner)
                place.set_result(None)
                return
