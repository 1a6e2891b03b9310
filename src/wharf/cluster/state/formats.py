"""The format of a cluster: which forms of records its servers may write, so that each of them can read all.

The format in force is a record of the cluster. A server reads every format up to its own newest one and refuses a newer
one with a sentence; the leader raises the format once every member reads the next. So a rolling upgrade never stops a
cluster, and afterwards there is no way back.
"""

from typing import Final

from wharf.cluster.state.codec import UNLIMITED_FORMAT, NewerFormat
from wharf.cluster.state.replica import Replica
from wharf.cluster.state.tables import ALL_TABLES, CLUSTER_FORMAT

NEWEST_FORMAT: Final = max(
    max(table.since_format, *(form.since_format for form in table.migrations), 1) for table in ALL_TABLES
)
"""What this program can read and, when everybody can, writes."""


def get_active_format(replica: Replica) -> int:
    """What may be written; everything, where a cluster is only being founded."""
    record = replica.get(CLUSTER_FORMAT)
    return UNLIMITED_FORMAT if record is None else record.version


def reject_newer_format(replica: Replica) -> None:
    """Raises `NewerFormat` where the cluster has moved on to a format that this program cannot read."""
    record = replica.get(CLUSTER_FORMAT)
    if record is not None and record.version > NEWEST_FORMAT:
        raise NewerFormat(
            f"the cluster's data has format {record.version}; this program reads up to {NEWEST_FORMAT}. "
            "Start a newer wharf on this data."
        )
