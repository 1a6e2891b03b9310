"""The share of the fleet that each namespace uses, the measure for fair retries (docs/scheduling.md).

The share is the larger of the CPU share and the memory share. Retry order divides it by the weight of the namespace.
This module only counts.
"""

from collections.abc import Callable

from wharf.cluster.scheduling.resources.usage import Usage
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.resources import AllocatedResources

UsageMeasure = Callable[[AllocatedResources], Usage]
"""Returns the usage of a resource record."""


class NamespaceUsage:
    """CPU and memory of all allocations that occupy a node, by namespace."""

    def __init__(self) -> None:
        self._usage_by_namespace: dict[str, list[int]] = {}

    def apply_change(self, before: Allocation | None, after: Allocation | None, measure: UsageMeasure) -> None:
        """Apply the change of an allocation."""
        was_occupying = before is not None and before.is_occupying
        is_occupying = after is not None and after.is_occupying
        if was_occupying and is_occupying and before.allocated_resources is after.allocated_resources:  # type: ignore[union-attr]
            return  # The two flags imply that both are set, which the type checker cannot see.
        if was_occupying and before is not None:
            self._add(before, -1, measure)
        if is_occupying and after is not None:
            self._add(after, 1, measure)

    def add_usage(
        self, namespace: str, resources: AllocatedResources | None, number: int, measure: UsageMeasure
    ) -> None:
        """Add the usage of `number` allocations with these resources to the namespace; a negative number subtracts."""
        if resources is None:
            return
        usage = measure(resources)
        namespace_usage = self._usage_by_namespace.get(namespace)
        if namespace_usage is None:
            namespace_usage = self._usage_by_namespace[namespace] = [0, 0]
        namespace_usage[0] += number * usage.cpu
        namespace_usage[1] += number * usage.memory_mb

    def _add(self, allocation: Allocation, sign: int, measure: UsageMeasure) -> None:
        """Count the allocation, or remove it with `sign=-1`."""
        self.add_usage(allocation.namespace, allocation.allocated_resources, sign, measure)

    def get_usage(self, namespace: str) -> Usage:
        """Return what the namespace uses."""
        cpu, memory_mb = self._usage_by_namespace.get(namespace, (0, 0))
        return Usage(cpu, memory_mb)


def compute_dominant_share(used: Usage, fleet: Usage) -> float:
    """Return the larger of CPU share and memory share.

    The divisor is at least 1, so that an empty fleet is no error.
    """
    return max(used.cpu / max(1, fleet.cpu), used.memory_mb / max(1, fleet.memory_mb))
