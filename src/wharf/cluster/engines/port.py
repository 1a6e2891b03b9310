"""The port to the log: what an engine is asked, what it answers, and what every engine promises.

Promises, held by one contract suite for all engines:

1. A write that was answered `Committed` is durable; it is in the log once, whole, at the index told.
2. A write with a condition that does not hold changes nothing and is answered `Conflict` with the keys that moved on.
3. A write that does not fit the bounds, or reaches a log that takes no writes, changes nothing: `Refused`.
4. Whenever the engine cannot tell, it says `Unknown`: the write happened once or not at all, and `find` tells later;
   once `find` has said "it was not", it never will be. `Unavailable` from `commit` says that surely nothing happened.
5. The feed gives every batch once, whole, in order of index, beginning after the index asked for; if it cannot (the
   log was compacted, began a new epoch, or never came as far as that index), it raises `Behind` and the follower
   loads again. A batch carries exactly the changes of its write, in whatever order, drops of what was not there too.
6. `barrier` answers an index not smaller than that of any write acknowledged before the call, by whatever member.
7. Indexes grow and may skip; the first batch of an empty log has index 1. The last-change index of a table is the
   index of the last batch that put or dropped anything in it, read from a load as from the feed.
8. A lease that ends takes the records put with it along, in one batch of kind `LEASE_ENDED` with cause LEASE and
   without an id. A later write of a key takes the key off its lease. A write on an ended lease is `Refused`.
9. A load tells of every row the index at which it was written, as it was told then (`Row.written_at`), also where an older
   copy of the log was put back beneath us since and every version was raised. A `restore` writes its rows anew.

Records are bytes here: what they mean is no concern of an engine.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Final, Protocol

import msgspec

from wharf.contract.model.log import FIRST_INDEX, Batch, EncodedChange, EncodedWrite, LogPosition, StoredRecord

__all__ = [
    "FIRST_INDEX",
    "LEASE_ENDED_KIND",
    "Batch",
    "Committed",
    "EncodedChange",
    "EncodedWrite",
    "FollowerBehind",
    "Lease",
    "Load",
    "LogEngine",
    "LogHealth",
    "LogPosition",
    "LogUnavailable",
    "StoredRecord",
    "WriteConflict",
    "WriteLimits",
    "WriteOutcome",
    "WriteOutcomeUnknown",
    "WriteRejected",
    "check_write_limits",
]

LEASE_ENDED_KIND: Final = "lease-ended"
"""The kind of a batch that no one wrote: a lease ended and took its records along."""


class Committed(msgspec.Struct, frozen=True, gc=False, tag="Committed"):
    index: int


class WriteConflict(msgspec.Struct, frozen=True, gc=False, tag="Conflict"):
    """Conditions that did not hold, as (table, key)."""

    keys: Sequence[tuple[str, str]]


class WriteRejected(msgspec.Struct, frozen=True, gc=False, tag="Refused"):
    """The log cannot take this write, whole or in part, and says why in a sentence."""

    why: str


class WriteOutcomeUnknown(msgspec.Struct, frozen=True, gc=False, tag="Unknown"):
    """The reply was lost: the write may have happened. Pass a barrier, then ask `find`."""

    why: str


WriteOutcome = Committed | WriteConflict | WriteRejected | WriteOutcomeUnknown


class WriteLimits(msgspec.Struct, frozen=True, gc=False):
    """What fits in one write, after the engine's own keys are taken off."""

    changes: int = 1_000
    conditions: int = 1_000
    bytes: int = 16_000_000


class FollowerBehind(Exception):
    """The feed cannot go on from where the follower stands; it must load the state again."""


class LogUnavailable(Exception):
    """The log cannot be reached just now. The message says which log and why."""


class LogMisconfigured(LogUnavailable):
    """Trying again cannot mend it: a person must. The message says what."""


class LogHealth(msgspec.Struct, frozen=True, gc=False):
    """How the log is doing, for people and for `agent/health`."""

    writable: bool
    why: str = ""
    size_bytes: int = 0
    quota_bytes: int = 0


