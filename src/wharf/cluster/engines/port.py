"""The port to the log: what callers may request, what engines return, and what every engine guarantees.

The contract test suite checks these guarantees for every engine:

1. A write with the outcome `Committed` is durable. It is in the log once and complete, at the returned index.

2. A write with a condition that does not hold changes nothing. The outcome `WriteConflict` names the changed keys. A
condition on a prefix (`Condition.is_prefix`) holds if no record under it has a version above that of the condition; its
conflict names the prefix.

3. A write that exceeds the limits, or reaches a log that accepts no writes, changes nothing: `WriteRejected`.

4. When the engine cannot tell whether a write happened, the outcome is `WriteOutcomeUnknown`: it happened once or not
at all, and `find_write` reports which. Once `find_write` has returned None, the write will never happen.
`LogUnavailable` from `commit` means that nothing happened.

5. The feed returns every batch once, complete, in index order, starting after the requested index. If it cannot (the
log was compacted, began a new epoch, or never reached that index), it raises `FollowerBehind` and the follower loads
again. A batch carries exactly the changes of its write, in any order, including deletions of missing records.

6. `barrier` returns an index not smaller than that of any write that was acknowledged, to any member, before the call.

7. Indexes grow and may have gaps. The first batch of an empty log has index 1. The last-change index of a table is the
index of the last batch that put or deleted a record of it; a load and the feed agree on it.

8. When a lease ends, the records written with it are deleted in one batch of kind `LEASE_ENDED_KIND` with cause LEASE
and without an id. A later write of a key removes the key from its lease. A write on an ended lease is `WriteRejected`.

9. A load returns with every record the index at which it was written, as it was reported then
(`StoredRecord.write_index`), even if the log was replaced by an older copy since and every version was raised. `restore`
counts as a new write of its records.

Records are bytes here: engines do not know their meaning.
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
    "LogUnchanged",
    "RestoreOutcomeUnknown",
    "StoredRecord",
    "WriteConflict",
    "WriteLimits",
    "WriteOutcome",
    "WriteOutcomeUnknown",
    "WriteRejected",
    "check_write_limits",
]

LEASE_ENDED_KIND: Final = "lease-ended"
"""The kind of the batch that deletes the records of an ended lease. No caller wrote it."""


class Committed(msgspec.Struct, frozen=True, gc=False, tag="Committed"):
    """The write is durable at this index."""

    index: int


class WriteConflict(msgspec.Struct, frozen=True, gc=False, tag="Conflict"):
    """The write changed nothing: its conditions on these records, as (table, key), did not hold."""

    keys: Sequence[tuple[str, str]]


class WriteRejected(msgspec.Struct, frozen=True, gc=False, tag="Refused"):
    """The log cannot accept this write. `why` is a sentence for the caller."""

    why: str


class WriteOutcomeUnknown(msgspec.Struct, frozen=True, gc=False, tag="Unknown"):
    """The reply was lost: the write may have happened. Call `barrier`, then `find_write`."""

    why: str


WriteOutcome = Committed | WriteConflict | WriteRejected | WriteOutcomeUnknown


class WriteLimits(msgspec.Struct, frozen=True, gc=False):
    """Limits of one write, without the keys that the engine adds itself."""

    changes: int = 1_000
    conditions: int = 1_000
    bytes: int = 16_000_000


class FollowerBehind(Exception):
    """The feed cannot continue from the follower's index; the follower must load the state again."""


class LogUnavailable(Exception):
    """The log cannot be reached at the moment. The message names the log and the reason."""


class LogUnchanged(LogUnavailable):
    """A restore failed, and the log is certainly as it was before."""


class RestoreOutcomeUnknown(LogUnavailable):
    """A restore may have happened: all records were sent, and the log did not report whether it activated them."""


class LogMisconfigured(LogUnavailable):
    """Retrying cannot help: an operator must change the configuration. The message says what."""


class LogHealth(msgspec.Struct, frozen=True, gc=False):
    """The health of the log, for operators and for `agent/health`."""

    writable: bool
    why: str = ""
    size_bytes: int = 0
    quota_bytes: int = 0
    public_why: str = ""
    """`why` without addresses; empty if `why` has none."""


class Load(Protocol):
    """A full read at one index: first all records, in slices, then the position."""

    def iter_slices(self) -> AsyncIterator[Sequence[StoredRecord]]:
        """Yield all records. Raises `FollowerBehind` when a compaction or restore interrupted the read: discard the
        records and load again."""
        ...

    async def get_position(self) -> LogPosition:
        """Return the position of the load. Valid after the last slice."""
        ...


class LoadBase:
    """The part that all loads have in common: the log position, which is set after the last slice."""

    _position: LogPosition | None = None

    async def get_position(self) -> LogPosition:
        assert self._position is not None, "the position of a load is known after its last slice"
        return self._position


