"""The format of a cluster: which schema versions its servers may write, so that every server can read all records.

The active format is a record of the cluster. A server reads every format up to its newest one and reports an error for a
newer one. The leader raises the format when all members can read the next one. A rolling upgrade therefore needs no
downtime, but a downgrade is not possible afterwards.
"""

from typing import Final

from wharf.cluster.state.codec import UNLIMITED_FORMAT, NewerFormat
from wharf.cluster.state.replica import Replica
from wharf.cluster.state.tables import ALL_TABLES, CLUSTER_FORMAT

NEWEST_FORMAT: Final = max(
    max(table.since_format, *(migration.since_format for migration in table.migrations), 1) for table in ALL_TABLES
)
"""The newest format that this program can read. It writes it when all members can read it."""


def get_active_format(replica: Replica) -> int:
    """Return the format in which records may be written. A cluster that is being bootstrapped has no limit."""
    record = replica.get(CLUSTER_FORMAT)
    return UNLIMITED_FORMAT if record is None else record.version


def reject_newer_format(replica: Replica) -> None:
    """Raise `NewerFormat` if the active format of the cluster is newer than what this program can read."""
    record = replica.get(CLUSTER_FORMAT)
    if record is not None and record.version > NEWEST_FORMAT:
        raise NewerFormat(
            f"the cluster's data has format {record.version}; this program reads up to {NEWEST_FORMAT}. "
            "Start a newer wharf on this data."
        )
