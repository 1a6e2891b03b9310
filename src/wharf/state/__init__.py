"""The replica: declared tables, their indexes, reads of one moment, and watches.

Pure and in memory: it opens nothing, waits for nothing, and changes only by the next batch of the log.
"""

from wharf.state.replica import Applying, Loading, OutOfOrder, Replica
from wharf.state.table import Index, Order, Table
from wharf.state.watches import Subscription, Watched

__all__ = ["Applying", "Index", "Loading", "Order", "OutOfOrder", "Replica", "Subscription", "Table", "Watched"]
