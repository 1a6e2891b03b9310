"""The order in which surplus allocations of a group are stopped (scheduling.md 5.6)."""

from collections.abc import Mapping

from wharf.cluster.scheduling.reconcile.names import parse_index
from wharf.contract.model.allocations.allocation import Allocation

AllocationsById = dict[str, Allocation]
"""Allocations by id, in order of creation."""


def order_surplus(
    known: AllocationsById, migrating: AllocationsById, canaries: Mapping[str, Allocation], *, is_canarying: bool
) -> list[tuple[bool, str]]:
    """Return allocation ids in the order in which surplus is stopped, each with whether it is migrating.

    An id may occur twice. First come allocations that share a name with a promoted canary, then migrating ones, then
    duplicates of a name, then the highest indexes.
    """
    order: list[tuple[bool, str]] = []
    if not is_canarying and canaries:
        taken = {canary.name for canary in canaries.values()}
        order += [(False, key) for key, allocation in known.items() if key not in canaries and allocation.name in taken]
    order += [(True, key) for key in _sort_by_index(migrating)]
    order += [(False, key) for key in _list_duplicates(known)]
    order += [(False, key) for key in _sort_by_index(known)]
    return order


def _list_duplicates(allocations: AllocationsById) -> list[str]:
    """Return all but one allocation of each name. The oldest allocation of the newest version is left out."""
    best: dict[str, str] = {}
    for key, allocation in allocations.items():
        best_key = best.get(allocation.name)
        if best_key is None or allocations[best_key].job_version < allocation.job_version:
            best[allocation.name] = key
    return [key for key, allocation in reversed(allocations.items()) if best[allocation.name] != key]


def _sort_by_index(allocations: AllocationsById) -> list[str]:
    """Return the ids by descending index. Of one name the newest is first."""
    newest_first = reversed(allocations)
    return sorted(newest_first, key=lambda key: parse_index(allocations[key].name), reverse=True)
