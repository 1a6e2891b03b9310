"""Where counters are stored: the interface of a store, the store in memory, and the wrappers around remote stores.

Layers, from the outside: `GuardedStore` (timeout, breaker, fallback), `DrillStore` (simulated outages),
`QuotaLeaseStore` (optional, takes quota from Redis in advance), then `RedisStore` or `NeighbourStore`. `build` puts them
together; docs/limits-counters.md describes what each is for. A store checks and charges; `core` interprets its results.
"""

from wharf.limits.stores.memory import MemoryStore
from wharf.limits.stores.port import RefundReason, Store, StoreFull, StoreUnavailable, UnsuitableStore

__all__ = ["MemoryStore", "RefundReason", "Store", "StoreFull", "StoreUnavailable", "UnsuitableStore"]
