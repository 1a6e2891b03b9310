"""The share of the fleet that each namespace uses, the measure for fair retries (docs/scheduling.md).

The share is the larger of the CPU share and the memory share. Retry order divides it by the weight of the namespace.
This module only counts.
"""

from collections.abc import Callable

from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.resources import AllocatedResources
from wharf.contract.model.resource_usage import Usage

UsageMeasure = Callable[[AllocatedResources], Usage]
"""Returns the CPU, memory and disk that a resource record uses."""


def list_usage_changes(before: Allocation | None, after: Allocation | None) -> list[tuple[Allocation, int]]:
    """Return the records whose resources a change frees, each with -1, and those whose resources it occupies, with 1.

    `before` is `None` for a new allocation, `after` for a deleted one. Empty if the same resources stay in use.
    """
    old = before if before is not None and before.is_occupying else None
    new = after if after is not None and after.is_occupying else None
    if old is not None and new is not None and old.allocated_resources is new.allocated_resources:
        return []
    return [(allocation, sign) for allocation, sign in ((old, -1), (new, 1)) if allocation is not None]


class NamespaceUsage:
    """Counts for each namespace the CPU and memory of its allocations.

    An allocation counts until its node reports that it has ended (`is_occupying`).
    """

    def __init__(self) -> None:
        self._usage_by_namespace: dict[str, list[int]] = {}
        """By namespace, the CPU in MHz and the memory in MB."""

    def apply_change(self, before: Allocation | None, after: Allocation | None, measure: UsageMeasure) -> None:
        """Add, subtract or replace the usage of an allocation whose record changes from `before` to `after`.

        `before` is `None` for a new allocation, `after` for a deleted one. `measure` returns the usage of a resource
        record.
        """
        for allocation, sign in list_usage_changes(before, after):
            self.add_usage(allocation.namespace, allocation.allocated_resources, sign, measure)

    def add_usage(
        self, namespace: str, resources: AllocatedResources | None, count: int, measure: UsageMeasure
    ) -> None:
        """Add the usage of `count` allocations with these resources to the namespace; a negative count subtracts it."""
        if resources is None:
            return
        usage = measure(resources)
        namespace_usage = self._usage_by_namespace.get(namespace)
        if namespace_usage is None:
            namespace_usage = self._usage_by_namespace[namespace] = [0, 0]
        namespace_usage[0] += count * usage.cpu
        namespace_usage[1] += count * usage.memory_mb

    def get_usage(self, namespace: str) -> Usage:
        """Return the CPU and memory that the namespace uses. Disk is not counted and always 0."""
        cpu, memory_mb = self._usage_by_namespace.get(namespace, (0, 0))
        return Usage(cpu, memory_mb)


def compute_dominant_share(used: Usage, fleet_capacity: Usage) -> float:
    """Return the share of the fleet's capacity that is used: the larger of the CPU share and the memory share.

    A capacity of 0 counts as 1, so that an empty fleet is no error.
    """
    return max(used.cpu / max(1, fleet_capacity.cpu), used.memory_mb / max(1, fleet_capacity.memory_mb))
