"""What a decision asks of the log: a write, its conditions and its changes.

Deciders build a `Write` of records; nothing here knows how records are stored or where the log lives. Index fields of
a record may hold `THIS`: it stands for the index that the batch will get, and is replaced when the batch is applied. It
stands for the same number ever after, whatever is restored; only the version of the record is raised then.

The log as bytes: what crosses from those who know records to those who keep them, and back.

Engines know nothing of records, the replica knows nothing of engines; both know these.
"""

import enum
from collections.abc import Sequence
from typing import Final

import msgspec

WRITE_INDEX: Final = -1
"""The index of the batch that carries this record, not yet known when the decision is taken."""

KEY_SEPARATOR: Final = "\0"
"""Joins the parts of a key. No name may hold it, and it sorts below every other character, so the order of joined
keys is the order of their parts."""


def join_key(*parts: str) -> str:
    """The key of a record from its parts, in the order of the table's declaration."""
    return KEY_SEPARATOR.join(parts)


def split_key(key: str) -> list[str]:
    return key.split(KEY_SEPARATOR)


class CauseKind(enum.StrEnum):
    REQUEST = "request"
    EVALUATION = "evaluation"
    NODE = "node"
    TIMER = "timer"
    BOOTSTRAP = "founding"
    LEASE = "lease"
    OPERATOR = "operator"


class Cause(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What made somebody decide: a request's id, an evaluation's id, a node's id."""

    kind: CauseKind
    id: str = ""


class PutRecord(msgspec.Struct, frozen=True, gc=False):
    """The record takes the place of whatever stood under its key."""

    table: str
    key: str
    record: msgspec.Struct


class DeleteRecord(msgspec.Struct, frozen=True, gc=False):
    """Whatever stands under the key goes. Dropping what is not there changes nothing."""

    table: str
    key: str


class Condition(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The record under the key is still of this version (its ModifyIndex); 0: there is none."""

    table: str
    key: str
    version: int


class Write(msgspec.Struct, frozen=True, gc=False):
    """All or nothing: if every condition holds, every change happens, at one index."""

    kind: str
    cause: Cause
    changes: Sequence[PutRecord | DeleteRecord]
    conditions: Sequence[Condition] = ()


FIRST_INDEX: Final = 1
"""The index of the batch that founds a cluster."""


class EncodedChange(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The record's bytes take the place under (table, key); None: the place becomes empty."""

    table: str
    key: str
    data: bytes | None


class EncodedWrite(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A write as the log takes it. At most one change a key. `lease`: the puts vanish when that lease ends."""

    id: str
    kind: str
    cause: Cause
    conditions: Sequence[Condition]
    changes: Sequence[EncodedChange]
    lease: int = 0


class Batch(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One entry of the log. `id` is the id of its write."""

    index: int
    id: str
    kind: str
    cause: Cause
    changes: Sequence[EncodedChange]


class StoredRecord(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One record as it stands, with its version: the index of the batch that wrote it last.

    Where an older copy of the log was put back beneath us since, its version was raised and `written` is the index of that
    batch as it was told then. 0: it is the version.
    """

    table: str
    key: str
    version: int
    data: bytes
    original_version: int = 0

    @property
    def write_index(self) -> int:
        """What the marker THIS in it stands for: no restore moves it."""
        return self.original_version or self.version


class LogPosition(msgspec.Struct, frozen=True, gc=False):
    """Where a full read stands: its index, the last-change index of every table, and the epoch of the log.

    An epoch ends when the log is replaced beneath us by an older copy of itself. `epoch_since` is an index above all that
    were told before the epoch began and no greater than any told since; 0 in the first epoch, and where nobody noted it.
    """

    index: int
    last_changes: dict[str, int]
    epoch: int = 0
    epoch_since: int = 0