class Load(Protocol):
    """A full read at one index: first every row, in slices, then the standing."""

    def iter_slices(self) -> AsyncIterator[Sequence[StoredRecord]]:
        """Raises `Behind` when a compaction or a restore overtook the read: throw the rows away and begin another."""
        ...

    async def get_position(self) -> LogPosition:
        """Valid after the last slice."""
        ...


class Lease(Protocol):
    """A promise to be alive. What was written with `id` vanishes when the promise is broken.

    Writes on it go through the door that granted it. The door keeps the promise while it is open; a door that closes
    leaves its leases to run out.
    """

    id: int

    def get_valid_until_s(self) -> float:
        """On this world's monotonic clock: before this instant the lease has surely not run out."""
        ...

    async def revoke(self) -> None:
        """Give it up now; what hangs on it vanishes at once."""
        ...


class LogEngine(Protocol):
    """One process's door to the log."""

    limits: WriteLimits
    is_single_server: bool
    """True when only one server can ever use this log: it is leader as soon as it says so."""

    async def open(self) -> None:
        """Reach the log, or raise `Unavailable` with a sentence. An empty log is founded by its first write."""
        ...

    async def close(self) -> None: ...

    def load(self) -> Load: ...

    def follow(self, after: int) -> AsyncIterator[Batch]:
        """Every batch with a greater index, for ever. Raises `Behind`, or `Unavailable` when contact is lost.

        After either the iterator is spent; call again with the last index that was applied.
        """
        ...

    async def commit(self, write: EncodedWrite) -> WriteOutcome:
        """Raises `Unavailable` when the write was never sent: it did not happen and may be tried again."""
        ...

    async def find_write(self, write_id: str, *, since: int) -> int | None:
        """The index at which the write was committed, looking back as far as `since` and no further; None: it was not.

        Raises `Behind` when the log no longer reaches back to `since`.
        """
        ...

    async def barrier(self) -> int:
        """0 when nothing was ever written. Raises `Unavailable`."""
        ...

    async def grant_lease(self, ttl_s: float) -> Lease: ...

    async def compact(self, before: int) -> None:
        """The feed need no longer reach back before this index: `follow(before - 1)` goes on working."""
        ...

    async def restore(self, records: AsyncIterator[Sequence[StoredRecord]], position: LogPosition) -> int:
        """Replace everything by `rows`, which stood at `standing` in some log; answer the index where this log stands then.

        - Markers in the rows would stand for this writing: whoever restores has settled them (`wharf.cluster.state.codec`).
        - The answer exceeds every earlier index of this log and `standing.index`. So does the version of every row: it
          is an index that the restore used, at most the one answered. The last-change index of every table that holds
          anything, or held anything before, becomes the one answered.
        - A new epoch begins, its number greater than the log's and than `standing.epoch`. Whoever followed gets
          `Behind`, from whatever index, and loads again. `find` cannot reach back before it. All leases have ended.
        - Nobody is served half of it. While it lasts, a `commit` is `Refused` and a `load` raises `Unavailable`, or both
          still answer for the old state and nothing they answered is contradicted before the new one takes its place
          in one step. What needs several transactions is a recorded intent followed by idempotent steps; one that was
          cut off is finished, or undone, or refused with a sentence, by the next `open`.
        - When `rows` raises, the error passes through; the old state stays, or the log says that it was being restored
          and takes nothing but another restore.
        """
        ...

    async def read_health(self) -> LogHealth: ...

    def get_last_contact_s(self) -> float | None:
        """When, on the monotonic clock, the log last proved that it is there; None: never yet."""
        ...


def check_write_limits(write: EncodedWrite, limits: WriteLimits) -> str | None:
    """Why this write fits no log with these bounds, in a sentence; None when it fits."""
    if not write.changes:
        return "a write without changes: there is nothing to commit"
    if len(write.changes) > limits.changes:
        return f"the write has {len(write.changes)} changes; this log takes {limits.changes} in one batch"
    if len(write.conditions) > limits.conditions:
        return f"the write has {len(write.conditions)} conditions; this log takes {limits.conditions} in one batch"
    size = sum(len(change.data) for change in write.changes if change.data is not None)
    if size > limits.bytes:
        return f"the write has {size} bytes; this log takes {limits.bytes} in one batch"
    places = {(change.table, change.key) for change in write.changes}
    if len(places) < len(write.changes):
        return "the write changes one key twice"
    return None
