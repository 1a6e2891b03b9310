"""A log in memory, shared by the doors of `wharf.cluster.engines.memory.engine`: rows, the order of batches, leases.

It plays etcd exactly where that shows through the port: indexes with gaps (other people's keys move them), bounds,
compaction, leases that end by time, a quota, a restore of an older copy beneath everybody. It does everything at once
and never waits; how requests and replies travel is the doors' business. Time comes from its world only.
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
"""Where a record stands: table and key."""

ETCD_WRITE_LIMITS: Final = WriteLimits(changes=112, conditions=127, bytes=1_400_000)
"""What the etcd engine tells under etcd's own settings."""


class MemoryLogLease(msgspec.Struct):
    """A lease as the log sees it. The places are a dict for its order."""

    id: int
    ttl_s: float
    expires_s: float
    record_keys: dict[RecordKey, None]


class SavedLease(msgspec.Struct, frozen=True):
    """A lease as a copy keeps it: how long it lives from whenever the copy is put back."""

    id: int
    ttl_s: float
    record_keys: tuple[RecordKey, ...]


class MemoryLogCopy(msgspec.Struct, frozen=True):
    """The log as it stood at one moment, to be put back later."""

    index: int
    last_write_index: int
    records: dict[RecordKey, StoredRecord]
    last_changes: dict[str, int]
    leases: tuple[SavedLease, ...] = ()