class Lease(Protocol):
    """A time-limited claim in the log. Records that were written with its `id` are deleted when it ends.

    Writes on a lease must use the engine that granted it. The engine renews the lease while the engine is open; after
    `close` the lease expires.
    """

    id: int

    def get_valid_until_s(self) -> float:
        """Return the monotonic time until which the lease is certainly valid, in seconds."""
        ...

    async def revoke(self) -> None:
        """End the lease now; its records are deleted at once."""
        ...


class LogEngine(Protocol):
    """One process's connection to the log."""

    limits: WriteLimits
    is_single_server: bool
    """True if only one server can ever use this log. It then becomes leader without waiting for others."""

    async def open(self) -> None:
        """Connect to the log, or raise `LogUnavailable` with a sentence. The first write initializes an empty log."""
        ...

    async def close(self) -> None: ...

    def load(self) -> Load: ...

    def follow(self, after: int) -> AsyncIterator[Batch]:
        """Yield every batch with an index greater than `after`, without end. Raises `FollowerBehind`, or `LogUnavailable` when
        contact is lost.

        After an exception the iterator is finished; call again with the last applied index.
        """
        ...

    async def commit(self, write: EncodedWrite) -> WriteOutcome:
        """Commit a write. Raises `LogUnavailable` when the write was never sent: it did not happen and may be retried."""
        ...

    async def find_write(self, write_id: str, *, since: int) -> int | None:
        """Return the index at which the write with this id was committed, or None if it was not.

        Searches the batches from the index `since` to the newest one.

        Raises `FollowerBehind` when the log no longer reaches back to `since`.
        """
        ...

    async def barrier(self) -> int:
        """Return the newest index of the log; 0 when it was never written. Raises `LogUnavailable`."""
        ...

    def read_published_index(self) -> int | None:
        """Return an index that is at least that of every write acknowledged before this call, without asking the log.

        Returns `None` if only `barrier` returns one. Unlike a barrier, this does not wait for this engine's own writes
        that are still in flight.
        """
        ...

    async def grant_lease(self, ttl_s: float) -> Lease: ...

    async def compact(self, before: int) -> None:
        """Allow the log to discard batches with an index below `before`.

        Afterwards a feed can still start at the batch `before`; a feed of earlier batches may raise `FollowerBehind`.
        """
        ...

    async def restore(self, records: AsyncIterator[Sequence[StoredRecord]], position: LogPosition) -> int:
        """Replace everything by `records`, which were read at `position` in any log. Return the index of this log
        afterwards.

        - The records must not contain `WRITE_INDEX` markers: they would resolve to the index of this restore. Callers
        resolve them first (`wharf.cluster.state.codec`).

        - The returned index exceeds every earlier index of this log and `position.index`. So does the version of every
        record: it is an index that the restore used, at most the returned one. The last-change index of every table
        that holds or held records becomes the returned index.

        - Raises `RestoreOutcomeUnknown` if the log may have been replaced. Any other `LogUnavailable` means that nothing
        happened.

        - A new epoch begins, with a number greater than the log's and `position.epoch`. Every follower gets
        `FollowerBehind` and loads again. `find_write` cannot reach back before it. All leases have ended.

        - No caller sees half a restore. While it runs, either `commit` returns `WriteRejected` and `load` raises
        `LogUnavailable`, or both still use the old state, which the new state replaces in one step. An engine that
        needs several transactions records the intent first and then makes idempotent steps; the next `open` completes
        or undoes an interrupted restore, or fails with a sentence.

        - When `records` raises, the error is passed on. The old state stays, or the log reports an unfinished restore
        and accepts only another restore.
        """
        ...

    async def read_health(self) -> LogHealth: ...

    def get_last_contact_s(self) -> float | None:
        """Return the monotonic time in seconds at which the log last replied; None if it never did."""
        ...


def check_write_limits(write: EncodedWrite, limits: WriteLimits) -> str | None:
    """Return why this write exceeds these limits, in a sentence; None when it fits."""
    if not write.changes:
        return "a write without changes: there is nothing to commit"
    if len(write.changes) > limits.changes:
        return f"the write has {len(write.changes)} changes; this log takes {limits.changes} in one batch"
    if len(write.conditions) > limits.conditions:
        return f"the write has {len(write.conditions)} conditions; this log takes {limits.conditions} in one batch"
    size = sum(len(change.data) for change in write.changes if change.data is not None)
    if size > limits.bytes:
        return f"the write has {size} bytes; this log takes {limits.bytes} in one batch"
    record_keys = {(change.table, change.key) for change in write.changes}
    if len(record_keys) < len(write.changes):
        return "the write changes one key twice"
    return None
