"""Failover between the addresses of one service: which address to use next, and how long to wait for its reply.

A frozen process or a dropped network answers nothing, not even an error, so only a missed reply reveals it. Every
caller that has more than one address therefore divides its time. This module does no I/O.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import msgspec

from wharf.world.ports import World

MAX_PART_S: Final = 2.5
"""The longest wait for the reply of one address while another one is untried, unless the caller sets a longer one.

Protects callers from a frozen server: half a second remains of the three in which a node must reach another server.
"""
MIN_PART_S: Final = 0.05
"""The shortest wait for a reply. With less time left, a call ends."""


class Attempt(msgspec.Struct, frozen=True):
    """One attempt of a call: the address to use, and the seconds that it has for its reply."""

    position: int  # Position of the address in the caller's list.
    timeout_s: float
    reply_count: int  # How many replies the address had sent before the attempt.


class FailoverAddresses:
    """The addresses of one service, with memory of which one replied last and which ones failed.

    All callers that use the same addresses share one object, so that the first caller that misses a reply moves all
    of them to another address.
    """

    def __init__(self, world: World, count: int) -> None:
        assert count > 0, "a service needs an address"
        self.count = count
        self.max_part_s = MAX_PART_S
        """The longest wait for the reply of one address while another one is untried. Callers of slow services set more."""
        self.return_spread_s = 0.0
        """Lost connections are opened again after a random delay of up to this time. Set for services with many clients."""
        self.current = 0
        """Position of the address that calls use first."""
        self._world = world
        self._failures = [0] * count
        """By address: the number of its failure among the failures of all addresses; 0 if it replied since."""
        self._failure_count = 0
        self._reply_counts = [0] * count
        self._silence_listeners: list[dict[object, Callable[[], None]]] = [{} for _ in range(count)]

    def start_call(self, budget_s: float) -> "CallBudget":
        """Return the budget of a new call that may take `budget_s` in all its attempts."""
        return CallBudget(self, self._world, budget_s)

    def list_order(self) -> list[int]:
        """Return the positions of all addresses: the current one, then the others, with the oldest failure first."""
        others = [(self.current + offset) % self.count for offset in range(1, self.count)]
        return [self.current, *sorted(others, key=self._failures.__getitem__)]

    def list_round(self) -> list[int]:
        """Return the positions that a call tries in one round: all addresses in order. The last one gets the rest of the time.

        The first one is tried again at the end if it has replied since its last failure and the last one has not: the rest of
        the time is not for an address that may be frozen.
        """
        order = self.list_order()
        if self._failures[order[-1]] and not self._failures[order[0]]:
            order.append(order[0])
        return order

    def get_reply_count(self, position: int) -> int:
        """Return how many replies this address has sent."""
        return self._reply_counts[position]

    def on_reply(self, position: int) -> None:
        """Record that the address sent a reply, of whatever kind."""
        self._failures[position] = 0
        self._reply_counts[position] += 1

    def on_failure(self, position: int) -> None:
        """Use another address from now on, unless another call has already switched."""
        self._failure_count += 1
        self._failures[position] = self._failure_count
        if self.current == position:
            self.current = self.list_order()[min(1, self.count - 1)]

    def on_silence(self, attempt: Attempt) -> None:
        """Use another address from now on, because this attempt missed its reply.

        If the address replied to nothing else meanwhile, it counts as silent: all callers in `watch_silence` are
        notified. An address that replies to other calls is only slow. Callers without another address are not notified.
        """
        self.on_failure(attempt.position)
        if self.count > 1 and self._reply_counts[attempt.position] == attempt.reply_count:
            for listener in list(self._silence_listeners[attempt.position].values()):
                listener()

    @contextmanager
    def watch_silence(self, position: int, listener: Callable[[], None]) -> Iterator[None]:
        """Return a context manager in which `listener` is called when the address turns out to be silent.

        For connections on which silence is normal, such as a blocking query that waits for a change.
        """
        key = object()
        self._silence_listeners[position][key] = listener
        try:
            yield
        finally:
            del self._silence_listeners[position][key]

    @asynccontextmanager
    async def end_on_silence(self, position: int) -> AsyncIterator[None]:
        """Return a context manager that raises `TimeoutError` when the address turns out to be silent."""
        loop, has_ended = asyncio.get_running_loop(), False
        limit = asyncio.timeout(None)

        def end() -> None:
            nonlocal has_ended
            if not has_ended:  # Several calls may miss their replies.
                has_ended = True
                limit.reschedule(loop.time())

        async with limit:
            with self.watch_silence(position, end):
                yield


class CallBudget:
    """The time of one call, divided among the addresses, each of which is tried in a round.

    The last address of a round gets all remaining time, so a slow service is still waited for. Example: of 10 s with
    three addresses, the first two get 2.5 s each and the last one gets 5 s. If the last one failed before, it gets 2.5 s too,
    and then the first one gets the rest.
    """

    def __init__(self, addresses: FailoverAddresses, world: World, budget_s: float) -> None:
        self._addresses = addresses
        self._world = world
        self._deadline_s = world.monotonic_s() + budget_s
        self._untried: list[int] = []
        self.round_count = 0
        """How many rounds were begun."""

    @property
    def remaining_s(self) -> float:
        """The seconds until the end of the call."""
        return self._deadline_s - self._world.monotonic_s()

    @property
    def has_untried(self) -> bool:
        """Whether the round has an address that is untried, and time for it."""
        return bool(self._untried) and self.remaining_s >= MIN_PART_S

    def next_attempt(self, position: int | None = None) -> Attempt:
        """Return the next attempt. A new round begins after all addresses were tried.

        An address that became the current one during the round, because another call found it, is tried next.
        `position`: the address to use instead, because the caller is connected to it.
        """
        if not self._untried or (position is not None and position not in self._untried):
            self._untried = self._addresses.list_round()
            self.round_count += 1
        if position is None:
            current = self._addresses.current
            position = current if current in self._untried else self._untried[0]
        untried_count = len(self._untried)
        self._untried.remove(position)
        timeout_s = self.remaining_s
        if untried_count > 1:
            timeout_s = min(timeout_s / untried_count, self._addresses.max_part_s)
        return Attempt(position, max(timeout_s, MIN_PART_S), self._addresses.get_reply_count(position))
