"""Where counters live: the port, the store of one process, and how a store that may be away is guarded.

A store checks and charges. It takes no decision about callers, and what its answers mean is for `core` to say. The store
on Redis is in `wharf.limits.stores.redis`, so that only those who use it load its library.
"""

from wharf.limits.stores.memory import MemoryStore
from wharf.limits.stores.port import RefundReason, Store, StoreFull, StoreUnavailable, UnsuitableStore

__all__ = ["MemoryStore", "RefundReason", "Store", "StoreFull", "StoreUnavailable", "UnsuitableStore"]
