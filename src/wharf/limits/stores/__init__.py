"""Where counters live: the port, and the store of one process.

A store checks and charges. It takes no decision about callers, and what its answers mean is for `core` to say.
"""

from wharf.limits.stores.memory import MemoryStore
from wharf.limits.stores.port import GaveBack, Store, StoreLost

__all__ = ["GaveBack", "MemoryStore", "Store", "StoreLost"]