class MemoryLog:
    def __init__(self, world: World, *, limits: WriteLimits | None = None) -> None:
        self._world = world
        self.limits = limits if limits is not None else WriteLimits()
        self.index = 0  # Where the log stands, other people's keys included.
        self.last_write_index = 0  # The index of the last write.
        self.epoch = 0
        self.epoch_since = 0
        self.compacted_index = 0  # Batches up to here are compacted away.
        self.full_reason = ""  # Why the log takes no writes; empty when it does.
        self._rows: dict[RecordKey, StoredRecord] = {}
        self._last_changes: dict[str, int] = {}
        self._batches: list[Batch] = []
        self._leases: dict[int, MemoryLogLease] = {}
        self._lease_of: dict[RecordKey, int] = {}
        self._lease_last = 0
        self._waiting: list[asyncio.Future[None]] = []

    # --- writes ---

    def commit(self, write: EncodedWrite) -> WriteOutcome:
        self.end_expired_leases()
        why = check_write_limits(write, self.limits) or self.full_reason
        if why:
            return WriteRejected(why)
        if write.lease and write.lease not in self._leases:
            return WriteRejected("the lease of this write has ended")
        moved = [(condition.table, condition.key) for condition in write.conditions if not self._holds(condition)]
        if moved:
            return WriteConflict(moved)
        index = max(self.index + 1, FIRST_INDEX)
        for change in write.changes:
            place = (change.table, change.key)
            self._last_changes[change.table] = index
            self._let_go(place)
            if change.data is None:
                self._rows.pop(place, None)
                continue
            self._rows[place] = StoredRecord(change.table, change.key, index, change.data)
            if write.lease:
                self._leases[write.lease].record_keys[place] = None
                self._lease_of[place] = write.lease
        self.last_write_index = index
        self._append(Batch(index, write.id, write.kind, write.cause, tuple(write.changes)))
        return Committed(index)

    def _holds(self, condition: Condition) -> bool:
        row = self._rows.get((condition.table, condition.key))
        return condition.version == (row.version if row is not None else 0)

    def _append(self, batch: Batch) -> None:
        self.index = batch.index
        self._batches.append(batch)
        self.wake_waiters()

    def advance_index(self, count: int = 1) -> None:
        """Somebody writes keys that are not ours: the index moves on and no batch appears."""
        if self.index:
            self.index += count

    # --- reads ---

    def list_records(self) -> list[StoredRecord]:
        return list(self._rows.values())

    def get_position(self) -> LogPosition:
        return LogPosition(self.index, dict(self._last_changes), self.epoch, self.epoch_since)

    def find_next_batch(self, index: int, epoch: int) -> Batch | None:
        """The first batch with a greater index; None: there is none yet."""
        if epoch != self.epoch:
            raise FollowerBehind(f"the log began epoch {self.epoch}; load it again")
        if index < self.compacted_index:
            raise FollowerBehind(
                f"the log is compacted up to index {self.compacted_index}; its feed no longer reaches back to {index}"
            )
        if index > self.index:
            raise FollowerBehind(f"the log stands at index {self.index} and never came as far as {index}")
        position = self._position_after(index)
        return self._batches[position] if position < len(self._batches) else None

    def find_write(self, write_id: str, since: int) -> int | None:
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
        """By bisection: followers mostly ask for the end, but one that comes back may ask for any place."""
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
        """Until anything happens here. Ask again afterwards: a waker may have woken for somebody else."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter

    def wake_waiters(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    # --- what happens to a log ---

    def compact(self, before: int) -> None:
        self.compacted_index = max(self.compacted_index, min(before - 1, self.index))
        del self._batches[: self._position_after(self.compacted_index)]

    def make_copy(self) -> MemoryLogCopy:
        leases = tuple(SavedLease(lease.id, lease.ttl_s, tuple(lease.record_keys)) for lease in self._leases.values())
        return MemoryLogCopy(self.index, self.last_write_index, dict(self._rows), dict(self._last_changes), leases)

    def restore_copy(self, copy: MemoryLogCopy) -> None:
        """An older copy takes the log's place. Every index of it is raised above all that were ever told. The leases of
        the copy live again, for their whole time: whoever renews one still has it, all others run out.
        """
        shift = self.index + 1
        self.epoch += 1
        self._rows = {
            place: StoredRecord(row.table, row.key, row.version + shift, row.data, row.write_index)
            for place, row in copy.records.items()
        }
        self._last_changes = {table: index + shift for table, index in copy.last_changes.items()}
        self.epoch_since = shift
        self._begin_epoch(copy.index + shift)
        self.last_write_index = copy.last_write_index + shift
        for kept in copy.leases:
            lease = MemoryLogLease(
                kept.id, kept.ttl_s, self._world.monotonic_s() + kept.ttl_s, dict.fromkeys(kept.record_keys)
            )
            self._leases[lease.id] = lease
            self._lease_of |= dict.fromkeys(kept.record_keys, lease.id)
            self._watch_over(lease)

    def replace_records(self, records: Sequence[StoredRecord], position: LogPosition) -> int:
        """Other records take the place of all, at an index above every one that was told before."""
        index = max(self.index, position.index) + 1
        self.epoch = max(self.epoch, position.epoch) + 1
        self._rows = {(row.table, row.key): StoredRecord(row.table, row.key, index, row.data) for row in records}
        tables = [*self._last_changes, *position.last_changes, *(row.table for row in records)]
        self._last_changes = dict.fromkeys(tables, index)
        self.epoch_since = index
        self._begin_epoch(index)
        return index

    def _begin_epoch(self, index: int) -> None:
        self.index = self.last_write_index = self.compacted_index = index
        self._batches.clear()
        self._leases.clear()
        self._lease_of.clear()
        self.wake_waiters()

    def compute_size_bytes(self) -> int:
        return sum(len(row.data) for row in self._rows.values())

    # --- leases ---

    def grant_lease(self, ttl_s: float) -> int:
        self._lease_last += 1
        lease = MemoryLogLease(self._lease_last, ttl_s, self._world.monotonic_s() + ttl_s, {})
        self._leases[lease.id] = lease
        self._watch_over(lease)
        return lease.id

    def renew_lease(self, lease_id: int) -> bool:
        """False: the lease has ended."""
        self.end_expired_leases()
        lease = self._leases.get(lease_id)
        if lease is None:
            return False
        lease.expires_s = self._world.monotonic_s() + lease.ttl_s
        return True

    def revoke_lease(self, lease_id: int) -> None:
        lease = self._leases.pop(lease_id, None)
        if lease is not None:
            self._take_along(lease)

    def end_expired_leases(self) -> None:
        """End the leases whose time is over, the one that ran out first first."""
        now_s = self._world.monotonic_s()
        over = sorted((lease.expires_s, lease.id) for lease in self._leases.values() if lease.expires_s <= now_s)
        for _, lease_id in over:
            self.revoke_lease(lease_id)

    def _watch_over(self, lease: MemoryLogLease) -> None:
        """A lease ends by itself: followers must hear of it although nobody asks anything."""
        remaining_s = lease.expires_s - self._world.monotonic_s()
        asyncio.get_running_loop().call_later(max(remaining_s, 0.0), self._on_lease_due, lease)

    def _on_lease_due(self, lease: MemoryLogLease) -> None:
        if self._leases.get(lease.id) is not lease:
            return  # Revoked, or gone with an older epoch.
        self.end_expired_leases()
        if lease.id in self._leases:
            self._watch_over(lease)

    def _take_along(self, lease: MemoryLogLease) -> None:
        if not lease.record_keys:
            return
        index = self.index + 1
        places = sorted(lease.record_keys)
        for place in places:
            del self._rows[place]
            del self._lease_of[place]
            self._last_changes[place[0]] = index
        changes = tuple(EncodedChange(table, key, None) for table, key in places)
        self._append(Batch(index, "", LEASE_ENDED_KIND, Cause(CauseKind.LEASE), changes))

    def _let_go(self, place: RecordKey) -> None:
        """A write of a key takes it off the lease that it hung on."""
        lease_id = self._lease_of.pop(place, None)
        if lease_id is not None:
            del self._leases[lease_id].record_keys[place]
