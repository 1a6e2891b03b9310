"""Counters that the processes of one machine share: they live in one process, and its neighbours ask over a Unix socket.

Whoever counts keeps what it answered over its own death; whoever asks is guarded like anybody who asks a store elsewhere.
"""

from wharf.limits.stores.neighbours.client import NeighbourStore
from wharf.limits.stores.neighbours.server import CounterServer

__all__ = ["CounterServer", "NeighbourStore"]
