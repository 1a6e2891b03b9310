"""The log as bytes: what crosses from those who know records to those who keep them, and back.

Engines know nothing of records, the replica knows nothing of engines; both know these.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from wharf.model.changes import Cause, Condition

FIRST_INDEX: Final = 1
"""The index of the batch that founds a cluster."""


class Change(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The record's bytes take the place under (table, key); None: the place becomes empty."""

    table: str
    key: str
    data: bytes | None


class LogWrite(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A write as the log takes it. At most one change a key. `lease`: the puts vanish when that lease ends."""

    id: str
    kind: str
    cause: Cause
    conditions: Sequence[Condition]
    changes: Sequence[Change]
    lease: int = 0


class Batch(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One entry of the log. `id` is the id of its write."""

    index: int
    id: str
    kind: str
    cause: Cause
    changes: Sequence[Change]


class Row(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One record as it stands, with its version: the index of the batch that wrote it last.

    Where an older copy of the log was put back beneath us since, its version was raised and `written` is the index of that
    batch as it was told then. 0: it is the version.
    """

    table: str
    key: str
    version: int
    data: bytes
    written: int = 0

    @property
    def written_at(self) -> int:
        """What the marker THIS in it stands for: no restore moves it."""
        return self.written or self.version


class Standing(msgspec.Struct, frozen=True, gc=False):
    """Where a full read stands: its index, the last-change index of every table, and the epoch of the log.

    An epoch ends when the log is replaced beneath us by an older copy of itself. `epoch_since` is an index above all that
    were told before the epoch began and no greater than any told since; 0 in the first epoch, and where nobody noted it.
    """

    index: int
    last_changes: dict[str, int]
    epoch: int = 0
    epoch_since: int = 0
