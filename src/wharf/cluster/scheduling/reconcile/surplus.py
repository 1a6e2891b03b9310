"""Who goes first where a group has more than it is to have (scheduling.md 5.6)."""

from collections.abc import Mapping

from wharf.cluster.scheduling.reconcile.names import parse_index
from wharf.contract.model.allocations.allocation import Allocation

AllocationsById = dict[str, Allocation]
"""By id, in order of creation."""


def order_surplus(
    known: AllocationsById, migrating: AllocationsById, canaries: Mapping[str, Allocation], *, is_canarying: bool
) -> list[tuple[bool, str]]:
    """Ids, and whether each is of those that migrate; one may be named twice. Whoever stands in the way of a promoted canary,
    then what leaves anyway, then namesakes, then the highest indexes.
    """
    order: list[tuple[bool, str]] = []
    if not is_canarying and canaries:
        taken = {canary.name for canary in canaries.values()}
        order += [(False, key) for key, each in known.items() if key not in canaries and each.name in taken]
    order += [(True, key) for key in _highest_first(migrating)]
    order += [(False, key) for key in _namesakes(known)]
    order += [(False, key) for key in _highest_first(known)]
    return order


def _namesakes(allocations: AllocationsById) -> list[str]:
    """Those whose name another has too: all but one of each, which is of the newest version and the oldest of that."""
    best: dict[str, str] = {}
    for key, each in allocations.items():
        standing = best.get(each.name)
        if standing is None or allocations[standing].job_version < each.job_version:
            best[each.name] = key
    return [key for key, each in reversed(allocations.items()) if best[each.name] != key]


def _highest_first(allocations: AllocationsById) -> list[str]:
    """By index; of one name, the newest first."""
    newest_first = reversed(allocations)
    return sorted(newest_first, key=lambda key: parse_index(allocations[key].name), reverse=True)
