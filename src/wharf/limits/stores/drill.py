"""A wrapper that simulates an outage of a remote store, so that operators can test the `on_store_loss` of their rules."""

import asyncio
from collections.abc import Iterable
from typing import Any

from wharf.limits.core.plans import Charge
from wharf.limits.core.rule import RuleSet
from wharf.limits.core.store_calls import CounterReading, StoreCall, TakeResult
from wharf.limits.stores.port import RefundReason, StoreUnavailable
from wharf.limits.stores.quota_leases import LeasableStore


class DrillStore:
    """Forwards to a store. While `is_active` is set, calls for requests fail; calls of operators still pass."""

    def __init__(self, store: LeasableStore) -> None:
        self.is_active = False
        self._store = store

    def _raise_if_active(self) -> None:
        """Raise `StoreUnavailable` during a drill."""
        if self.is_active:
            raise StoreUnavailable("a drill is active: the store is treated as unavailable")

    def take_now(self, call: StoreCall) -> TakeResult | None:
        return None if self.is_active else self._store.take_now(call)

    def start_take(self, call: StoreCall) -> "asyncio.Future[TakeResult]":
        """Start a take; during a drill, return a failed future."""
        if not self.is_active:
            return self._store.start_take(call)
        failed: asyncio.Future[TakeResult] = asyncio.get_running_loop().create_future()
        failed.set_exception(StoreUnavailable("a drill is active: the store is treated as unavailable"))
        failed.exception()  # Mark it as retrieved: asyncio logs exceptions that nobody awaits.
        return failed

    async def take(self, call: StoreCall) -> TakeResult:
        self._raise_if_active()
        return await self._store.take(call)

    def start_release(self, request_id: str) -> "list[asyncio.Future[Any]]":
        return self._store.start_release(request_id)

    async def release(self, request_id: str) -> None:
        await self._store.release(request_id)

    async def undo(self, call: StoreCall) -> None:
        self._raise_if_active()
        await self._store.undo(call)

    async def check(self) -> None:
        self._raise_if_active()
        await self._store.check()

    def record_admission(self, call: StoreCall, taken: TakeResult) -> None:
        self._store.record_admission(call, taken)

    async def return_quota(self, charge: Charge, amount: int, end_ms: int, lease_id: str) -> bool:
        return await self._store.return_quota(charge, amount, end_ms, lease_id)

    async def renew(self, request_ids: Iterable[str]) -> int:
        self._raise_if_active()
        return await self._store.renew(request_ids)

    async def refund(self, request_id: str, reason: RefundReason) -> bool:
        self._raise_if_active()
        return await self._store.refund(request_id, reason)

    async def add_usage(self, charges: Iterable[Charge], amount: int) -> None:
        self._raise_if_active()
        await self._store.add_usage(charges, amount)

    async def peek(self, charges: Iterable[Charge]) -> tuple[CounterReading, ...]:
        self._raise_if_active()
        return await self._store.peek(charges)

    async def reset(self, charges: Iterable[Charge]) -> None:
        await self._store.reset(charges)

    async def ban(self, subject: str, until_ms: int) -> None:
        await self._store.ban(subject, until_ms)

    async def get_ban_end_ms(self, subject: str) -> int:
        return await self._store.get_ban_end_ms(subject)

    async def set_rules(self, rules: RuleSet) -> None:
        await self._store.set_rules(rules)
