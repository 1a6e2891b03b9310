"""Reads of all records with one index value, such as the allocations of a job: at once if they are few, else in slices."""

from collections.abc import Callable, Hashable, Iterator
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any, Final, TypeVar

import msgspec

from wharf.cluster.api.lists.listing import return_record
from wharf.cluster.api.replies.pieces import LazyList
from wharf.cluster.api.results import RecordList, SlicedValue, get_creation_order
from wharf.cluster.server.cpu_budget import SlicedWork
from wharf.cluster.state import Replica
from wharf.cluster.state.table import Index
from wharf.cluster.state.table_snapshot import IndexSnapshot

R = TypeVar("R", bound=msgspec.Struct)
T = TypeVar("T")

MAX_RECORDS_TOGETHER: Final = 1_000
"""1,000 records are read, sorted and counted in about 2 ms. More are handled in several steps."""
RECORDS_PER_CHECK: Final = 50
"""Records that are read before the CPU time is checked. The search for an access rule takes up to half a millisecond for each
namespace."""


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
    """Return the list of the records with this index value, by default oldest first.

    The other arguments are those of `RecordList`, and which records are selected. Many records are read, selected and sorted in
    slices when the reply is encoded.
    """
    if not has_many_records(replica, index, *value):
        records = sorted(filter(is_selected, replica.list_by_index(index, *value)), key=get_order)
        return RecordList(records, build_view, is_view_small=is_view_small)

    async def build(work: SlicedWork) -> LazyList:
        found: list[R] = []
        await visit_in_slices(replica, index, *value, visit=found.append, work=work)
        records = await _sort_in_slices(found, get_order, work, is_selected)
        return LazyList(lambda: map(build_view, records))

    return SlicedValue(build)


async def visit_in_slices(
    replica: Replica, index: Index[R], *value: Hashable, visit: Callable[[R], object], work: SlicedWork
) -> None:
    """Call `visit` with each record that has this index value now, in arbitrary order, also if it changes meanwhile."""
    snapshot = IndexSnapshot(replica, index, *value)
    work.restart()
    try:
        while records := snapshot.read_next(RECORDS_PER_CHECK):
            for record in records:
                visit(record)
            if work.is_slice_over():
                await work.pause()
    finally:
        snapshot.close()


async def _sort_in_slices(
    records: list[R], get_order: Callable[[R], Any], work: SlicedWork, is_selected: Callable[[R], bool] | None
) -> list[R]:
    """Return the selected records in order."""
    parts: list[list[tuple[Any, R]]] = []
    found: list[tuple[Any, R]] = []
    remaining: Iterator[R] = iter(records)
    while some := list(islice(remaining, RECORDS_PER_CHECK)):
        found += [(get_order(record), record) for record in filter(is_selected, some)]
        if len(found) >= MAX_RECORDS_TOGETHER:
            parts.append(sorted(found, key=itemgetter(0), reverse=True))
            found = []
        if work.is_slice_over():
            await work.pause()
    parts.append(sorted(found, key=itemgetter(0), reverse=True))
    merged = merge(*map(_take_from_end, parts), key=itemgetter(0))
    ordered: list[R] = []
    while entries := list(islice(merged, RECORDS_PER_CHECK)):
        ordered += [record for _, record in entries]
        if work.is_slice_over():
            await work.pause()
    return ordered


def _take_from_end(entries: list[T]) -> Iterator[T]:
    """Yield the entries from last to first and remove them: to release all of them together would take a long step."""
    while entries:
        yield entries.pop()
