"""The neighbour store in the contract tests, with a counter server in the test process."""

import contextlib
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from tests.limits.stores.contract import Clock
from wharf.limits.core.rule import RuleSet
from wharf.limits.stores import MemoryStore, Store
from wharf.limits.stores.neighbours import CounterServer, NeighbourStore
from wharf.world import RealWorld


class NeighbourKind:
    """The neighbour store, with a counter server of its own."""

    name = "neighbour"
    programs: Sequence[str] = ()

    @contextlib.asynccontextmanager
    async def fresh(self, rules: RuleSet, clock: Clock) -> AsyncIterator[Store]:
        with tempfile.TemporaryDirectory() as folder:
            server = CounterServer(MemoryStore(RealWorld(), rules, clock=clock), Path(folder) / "counters.sock")
            await server.open()
            store = NeighbourStore(RealWorld(), Path(folder) / "counters.sock")
            assert await store.open()
            try:
                yield store
            finally:
                await store.close()
                await server.close()


KIND = NeighbourKind()
