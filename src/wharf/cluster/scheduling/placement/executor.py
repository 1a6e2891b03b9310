"""Carries out what reconciliation decided for the groups of one evaluation: stops, updates, placements, preemption.

It collects the result of the evaluation. What a group needs is decided in `reconcile`. The placer chooses the nodes.
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
    """Carries out what reconciliation decided for each group of a job, and collects the changes of the evaluation.

    `apply_outcome` is called for each group, then `finish` once.
    """

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
        """Changes of existing allocations."""
        self.result = EvaluationResult()
        """New allocations, failed groups and follow-up evaluations."""
        self._batch_placements: list[list[PlacementRequest]] = []
        """New placements of the groups of a batch job. They are placed after all groups are reconciled."""
        self._deferred = DeferredPlacements()

    def apply_outcome(self, outcome: GroupOutcome) -> None:
        """Carry out the outcome of reconciling one group: its stops, updates, placements and replacements.

        Changed records of disconnected and reconnected allocations, and follow-up evaluations, are collected. New
        allocations of a batch job with several groups may be placed only in `finish`. If the job is deleted, nothing is
        updated or placed.
        """
        job, result = self._job, self.result
        result.update_counts[outcome.name] = outcome.update_counts
        for allocation in (*outcome.disconnects, *outcome.reconnects):
            self.changes.set_base(allocation)
        for stop in outcome.stops:  # This includes reconnected allocations that are surplus.
            self._stop_allocation(stop)
        result.follow_ups += outcome.follow_ups
        result.has_more_elements = result.has_more_elements or outcome.has_more_elements
        if job is None:
            return
        for allocation in outcome.in_place_updates:
            self._update_in_place(allocation, job)
        result.queued_counts.setdefault(outcome.name, 0)
        placements = outcome.placements
        if self._should_mix_groups(job) and placements and _is_similar(placements[0], placements[-1]):
            self._batch_placements.append(placements)
        else:
            self._place_requests(placements)
        for replacement in outcome.replacements:
            self._replace_allocation(replacement)

    def finish(self) -> None:
        """Place the requests that waited until all groups were reconciled, and decide on all-at-once placements.

        If an all-at-once job does not fit, but preemption would help every failed placement, stop the victims.
        """
        self._place_mixed_groups()
        for request, victims in self._deferred.settle(self.result):
            self._stop_victims(request, victims)

    # -- several placements ------------------------------------------------------------------------------------------

    def _should_mix_groups(self, job: Job) -> bool:
        """Return whether allocations of different groups are placed in mixed order, so that they fill nodes better.

        True for batch jobs with several groups and bin packing. Others are placed group by group, in the order of the
        job.
        """
        has_several_groups = job.type == JobType.BATCH and len(job.groups) > 1
        return has_several_groups and self._placer.get_rules(job).algorithm == SchedulerAlgorithm.BINPACK

    def _place_mixed_groups(self) -> None:
        """Place the collected requests of a batch job, group by group in steps, in the order that fills nodes best."""
        if not self._batch_placements or self._job is None:
            return
        queues = [deque(placements) for placements in self._batch_placements]
        groups = [placements[0].group for placements in self._batch_placements]
        counts = [len(placements) for placements in queues]
        for index, count in order_groups_for_fleet(
            self._cache.fleet, self._cache.feasibility.select_ready_nodes(self._job), groups, counts
        ):
            self._place_requests([queues[index].popleft() for _ in range(count)])

    def _place_requests(self, placements: list[PlacementRequest]) -> None:
        """Place all requests. Requests at the end that differ only in name are placed as a batch, which is faster.

        The first of them is placed alone, because the batch copies its metric and resources. So are requests that the
        batch could not place.
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
        for number, request in enumerate(batch[len(placed) :], start=len(placed) + 1):
            if not self._place_request(request) and request.array_attempt:
                # The other elements would fail for the same reason, and may be a thousand.
                self.result.queued_counts[request.group.name] += len(batch) - number
                break

    # -- one placement -----------------------------------------------------------------------------------------------

    def _place_request(self, request: PlacementRequest) -> bool:
        """Place one allocation, and return whether a node takes it. If none does, try preemption and record the failure."""
        allocation = self._placer.place_allocation(request)
        if allocation is None:
            self._preempt(request)
            self._record_failure(request)
            return False
        self._accept_placement(request, allocation)
        return True

    def _replace_allocation(self, request: PlacementRequest) -> None:
        """Replace an allocation by one of the new version: place the new one, then stop the old one.

        If the request names a node that can never run the new version, only stop the old allocation. If no node has
        capacity, record the failure; if the new version would fit on the old node after the stop, also stop the old
        allocation, so that a later evaluation can place the new one.
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
        """Record a new allocation: add it to the active deployment and to the result, and stop what it replaces.

        The allocation of an all-at-once job is held back in `_deferred` instead. A previous allocation is linked to the
        new one.
        """
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
        """Record a failed placement: count it as queued, and store the reason in the failed groups.

        If it was a reschedule, the previous allocation records that it found no node.
        """
        name, metric = request.group.name, self._placer.get_failure_metric(request)
        queued_counts = self.result.queued_counts
        queued_counts[name] = queued_counts.get(name, 0) + 1
        if metric is not None:
            self.result.failed_groups[name] = metric
        if request.previous is not None and request.is_reschedule:
            self.changes.link_replacement(request.previous, outcome=RescheduleOutcome.NO_PLACEMENT)

    def record_infeasible_group(self, group: str, metric: AllocMetric) -> None:
        """Record that no node can run this group of a system job: the metric says why.

        One allocation counts as queued.
        """
        self.result.failed_groups.setdefault(group, metric)
        self.result.queued_counts[group] += 1

    def _get_deployment_fields(self, request: PlacementRequest) -> dict[str, Any]:
        """Return the allocation fields by which a new allocation joins the active deployment (its id, unknown health).

        The result is empty if there is no active deployment or the request does not belong to it.
        """
        deployment = self.deployment
        if deployment is None or request.deployment_id or not _is_in_deployment(deployment, request):
            return {}
        return {"deployment_id": deployment.id, "deployment_status": AllocDeploymentStatus(modify_index=WRITE_INDEX)}

    # -- changes of existing allocations -----------------------------------------------------------------------------

    def _stop_allocation(self, stop: AllocationStop) -> None:
        """Record that the allocation stops. It no longer affects the scores of nodes for new placements of the job."""
        self._placer.exclude_allocation(stop.allocation)
        self.changes.stop_allocation(stop)

    def _update_in_place(self, allocation: Allocation, job: Job) -> None:
        """Change the allocation's record to the current job version without a restart, and to the active deployment."""
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
        """Find the allocations to preempt for a failed placement (its victims), and stop them if there are any.

        Nothing is placed now: the blocked evaluation places the request after the victims have ended. For an
        all-at-once job the victims are not stopped yet, but stored until all placements were tried.
        """
        victims = self._placer.find_victims(request)
        if is_all_at_once(request):
            self._deferred.add_preemption(request, victims)
        elif victims:
            self._stop_victims(request, victims)

    def _stop_victims(self, request: PlacementRequest, victims: Iterable[Allocation]) -> None:
        """Evict the victims of a failed placement, and count them as preemptions of its group.

        Each victim records the new id that the allocation of the request will get when it is placed.
        """
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
    """Return whether both requests are new placements of one group, job version and deployment.

    They then differ only in name. Neither replaces an allocation, is a canary or requires a certain node. `second` is
    checked only for its job, group and deployment.
    """
    is_new = first.previous is None and first.stop is None and not first.is_canary and not first.is_reschedule
    return (
        is_new
        and first.node is None
        and first.job is second.job
        and first.group is second.group
        and first.deployment_id == second.deployment_id
    )


def _is_in_deployment(deployment: Deployment, request: PlacementRequest) -> bool:
    """Return whether the deployment is active and rolls out the job version and group of the request."""
    job = request.job
    is_version = (job.version, job.create_index) == (deployment.job_version, deployment.job_create_index)
    return is_version and deployment.is_active and request.group.name in (deployment.task_groups or {})
