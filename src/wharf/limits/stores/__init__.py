"""Where counters are stored: the port, the store in memory, and the wrappers around remote stores.

Layers, from the outside: `GuardedStore` (timeout, breaker, fallback), `QuotaLeaseStore` (optional, takes quota in
advance), `DrillStore` (simulated outages), then `RedisStore` or `NeighbourStore`. A store checks and charges; `core`
interprets its results. The Redis store is a package of its own, so that only its users load the Redis library.
"""

from wharf.limits.stores.memory import MemoryStore
from wharf.limits.stores.port import RefundReason, Store, StoreFull, StoreUnavailable, UnsuitableStore

__all__ = ["MemoryStore", "RefundReason", "Store", "StoreFull", "StoreUnavailable", "UnsuitableStore"]
