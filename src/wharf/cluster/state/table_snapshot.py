"""A table as it stood at one moment, read in slices while the replica goes on.

Nothing is copied when it begins. What a batch changes while it is open is noted, the first time for each key; a slice
passes over those keys where they stand now and puts the noted records where they stood. So a list of a million records
is that of one moment, and nobody waits for it.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Generic, TypeVar

import msgspec

from wharf.cluster.state.replica import Replica
from wharf.cluster.state.table import ListOrder, Table
from wharf.cluster.state.watches import RecordChange

R = TypeVar("R", bound=msgspec.Struct)

RecordPosition = tuple[int, str]
"""Where a record stands: CreateIndex and key; in order of key the first is 0."""


class TableSnapshot(Generic[R]):
    """Open until `end`. Call `take` until it gives nothing."""

    def __init__(
        self,
        replica: Replica,
        table: Table[R],
        *,
        by_creation: bool = False,
        prefix: str = "",
        start: RecordPosition | None = None,
        reverse: bool = False,
    ) -> None:
        """`start` is the first place that is shown, or the last one in reverse; no record need stand there."""
        assert not (by_creation and prefix), "a prefix is one of keys"
        assert not by_creation or table.order is ListOrder.CREATED, f"{table.name} is not kept in order of creation"
        self._replica = replica
        self._table = table
        self._rows = replica.get_table_records(table)  # A load puts others in their place; these stay as they are then.
        self._by_creation = by_creation
        self._prefix = prefix
        self._reverse = reverse
        self._next = start
        self._is_next_seen = False
        self._is_over = False
        self._before: dict[str, R | None] = {}
        replica.watches.add_observer(table, self)

    def on_changes(self, changes: Sequence[RecordChange]) -> None:
        """What a batch changed, and what stood there before."""
        if self._replica.get_table_records(self._table) is not self._rows:
            return
        for key, old, _new in changes:
            self._before.setdefault(key, old)  # type: ignore[arg-type]  # it is of this table

    def close(self) -> None:
        """Ending twice is fine."""
        self._replica.watches.remove_observer(self._table, self)

    def read_next(self, max_records: int) -> list[R]:
        """The next records, about `count` of them. Nothing: that was all, and it has ended."""
        while not self._is_over:
            records = self._slice(max_records)
            if records:
                return records
        self.close()
        return []

    def _slice(self, count: int) -> list[R]:
        begin, is_seen = self._next, self._is_next_seen
        keys = list(islice(self._keys(begin), count + is_seen))
        rows, before = self._rows.records, self._before
        if not before:  # Nothing was changed since it began, as almost always: what is there is what there was.
            self._is_over = len(keys) < count + is_seen
            if is_seen and keys and self._place(rows[keys[0]], keys[0]) == begin:
                del keys[0]
            self._next = None if self._is_over else self._place(rows[keys[-1]], keys[-1])
            self._is_next_seen = True
            return [rows[key] for key in keys]
        places = [(self._place(rows[key], key), key) for key in keys]
        if is_seen and places and places[0][0] == begin:
            places = places[1:]
        if len(keys) < count + is_seen:
            last, self._is_over = None, True
        else:
            last = places[-1][0]
        found = [(place, rows[key]) for place, key in places if key not in before]
        for key, record in before.items():
            if record is not None and key.startswith(self._prefix):
                place = self._place(record, key)
                if self._is_between(place, begin, last, is_begin_seen=is_seen):
                    found.append((place, record))
        found.sort(key=lambda each: each[0], reverse=self._reverse)
        self._next, self._is_next_seen = last, True
        return [record for _, record in found]

    def _keys(self, begin: RecordPosition | None) -> Iterator[str]:
        if self._by_creation:
            return self._rows.iter_keys_by_creation(start=begin, reverse=self._reverse)
        start = None if begin is None else begin[1]
        return self._rows.iter_keys(prefix=self._prefix, start=start, reverse=self._reverse)

    def _place(self, record: R, key: str) -> RecordPosition:
        return (record.create_index, key) if self._by_creation else (0, key)  # type: ignore[attr-defined]

    def _is_between(
        self, place: RecordPosition, begin: RecordPosition | None, last: RecordPosition | None, *, is_begin_seen: bool
    ) -> bool:
        """From `begin` on, without it when it was shown, up to `last` with it."""
        if self._reverse:
            is_after_begin = begin is None or (place < begin if is_begin_seen else place <= begin)
            return is_after_begin and (last is None or place >= last)
        is_after_begin = begin is None or (place > begin if is_begin_seen else place >= begin)
        return is_after_begin and (last is None or place <= last)
