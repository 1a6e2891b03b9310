"""Counters that the processes of one machine share: they live in one process, and its neighbours ask over a Unix socket.

Whoever counts keeps what it answered over its own death; whoever asks is guarded like anybody who asks a store elsewhere.
"""

from wharf.limits.stores.neighbours.asking import NeighbourStore
from wharf.limits.stores.neighbours.counting import CountingPlace

__all__ = ["CountingPlace", "NeighbourStore"]
