"""The in-memory index of the lines on disk: which line of a key is current, and where the log begins and ends.

It holds no records and only what was committed. It never touches the file; the store updates it.
"""

from collections.abc import Sequence
from typing import Final

from wharf.cluster.engines.batch_sizes import BatchSizes
from wharf.cluster.engines.port import LogPosition
from wharf.cluster.engines.sqlite.database import MAX_BATCH_LINES

_SHIFT: Final = MAX_BATCH_LINES.bit_length() - 1


class LogLineIndex:
    """Which lines are current, dead or stale. Lines must be added in the order of their places.

    A line is dead if a later line has the same key, or if it is a deletion. Dead lines of the tail stay on disk for
    followers. Dead lines before the tail are stale and may be deleted, but only in the order of `stale_lines`: if a
    deletion were removed before the lines that it made dead, those lines would become current again.
    """

    def __init__(self, *, epoch: int, epoch_since: int, tail_from: int, last_changes: dict[str, int]) -> None:
        self.epoch = epoch
        self.epoch_since = epoch_since
        self.tail_from = tail_from  # The feed reaches back to the batches after this index.
        self.index = tail_from
        self.tail_changes = 0
        self.tail_sizes = BatchSizes()  # Of the data of the changes in the tail.
        self.last_changes = last_changes
        self.dead_lines: set[int] = set()
        self.stale_lines: list[int] = []
        self.lease_keys: dict[int, set[tuple[str, str]]] = {}
        self._places_by_table: dict[str, dict[str, int]] = {}
        self._lease_ids: dict[tuple[str, str], int] = {}

    def get_version(self, table: str, key: str) -> int:
        """Return the index of the batch that wrote the record with this key; 0 if it does not exist."""
        keys = self._places_by_table.get(table)
        return 0 if keys is None else keys.get(key, 0) >> _SHIFT

    def has_change_after(self, index: int, table: str, key_prefix: str) -> bool:
        """Return whether a batch after this index wrote a record of the table whose key has this prefix.

        Takes time proportional to the records of the table, unless none of them was written after the index.
        """
        if self.last_changes.get(table, 0) <= index:
            return False
        first_place = (index + 1) << _SHIFT
        return any(
            place >= first_place and key.startswith(key_prefix)
            for key, place in self._places_by_table.get(table, {}).items()
        )

    def get_position(self) -> LogPosition:
        return LogPosition(self.index, dict(self.last_changes), self.epoch, self.epoch_since)

    def add_head(self, place: int) -> bool:
        """Add the head line of a batch. Return whether the batch belongs to the tail; an older head is stale."""
        if place >> _SHIFT <= self.tail_from:
            self.stale_lines.append(place)
            return False
        self.index = place >> _SHIFT
        return True

    def add_line(self, place: int, table: str, key: str, *, is_drop: bool, lease: int | None, size: int) -> None:
        """Add the line of a change. `size`: the number of bytes of its data."""
        index = place >> _SHIFT
        keys = self._places_by_table.get(table)
        if keys is None:
            keys = self._places_by_table[table] = {}
        replaced = keys.pop(key, None) if is_drop else keys.get(key)
        if replaced is not None:
            self.dead_lines.add(replaced)
            if replaced >> _SHIFT <= self.tail_from:
                self.stale_lines.append(replaced)
            if self._lease_ids:
                self._detach_from_lease(table, key)
        if is_drop:
            self.dead_lines.add(place)
            if index <= self.tail_from:
                self.stale_lines.append(place)
        else:
            keys[key] = place
            if lease:
                self._lease_ids[table, key] = lease
                self.lease_keys.setdefault(lease, set()).add((table, key))
        if index > self.tail_from:
            self.tail_changes += 1
            self.tail_sizes.add_batch(index, size)
            self.last_changes[table] = index

    def trim_tail(self, *, tail_from: int, changes: int, stale: int, deleted: Sequence[int]) -> None:
        """Move the start of the tail. `changes`: how many changes left it. `stale`: how many of the first stale lines
        were deleted. `deleted`: all deleted lines."""
        self.tail_from = tail_from
        self.tail_changes -= changes
        self.tail_sizes.remove_up_to(tail_from)
        self.dead_lines.difference_update(deleted)
        del self.stale_lines[:stale]

    def _detach_from_lease(self, table: str, key: str) -> None:
        """Remove a written key from the lease that it belonged to."""
        lease = self._lease_ids.pop((table, key), None)
        if lease is None:
            return
        keys = self.lease_keys[lease]
        keys.discard((table, key))
        if not keys:
            del self.lease_keys[lease]
