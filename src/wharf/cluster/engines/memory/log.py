"""A log in memory that several `MemoryEngine`s share: records, batches and leases.

It behaves like etcd where the port shows it: indexes with gaps (keys of other programs advance them), write limits,
compaction, leases with a time to live, a quota, and replacement by an older copy. Every call is executed at once; the
engines simulate the connection. Time comes from the world only.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from wharf.cluster.engines.port import (
    FIRST_INDEX,
    LEASE_ENDED_KIND,
    Batch,
    Committed,
    EncodedChange,
    EncodedWrite,
    FollowerBehind,
    LogPosition,
    StoredRecord,
    WriteConflict,
    WriteLimits,
    WriteOutcome,
    WriteRejected,
    check_write_limits,
)
from wharf.contract.model.log import Cause, CauseKind, Condition
from wharf.world import World

RecordKey = tuple[str, str]
"""Table and key of a record."""

ETCD_WRITE_LIMITS: Final = WriteLimits(changes=112, conditions=127, bytes=1_400_000)
"""The limits that the etcd engine reports under etcd's default settings."""


class MemoryLogLease(msgspec.Struct):
    """A lease as the log stores it. `record_keys` is a dict because it keeps the order of insertion."""

    id: int
    ttl_s: float
    expires_s: float
    record_keys: dict[RecordKey, None]


class SavedLease(msgspec.Struct, frozen=True):
    """A lease in a copy of the log. Its time to live starts again when the copy is restored."""

    id: int
    ttl_s: float
    record_keys: tuple[RecordKey, ...]


class MemoryLogCopy(msgspec.Struct, frozen=True):
    """The log at one moment, which can be restored later."""

    index: int
    last_write_index: int
    records: dict[RecordKey, StoredRecord]
    last_changes: dict[str, int]
    leases: tuple[SavedLease, ...] = ()


