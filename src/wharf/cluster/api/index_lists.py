"""Reads of all records with one index value, such as the allocations of a job: at once if they are few, else in slices."""

from collections.abc import Callable, Hashable
from heapq import heappush, heapreplace, merge
from itertools import islice
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

import msgspec

from wharf.cluster.api.lists.listing import return_record
from wharf.cluster.api.lists.sorted_snapshot import MAX_SORTED_TOGETHER, take_from_end
from wharf.cluster.api.replies.pieces import LazyList
from wharf.cluster.api.results import RecordList, SlicedValue, get_creation_order
from wharf.cluster.server.cpu_budget import SlicedWork
from wharf.cluster.state import Replica
from wharf.cluster.state.table import Index
from wharf.cluster.state.table_snapshot import IndexSnapshot

R = TypeVar("R", bound=msgspec.Struct)
T = TypeVar("T")

MAX_RECORDS_TOGETHER: Final = MAX_SORTED_TOGETHER
"""Records that are read, sorted or counted in one step, which takes about 2 ms. More take several steps."""
RECORDS_PER_CHECK: Final = 50
"""Records that are read before the CPU time is checked: to find the access rule of a namespace takes up to 0.5 ms."""


def has_many_records(replica: Replica, index: Index[Any], *value: Hashable) -> bool:
    """Return whether the records with this index value must be read in slices."""
    return replica.count_by_index(index, *value) > MAX_RECORDS_TOGETHER


def build_index_list(
    replica: Replica,
    index: Index[R],
    *value: Hashable,
    is_selected: Callable[[R], bool] | None = None,
    get_order: Callable[[R], Any] = get_creation_order,
    build_view: Callable[[R], object] = return_record,
    is_view_small: bool = False,
) -> RecordList | SlicedValue:
    """Return the list of the records with this index value that `is_selected` accepts, by default oldest first.

    `build_view` and `is_view_small` are those of `RecordList`. Many records are read, selected and sorted in slices when the
    reply is encoded.
    """
    if not has_many_records(replica, index, *value):
        records = sorted(filter(is_selected, replica.list_by_index(index, *value)), key=get_order)
        return RecordList(records, build_view, is_view_small=is_view_small)

    async def build(work: SlicedWork) -> LazyList:
        records = await read_in_slices(replica, index, *value, is_selected=is_selected, get_order=get_order, work=work)
        return LazyList(lambda: map(build_view, records))

    return SlicedValue(build)


async def read_in_slices(
    replica: Replica,
    index: Index[R],
    *value: Hashable,
    is_selected: Callable[[R], bool] | None = None,
    get_order: Callable[[R], Any] = get_creation_order,
    work: SlicedWork,
) -> list[R]:
    """Return the records that have this index value now and that `is_selected` accepts, by default oldest first."""
    entries: list[tuple[Any, R]] = []

    def add(record: R) -> None:
        if is_selected is None or is_selected(record):
            entries.append((get_order(record), record))

    await visit_in_slices(replica, index, *value, visit=add, work=work)
    return await sort_in_slices(entries, work)


async def find_newest_in_slices(
    replica: Replica,
    index: Index[R],
    *value: Hashable,
    is_selected: Callable[[R], bool] | None = None,
    work: SlicedWork,
) -> R | None:
    """Return the newest record that has this index value now and that `is_selected` accepts, or `None`."""
    newest: R | None = None

    def compare(record: R) -> None:
        nonlocal newest
        if (is_selected is None or is_selected(record)) and (
            newest is None or get_creation_order(record) > get_creation_order(newest)
        ):
            newest = record

    await visit_in_slices(replica, index, *value, visit=compare, work=work)
    return newest


async def read_newest_in_slices(
    replica: Replica,
    index: Index[R],
    *value: Hashable,
    limit: int,
    is_selected: Callable[[R], bool] | None = None,
    work: SlicedWork,
) -> list[R]:
    """Return at most `limit` of the newest records that have this index value now and that `is_selected` accepts.

    The newest is the first.
    """
    newest = NewestRecords[R](limit)

    def keep(record: R) -> None:
        if newest.may_contain(record) and (is_selected is None or is_selected(record)):
            newest.add(record)

    await visit_in_slices(replica, index, *value, visit=keep, work=work, prefers_new=True)
    return newest.take_sorted()


class NewestRecords(Generic[R]):
    """Collects the newest of many records."""

    __slots__ = ("_heap", "_limit", "_oldest_index")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._heap: list[tuple[Any, R]] = []  # The oldest one is the first.
        self._oldest_index = 0
        """Records that were created before this index are too old."""

    def may_contain(self, record: Any) -> bool:
        """Return whether a record may be one of the newest. Nearly all of 100,000 are not, so this test is quick."""
        return bool(record.create_index >= self._oldest_index)

    def add(self, record: R) -> None:
        """Collect a record if it is one of the newest."""
        entry = (get_creation_order(record), record)
        if len(self._heap) < self._limit:
            heappush(self._heap, entry)
        elif entry[0] > self._heap[0][0]:
            heapreplace(self._heap, entry)
        if len(self._heap) == self._limit:
            self._oldest_index = self._heap[0][0][0]

    def take_sorted(self) -> list[R]:
        """Return the collected records, the newest first."""
        return [record for _, record in sorted(self._heap, key=itemgetter(0), reverse=True)]


async def visit_in_slices(
    replica: Replica,
    index: Index[R],
    *value: Hashable,
    visit: Callable[[R], object],
    work: SlicedWork,
    prefers_new: bool = False,
) -> None:
    """Call `visit` with each record that has this index value now, in arbitrary order, also if it changes meanwhile."""
    snapshot = IndexSnapshot(replica, index, *value, prefers_new=prefers_new)
    work.restart()
    try:
        while records := snapshot.read_next(RECORDS_PER_CHECK):
            for record in records:
                visit(record)
            if work.is_slice_over():
                await work.pause()
    finally:
        snapshot.close()


async def sort_in_slices(entries: list[tuple[Any, T]], work: SlicedWork) -> list[T]:
    """Return the records of these entries in the order of their keys. The entries are removed."""
    parts: list[list[tuple[Any, T]]] = []
    while entries:
        parts.append(sorted(entries[-MAX_RECORDS_TOGETHER:], key=itemgetter(0), reverse=True))
        del entries[-MAX_RECORDS_TOGETHER:]
        if work.is_slice_over():
            await work.pause()
    merged = merge(*map(take_from_end, parts), key=itemgetter(0))
    records: list[T] = []
    while some := list(islice(merged, RECORDS_PER_CHECK)):
        records += [record for _, record in some]
        if work.is_slice_over():
            await work.pause()
    return records
