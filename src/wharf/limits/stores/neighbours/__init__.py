"""Counters that the processes of one machine share: one process holds them, the others call it over a Unix socket.

`CounterServer` writes changes to disk before it replies. `NeighbourStore` is a remote store and is wrapped by
`GuardedStore` like any other.
"""

from wharf.limits.stores.neighbours.client import NeighbourStore
from wharf.limits.stores.neighbours.server import CounterServer

__all__ = ["CounterServer", "NeighbourStore"]
