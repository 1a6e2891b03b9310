"""The replica: declared tables, their indexes, reads of one moment, and watches.

Pure and in memory: it opens nothing, waits for nothing, and changes only by the next batch of the log.
"""

from wharf.cluster.state.replica import BatchApplication, OutOfOrder, Replica, ReplicaLoad
from wharf.cluster.state.table import Index, ListOrder, Table
from wharf.cluster.state.watches import Subscription, WatchTarget

__all__ = [
    "BatchApplication",
    "Index",
    "ListOrder",
    "OutOfOrder",
    "Replica",
    "ReplicaLoad",
    "Subscription",
    "Table",
    "WatchTarget",
]
