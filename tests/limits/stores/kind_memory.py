"""The memory store in the contract tests."""

import contextlib
from collections.abc import AsyncIterator, Sequence

from tests.limits.stores.contract import Clock
from wharf.limits.core.rule import RuleSet
from wharf.limits.stores import MemoryStore, Store
from wharf.world import SimulatedWorld


class MemoryKind:
    """The memory store."""

    name = "memory"
    programs: Sequence[str] = ()

    @contextlib.asynccontextmanager
    async def fresh(self, rules: RuleSet, clock: Clock) -> AsyncIterator[Store]:
        store = MemoryStore(SimulatedWorld(1), rules, clock=clock)
        await store.open()
        try:
            yield store
        finally:
            await store.close()


KIND = MemoryKind()
