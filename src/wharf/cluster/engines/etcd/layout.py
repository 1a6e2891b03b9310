"""The keys of the log in etcd, the values of the engine's own keys, and the conversion of revisions to indexes.

    <prefix>/epoch                       EpochValue: how revisions become indexes, and the active generation of records
    <prefix>/head                        HeadValue: the write of the newest batch; put in every transaction
    <prefix>/restoring                   the generation that a restore is filling
    <prefix>/g/<generation>/r/<table>/<key>     one record
    <prefix>/g/<generation>/last/<table>        put by a batch that only deletes records of a table
    <prefix>/g/<generation>/held/<table>/<key>  put with every record of a lease; not deleted with it
    <prefix>/g/<generation>/ended/<table>       the revision at which a lease last deleted records of the table
    <prefix>/g/<generation>/past/<number>       PastEpoch: how revisions became indexes in an earlier epoch

The epoch key is also the fence: every write compares its revision, so a new put rejects all writes in flight.
A restore fills its own generation and activates it by one put of the epoch key.
"""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Final

import msgspec

from wharf.cluster.engines.etcd.messages import IMPOSSIBLE_REVISION, find_prefix_end
from wharf.cluster.engines.port import LogUnavailable
from wharf.contract.model.log import Cause

LAYOUT_FORMAT: Final = 1
"""The format of the keys and values described above. An engine rejects a greater one."""

FIRST_GENERATION: Final = "0"


class EpochValue(msgspec.Struct, frozen=True, array_like=True):
    """The value of the epoch key.

    `base` and `since` are None if they follow from the revision of the key: in the first epoch, where the first index
    is 1, and at the beginning of an epoch. A put that only moves the fence repeats them in full.
    """

    format: int
    number: int
    generation: str
    base: int | None
    since: int | None


class Epoch(msgspec.Struct, frozen=True):
    """How the log numbers its batches in one epoch: index = revision of etcd + `base`."""

    number: int
    generation: str
    base: int
    since: int
    """The revision at which the epoch began."""
    fence: int
    """The revision of the epoch key, on which every write is conditional; 0 if the log is empty and has no epoch key."""

    def to_index(self, revision: int) -> int:
        return revision + self.base

    def to_revision(self, index: int) -> int:
        """Return the revision of an index. May be below every revision: the index is then of an earlier epoch."""
        return index - self.base

    def version_to_revision(self, version: int) -> int:
        """Return the revision that a record of this version has; 0: the record must not exist."""
        if version == 0:
            return 0
        revision = version - self.base
        return revision if revision > 0 else IMPOSSIBLE_REVISION

    def find_last_revision(self, version: int) -> int:
        """Return the newest revision that a record of at most this version can have; 0: no record has one."""
        return max(0, version - self.base)


EMPTY_LOG_EPOCH: Final = Epoch(number=0, generation=FIRST_GENERATION, base=0, since=0, fence=0)
"""The epoch of a log that was never written."""


class PastEpoch(msgspec.Struct, frozen=True, array_like=True):
    """How the log numbered its batches from the revision `since` until the next epoch began."""

    since: int
    base: int


class EpochHistory:
    """Finds the index at which a record was written, as it was reported then, even if later epochs renumbered the log."""

    def __init__(self, epoch: Epoch, past_epochs: Sequence[PastEpoch]) -> None:
        self._epoch = epoch
        self._past_epochs = sorted(
            (past for past in past_epochs if past.since < epoch.since), key=attrgetter("since"), reverse=True
        )

    def find_write_index(self, revision: int) -> int:
        """Return the index at that time; 0 if the current epoch gives it, or if the record predates the storing of past
        epochs."""
        if revision >= self._epoch.since or not self._past_epochs:
            return 0
        # A revision older than all known epochs was numbered by the oldest of them.
        epoch = next((past for past in self._past_epochs if past.since <= revision), self._past_epochs[-1])
        return revision + epoch.base


class HeadValue(msgspec.Struct, frozen=True, array_like=True):
    """The value of the head key: the newest write. It lists the deletions, because etcd sends no event for the deletion of a missing key."""

    format: int
    id: str
    kind: str
    cause: Cause
    puts: int  # How many records the write stored.
    drops: list[tuple[str, str]]  # The records that it deleted, as (table, key).


_epochs: Final = msgspec.msgpack.Decoder(EpochValue)
_heads: Final = msgspec.msgpack.Decoder(HeadValue)
_past_epochs: Final = msgspec.msgpack.Decoder(PastEpoch)
_encoder: Final = msgspec.msgpack.Encoder()


class UnknownLogFormat(LogUnavailable):
    """The log was written by a newer program, or the keys belong to another program."""


def encode_value(value: EpochValue | HeadValue | PastEpoch) -> bytes:
    return _encoder.encode(value)


