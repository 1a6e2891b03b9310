"""The Redis store in the contract tests, with its own server for each test."""

import contextlib
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from tests.limits.stores.contract import Clock
from tests.limits.stores.redis_server import running_redis
from wharf.limits.core.rule import RuleSet
from wharf.limits.stores import Store
from wharf.limits.stores.redis import RedisSettings, RedisStore
from wharf.world import RealWorld


class RedisKind:
    """The Redis store, with a Redis server of its own."""

    name = "redis"
    programs: Sequence[str] = ("redis-server",)

    @contextlib.asynccontextmanager
    async def fresh(self, rules: RuleSet, clock: Clock) -> AsyncIterator[Store]:
        with tempfile.TemporaryDirectory() as folder, running_redis(Path(folder)) as server:
            store = RedisStore(RealWorld(), rules, RedisSettings(addresses=(server.address,)), clock=clock)
            await store.open()
            try:
                yield store
            finally:
                await store.close()


KIND = RedisKind()
