"""Placements of all-at-once jobs: they are used only if every placement of the evaluation succeeds (ADR 66)."""

from collections.abc import Iterable

from msgspec.structs import replace

from wharf.cluster.scheduling.plans.completion import EvaluationResult
from wharf.cluster.scheduling.ranking.metrics import build_all_at_once_metric
from wharf.cluster.scheduling.reconcile.outcome import PlacementRequest
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.metrics import AllocMetric


def is_all_at_once(request: PlacementRequest) -> bool:
    """Return whether the placement must wait until all placements of its all-at-once job have succeeded.

    Replacements and placements of system jobs do not wait.
    """
    job = request.job
    return job.all_at_once and request.previous is None and not job.runs_on_every_node


class DeferredPlacements:
    """Holds back the placements of an all-at-once job until it is known whether all of them succeed."""

    def __init__(self) -> None:
        self._placed: list[tuple[PlacementRequest, Allocation]] = []
        self._preemptions: list[tuple[PlacementRequest, tuple[Allocation, ...]]] = []
        """Each failed placement with the allocations that would be preempted for it.

        Empty: preemption does not help.
        """

    def add_placements(self, placed: Iterable[tuple[PlacementRequest, Allocation]]) -> None:
        """Add successful placements: each request with its allocation."""
        self._placed += placed

    def add_preemption(self, request: PlacementRequest, victims: tuple[Allocation, ...]) -> None:
        """Add a failed placement with the allocations that could be preempted for it (`victims`).

        Empty: preemption does not help.
        """
        self._preemptions.append((request, victims))

    def settle(self, result: EvaluationResult) -> list[tuple[PlacementRequest, tuple[Allocation, ...]]]:
        """Add all placed allocations to `result` if no group failed. Otherwise count them there as queued and failed.

        Return the preemptions that the caller must carry out: each failed placement with its victims if preemption
        helps every failed placement, else an empty list.
        """
        if not result.failed_groups:
            for _, allocation in self._placed:
                result.add_placement(allocation)
            return []
        for request, allocation in self._placed:
            name = request.group.name
            result.queued_counts[name] += 1
            failure_metric = result.failed_groups.get(name)
            result.failed_groups[name] = (
                build_all_at_once_metric(allocation.metrics or AllocMetric())
                if failure_metric is None
                else replace(failure_metric, coalesced_failures=failure_metric.coalesced_failures + 1)
            )
        return self._preemptions if all(victims for _, victims in self._preemptions) else []
