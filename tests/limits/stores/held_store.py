"""A remote store in memory whose replies a test gives."""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from tests.limits.builders import NOON_MS
from wharf.limits.core.counting.counters import Counters
from wharf.limits.core.plans import Charge
from wharf.limits.core.rule import RuleSet
from wharf.limits.core.store_calls import CounterReading, StoreCall, TakeResult
from wharf.limits.stores.port import RefundReason, StoreUnavailable

LOST: Final = StoreUnavailable("lost")


class HeldStore:
    """A remote store in memory. It records the calls, and each reply is what a test sets."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.takes: list[asyncio.Future[TakeResult]] = []
        self.releases: list[asyncio.Future[Any]] = []
        self.prefetched: TakeResult | None = None
        self.problem: Exception | None = None
        """What the calls other than `start_take` raise."""
        self.is_silent = False
        """Whether these calls never end."""
        self.silent: asyncio.Future[None] | None = None
        self.longest_wait_s = float("inf")
        """How long the oldest call that was sent has waited, as the store reports it."""
        self.sent_at_s: float | None = None
        """When this call was sent, by the clock of the event loop, in place of `longest_wait_s`."""
        self.wait_checks = 0

    @property
    def local_counters(self) -> Counters | None:
        return None

    async def _answer(self, *call: object, value: Any = None) -> Any:
        self.calls.append(call)
        if self.is_silent:
            self.silent = asyncio.get_running_loop().create_future()
            await self.silent
        if self.problem is not None:
            raise self.problem
        return value

    def take_now(self, _call: StoreCall) -> TakeResult | None:
        return self.prefetched

    def get_longest_wait_s(self) -> float:
        self.wait_checks += 1
        if self.sent_at_s is not None:
            return asyncio.get_running_loop().time() - self.sent_at_s
        return self.longest_wait_s

    def start_take(self, call: StoreCall) -> "asyncio.Future[TakeResult]":
        self.calls.append(("take", call.id))
        self.takes.append(asyncio.get_running_loop().create_future())
        return self.takes[-1]

    async def take(self, call: StoreCall) -> TakeResult:
        return await self.start_take(call)

    def start_release(self, request_id: str) -> "list[asyncio.Future[Any]]":
        self.calls.append(("release", request_id))
        self.releases.append(asyncio.get_running_loop().create_future())
        return [self.releases[-1]]

    async def release(self, request_id: str) -> None:
        self.start_release(request_id)

    async def undo(self, call: StoreCall) -> None:
        await self._answer("undo", call.id)

    async def renew(self, request_ids: Iterable[str]) -> int:
        return int(await self._answer("renew", *request_ids, value=2))

    async def refund(self, request_id: str, reason: RefundReason) -> bool:
        return bool(await self._answer("refund", request_id, reason, value=True))

    async def add_usage(self, charges: Iterable[Charge], amount: int) -> None:
        await self._answer("add usage", [charge.name for charge in charges], amount)

    async def peek(self, charges: Iterable[Charge]) -> tuple[CounterReading, ...]:
        readings = tuple(CounterReading(3, NOON_MS) for _ in charges)
        await self._answer("peek")
        return readings

    async def reset(self, charges: Iterable[Charge]) -> None:
        await self._answer("reset", [charge.name for charge in charges])

    async def ban(self, subject: str, until_ms: int) -> None:
        await self._answer("ban", subject, until_ms)

    async def get_ban_end_ms(self, subject: str) -> int:
        return int(await self._answer("ban end", subject, value=7))

    async def check(self) -> None:
        await self._answer("check")

    async def set_rules(self, rules: RuleSet) -> None:
        await self._answer("set rules", len(rules.rules))
