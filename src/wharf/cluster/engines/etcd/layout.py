"""How the log lies in etcd: keys, the values of the engine's own keys, indexes out of revisions. Pure.

    <prefix>/epoch                       Epoch: how revisions become indexes, and which generation of rows is in force
    <prefix>/head                        Head: the write of the newest batch; put in every transaction
    <prefix>/restoring                   the generation that a restore is filling
    <prefix>/g/<generation>/r/<table>/<key>     one record
    <prefix>/g/<generation>/last/<table>        put by a batch that drops from a table and puts nothing there
    <prefix>/g/<generation>/held/<table>/<key>  put with every record that hangs on a lease, and stays when it vanishes
    <prefix>/g/<generation>/ended/<table>       the revision at which a lease last took records of the table along
    <prefix>/g/<generation>/past/<number>       PastEpoch: how revisions became indexes in an epoch that is over

The epoch's key is also the fence: every write compares its revision, so that putting it again ends all that is still
on its way. A restore fills a generation of its own and puts it in force by one put of the epoch.
"""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Final

import msgspec

from wharf.cluster.engines.etcd.messages import IMPOSSIBLE_REVISION, find_prefix_end
from wharf.cluster.engines.port import LogUnavailable
from wharf.contract.model.log import Cause

LAYOUT_FORMAT: Final = 1
"""The format of the keys and values told above. A door refuses a greater one."""

FIRST_GENERATION: Final = "0"


class EpochValue(msgspec.Struct, frozen=True, array_like=True):
    """`base` and `since` are left out where they follow from the revision of the key itself: at the founding, so that
    the first index is 1, and at the beginning of an epoch. A put that only fences repeats them in full."""

    format: int
    number: int
    generation: str
    base: int | None
    since: int | None


class Epoch(msgspec.Struct, frozen=True):
    """How this log counts. index = revision + base; `since` is the revision at which the epoch began."""

    number: int
    generation: str
    base: int
    since: int
    fence: int

    def to_index(self, revision: int) -> int:
        return revision + self.base

    def to_revision(self, index: int) -> int:
        """May be below every revision: then the index is of an earlier epoch."""
        return index - self.base

    def version_to_revision(self, version: int) -> int:
        """The revision that a record must have to be of this version; 0: it must not be there."""
        if version == 0:
            return 0
        revision = version - self.base
        return revision if revision > 0 and self.fence else IMPOSSIBLE_REVISION


EMPTY_LOG_EPOCH: Final = Epoch(number=0, generation=FIRST_GENERATION, base=0, since=0, fence=0)
"""How a log counts in which nothing was ever written."""


class PastEpoch(msgspec.Struct, frozen=True, array_like=True):
    """How the log counted from the revision `since` on, until the next epoch began."""

    since: int
    base: int


class EpochHistory:
    """At which indexes rows were written, as they were told then, whatever epochs began since."""

    def __init__(self, epoch: Epoch, past_epochs: Sequence[PastEpoch]) -> None:
        self._epoch = epoch
        self._over = sorted(
            (each for each in past_epochs if each.since < epoch.since), key=attrgetter("since"), reverse=True
        )

    def find_write_index(self, revision: int) -> int:
        """0: as the epoch in force says. So it is of what was written before anybody kept account of epochs, too."""
        if revision >= self._epoch.since or not self._over:
            return 0
        # What is older than all that are known was told by the first of them since.
        told_by = next((each for each in self._over if each.since <= revision), self._over[-1])
        return revision + told_by.base


class HeadValue(msgspec.Struct, frozen=True, array_like=True):
    """The newest write. Its drops stand here, because etcd tells no event when nothing was there to drop."""

    format: int
    id: str
    kind: str
    cause: Cause
    puts: int
    drops: list[tuple[str, str]]


_epochs: Final = msgspec.msgpack.Decoder(EpochValue)
_heads: Final = msgspec.msgpack.Decoder(HeadValue)
_past_epochs: Final = msgspec.msgpack.Decoder(PastEpoch)
_encoder: Final = msgspec.msgpack.Encoder()


class UnknownLogFormat(LogUnavailable):
    """The log was written by a newer program, or the keys are not ours."""


def encode_value(value: EpochValue | HeadValue | PastEpoch) -> bytes:
    return _encoder.encode(value)


def decode_head(data: bytes) -> HeadValue:
    try:
        return _heads.decode(data)
    except msgspec.MsgspecError as error:
        raise UnknownLogFormat(f"the head of the log in etcd cannot be read: {error}") from error


def decode_epoch(data: bytes, revision: int) -> Epoch:
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
    """The same epoch again, by a put of its own."""
    return EpochValue(LAYOUT_FORMAT, epoch.number, epoch.generation, epoch.base, epoch.since)


def make_next_epoch_value(*, number: int, generation: str, base: int) -> EpochValue:
    return EpochValue(LAYOUT_FORMAT, number, generation, base, None)


class LogKeys:
    """The keys beneath one prefix."""

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
    """The keys of one generation of rows."""

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
        self._row_at = len(self.records)

    def build_record_key(self, table: str, key: str) -> bytes:
        return self.records + table.encode() + b"/" + key.encode()

    def split_record_key(self, row: bytes) -> tuple[str, str]:
        """Table and key of a row's key. Tables have no slash, keys may."""
        table, _, key = row[self._row_at :].partition(b"/")
        return table.decode(), key.decode()

    def build_held_key(self, row: bytes) -> bytes:
        return self.held + row[self._row_at :]

    def convert_held_key(self, held: bytes) -> bytes:
        return self.records + held[len(self.held) :]

    def find_table_end(self, table: str) -> bytes:
        """Where the rows of the next table begin."""
        return find_prefix_end(self.records + table.encode() + b"/")

    def build_last_key(self, table: str) -> bytes:
        return self.last + table.encode()

    def build_ended_key(self, table: str) -> bytes:
        return self.ended + table.encode()

    def build_past_key(self, number: int) -> bytes:
        return self.past + b"%d" % number

    def read_mark_table(self, key: bytes) -> str:
        """The table of a key under `last` or `ended`."""
        return key.rpartition(b"/")[2].decode()


def raise_marks(marks: dict[str, int], found: Mapping[str, int]) -> None:
    """Every mark becomes the greater of what it was and what was found."""
    for table, revision in found.items():
        if revision > marks.get(table, 0):
            marks[table] = revision