def decode_head(data: bytes) -> HeadValue:
    try:
        return _heads.decode(data)
    except msgspec.MsgspecError as error:
        raise UnknownLogFormat(f"the head of the log in etcd cannot be read: {error}") from error


def decode_epoch(data: bytes, revision: int) -> Epoch:
    """Decode the value of the epoch key, which has this revision. Raises `UnknownLogFormat`."""
    try:
        value = _epochs.decode(data)
    except msgspec.MsgspecError as error:
        raise UnknownLogFormat(f"the epoch of the log in etcd cannot be read: {error}") from error
    if value.format > LAYOUT_FORMAT:
        raise UnknownLogFormat(
            f"the log in etcd has format {value.format} and this program knows formats up to {LAYOUT_FORMAT}; use a newer program"
        )
    base = 1 - revision if value.base is None else value.base
    since = revision if value.since is None else value.since
    return Epoch(value.number, value.generation, base, since, revision)


def decode_past_epoch(data: bytes) -> PastEpoch:
    try:
        return _past_epochs.decode(data)
    except msgspec.MsgspecError as error:
        raise UnknownLogFormat(f"a past epoch of the log in etcd cannot be read: {error}") from error


def make_first_epoch_value() -> EpochValue:
    return EpochValue(LAYOUT_FORMAT, 0, FIRST_GENERATION, None, None)


def make_fence_value(epoch: Epoch) -> EpochValue:
    """Build the value that repeats an epoch, to move the fence."""
    return EpochValue(LAYOUT_FORMAT, epoch.number, epoch.generation, epoch.base, epoch.since)


def make_next_epoch_value(*, number: int, generation: str, base: int) -> EpochValue:
    return EpochValue(LAYOUT_FORMAT, number, generation, base, None)


class LogKeys:
    """The keys under one prefix."""

    def __init__(self, prefix: str) -> None:
        root = prefix.rstrip("/").encode() + b"/"
        self.prefix = root
        self.prefix_end = find_prefix_end(root)
        self.epoch = root + b"epoch"
        self.head = root + b"head"
        self.restoring = root + b"restoring"
        self.generations = root + b"g/"

    def build_generation_keys(self, name: str) -> "GenerationKeys":
        return GenerationKeys(self.generations + name.encode() + b"/")


class GenerationKeys:
    """The keys of one generation of records."""

    def __init__(self, root: bytes) -> None:
        self.prefix = root
        self.prefix_end = find_prefix_end(root)
        self.records = root + b"r/"
        self.records_end = find_prefix_end(self.records)
        self.last = root + b"last/"
        self.last_end = find_prefix_end(self.last)
        self.held = root + b"held/"
        self.held_end = find_prefix_end(self.held)
        self.ended = root + b"ended/"
        self.ended_end = find_prefix_end(self.ended)
        self.past = root + b"past/"
        self.past_end = find_prefix_end(self.past)
        self._record_key_start = len(self.records)

    def build_record_key(self, table: str, key: str) -> bytes:
        return self.records + table.encode() + b"/" + key.encode()

    def split_record_key(self, record_key: bytes) -> tuple[str, str]:
        """Return table and key of a record's etcd key. Table names contain no slash; keys may."""
        table, _, key = record_key[self._record_key_start :].partition(b"/")
        return table.decode(), key.decode()

    def build_held_key(self, record_key: bytes) -> bytes:
        """Build the key that marks a record as belonging to a lease."""
        return self.held + record_key[self._record_key_start :]

    def convert_held_key(self, held: bytes) -> bytes:
        """Return the etcd key of the record that a held key marks."""
        return self.records + held[len(self.held) :]

    def build_prefix_range(self, table: str, key_prefix: str) -> tuple[bytes, bytes]:
        """Return the range of the records of a table whose keys have this prefix."""
        start = self.build_record_key(table, key_prefix)
        return start, find_prefix_end(start)

    def find_table_end(self, table: str) -> bytes:
        """Return the first key after the records of a table."""
        return find_prefix_end(self.records + table.encode() + b"/")

    def build_last_key(self, table: str) -> bytes:
        return self.last + table.encode()

    def build_ended_key(self, table: str) -> bytes:
        return self.ended + table.encode()

    def build_past_key(self, number: int) -> bytes:
        return self.past + b"%d" % number

    def read_mark_table(self, key: bytes) -> str:
        """Return the table of a key under `last` or `ended`."""
        return key.rpartition(b"/")[2].decode()


def raise_marks(marks: dict[str, int], found: Mapping[str, int]) -> None:
    """Raise the revision in `marks` of each table to the one in `found`, if that is greater. Modifies `marks`."""
    for table, revision in found.items():
        if revision > marks.get(table, 0):
            marks[table] = revision
