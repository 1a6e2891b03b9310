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
    """Return the key of a record: its parts, such as namespace and name, joined in the order of its table."""
    return KEY_SEPARATOR.join(parts)


def split_key(key: str) -> list[str]:
    """Return the parts, such as namespace and name, of the key of a record."""
    return key.split(KEY_SEPARATOR)


class CauseKind(enum.StrEnum):
    """The type of event that led to a write. The values are stored in the log."""

    REQUEST = "request"  # A client called the API.
    EVALUATION = "evaluation"  # The scheduler processed an evaluation.
    NODE = "node"  # A node sent a report.
    TIMER = "timer"  # A due time or a periodic task of the leader.
    BOOTSTRAP = "founding"  # The cluster was created.
    LEASE = "lease"  # A lease ended, or a server wrote a record that belongs to its lease.
    OPERATOR = "operator"  # An operator changed the log itself or deleted records.


class Cause(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The event that led to a write."""

    kind: CauseKind
    id: str = ""  # The ID of the request, evaluation, node or lease; may be empty.


class PutRecord(msgspec.Struct, frozen=True, gc=False):
    """A change that stores a record under a key of a table. A record that exists is replaced."""

    table: str
    key: str
    record: msgspec.Struct


class DeleteRecord(msgspec.Struct, frozen=True, gc=False):
    """A change that deletes the record under a key of a table. It has no effect if no record exists."""

    table: str
    key: str


class Condition(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A condition for a write: the record under a key of a table was not changed since it was read.

    With `is_prefix`, it covers all records of the table whose keys begin with `key`: none of them was created or changed
    after the log index `version`. Deletions among them do not count.
    """

    table: str
    key: str
    version: int  # The record's ModifyIndex when it was read; 0: no record may exist.
    is_prefix: bool = False


class Write(msgspec.Struct, frozen=True, gc=False):
    """Changes that are committed together at one log index if every condition holds, or not at all."""

    kind: str  # A name for logs and events, such as "job-registered".
    cause: Cause  # The event that led to it.
    changes: Sequence[PutRecord | DeleteRecord]
    conditions: Sequence[Condition] = ()


FIRST_INDEX: Final = 1
"""The index of the batch that bootstraps a cluster."""


class EncodedChange(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A change of one record in encoded form: its bytes are stored under a key of a table."""

    table: str
    key: str
    data: bytes | None  # `None` deletes the record.


class EncodedWrite(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A write in the form that storage engines accept: encoded, with at most one change for each key."""

    id: str  # Finds the write in the log if its outcome is unknown.
    kind: str  # A name for logs and events, such as "job-registered".
    cause: Cause
    conditions: Sequence[Condition]
    changes: Sequence[EncodedChange]
    lease: int = 0  # The stored records are deleted when this lease ends; 0: they stay.


class Batch(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One committed write with its log index."""

    index: int
    id: str  # The ID of the write.
    kind: str  # A name for logs and events, such as "job-registered".
    cause: Cause
    changes: Sequence[EncodedChange]


class StoredRecord(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One record as an engine stores it.

    A restore of an older copy of the log raises the versions of all records.
    """

    table: str
    key: str
    version: int  # The log index of its last change.
    data: bytes
    original_version: int = 0  # Its version before a restore of the log; 0: the same as `version`.

    @property
    def write_index(self) -> int:
        """The log index that the placeholder `WRITE_INDEX` in this record stands for. A restore does not change it."""
        return self.original_version or self.version


class LogPosition(msgspec.Struct, frozen=True, gc=False):
    """The position in the log at which the whole state was read.

    An epoch is a time in which the log was not replaced by an older copy of itself.
    """

    index: int
    last_changes: dict[str, int]  # Table name -> the log index of its last change.
    epoch: int = 0  # A new one begins with each replacement.
    # Above all indexes of earlier epochs, and not above any index of this one; 0 in the first epoch or if not recorded.
    epoch_since: int = 0
