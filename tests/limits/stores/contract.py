"""The interface of a store in the contract tests, and the helpers of these tests."""

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol, TypeVar

import pytest
from _pytest.mark import ParameterSet

from tests.limits.builders import NOON_MS
from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.decision import LimitDecision
from wharf.limits.core.limiter import Limiter
from wharf.limits.core.plans import Charge
from wharf.limits.core.request import QueryFacts, RequestFacts
from wharf.limits.core.rule import RuleSet
from wharf.limits.core.store_calls import CounterReading, StoreCall
from wharf.limits.rules import read_rules
from wharf.limits.stores.port import Store

T = TypeVar("T")


class Clock:
    """A clock that moves only when a test moves it."""

    def __init__(self) -> None:
        self.now_ms = NOON_MS

    def __call__(self) -> int:
        return self.now_ms


class StoreKind(Protocol):
    """A kind of store that passes the contract tests."""

    name: str
    programs: Sequence[str]
    """The system programs that the tests of this kind start."""

    def fresh(self, rules: RuleSet, clock: Clock) -> AbstractAsyncContextManager[Store]:
        """Yield a store without counters that uses this clock, and close it."""
        ...


def kinds() -> list[ParameterSet]:
    found = []
    for file in sorted(Path(__file__).parent.glob("kind_*.py")):
        kind: StoreKind = importlib.import_module(f"tests.limits.stores.{file.stem}").KIND
        marks = [pytest.mark.needs_program(program) for program in kind.programs]
        found.append(pytest.param(kind, id=kind.name, marks=marks))
    return found


class Counter:
    """A limiter with a store: it turns requests into decisions."""

    def __init__(self, store: Store, rules: RuleSet, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.limiter = Limiter(rules)
        self._number = 0

    def call(
        self, caller: Caller, path: str, *, method: str, query: QueryFacts | None, request_id: str | None
    ) -> StoreCall:
        self._number += 1
        request = RequestFacts(request_id or f"r{self._number}", method, path, caller, query=query)
        return self.limiter.build_call(request, self.clock.now_ms)

    async def send(
        self,
        caller: Caller,
        path: str = "/meta",
        *,
        method: str = "GET",
        query: QueryFacts | None = None,
        request_id: str | None = None,
        holds: bool = False,
    ) -> LimitDecision:
        call = self.call(caller, path, method=method, query=query, request_id=request_id)
        decision = self.limiter.decide(call, await self.store.take(call))
        if not holds:
            await self.store.release(call.id)
        return decision

    async def used(self, caller: Caller, rule: str, path: str = "/meta") -> int:
        return (await self.reading(caller, rule, path)).used

    async def reading(self, caller: Caller, rule: str, path: str = "/meta") -> CounterReading:
        (reading,) = await self.store.peek([self.charge(caller, rule, path)])
        return reading

    def charge(self, caller: Caller, rule: str, path: str = "/meta") -> Charge:
        call = self.call(caller, path, method="GET", query=None, request_id="looking")
        return next(charge for charge in (*call.charges, call.plan.bucket_charge) if charge.name == rule)


def count(kind: StoreKind, rules: str, scenario: Callable[[Counter], Awaitable[T]]) -> T:
    """Run a scenario on a new store."""

    async def run() -> T:
        clock = Clock()
        read = read_rules(rules)
        async with kind.fresh(read, clock) as store:
            return await scenario(Counter(store, read, clock))

    return asyncio.run(run())
