"""The base of stores that wrap a remote store and change some of its calls."""

import asyncio
from collections.abc import Iterable
from typing import Any

from wharf.limits.core.counting.counters import Counters
from wharf.limits.core.plans import Charge
from wharf.limits.core.rule import RuleSet
from wharf.limits.core.store_calls import CounterReading, StoreCall, TakeResult
from wharf.limits.stores.port import RefundReason, RemoteStore


class ForwardingStore:
    """A wrapper that forwards every call to another store. Subclasses override the calls that they change."""

    def __init__(self, store: RemoteStore) -> None:
        self._store = store

    @property
    def local_counters(self) -> Counters | None:
        return None

    def take_now(self, call: StoreCall) -> TakeResult | None:
        return self._store.take_now(call)

    def start_take(self, call: StoreCall) -> "asyncio.Future[TakeResult]":
        return self._store.start_take(call)

    def get_longest_wait_s(self) -> float:
        return self._store.get_longest_wait_s()

    async def take(self, call: StoreCall) -> TakeResult:
        return await self._store.take(call)

    async def undo(self, call: StoreCall) -> None:
        await self._store.undo(call)

    def start_release(self, request_id: str) -> "list[asyncio.Future[Any]]":
        return self._store.start_release(request_id)

    async def release(self, request_id: str) -> None:
        await self._store.release(request_id)

    async def renew(self, request_ids: Iterable[str]) -> int:
        return await self._store.renew(request_ids)

    async def refund(self, request_id: str, reason: RefundReason) -> bool:
        return await self._store.refund(request_id, reason)

    async def add_usage(self, charges: Iterable[Charge], amount: int) -> None:
        await self._store.add_usage(charges, amount)

    async def peek(self, charges: Iterable[Charge]) -> tuple[CounterReading, ...]:
        return await self._store.peek(charges)

    async def reset(self, charges: Iterable[Charge]) -> None:
        await self._store.reset(charges)

    async def ban(self, subject: str, until_ms: int) -> None:
        await self._store.ban(subject, until_ms)

    async def get_ban_end_ms(self, subject: str) -> int:
        return await self._store.get_ban_end_ms(subject)

    async def check(self) -> None:
        await self._store.check()

    async def set_rules(self, rules: RuleSet) -> None:
        await self._store.set_rules(rules)