class MemoryLog:
    """Records, batches and leases of one log, with the write checks that every engine makes."""

    def __init__(self, world: World, *, limits: WriteLimits | None = None) -> None:
        self._world = world
        self.limits = limits if limits is not None else WriteLimits()
        self.index = 0  # Index of the log, including keys of other programs.
        self.last_write_index = 0  # Index of the last write.
        self.epoch = 0
        self.epoch_since = 0
        self.compacted_index = 0  # Batches up to this index are compacted.
        self.full_reason = ""  # Why the log rejects writes; empty when it accepts them.
        self._records: dict[RecordKey, StoredRecord] = {}
        self._last_changes: dict[str, int] = {}
        self._batches: list[Batch] = []
        self._leases: dict[int, MemoryLogLease] = {}
        self._lease_ids: dict[RecordKey, int] = {}
        self._last_lease_id = 0
        self._waiters: list[asyncio.Future[None]] = []

    # --- writes ---

    def commit(self, write: EncodedWrite) -> WriteOutcome:
        """Check and apply a write."""
        self.end_expired_leases()
        rejection_reason = check_write_limits(write, self.limits) or self.full_reason
        if rejection_reason:
            return WriteRejected(rejection_reason)
        if write.lease and write.lease not in self._leases:
            return WriteRejected("the lease of this write has ended")
        conflicts = [(condition.table, condition.key) for condition in write.conditions if not self._is_met(condition)]
        if conflicts:
            return WriteConflict(conflicts)
        index = max(self.index + 1, FIRST_INDEX)
        for change in write.changes:
            record_key = (change.table, change.key)
            self._last_changes[change.table] = index
            self._detach_from_lease(record_key)
            if change.data is None:
                self._records.pop(record_key, None)
                continue
            self._records[record_key] = StoredRecord(change.table, change.key, index, change.data)
            if write.lease:
                self._leases[write.lease].record_keys[record_key] = None
                self._lease_ids[record_key] = write.lease
        self.last_write_index = index
        self._append(Batch(index, write.id, write.kind, write.cause, tuple(write.changes)))
        return Committed(index)

    def _is_met(self, condition: Condition) -> bool:
        if condition.is_prefix:
            # Compared first, because the search reads every record of the log.
            return self._last_changes.get(condition.table, 0) <= condition.version or not any(
                record.version > condition.version
                for (table, key), record in self._records.items()
                if table == condition.table and key.startswith(condition.key)
            )
        record = self._records.get((condition.table, condition.key))
        return condition.version == (record.version if record is not None else 0)

    def _append(self, batch: Batch) -> None:
        self.index = batch.index
        self._batches.append(batch)
        self.wake_waiters()

    def advance_index(self, count: int = 1) -> None:
        """Simulate writes to keys of other programs: the index advances without a batch."""
        if self.index:
            self.index += count

    # --- reads ---

    def list_records(self) -> list[StoredRecord]:
        return list(self._records.values())

    def get_position(self) -> LogPosition:
        return LogPosition(self.index, dict(self._last_changes), self.epoch, self.epoch_since)

    def find_next_batch(self, index: int, epoch: int) -> Batch | None:
        """Return the first batch with a greater index, or None. Raises `FollowerBehind`."""
        if epoch != self.epoch:
            raise FollowerBehind(f"the log began epoch {self.epoch}; load it again")
        if index < self.compacted_index:
            raise FollowerBehind(
                f"the log is compacted up to index {self.compacted_index}; its feed no longer reaches back to {index}"
            )
        if index > self.index:
            raise FollowerBehind(f"the log is at index {self.index} and never reached {index}")
        position = self._position_after(index)
        return self._batches[position] if position < len(self._batches) else None

    def find_write(self, write_id: str, since: int) -> int | None:
        """Return the index at which the write was committed, or None. Raises `FollowerBehind` if the index `since` is compacted."""
        for batch in reversed(self._batches):
            if batch.index < since:
                return None
            if batch.id == write_id:
                return batch.index
        if self.compacted_index and max(since, FIRST_INDEX) <= self.compacted_index:
            raise FollowerBehind(
                f"the log is compacted up to index {self.compacted_index}; it no longer reaches back to {since}"
            )
        return None

    def _position_after(self, index: int) -> int:
        """Return the position of the first batch with a greater index.

        Checks the end first, because most followers have applied every batch; otherwise bisects.
        """
        low, high = 0, len(self._batches)
        if high and self._batches[-1].index <= index:
            return high
        while low < high:
            middle = (low + high) // 2
            if self._batches[middle].index <= index:
                low = middle + 1
            else:
                high = middle
        return low

    async def wait_changed(self) -> None:
        """Wait until the log or an engine changes. Callers must check again afterwards, because every change wakes all
        waiters."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # --- compaction, copies and restores ---

    def compact(self, before: int) -> None:
        self.compacted_index = max(self.compacted_index, min(before - 1, self.index))
        del self._batches[: self._position_after(self.compacted_index)]

    def make_copy(self) -> MemoryLogCopy:
        leases = tuple(SavedLease(lease.id, lease.ttl_s, tuple(lease.record_keys)) for lease in self._leases.values())
        return MemoryLogCopy(self.index, self.last_write_index, dict(self._records), dict(self._last_changes), leases)

    def restore_copy(self, copy: MemoryLogCopy) -> None:
        """Replace the log by an older copy, with every index raised above all that were ever returned.

        The leases of the copy start again with their whole time to live. Leases that nobody renews expire.
        """
        shift = self.index + 1
        self.epoch += 1
        self._records = {
            record_key: StoredRecord(record.table, record.key, record.version + shift, record.data, record.write_index)
            for record_key, record in copy.records.items()
        }
        self._last_changes = {table: index + shift for table, index in copy.last_changes.items()}
        self.epoch_since = shift
        self._begin_epoch(copy.index + shift)
        self.last_write_index = copy.last_write_index + shift
        for saved in copy.leases:
            lease = MemoryLogLease(
                saved.id, saved.ttl_s, self._world.monotonic_s() + saved.ttl_s, dict.fromkeys(saved.record_keys)
            )
            self._leases[lease.id] = lease
            self._lease_ids |= dict.fromkeys(saved.record_keys, lease.id)
            self._schedule_expiry(lease)

    def replace_records(self, records: Sequence[StoredRecord], position: LogPosition) -> int:
        """Replace all records, at an index above every earlier one, and return that index."""
        index = max(self.index, position.index) + 1
        self.epoch = max(self.epoch, position.epoch) + 1
        self._records = {
            (record.table, record.key): StoredRecord(record.table, record.key, index, record.data) for record in records
        }
        tables = [*self._last_changes, *position.last_changes, *(record.table for record in records)]
        self._last_changes = dict.fromkeys(tables, index)
        self.epoch_since = index
        self._begin_epoch(index)
        return index

    def _begin_epoch(self, index: int) -> None:
        """Discard batches and leases, and start the new epoch at `index`."""
        self.index = self.last_write_index = self.compacted_index = index
        self._batches.clear()
        self._leases.clear()
        self._lease_ids.clear()
        self.wake_waiters()

    def compute_size_bytes(self) -> int:
        return sum(len(record.data) for record in self._records.values())

    # --- leases ---

    def grant_lease(self, ttl_s: float) -> int:
        self._last_lease_id += 1
        lease = MemoryLogLease(self._last_lease_id, ttl_s, self._world.monotonic_s() + ttl_s, {})
        self._leases[lease.id] = lease
        self._schedule_expiry(lease)
        return lease.id

    def renew_lease(self, lease_id: int) -> bool:
        """Renew a lease. Returns False if the lease has ended."""
        self.end_expired_leases()
        lease = self._leases.get(lease_id)
        if lease is None:
            return False
        lease.expires_s = self._world.monotonic_s() + lease.ttl_s
        return True

    def revoke_lease(self, lease_id: int) -> None:
        lease = self._leases.pop(lease_id, None)
        if lease is not None:
            self._delete_lease_records(lease)

    def end_expired_leases(self) -> None:
        """End the leases whose time to live has passed, oldest expiry first."""
        now_s = self._world.monotonic_s()
        expired = sorted((lease.expires_s, lease.id) for lease in self._leases.values() if lease.expires_s <= now_s)
        for _, lease_id in expired:
            self.revoke_lease(lease_id)

    def _schedule_expiry(self, lease: MemoryLogLease) -> None:
        """Set a timer for the end of a lease, so that followers receive the deletions without another call."""
        remaining_s = lease.expires_s - self._world.monotonic_s()
        asyncio.get_running_loop().call_later(max(remaining_s, 0.0), self._on_lease_due, lease)

    def _on_lease_due(self, lease: MemoryLogLease) -> None:
        """End the lease if it has expired; set another timer if it was renewed."""
        if self._leases.get(lease.id) is not lease:
            return  # The lease was revoked, or belongs to an earlier epoch.
        self.end_expired_leases()
        if lease.id in self._leases:
            self._schedule_expiry(lease)

    def _delete_lease_records(self, lease: MemoryLogLease) -> None:
        """Delete the records of an ended lease in one batch."""
        if not lease.record_keys:
            return
        index = self.index + 1
        record_keys = sorted(lease.record_keys)
        for record_key in record_keys:
            del self._records[record_key]
            del self._lease_ids[record_key]
            self._last_changes[record_key[0]] = index
        changes = tuple(EncodedChange(table, key, None) for table, key in record_keys)
        self._append(Batch(index, "", LEASE_ENDED_KIND, Cause(CauseKind.LEASE), changes))

    def _detach_from_lease(self, record_key: RecordKey) -> None:
        """Remove a written key from the lease that it belonged to."""
        lease_id = self._lease_ids.pop(record_key, None)
        if lease_id is not None:
            del self._leases[lease_id].record_keys[record_key]
