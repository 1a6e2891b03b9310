"""The memory store in the contract tests, with counters in Python."""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from tests.limits.stores.contract import Clock
from wharf.limits.core.counting.compiled import UsualCalls
from wharf.limits.core.rule import RuleSet
from wharf.limits.stores import MemoryStore, Store
from wharf.world import SimulatedWorld


class MemoryKind:
    """The memory store with these compiled functions for its counters; `None` for counters in Python."""

    def __init__(self, name: str, programs: Sequence[str], build: Callable[[], UsualCalls | None]) -> None:
        self.name = name
        self.programs = programs
        self._build = build

    @contextlib.asynccontextmanager
    async def fresh(self, rules: RuleSet, clock: Clock) -> AsyncIterator[Store]:
        store = MemoryStore(SimulatedWorld(1), rules, clock=clock)
        store.counters.usual_calls = self._build()
        await store.open()
        try:
            yield store
        finally:
            await store.close()


KIND = MemoryKind("memory", (), lambda: None)
