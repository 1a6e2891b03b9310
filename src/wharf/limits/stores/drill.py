"""A far store that can be made to look lost, so that operators see what their rules answer while it is away."""

import asyncio
from collections.abc import Iterable
from typing import Any

from wharf.limits.core.call import Call, Reading, Taken
from wharf.limits.core.plan import Charge
from wharf.limits.core.rule import RuleSet
from wharf.limits.stores.port import GaveBack, StoreLost
from wharf.limits.stores.quota import LeasingStore


class DrillStore:
    """`is_lost` while a drill is on: requests are answered as by a store that is away. Operators' calls pass."""

    def __init__(self, store: LeasingStore) -> None:
        self.is_lost = False
        self._store = store

    def _check(self) -> None:
        if self.is_lost:
            raise StoreLost("a drill is on: the store is held for away")

    def take_now(self, call: Call) -> Taken | None:
        return None if self.is_lost else self._store.take_now(call)

    def begin(self, call: Call) -> "asyncio.Future[Taken]":
        if not self.is_lost:
            return self._store.begin(call)
        lost: asyncio.Future[Taken] = asyncio.get_running_loop().create_future()
        lost.set_exception(StoreLost("a drill is on: the store is held for away"))
        lost.exception()  # Looked at, so that nobody need wait for it.
        return lost

    async def take(self, call: Call) -> Taken:
        self._check()
        return await self._store.take(call)

    def begin_release(self, request_id: str) -> "list[asyncio.Future[Any]]":
        return self._store.begin_release(request_id)

    async def release(self, request_id: str) -> None:
        await self._store.release(request_id)

    async def undo(self, call: Call) -> None:
        self._check()
        await self._store.undo(call)

    async def check(self) -> None:
        self._check()
        await self._store.check()

    def remember(self, call: Call, taken: Taken) -> None:
        self._store.remember(call, taken)

    async def hand_back(self, charge: Charge, amount: int, end_ms: int, lease_id: str) -> bool:
        return await self._store.hand_back(charge, amount, end_ms, lease_id)

    async def renew(self, request_ids: Iterable[str]) -> int:
        self._check()
        return await self._store.renew(request_ids)

    async def give_back(self, request_id: str, why: GaveBack) -> bool:
        self._check()
        return await self._store.give_back(request_id, why)

    async def spend(self, charges: Iterable[Charge], amount: int) -> None:
        self._check()
        await self._store.spend(charges, amount)

    async def peek(self, charges: Iterable[Charge]) -> tuple[Reading, ...]:
        self._check()
        return await self._store.peek(charges)

    async def reset(self, charges: Iterable[Charge]) -> None:
        await self._store.reset(charges)

    async def ban(self, subject: str, until_ms: int) -> None:
        await self._store.ban(subject, until_ms)

    async def banned_until_ms(self, subject: str) -> int:
        return await self._store.banned_until_ms(subject)

    async def adopt(self, rules: RuleSet) -> None:
        await self._store.adopt(rules)
