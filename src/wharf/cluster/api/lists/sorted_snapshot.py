"""Records of a table in an order that the table does not have, sorted in slices as they were at one time."""

from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

import msgspec

from wharf.cluster.server.cpu_budget import SlicedWork
from wharf.cluster.state.table_snapshot import TableSnapshot

R = TypeVar("R", bound=msgspec.Struct)
T = TypeVar("T")

MAX_SORTED_TOGETHER: Final = 1_000
"""Records that are sorted in one step, which takes about a millisecond."""
RECORDS_PER_CHECK: Final = 500
"""Records whose positions are computed before the CPU time is checked: about half a millisecond."""
RELEASED_PER_CHECK: Final = 10
"""Sorted parts that are released before the CPU time is checked: about half a millisecond."""


class SortedSnapshot(Generic[R]):
    """The records of a snapshot, sorted by position. Call `sort`, then `read_next` until it returns nothing, then `release`.

    Parts of the records are sorted, and merged only as far as they are read: the first page of a long list is cheap.
    """

    def __init__(
        self,
        snapshot: TableSnapshot[R],
        build_entries: Callable[[list[R]], list[tuple[Any, R]]],
        iterate_records: Callable[[Iterable[tuple[Any, R]]], Iterator[R]],
        *,
        reverse: bool,
        records_per_check: int = 0,
    ) -> None:
        """`build_entries` returns pairs of position and record, for those of the records that belong to the list.
        `iterate_records` returns the records of sorted pairs. `records_per_check`: if positions take long to compute, how many are
        computed in one step; 0: the usual number.
        """
        self._records_per_check = records_per_check or RECORDS_PER_CHECK
        self._snapshot = snapshot
        self._build_entries = build_entries
        self._iterate_records = iterate_records
        self._reverse = reverse
        self._parts: list[list[tuple[Any, R]]] = []
        self._records: Iterator[R] = iter(())

    async def sort(self, work: SlicedWork) -> None:
        """Read and sort the records in slices. Other tasks run in between."""
        entries: list[tuple[Any, R]] = []
        try:
            while records := self._snapshot.read_next(self._records_per_check):
                entries += self._build_entries(records)
                if len(entries) >= MAX_SORTED_TOGETHER:
                    self._add_part(entries)
                    entries = []
                if work.is_slice_over():
                    await work.pause()
        finally:
            self.close()
        self._add_part(entries)
        merged = merge(*map(take_from_end, self._parts), key=itemgetter(0), reverse=self._reverse)
        self._records = self._iterate_records(merged)

    def _add_part(self, entries: list[tuple[Any, R]]) -> None:
        """Sort these entries. The next record is the last one."""
        self._parts.append(sorted(entries, key=itemgetter(0), reverse=not self._reverse))

    def read_next(self, max_records: int) -> list[R]:
        """Return further records. An empty list is the end."""
        return list(islice(self._records, max_records))

    async def release(self, work: SlicedWork) -> None:
        """Release the records that were not read, in slices: all of them together would take a long step."""
        self._records = iter(())
        while self._parts:
            del self._parts[-RELEASED_PER_CHECK:]
            if work.is_slice_over():
                await work.pause()

    def close(self) -> None:
        """Stop observing changes of the table. Closing twice is allowed."""
        self._snapshot.close()


def take_from_end(entries: list[T]) -> Iterator[T]:
    """Yield the entries from last to first and remove them: to release all of them together would take a long step."""
    while entries:
        yield entries.pop()
