"""Carries out what reconciliation decided for the groups of one evaluation: stops, updates, placements, preemption.

It collects the result of the evaluation. What a group needs is decided in `reconcile`, nodes are chosen by the placer.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from msgspec.structs import replace

from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.placement.all_or_nothing import DeferredPlacements, is_all_at_once
from wharf.cluster.scheduling.placement.packing_order import order_groups_for_fleet
from wharf.cluster.scheduling.placement.placer import Placer
from wharf.cluster.scheduling.plans.allocation_changes import AllocationChanges
from wharf.cluster.scheduling.plans.completion import EvaluationResult
from wharf.cluster.scheduling.reconcile.outcome import AllocationStop, GroupOutcome, PlacementRequest
from wharf.contract.model.allocations.allocation import (
    Allocation,
    AllocDeploymentStatus,
    DesiredStatus,
    RescheduleOutcome,
)
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.operator.scheduler_configuration import SchedulerAlgorithm
from wharf.contract.model.times import DecisionContext

MIN_BATCH_PLACEMENTS: Final = 8
"""Fewer similar placements than this are placed one by one, which is as fast."""


class PlacementExecutor:
    """Carries out the outcomes of the groups, one after the other, and collects the result."""

    def __init__(
        self,
        cache: SchedulerCache,
        placer: Placer,
        job: Job | None,
        evaluation: Evaluation,
        context: DecisionContext,
        deployment: Deployment | None,
    ) -> None:
        self._cache = cache
        self._placer = placer
        self._job = job
        self._evaluation = evaluation
        self._context = context
        self.deployment = deployment
        """The job's deployment, which new allocations join. It may start with the outcome of a group."""
        self.changes = AllocationChanges(context.now_ns)
        self.result = EvaluationResult()
        self._batch_placements: list[list[PlacementRequest]] = []
        """New placements of the groups of a batch job. They are placed after all groups are reconciled."""
        self._deferred = DeferredPlacements()

    def apply_outcome(self, outcome: GroupOutcome) -> None:
        """Apply the outcome of a group: stops, updates, placements and replacements."""
        job, result = self._job, self.result
        result.update_counts[outcome.name] = outcome.update_counts
        for allocation in (*outcome.disconnects, *outcome.reconnects):
            self.changes.set_base(allocation)
        for stop in outcome.stops:  # This includes reconnected allocations that are surplus.
            self._stop_allocation(stop)
        result.follow_ups += outcome.follow_ups
        if job is None:
            return
        for allocation in outcome.in_place_updates:
            self._update_in_place(allocation, job)
        result.queued_counts.setdefault(outcome.name, 0)
        placements = outcome.placements
        if self._should_mix_groups(job) and placements and _is_similar(placements[0], placements[-1]):
            self._batch_placements.append(placements)
        else:
            self._place_all(placements)
        for replacement in outcome.replacements:
            self._replace_allocation(replacement)

    def finish(self) -> None:
        """Place the requests that waited until all groups were reconciled."""
        self._place_mixed_groups()
        for request, victims in self._deferred.settle(self.result):
            self._stop_victims(request, victims)

    # -- several placements ------------------------------------------------------------------------------------------

    def _should_mix_groups(self, job: Job) -> bool:
        """Return whether placements of several groups may be mixed to fill nodes.

        Services are placed group by group, in the order of the job.
        """
        has_several_groups = job.type == JobType.BATCH and len(job.groups) > 1
        return has_several_groups and self._placer.get_rules(job).algorithm == SchedulerAlgorithm.BINPACK

    def _place_mixed_groups(self) -> None:
        """Place the collected placements of a batch job in packing order."""
        if not self._batch_placements or self._job is None:
            return
        queues = [deque(placements) for placements in self._batch_placements]
        groups = [placements[0].group for placements in self._batch_placements]
        counts = [len(placements) for placements in queues]
        for index, count in order_groups_for_fleet(
            self._cache.fleet, self._cache.feasibility.select_ready_nodes(self._job), groups, counts
        ):
            self._place_all([queues[index].popleft() for _ in range(count)])

    def _place_all(self, placements: list[PlacementRequest]) -> None:
        """Place the requests, equal ones at the end as a batch.

        The batch starts after the first equal request, which is placed alone like all others.
        """
        batch_start = len(placements)
        while batch_start and _is_similar(placements[batch_start - 1], placements[-1]):
            batch_start -= 1
        if len(placements) - batch_start < MIN_BATCH_PLACEMENTS:
            batch_start = len(placements)
        for request in placements[: batch_start + 1]:
            self._place_request(request)
        batch = placements[batch_start + 1 :]
        placed = self._placer.place_batch(batch, **self._get_deployment_fields(batch[0])) if batch else []
        if batch and is_all_at_once(batch[0]):
            self._deferred.add_placements(zip(batch, placed, strict=False))
        else:
            for allocation in placed:
                self.result.add_placement(allocation)
        for request in batch[len(placed) :]:
            self._place_request(request)

    # -- one placement -----------------------------------------------------------------------------------------------

    def _place_request(self, request: PlacementRequest) -> None:
        """Place the request, or record the failure."""
        allocation = self._placer.place_allocation(request)
        if allocation is None:
            self._preempt(request)
            self._record_failure(request)
        else:
            self._accept_placement(request, allocation)

    def _replace_allocation(self, request: PlacementRequest) -> None:
        """Place the new version, then stop the old allocation; record a failure if no node has capacity.

        The old allocation is stopped without a successor if its node can never run the new version, or if the
        new version fits there after the stop.
        """
        stop, node, placer = request.stop, request.node, self._placer
        assert stop is not None, "a replacement stops the old allocation"
        if node is not None and request.job is self._job and placer.is_infeasible(request, node):
            self._stop_allocation(stop)  # The new version cannot run on this node.
            return
        placer.exclude_allocation(stop.allocation)
        allocation = placer.place_allocation(request)
        if allocation is not None:
            self._accept_placement(request, allocation)
            return
        placer.restore_allocation(stop.allocation)
        if placer.can_fit_after_stop(stop.allocation, request.job, request.group):
            self._stop_allocation(stop)
        self._record_failure(request)

    def _accept_placement(self, request: PlacementRequest, allocation: Allocation) -> None:
        """Record a successful placement: add it to the deployment, stop and link what it replaces."""
        deployment = self.deployment
        if deployment is not None and not allocation.deployment_id and _is_in_deployment(deployment, request):
            status = allocation.deployment_status or AllocDeploymentStatus(modify_index=WRITE_INDEX)
            allocation = replace(allocation, deployment_id=deployment.id, deployment_status=status)
        if is_all_at_once(request):
            self._deferred.add_placements([(request, allocation)])
        else:
            self.result.add_placement(allocation)
        if request.stop is not None:
            self._stop_allocation(request.stop)
        if request.previous is not None:
            outcome = RescheduleOutcome.OK if request.is_reschedule else None
            self.changes.link_replacement(request.previous, next_allocation=allocation.id, outcome=outcome)

    def _record_failure(self, request: PlacementRequest) -> None:
        """Record a failed placement and why it failed."""
        name, metric = request.group.name, self._placer.get_failure_metric(request)
        queued_counts = self.result.queued_counts
        queued_counts[name] = queued_counts.get(name, 0) + 1
        if metric is not None:
            self.result.failed_groups[name] = metric
        if request.previous is not None and request.is_reschedule:
            self.changes.link_replacement(request.previous, outcome=RescheduleOutcome.NO_PLACEMENT)

    def record_infeasible_group(self, group: str, metric: AllocMetric) -> None:
        """Record that no node of a system job can run the group."""
        self.result.failed_groups.setdefault(group, metric)
        self.result.queued_counts[group] += 1

    def _get_deployment_fields(self, request: PlacementRequest) -> dict[str, Any]:
        """Return the fields that the active deployment adds to an allocation that is not a canary."""
        deployment = self.deployment
        if deployment is None or request.deployment_id or not _is_in_deployment(deployment, request):
            return {}
        return {"deployment_id": deployment.id, "deployment_status": AllocDeploymentStatus(modify_index=WRITE_INDEX)}

    # -- changes of existing allocations -----------------------------------------------------------------------------

    def _stop_allocation(self, stop: AllocationStop) -> None:
        """Stop an allocation."""
        self._placer.exclude_allocation(stop.allocation)
        self.changes.stop_allocation(stop)

    def _update_in_place(self, allocation: Allocation, job: Job) -> None:
        """Make the allocation part of the new version on its node."""
        fields: dict[str, Any] = {
            "job_version": job.version,
            "job_create_index": job.create_index,
            "eval_id": self._evaluation.id,
        }
        deployment = self.deployment
        if deployment is not None and deployment.is_active and allocation.task_group in (deployment.task_groups or {}):
            fields["deployment_id"] = deployment.id
            fields["deployment_status"] = AllocDeploymentStatus(modify_index=WRITE_INDEX)
        self.changes.update_allocation(allocation, **fields)

    def _preempt(self, request: PlacementRequest) -> None:
        """Find the allocations to preempt for a failed placement, and stop them if there are any.

        Nothing is placed now: the blocked evaluation places the request after the victims have ended. For an
        all-at-once job the victims are stored until all placements were tried.
        """
        victims = self._placer.find_victims(request)
        if is_all_at_once(request):
            self._deferred.add_preemption(request, victims)
        elif victims:
            self._stop_victims(request, victims)

    def _stop_victims(self, request: PlacementRequest, victims: Iterable[Allocation]) -> None:
        """Stop the victims and record the id of the future allocation that replaces them."""
        preemptor_id, name, result = self._context.new_id(), request.group.name, self.result
        for victim in victims:
            evicted = self.changes.update_allocation(
                victim,
                is_stop=True,
                desired_status=DesiredStatus.EVICT,
                desired_description=f"Preempted by alloc ID {preemptor_id}",
                preempted_by_allocation=preemptor_id,
            )
            result.victims.append(evicted)
            updates = result.update_counts[name]
            result.update_counts[name] = replace(updates, preemptions=updates.preemptions + 1)


def _is_similar(first: PlacementRequest, second: PlacementRequest) -> bool:
    """Return whether both are new placements of the same group and deployment that differ only in name."""
    is_new = first.previous is None and first.stop is None and not first.is_canary and not first.is_reschedule
    return (
        is_new
        and first.node is None
        and first.job is second.job
        and first.group is second.group
        and first.deployment_id == second.deployment_id
    )


def _is_in_deployment(deployment: Deployment, request: PlacementRequest) -> bool:
    """Return whether the placement belongs to this active deployment."""
    job = request.job
    is_version = (job.version, job.create_index) == (deployment.job_version, deployment.job_create_index)
    return is_version and deployment.is_active and request.group.name in (deployment.task_groups or {})
