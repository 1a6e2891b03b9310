"""The index of the newest assignment of each node with many allocations. It is found in slices once, then kept up to date."""

from collections.abc import Sequence
from typing import Final, cast

import msgspec

from wharf.cluster.api.index_lists import visit_in_slices
from wharf.cluster.api.results import UnpreparedRead
from wharf.cluster.server.cpu_budget import SlicedWork
from wharf.cluster.state import Replica
from wharf.cluster.state.table import Index
from wharf.cluster.state.table_records import TableRecords
from wharf.cluster.state.tables import ALLOCATIONS, ALLOCATIONS_ON_NODE, UNFINISHED_ALLOCATIONS_ON_NODE
from wharf.cluster.state.watches import RecordChange
from wharf.contract.model.allocations.allocation import Allocation

MAX_REMEMBERED_NODES: Final = 10_000
"""Limits memory, to about 2 MB. A node that was evicted is counted again at its next read."""


class NewestAssignment(msgspec.Struct):
    """The greatest AllocModifyIndex among the allocations of a node."""

    index: int = 0
    """0 without such an allocation."""
    removed_index: int = -1
    """The greatest AllocModifyIndex of the allocations that were removed since the first one was read."""
    is_complete: bool = False
    """Whether all allocations were read."""

    @property
    def is_exact(self) -> bool:
        """Whether an allocation has this index now. Otherwise the newest one may be removed, and the index too high."""
        return self.is_complete and self.index > self.removed_index


class NewestAssignments:
    """The newest assignments of nodes with many allocations, each with and without ended allocations."""

    def __init__(self) -> None:
        self._table_records: TableRecords[Allocation] | None = None
        """The allocations at the last read. A load of the whole state replaces this object and notifies no observer."""
        self._newest: dict[tuple[str, bool], NewestAssignment] = {}
        """By node id and whether ended allocations are left out."""

    def get_index(self, replica: Replica, node_id: str, *, without_ended: bool, must_be_exact: bool) -> int:
        """Return the greatest AllocModifyIndex of the node's allocations; 0 if none is selected.

        Without `must_be_exact`, the index stays when the newest allocation is removed. Raises `UnpreparedRead` if the
        index is not known.
        """
        self._discard_after_load(replica)
        newest = self._newest.get((node_id, without_ended))
        if newest is None or not (newest.is_exact if must_be_exact else newest.is_complete):
            raise UnpreparedRead(lambda work: self._find(replica, node_id, without_ended, work))
        return newest.index

    def _discard_after_load(self, replica: Replica) -> None:
        """Discard all indexes if the replica has loaded the whole state since the last call."""
        records = replica.get_table_records(ALLOCATIONS)
        if self._table_records is not records:
            self._table_records = records
            self._newest.clear()

    async def _find(self, replica: Replica, node_id: str, without_ended: bool, work: SlicedWork) -> None:
        """Find the newest assignment of a node in slices, and remember it."""
        self._discard_after_load(replica)
        replica.watches.add_observer(ALLOCATIONS, self)  # Adding it again has no effect.
        key = (node_id, without_ended)
        newest = self._newest.get(key)
        if newest is None or newest.is_complete:
            newest = self._newest[key] = NewestAssignment()
        # Else another caller is reading the same allocations. Both raise the same index, and so do changes meanwhile.
        found = newest

        def visit(allocation: Allocation) -> None:
            found.index = max(found.index, allocation.alloc_modify_index)

        await visit_in_slices(
            replica, get_assignments_on_node(without_ended=without_ended), node_id, visit=visit, work=work
        )
        found.is_complete = True
        if len(self._newest) > MAX_REMEMBERED_NODES:
            del self._newest[next(iter(self._newest))]

    def on_changes(self, changes: Sequence[RecordChange]) -> None:
        """Update the indexes of the nodes whose allocations have changed."""
        for _, old, new in changes:
            for without_ended in (False, True):
                self._update(
                    cast("Allocation | None", old), cast("Allocation | None", new), without_ended=without_ended
                )

    def _update(self, old: Allocation | None, new: Allocation | None, *, without_ended: bool) -> None:
        """Update the index of the node of one allocation. The node of an allocation never changes."""
        some = new or old
        newest = self._newest.get((some.node_id, without_ended)) if some is not None else None
        if newest is None:
            return
        is_new_selected = new is not None and _is_selected(new, without_ended=without_ended)
        if new is not None and is_new_selected:
            newest.index = max(newest.index, new.alloc_modify_index)
        if old is not None and not (
            new is not None and is_new_selected and new.alloc_modify_index >= old.alloc_modify_index
        ):
            newest.removed_index = max(newest.removed_index, old.alloc_modify_index)


def get_assignments_on_node(*, without_ended: bool) -> Index[Allocation]:
    """Return the index of the assignments of a node: with `without_ended`, without those whose end it has reported."""
    return UNFINISHED_ALLOCATIONS_ON_NODE if without_ended else ALLOCATIONS_ON_NODE


def _is_selected(allocation: Allocation, *, without_ended: bool) -> bool:
    """Return whether the allocation is in the index of assignments."""
    return bool(get_assignments_on_node(without_ended=without_ended).get_value(allocation))
