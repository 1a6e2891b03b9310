"""Placements of all-at-once jobs: they are used only if every placement of the evaluation succeeds (ADR 66)."""

from collections.abc import Iterable

from msgspec.structs import replace

from wharf.cluster.scheduling.plans.completion import EvaluationResult
from wharf.cluster.scheduling.ranking.metrics import build_all_at_once_metric
from wharf.cluster.scheduling.reconcile.outcome import PlacementRequest
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.metrics import AllocMetric


def is_all_at_once(request: PlacementRequest) -> bool:
    """Return whether the placement is new and belongs to an all-at-once job.

    Replacements and system jobs do not wait.
    """
    job = request.job
    return job.all_at_once and request.previous is None and not job.runs_on_every_node


class DeferredPlacements:
    """The placements of an all-at-once job until it is known whether all of them succeed."""

    def __init__(self) -> None:
        self._placed: list[tuple[PlacementRequest, Allocation]] = []
        self._preemptions: list[tuple[PlacementRequest, tuple[Allocation, ...]]] = []
        """For each failed placement, the allocations that would be preempted for it."""

    def add_placements(self, placed: Iterable[tuple[PlacementRequest, Allocation]]) -> None:
        """Add allocations that found a node."""
        self._placed += placed

    def add_preemption(self, request: PlacementRequest, victims: tuple[Allocation, ...]) -> None:
        """Add the victims of a placement that failed. Empty: preemption does not help it."""
        self._preemptions.append((request, victims))

    def settle(self, result: EvaluationResult) -> list[tuple[PlacementRequest, tuple[Allocation, ...]]]:
        """Add the allocations to the result if nothing failed. Otherwise all of them wait.

        Return the preemptions to carry out: those of all failed placements if preemption helps each of them, else none.
        """
        if not result.failed_groups:
            for _, allocation in self._placed:
                result.add_placement(allocation)
            return []
        for request, allocation in self._placed:
            name = request.group.name
            result.queued_counts[name] += 1
            failure = result.failed_groups.get(name)
            result.failed_groups[name] = (
                build_all_at_once_metric(allocation.metrics or AllocMetric())
                if failure is None
                else replace(failure, coalesced_failures=failure.coalesced_failures + 1)
            )
        return self._preemptions if all(victims for _, victims in self._preemptions) else []
