"""What allocations use, computed once for allocations that share their resources."""

from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.resource_usage import Usage, get_allocation_usage


class AllocationUsages:
    """The usages of allocations. Siblings share one record of resources, which is added up once."""

    def __init__(self) -> None:
        self._usages: dict[int, tuple[object, Usage]] = {}
        """By the identity of shared resources, with the resources themselves, which must not be freed meanwhile."""

    def get(self, allocation: Allocation) -> Usage:
        """Return what an allocation uses."""
        resources = allocation.allocated_resources
        known = self._usages.get(id(resources))
        if known is None:
            known = self._usages[id(resources)] = (resources, get_allocation_usage(allocation))
        return known[1]
