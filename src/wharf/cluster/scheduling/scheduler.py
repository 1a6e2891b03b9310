"""Turns one evaluation into a plan: reconciles the job's groups, places what is missing, and ends the evaluation.

It reads a snapshot and the scheduler cache, and writes nothing.
"""

from collections import deque
from collections.abc import Iterable
from operator import attrgetter
from typing import Any, Final

from msgspec.structs import replace

from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.capacity.quotas import get_remaining_quota
from wharf.cluster.scheduling.feasibility.checker import has_unique_constraints
from wharf.cluster.scheduling.feasibility.location import is_in_pool_and_datacenter
from wharf.cluster.scheduling.placement.packing_order import order_groups_for_fleet
from wharf.cluster.scheduling.placement.placer import Placer
from wharf.cluster.scheduling.placement.preemption import is_preemption_enabled
from wharf.cluster.scheduling.plans.allocation_changes import AllocationChanges
from wharf.cluster.scheduling.plans.completion import EvaluationCompletion, EvaluationResult
from wharf.cluster.scheduling.plans.plan import Plan
from wharf.cluster.scheduling.ranking.metrics import build_all_at_once_metric
from wharf.cluster.scheduling.reconcile import service_group, system_group
from wharf.cluster.scheduling.reconcile.classification import find_tainted_nodes
from wharf.cluster.scheduling.reconcile.deployment import find_job_deployments, start_deployment, update_deployment
from wharf.cluster.scheduling.reconcile.fast_path import is_up_to_date
from wharf.cluster.scheduling.reconcile.input import ReconcileInput
from wharf.cluster.scheduling.reconcile.outcome import (
    AllocationStop,
    FollowUp,
    GroupOutcome,
    PlacementRequest,
    ReplacementRequest,
)
from wharf.cluster.scheduling.reconcile.replacement_chain import drop_missing_replacements
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, DEPLOYMENTS_OF_JOB, EVALUATIONS, JOB_VERSIONS, JOBS, NODES
from wharf.contract.model.allocations.allocation import (
    Allocation,
    AllocationStub,
    AllocDeploymentStatus,
    ClientStatus,
    DesiredStatus,
    RescheduleOutcome,
)
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.deployments import Deployment, DeploymentStatus
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus, SchedulerType
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.jobs.plan import DesiredUpdates, PlanAnnotations
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.nodes.node import Node, NodeStatus
from wharf.contract.model.operator.scheduler_configuration import SchedulerAlgorithm
from wharf.contract.model.times import DecisionContext

BATCH_TYPES: Final = (JobType.BATCH, JobType.SYSBATCH)
EVERY_NODE_TYPES: Final = (JobType.SYSTEM, JobType.SYSBATCH)
MIN_BATCH_PLACEMENTS: Final = 8
"""Fewer similar placements than this are placed one by one, which is as fast."""


def plan_evaluation(cache: SchedulerCache, snapshot: Replica, evaluation: Evaluation, context: DecisionContext) -> Plan:
    """Return the plan of one evaluation for the state of snapshot and cache."""
    return _EvaluationPlanner(cache, snapshot, evaluation, context).run()


