"""The format of a cluster: which forms of records its servers may write, so that each of them can read all.

The format in force is a record of the cluster. A server reads every format up to its own newest one and refuses a newer
one with a sentence; the leader raises the format once every member reads the next. So a rolling upgrade never stops a
cluster, and afterwards there is no way back.
"""

from typing import Final

from wharf.state.codec import NEWEST, NewerFormat
from wharf.state.replica import Replica
from wharf.state.tables import ALL_TABLES, FORMAT

NEWEST_FORMAT: Final = max(max(table.since, *(form.since for form in table.forms), 1) for table in ALL_TABLES)
"""What this program can read and, when everybody can, writes."""


def format_in_force(replica: Replica) -> int:
    """What may be written; everything, where a cluster is only being founded."""
    record = replica.get(FORMAT)
    return NEWEST if record is None else record.version


def refuse_newer_format(replica: Replica) -> None:
    """Raises `NewerFormat` where the cluster has moved on to a format that this program cannot read."""
    record = replica.get(FORMAT)
    if record is not None and record.version > NEWEST_FORMAT:
        raise NewerFormat(
            f"the cluster's data has format {record.version}; this program reads up to {NEWEST_FORMAT}. "
            "Start a newer wharf on this data."
        )
