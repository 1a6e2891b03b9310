"""Writes to the log: changes and conditions as records, and the same encoded as bytes.

Decisions build a `Write` of records and know neither the encoding nor the engine. Engines store `EncodedWrite` and `Batch`
and know no records. The replica translates between the two.

Index fields of a record may hold `WRITE_INDEX`, a placeholder for the index of the batch that carries the record. It is
replaced when the batch is applied. After a restore it still stands for the original index; only the version is raised.
"""

import enum
from collections.abc import Sequence
from typing import Final

import msgspec

WRITE_INDEX: Final = -1
"""Placeholder for the index of the batch that carries this record; the index is unknown when the decision is made."""

KEY_SEPARATOR: Final = "\0"
"""Joins the parts of a key. Names cannot contain it. It sorts before every other character, so joined keys sort in the
order of their parts."""


def join_key(*parts: str) -> str:
    """Return the key of a record from its parts, in the order in which the table declares them."""
    return KEY_SEPARATOR.join(parts)


def split_key(key: str) -> list[str]:
    """Return the parts of a key."""
    return key.split(KEY_SEPARATOR)


class CauseKind(enum.StrEnum):
    """What kind of event led to a write. The values are stored in the log."""

    REQUEST = "request"
    EVALUATION = "evaluation"
    NODE = "node"
    TIMER = "timer"
    BOOTSTRAP = "founding"
    LEASE = "lease"
    OPERATOR = "operator"


class Cause(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The event that led to a write, with the ID of its request, evaluation or node."""

    kind: CauseKind
    id: str = ""


class PutRecord(msgspec.Struct, frozen=True, gc=False):
    """Store the record under its key, in place of any previous record."""

    table: str
    key: str
    record: msgspec.Struct


class DeleteRecord(msgspec.Struct, frozen=True, gc=False):
    """Delete the record under the key. Has no effect if there is none."""

    table: str
    key: str


class Condition(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Require that the record under the key still has this version (its ModifyIndex); 0 requires that there is no record."""

    table: str
    key: str
    version: int


class Write(msgspec.Struct, frozen=True, gc=False):
    """Changes that are committed together at one index if every condition holds, or not at all."""

    kind: str
    cause: Cause
    changes: Sequence[PutRecord | DeleteRecord]
    conditions: Sequence[Condition] = ()


FIRST_INDEX: Final = 1
"""The index of the batch that bootstraps a cluster."""


class EncodedChange(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Store these bytes under (table, key). `None` deletes the record."""

    table: str
    key: str
    data: bytes | None


class EncodedWrite(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A write in the form that engines accept, with at most one change for each key.

    `lease`: the stored records are deleted when this lease ends; 0 means that they stay.
    """

    id: str
    kind: str
    cause: Cause
    conditions: Sequence[Condition]
    changes: Sequence[EncodedChange]
    lease: int = 0


class Batch(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One committed entry of the log. `id` is the ID of its write."""

    index: int
    id: str
    kind: str
    cause: Cause
    changes: Sequence[EncodedChange]


class StoredRecord(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One record as it is stored, with its version: the index of the batch that wrote it last.

    A restore of an older copy of the log raises the version. `original_version` then holds the index of that batch before the
    restore; 0 means that it equals the version.
    """

    table: str
    key: str
    version: int
    data: bytes
    original_version: int = 0

    @property
    def write_index(self) -> int:
        """The index that `WRITE_INDEX` stands for in this record. A restore does not change it."""
        return self.original_version or self.version


class LogPosition(msgspec.Struct, frozen=True, gc=False):
    """The position of a full read: its index, the last-change index of every table, and the epoch of the log.

    An epoch ends when the log is replaced by an older copy of itself. `epoch_since` lies above all indexes of earlier epochs and
    not above any index of this one. It is 0 in the first epoch and if it is not recorded.
    """

    index: int
    last_changes: dict[str, int]
    epoch: int = 0
    epoch_since: int = 0
