"""Where counters live: the port, the store of one process, and how a store that may be away is guarded.

A store checks and charges. It takes no decision about callers, and what its answers mean is for `core` to say. The store
on Redis is in `wharf.limits.stores.redis`, so that only those who use it load its library.
"""

from wharf.limits.stores.memory import MemoryStore
from wharf.limits.stores.port import GaveBack, Store, StoreFull, StoreLost, StoreRefused

__all__ = ["GaveBack", "MemoryStore", "Store", "StoreFull", "StoreLost", "StoreRefused"]
