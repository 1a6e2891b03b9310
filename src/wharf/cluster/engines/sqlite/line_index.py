"""What is known in memory of the lines on disk: which line of a key counts, and where the log begins and ends.

It holds no record's bytes and only what was committed. It never touches the file; whoever commits tells it.
"""

from collections.abc import Sequence
from typing import Final

from wharf.cluster.engines.port import LogPosition
from wharf.cluster.engines.sqlite.database import MAX_BATCH_LINES

_SHIFT: Final = MAX_BATCH_LINES.bit_length() - 1


class LineIndex:
    """Take lines in the order of their places, from disk at the start and after every commit.

    A line is dead once a later one of its key is there, or if it is a drop. Dead lines of the tail stay on disk for
    followers; dead lines before the tail are `stale` and may be deleted, in the order of the list: a drop must not go
    before the lines that it made dead, or they would count again.
    """

    def __init__(self, *, epoch: int, epoch_since: int, tail_from: int, last_changes: dict[str, int]) -> None:
        self.epoch = epoch
        self.epoch_since = epoch_since
        self.tail_from = tail_from  # The feed reaches back to the batches after this index.
        self.index = tail_from
        self.tail_changes = 0
        self.last_changes = last_changes
        self.dead_lines: set[int] = set()
        self.stale_lines: list[int] = []
        self.lease_keys: dict[int, set[tuple[str, str]]] = {}
        self._tables: dict[str, dict[str, int]] = {}
        self._lease_of: dict[tuple[str, str], int] = {}

    def get_version(self, table: str, key: str) -> int:
        """The index of the batch that put the record under this key; 0: there is none."""
        keys = self._tables.get(table)
        return 0 if keys is None else keys.get(key, 0) >> _SHIFT

    def count_keys(self) -> int:
        return sum(map(len, self._tables.values()))

    def get_position(self) -> LogPosition:
        return LogPosition(self.index, dict(self.last_changes), self.epoch, self.epoch_since)

    def add_head(self, place: int) -> bool:
        """Whether the batch belongs to the tail; the head of one before it is stale."""
        if place >> _SHIFT <= self.tail_from:
            self.stale_lines.append(place)
            return False
        self.index = place >> _SHIFT
        return True

    def add_line(self, place: int, table: str, key: str, *, is_drop: bool, lease: int | None) -> None:
        index = place >> _SHIFT
        keys = self._tables.get(table)
        if keys is None:
            keys = self._tables[table] = {}
        replaced = keys.pop(key, None) if is_drop else keys.get(key)
        if replaced is not None:
            self.dead_lines.add(replaced)
            if replaced >> _SHIFT <= self.tail_from:
                self.stale_lines.append(replaced)
            if self._lease_of:
                self._let_go(table, key)
        if is_drop:
            self.dead_lines.add(place)
            if index <= self.tail_from:
                self.stale_lines.append(place)
        else:
            keys[key] = place
            if lease:
                self._lease_of[table, key] = lease
                self.lease_keys.setdefault(lease, set()).add((table, key))
        if index > self.tail_from:
            self.tail_changes += 1
            self.last_changes[table] = index

    def trim_tail(self, *, tail_from: int, changes: int, stale: int, deleted: Sequence[int]) -> None:
        """The tail begins later by so many changes; so many of the first stale lines and the `deleted` ones are gone."""
        self.tail_from = tail_from
        self.tail_changes -= changes
        self.dead_lines.difference_update(deleted)
        del self.stale_lines[:stale]

    def _let_go(self, table: str, key: str) -> None:
        lease = self._lease_of.pop((table, key), None)
        if lease is None:
            return
        keys = self.lease_keys[lease]
        keys.discard((table, key))
        if not keys:
            del self.lease_keys[lease]
