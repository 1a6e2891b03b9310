"""The store that several machines share: counters on a Redis server, with Sentinel, or on a Redis cluster.

One script executes batches of operations. No command is cancelled while it runs, and errors of the Redis library are
translated to `StoreUnavailable`.
"""

from wharf.limits.stores.redis.records import RedisRecords
from wharf.limits.stores.redis.settings import RedisKind, RedisSettings
from wharf.limits.stores.redis.store import RedisStore

__all__ = ["RedisKind", "RedisRecords", "RedisSettings", "RedisStore"]
