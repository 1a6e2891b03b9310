"""The replica: the cluster's tables in memory, with indexes, consistent reads and watches.

It performs no I/O and never awaits. It changes only when the next batch of the log is applied.
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
