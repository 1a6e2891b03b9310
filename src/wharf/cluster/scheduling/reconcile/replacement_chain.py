"""Follows replacements from one allocation to the next, and ignores links to replacements that were never placed.

A stopped allocation names its replacement before that is placed. If the plan is not committed completely, the id refers
to an allocation that does not exist. This module changes no stored record.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property

from msgspec.structs import replace

from wharf.contract.model.allocations.allocation import Allocation


def drop_missing_replacements(allocations: Iterable[Allocation], exists: Callable[[str], bool]) -> list[Allocation]:
    """Return the allocations, with `next_allocation` cleared on active ones whose replacement does not exist.

    Otherwise the scheduler would wait for such a replacement forever. A replacement may also be missing because it was
    garbage-collected after another one took over. So the link is kept on terminal allocations, and on those that share
    their name with another active allocation. `exists` returns whether an allocation with this id exists.
    """
    job_allocations = list(allocations)
    dangling = [
        allocation
        for allocation in job_allocations
        if allocation.next_allocation and not allocation.is_terminal and not exists(allocation.next_allocation)
    ]
    if not dangling:
        return job_allocations
    dangling_ids = {allocation.id for allocation in dangling}
    used_names = {
        (allocation.task_group, allocation.name)
        for allocation in job_allocations
        if not allocation.is_terminal and allocation.id not in dangling_ids
    }
    ids_to_clear = {
        allocation.id for allocation in dangling if (allocation.task_group, allocation.name) not in used_names
    }
    return [
        replace(allocation, next_allocation="") if allocation.id in ids_to_clear else allocation
        for allocation in job_allocations
    ]


class ReplacementChain:
    """Finds the replacement of an allocation, the replacement's replacement, and so on.

    Both allocations of a step name each other, so the chain can be followed if one in between was garbage-collected.
    """

    def __init__(self, by_id: Mapping[str, Allocation]) -> None:
        self._by_id = by_id

    def iter_replacements(self, original: Allocation) -> Iterator[Allocation]:
        """Yield the replacements of the allocation, direct and indirect, each once."""
        visited = {original.id}
        pending_ids = [original.id, original.next_allocation]
        while pending_ids:
            allocation_id = pending_ids.pop()
            if not allocation_id:
                continue
            named = self._by_id.get(allocation_id)
            for replacement in (
                *self._replacements_by_original.get(allocation_id, ()),
                *((named,) if named is not None else ()),
            ):
                if replacement.id not in visited:
                    visited.add(replacement.id)
                    yield replacement
                    pending_ids += [replacement.next_allocation, replacement.id]

    @cached_property
    def _replacements_by_original(self) -> dict[str, list[Allocation]]:
        """The replacements of each allocation, by the id of the allocation that they replace."""
        replacements: dict[str, list[Allocation]] = {}
        for allocation in self._by_id.values():
            if allocation.previous_allocation:
                replacements.setdefault(allocation.previous_allocation, []).append(allocation)
        return replacements
