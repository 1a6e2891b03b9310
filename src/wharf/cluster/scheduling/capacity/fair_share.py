"""What part of the fleet each namespace holds, as the log goes: the measure by which waiting work is fair (docs/scheduling.md).

A namespace's share is that of what it holds most of, of the processors or of the memory; divided by its weight, so that one
of weight 3 may hold three times as much before it counts the same. It counts, and decides nothing.
"""

from collections.abc import Callable

from wharf.cluster.scheduling.resources.usage import Usage
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.resources import AllocatedResources

UsageMeasure = Callable[[AllocatedResources], Usage]


class NamespaceUsage:
    """MHz and memory of everything that occupies a node, by namespace."""

    def __init__(self) -> None:
        self._held: dict[str, list[int]] = {}

    def apply_change(self, before: Allocation | None, after: Allocation | None, size_of: UsageMeasure) -> None:
        """An allocation came, changed, or is gone."""
        leaves = before is not None and before.is_occupying
        comes = after is not None and after.is_occupying
        if leaves and comes and before.allocated_resources is after.allocated_resources:  # type: ignore[union-attr]
            return  # Both are there: the two flags say so, which the type checker cannot see.
        if leaves and before is not None:
            self._add(before, -1, size_of)
        if comes and after is not None:
            self._add(after, 1, size_of)

    def add_usage(
        self, namespace: str, resources: AllocatedResources | None, number: int, size_of: UsageMeasure
    ) -> None:
        """So many that hold this each came at once."""
        if resources is None:
            return
        usage = size_of(resources)
        held = self._held.get(namespace)
        if held is None:
            held = self._held[namespace] = [0, 0]
        held[0] += number * usage.cpu
        held[1] += number * usage.memory_mb

    def _add(self, allocation: Allocation, sign: int, size_of: UsageMeasure) -> None:
        self.add_usage(allocation.namespace, allocation.allocated_resources, sign, size_of)

    def get_usage(self, namespace: str) -> Usage:
        cpu, memory_mb = self._held.get(namespace, (0, 0))
        return Usage(cpu, memory_mb)


def compute_dominant_share(held: Usage, fleet: Usage) -> float:
    """The part of the fleet that this is, by what it is most of. Of a fleet that has nothing everything is all."""
    return max(held.cpu / max(1, fleet.cpu), held.memory_mb / max(1, fleet.memory_mb))
