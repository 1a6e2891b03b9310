"""What each namespace uses of its quota, kept as the log goes: so that nobody has to add up a million allocations to place one.

A namespace is counted once, when it is first asked for, and followed from then on; most are never asked for.
"""

from typing import Final

from wharf.model.allocated_resources import AllocatedResources
from wharf.model.allocation import Allocation
from wharf.scheduling.quota import Amounts, amounts_of, used_in
from wharf.state import Replica
from wharf.state.tables import NAMESPACES_WITH_QUOTA

SIZES_KEPT: Final = 4_096


class QuotaUse:
    """Told of each allocation before and after, at the index of the state that it is asked with."""

    def __init__(self) -> None:
        self._by_namespace: dict[str, Amounts] = {}
        self._sizes: dict[int, tuple[AllocatedResources, Amounts]] = {}

    @property
    def counts_anything(self) -> bool:
        """Whether any quota was asked about yet: it is counted from then on."""
        return bool(self._by_namespace)

    def move(self, before: Allocation | None, after: Allocation | None) -> None:
        if not self._by_namespace:
            return
        for allocation, sign in ((before, -1), (after, 1)):
            if allocation is None or not allocation.is_occupying:
                continue
            used = self._by_namespace.get(allocation.namespace)
            if used is not None:
                for name, amount in self._size(allocation.allocated_resources).items():
                    used[name] = used.get(name, 0) + sign * amount

    def of_quota(self, snapshot: Replica, quota_name: str) -> Amounts:
        """What occupies nodes, of all namespaces that name the quota."""
        total: Amounts = {}
        for namespace in snapshot.those_by_key(NAMESPACES_WITH_QUOTA, quota_name):
            used = self._by_namespace.get(namespace.name)
            if used is None:
                used = self._by_namespace[namespace.name] = used_in(snapshot, namespace.name)
            for name, amount in used.items():
                total[name] = total.get(name, 0) + amount
        return total

    def _size(self, resources: AllocatedResources | None) -> Amounts:
        if resources is None:
            return {"count": 1}
        found = self._sizes.get(id(resources))
        if found is None:
            if len(self._sizes) >= SIZES_KEPT:
                self._sizes.clear()
            # Siblings share the object; it is kept beside its size, so that its id stays its own.
            found = self._sizes[id(resources)] = (resources, amounts_of(resources))
        return found[1]