class _EvaluationPlanner:
    """Plans one evaluation."""

    def __init__(
        self, cache: SchedulerCache, snapshot: Replica, evaluation: Evaluation, context: DecisionContext
    ) -> None:
        self._cache = cache
        self._snapshot = snapshot
        self._evaluation = evaluation
        self._context = context
        key = (evaluation.namespace, evaluation.job_id)
        self._job = snapshot.get(JOBS, *key)
        job_allocations = snapshot.list_by_index(ALLOCATIONS_OF_JOB, *key)
        self._allocations = sorted(
            drop_missing_replacements(snapshot, job_allocations), key=attrgetter("create_index", "id")
        )
        self._deployments_of_job = find_job_deployments(
            self._job, snapshot.list_by_index(DEPLOYMENTS_OF_JOB, *key), context
        )
        self._placer = Placer(cache, snapshot, evaluation, context, self._allocations)
        self._tainted_nodes = find_tainted_nodes(self._allocations, lambda node_id: snapshot.get(NODES, node_id))
        self._changes = AllocationChanges(context.now_ns)
        self._placed: dict[str, list[Allocation]] = {}
        self._failed_groups: dict[str, AllocMetric] = {}
        self._queued_counts: dict[str, int] = {}
        self._update_counts: dict[str, DesiredUpdates] = {}
        self._follow_ups: list[FollowUp] = []
        self._deployment = self._deployments_of_job.current
        self._stopped_victims: list[Allocation] = []
        """Allocations of other jobs that are preempted."""
        self._batch_placements: list[list[PlacementRequest]] = []
        """New placements of the groups of a batch job. They are placed after all groups are reconciled."""
        self._tentative_placements: list[tuple[PlacementRequest, Allocation]] = []
        """Tentative placements of an all-at-once job. They are used only if no placement fails."""
        self._possible_preemptions: list[tuple[PlacementRequest, tuple[Allocation, ...]]] = []
        """For each failed placement of an all-at-once job, the allocations that would be preempted for it."""

    def run(self) -> Plan:
        """Return the plan."""
        job = self._job
        self._mark_stopping_lost()
        if job is None or job.stop:
            outcomes = (
                [
                    service_group.stop_group(
                        self._build_input(job), name, job.find_group(name) if job is not None else None, allocations
                    )
                    for name, allocations in self._group_allocations().items()
                ]
                if self._allocations
                else []
            )
            for outcome in outcomes:
                self._apply_outcome(outcome, job)
        else:
            outcomes = self._reconcile_groups(job)
        deployments, stable_job = self._update_deployments(outcomes)
        return self._build_plan(deployments, stable_job)

    # -- reconciliation ----------------------------------------------------------------------------------------------

    def _build_input(self, job: Job | None) -> ReconcileInput:
        """Return the input of the reconciliation."""
        evaluation = self._evaluation
        return ReconcileInput(
            job=job if job is not None else Job(id=evaluation.job_id, namespace=evaluation.namespace),
            is_batch=job is not None and job.type in BATCH_TYPES,
            evaluation_id=evaluation.id,
            now_ns=self._context.now_ns,
            tainted_nodes=self._tainted_nodes,
            deployment=self._deployments_of_job.current,
            find_job_version=self._find_job_version,
            is_evaluation_pending=self._is_evaluation_pending,
            can_update_in_place=self._can_update_in_place,
            find_stable_version=self._find_stable_version,
        )

    def _group_allocations(self) -> dict[str, list[Allocation]]:
        """Return the job's allocations by group name."""
        by_group: dict[str, list[Allocation]] = {}
        for allocation in self._allocations:
            by_group.setdefault(allocation.task_group, []).append(allocation)
        return by_group

    def _reconcile_groups(self, job: Job) -> list[GroupOutcome]:
        """Reconcile and place all groups of an active job."""
        reconcile_input, by_group = self._build_input(job), self._group_allocations()
        outcomes = []
        for group in job.groups:
            allocations = by_group.pop(group.name, [])
            if job.type in EVERY_NODE_TYPES:
                outcomes.append(self._plan_system_group(reconcile_input, job, group, allocations))
                continue
            deployments = self._deployments_of_job
            if is_up_to_date(job, group, allocations, self._tainted_nodes, (deployments.current, deployments.previous)):
                outcome = GroupOutcome(group.name, update_counts=DesiredUpdates(ignore=group.count), is_complete=True)
            elif group.count:
                outcome = service_group.reconcile_group(reconcile_input, group, allocations)
            else:
                outcome = service_group.stop_group(reconcile_input, group.name, group, allocations)
            outcomes.append(outcome)
            self._start_deployment(outcome, job)
            self._apply_outcome(outcome, job)
        for name, allocations in by_group.items():
            self._apply_outcome(service_group.stop_group(reconcile_input, name, None, allocations), job)
        self._place_mixed_groups(job)
        self._finish_all_at_once()
        return outcomes

    def _start_deployment(self, outcome: GroupOutcome, job: Job) -> None:
        """Start the deployment with the first group that needs one; later groups join it."""
        group_state = outcome.deployment
        if not outcome.is_new_deployment or group_state is None:
            return
        if self._deployment is None:
            self._deployment = start_deployment(job, self._evaluation, {outcome.name: group_state}, self._context)
        elif self._deployment.create_index == WRITE_INDEX:
            groups = {**(self._deployment.task_groups or {}), outcome.name: group_state}
            self._deployment = replace(self._deployment, task_groups=groups)

    def _find_job_version(self, allocation: Allocation) -> Job | None:
        """Return the job version that the allocation runs, or `None`."""
        job = self._snapshot.get(JOB_VERSIONS, allocation.namespace, allocation.job_id, allocation.job_version)
        return job if job is not None and job.create_index == allocation.job_create_index else None

    def _is_evaluation_pending(self, evaluation_id: str) -> bool:
        """Return whether the evaluation is still pending."""
        evaluation = self._snapshot.get(EVALUATIONS, evaluation_id)
        return evaluation is not None and evaluation.status is EvaluationStatus.PENDING

    def _find_stable_version(self, group: str) -> tuple[Job, str] | None:
        """Return the newest stable version of the group and its deployment's id.

        A version is stable if its deployment was promoted or needed no canaries.
        """
        key = (self._evaluation.namespace, self._evaluation.job_id)
        deployments = sorted(
            self._snapshot.list_by_index(DEPLOYMENTS_OF_JOB, *key),
            key=lambda deployment: deployment.create_index,
            reverse=True,
        )
        for deployment in deployments:
            group_state = (deployment.task_groups or {}).get(group)
            if group_state is not None and (group_state.promoted or not group_state.desired_canaries):
                job = self._snapshot.get(JOB_VERSIONS, *key, deployment.job_version)
                if job is not None and job.create_index == deployment.job_create_index:
                    return job, deployment.id
        return None

    def _can_update_in_place(self, allocation: Allocation, group: TaskGroup) -> bool:
        """Return whether the allocation can be updated on its node with its current resources."""
        job = self._job
        assert job is not None, "a deleted job has no updates"
        return self._placer.can_update_in_place(allocation, job, group)

    def _mark_stopping_lost(self) -> None:
        """Mark stopping allocations on lost nodes as lost: nobody will report that they have ended."""
        for allocation in self._allocations if self._tainted_nodes else ():
            node = self._tainted_nodes.get(allocation.node_id)
            is_gone = allocation.node_id in self._tainted_nodes and (node is None or node.status is NodeStatus.DOWN)
            is_open = allocation.client_status in (ClientStatus.RUNNING, ClientStatus.PENDING)
            if is_gone and is_open and allocation.is_server_terminal:
                self._changes.update_allocation(allocation, client_status=ClientStatus.LOST, is_stop=True)

    # -- placement ---------------------------------------------------------------------------------------------------

    def _apply_outcome(self, outcome: GroupOutcome, job: Job | None) -> None:
        """Apply the outcome of a group: stops, updates, placements and replacements."""
        self._update_counts[outcome.name] = outcome.update_counts
        for allocation in (*outcome.disconnects, *outcome.reconnects):
            self._changes.set_base(allocation)
        for stop in outcome.stops:  # This includes reconnected allocations that are surplus.
            self._stop_allocation(stop)
        self._follow_ups += outcome.follow_ups
        if job is None:
            return
        for allocation in outcome.in_place_updates:
            self._update_in_place(allocation, job)
        self._queued_counts.setdefault(outcome.name, 0)
        placements = _sort_by_urgency(outcome.placements)
        if self._should_mix_groups(job) and placements and _is_similar(placements[0], placements[-1]):
            self._batch_placements.append(placements)
        else:
            self._place_all(placements)
        for replacement in outcome.replacements:
            self._replace_allocation(replacement)

    def _plan_system_group(
        self, reconcile_input: ReconcileInput, job: Job, group: TaskGroup, allocations: list[Allocation]
    ) -> GroupOutcome:
        """Reconcile and place a group of a system or sysbatch job."""
        fleet = self._cache.fleet
        is_ready = self._cache.feasibility.select_ready_nodes(job)
        ready_nodes = {fleet.get_node(int(row)).id: fleet.get_node(int(row)) for row in is_ready.nonzero()[0]}
        nodes = system_group.SystemNodes(
            eligible=ready_nodes,
            is_in_pool_and_datacenter=lambda node: is_in_pool_and_datacenter(job, node),
            find_node=lambda node_id: self._snapshot.get(NODES, node_id),
            can_run=lambda node: not selector.is_infeasible(node),
        )
        selector = self._placer.get_selector(job, group)
        result = system_group.reconcile_system_group(reconcile_input, group, allocations, nodes)
        outcome = result.outcome
        self._start_deployment(outcome, job)
        self._apply_outcome(outcome, job)
        for request in result.placements:
            self._place_on_node(request.node, request.placement)
        for node, replacement in result.replacements:
            is_new_version = replacement.placement.job is job
            # The new version cannot run on this node, so the old one only stops.
            if is_new_version and selector.is_infeasible(node):
                self._stop_allocation(replacement.stop)
            else:
                self._replace_allocation(replacement, node)
        if result.infeasible_count and not result.placements and not allocations:
            self._failed_groups.setdefault(group.name, selector.explain_failure())
            self._queued_counts[group.name] += 1
        return outcome

    def _should_mix_groups(self, job: Job) -> bool:
        """Return whether placements of several groups may be mixed to fill nodes.

        For services the first group comes first.
        """
        is_of_several = job.type == JobType.BATCH and len(job.groups) > 1
        return is_of_several and self._placer.get_rules(job).algorithm == SchedulerAlgorithm.BINPACK

    def _place_mixed_groups(self, job: Job) -> None:
        """Place the collected placements of a batch job in packing order."""
        queues = [deque(placements) for placements in self._batch_placements]
        groups = [placements[0].group for placements in self._batch_placements]
        counts = [len(placements) for placements in queues]
        for index, count in order_groups_for_fleet(
            self._cache.fleet, self._cache.feasibility.select_ready_nodes(job), groups, counts
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
        for placement in placements[: batch_start + 1]:
            self._place_request(placement)
        batch = placements[batch_start + 1 :]
        placed = self._placer.place_batch(batch, **self._get_deployment_fields(batch[0])) if batch else []
        if batch and _is_all_at_once(batch[0]):
            self._tentative_placements += zip(batch, placed, strict=False)
        else:
            for allocation in placed:
                self._placed.setdefault(allocation.node_id, []).append(allocation)
        for placement in batch[len(placed) :]:
            self._place_request(placement)

    def _record_placement(self, placement: PlacementRequest, allocation: Allocation) -> None:
        """Record the placed allocation, tentatively for all-at-once jobs."""
        if _is_all_at_once(placement):
            self._tentative_placements.append((placement, allocation))
        else:
            self._placed.setdefault(allocation.node_id, []).append(allocation)

    def _finish_all_at_once(self) -> None:
        """Place the tentative allocations if nothing failed. Otherwise all of them wait.

        Preempt for the failed ones only if preemption helps all of them.
        """
        if not self._failed_groups:
            for _, allocation in self._tentative_placements:
                self._placed.setdefault(allocation.node_id, []).append(allocation)
            return
        for placement, allocation in self._tentative_placements:
            name = placement.group.name
            self._queued_counts[name] += 1
            failure = self._failed_groups.get(name)
            self._failed_groups[name] = (
                build_all_at_once_metric(allocation.metrics or AllocMetric())
                if failure is None
                else replace(failure, coalesced_failures=failure.coalesced_failures + 1)
            )
        if all(victims for _, victims in self._possible_preemptions):
            for placement, victims in self._possible_preemptions:
                self._stop_victims(placement, victims)

    def _get_deployment_fields(self, placement: PlacementRequest) -> dict[str, Any]:
        """Return the fields that the active deployment adds to an allocation that is not a canary."""
        deployment = self._deployment
        if deployment is None or placement.deployment_id or not self._is_in_deployment(deployment, placement):
            return {}
        return {"deployment_id": deployment.id, "deployment_status": AllocDeploymentStatus(modify_index=WRITE_INDEX)}

    def _place_request(self, placement: PlacementRequest) -> None:
        """Place on the best node, or record the failure."""
        allocation = self._placer.place_allocation(placement)
        if allocation is None:
            self._preempt(placement)
            self._record_failure(placement, self._placer.get_failure_metric(placement))
        else:
            self._accept_placement(placement, allocation)

    def _place_on_node(self, node: Node, placement: PlacementRequest) -> None:
        """Place on this node, or record the failure."""
        allocation = self._placer.place_on_node(node, placement)
        if allocation is None:
            self._preempt(placement, node)
            self._record_failure(placement, self._placer.get_node_failure_metric(node, placement))
        else:
            self._accept_placement(placement, allocation)

    def _preempt(self, placement: PlacementRequest, node: Node | None = None) -> None:
        """Preempt allocations for a failed placement. The blocked evaluation places it after the victims have ended."""
        victims = self._placer.find_victims(placement, node)
        if _is_all_at_once(placement):
            self._possible_preemptions.append((placement, victims))
        elif victims:
            self._stop_victims(placement, victims)

    def _stop_victims(self, placement: PlacementRequest, victims: Iterable[Allocation]) -> None:
        """Stop the victims and record the id of the future allocation that replaces them."""
        preemptor_id, name = self._context.new_id(), placement.group.name
        for victim in victims:
            evicted = self._changes.update_allocation(
                victim,
                is_stop=True,
                desired_status=DesiredStatus.EVICT,
                desired_description=f"Preempted by alloc ID {preemptor_id}",
                preempted_by_allocation=preemptor_id,
            )
            self._stopped_victims.append(evicted)
            updates = self._update_counts[name]
            self._update_counts[name] = replace(updates, preemptions=updates.preemptions + 1)

    def _accept_placement(self, placement: PlacementRequest, allocation: Allocation) -> None:
        """Record a successful placement: add it to the deployment, stop and link what it replaces."""
        deployment = self._deployment
        if deployment is not None and not allocation.deployment_id and self._is_in_deployment(deployment, placement):
            status = allocation.deployment_status or AllocDeploymentStatus(modify_index=WRITE_INDEX)
            allocation = replace(allocation, deployment_id=deployment.id, deployment_status=status)
        self._record_placement(placement, allocation)
        previous = placement.previous
        if placement.stop is not None:
            self._stop_allocation(placement.stop)
        if previous is not None:
            outcome = RescheduleOutcome.OK if placement.is_reschedule else None
            self._changes.link_replacement(previous, next_allocation=allocation.id, outcome=outcome)

    def _is_in_deployment(self, deployment: Deployment, placement: PlacementRequest) -> bool:
        """Return whether the placement belongs to this active deployment."""
        is_version = (placement.job.version, placement.job.create_index) == (
            deployment.job_version,
            deployment.job_create_index,
        )
        return is_version and deployment.is_active and placement.group.name in (deployment.task_groups or {})

    def _record_failure(self, placement: PlacementRequest, metric: AllocMetric | None) -> None:
        """Record a failed placement."""
        name = placement.group.name
        self._queued_counts[name] = self._queued_counts.get(name, 0) + 1
        if metric is not None:
            self._failed_groups[name] = metric
        if placement.previous is not None and placement.is_reschedule:
            self._changes.link_replacement(placement.previous, outcome=RescheduleOutcome.NO_PLACEMENT)

    def _replace_allocation(self, replacement: ReplacementRequest, node: Node | None = None) -> None:
        """Place the new version first. Without capacity, stop the old allocation only if its node then has enough."""
        placement, old_allocation = replacement.placement, replacement.stop.allocation
        self._placer.exclude_allocation(old_allocation)
        placer = self._placer
        allocation = placer.place_allocation(placement) if node is None else placer.place_on_node(node, placement)
        if allocation is not None:
            self._stop_allocation(replacement.stop)
            self._accept_placement(placement, allocation)
            return
        self._placer.restore_allocation(old_allocation)
        if self._placer.can_fit_after_stop(old_allocation, placement.job, placement.group):
            self._stop_allocation(replacement.stop)
        metric = (
            self._placer.get_failure_metric(placement)
            if node is None
            else self._placer.get_node_failure_metric(node, placement)
        )
        self._record_failure(placement, metric)

    def _stop_allocation(self, stop: AllocationStop) -> None:
        """Stop an allocation."""
        self._placer.exclude_allocation(stop.allocation)
        self._changes.stop_allocation(stop)

    def _update_in_place(self, allocation: Allocation, job: Job) -> None:
        """Make the allocation part of the new version on its node."""
        fields: dict[str, Any] = {
            "job_version": job.version,
            "job_create_index": job.create_index,
            "eval_id": self._evaluation.id,
        }
        deployment = self._deployment
        if deployment is not None and deployment.is_active and allocation.task_group in (deployment.task_groups or {}):
            fields["deployment_id"] = deployment.id
            fields["deployment_status"] = AllocDeploymentStatus(modify_index=WRITE_INDEX)
        self._changes.update_allocation(allocation, **fields)

    # -- result ------------------------------------------------------------------------------------------------------

    def _update_deployments(self, outcomes: Iterable[GroupOutcome]) -> tuple[list[Deployment], Job | None]:
        """Return the deployments to write, and the job version that has become stable."""
        changed = [] if self._deployments_of_job.cancelled is None else [self._deployments_of_job.cancelled]
        deployment = self._deployment
        if deployment is None:
            return changed, None
        if deployment.create_index == WRITE_INDEX:
            return [*changed, deployment], None
        updated = update_deployment(deployment, outcomes, self._context)
        if updated is None:
            return changed, None
        is_successful = updated.status is DeploymentStatus.SUCCESSFUL
        stable_job = self._job if is_successful and self._job is not None and not self._job.stable else None
        return [*changed, updated], stable_job

    def _compute_eligibility(self) -> dict[str, bool] | None:
        """Return which node classes could run the failed groups."""
        job = self._job
        assert job is not None, "a deleted job has no placements"
        failed = [group for name in self._failed_groups if (group := job.find_group(name)) is not None]
        return self._cache.feasibility.compute_class_eligibility(job, failed) or None

    def _build_plan(self, deployments: list[Deployment], stable: Job | None) -> Plan:
        """Build the plan and the end of the evaluation."""
        annotations = PlanAnnotations(
            desired_tg_updates=self._update_counts or None,
            preempted_allocs=tuple(map(_make_stub, self._stopped_victims)) or None,
        )
        has_unique = self._job is not None and has_unique_constraints(self._job)
        result = EvaluationResult(
            failed_groups=self._failed_groups,
            queued_counts=self._queued_counts,
            annotations=annotations,
            deployment_id=self._deployment.id if self._deployment is not None else "",
            follow_ups=tuple(self._follow_ups),
            has_unique_constraints=has_unique,
            has_placements=bool(self._placed),
            waits_behind=self._job.parent_id if self._job is not None and self._placer.child_limit_reason else "",
            class_eligibility=self._compute_eligibility() if self._failed_groups and not has_unique else None,
        )
        completed = EvaluationCompletion(self._snapshot, self._evaluation, self._context).complete_evaluation(result)
        allocation_by_id = (
            {allocation.id: allocation for allocation in self._allocations} if completed.follow_up_ids else {}
        )
        for allocation_id, evaluation_id in completed.follow_up_ids.items():
            self._changes.update_allocation(allocation_by_id[allocation_id], followup_eval_id=evaluation_id)
        return Plan(
            self._evaluation,
            self._job,
            tuple(self._changes.changes.values()),
            {node_id: tuple(placed) for node_id, placed in self._placed.items()},
            completed.evaluation,
            completed.follow_ups,
            deployments=tuple(deployments),
            stable_job=stable,
            all_at_once=self._job is not None and self._job.all_at_once,
        )


def _make_stub(allocation: Allocation) -> AllocationStub:
    """Return the list item of a preempted allocation."""
    names = ("id", "name", "namespace", "node_id", "node_name", "job_id", "job_version", "task_group", "client_status")
    return AllocationStub(
        **{name: getattr(allocation, name) for name in names},
        desired_status=allocation.desired_status,
        desired_description=allocation.desired_description,
        preempted_by_allocation=allocation.preempted_by_allocation,
    )


def get_max_plan_attempts(evaluation: Evaluation) -> int:
    """Return how many attempts without progress a plan gets before the evaluation fails (scheduling.md 6.3)."""
    return 2 if evaluation.type in (SchedulerType.BATCH, SchedulerType.SYSBATCH) else 5


def _is_similar(first: PlacementRequest, second: PlacementRequest) -> bool:
    """Return whether both are new placements of the same group and deployment that differ only in name."""
    is_new = first.previous is None and first.stop is None and not first.is_canary and not first.is_reschedule
    return (
        is_new
        and first.job is second.job
        and first.group is second.group
        and first.deployment_id == second.deployment_id
    )


def _is_all_at_once(placement: PlacementRequest) -> bool:
    """Return whether the placement is new and belongs to an all-at-once job.

    Replacements and system jobs do not wait.
    """
    job = placement.job
    return job.all_at_once and placement.previous is None and job.type not in EVERY_NODE_TYPES


def _sort_by_urgency(placements: Iterable[PlacementRequest]) -> list[PlacementRequest]:
    """Return canaries first, then replacements, then new placements."""
    return sorted(placements, key=lambda placement: (not placement.is_canary, placement.previous is None))


def plan_evaluation_from_state(snapshot: Replica, evaluation: Evaluation, context: DecisionContext) -> Plan:
    """Return the plan of one evaluation without a cache, for dry runs and tests."""
    return plan_evaluation(SchedulerCache.from_snapshot(snapshot), snapshot, evaluation, context)


def can_plan_ahead(snapshot: Replica, evaluation: Evaluation) -> bool:
    """Return whether the evaluation depends on other jobs only through free resources.

    Then it can be planned while another plan is being committed. False for jobs with a quota, preemption or a parent.
    """
    job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
    if job is None or job.parent_id or is_preemption_enabled(snapshot, job):
        return False
    return get_remaining_quota(snapshot, job.namespace, job.region) is None
