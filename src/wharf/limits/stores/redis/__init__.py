"""The store that processes share: counters on Redis, alone, with Sentinel, or as a cluster.

Redis is asked in batches by one script. No command is ever cancelled in flight, and no error of its library leaves here.
"""

from wharf.limits.stores.redis.records import RedisRecords
from wharf.limits.stores.redis.settings import RedisKind, RedisSettings
from wharf.limits.stores.redis.store import RedisStore

__all__ = ["RedisKind", "RedisRecords", "RedisSettings", "RedisStore"]
