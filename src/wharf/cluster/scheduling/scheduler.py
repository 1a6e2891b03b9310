"""Turns one evaluation into a plan: reconciles the job's groups, places what is missing, and ends the evaluation.

It reads a snapshot and the scheduler cache, and writes nothing.
"""

from collections.abc import Iterable
from operator import attrgetter
from typing import Final

from msgspec.structs import replace

from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.capacity.quotas import get_remaining_quota
from wharf.cluster.scheduling.constraints import (
    estimate_comparison_steps,
    list_group_affinities,
    list_group_constraints,
)
from wharf.cluster.scheduling.feasibility.checker import has_unique_constraints, has_unique_target
from wharf.cluster.scheduling.placement.executor import PlacementExecutor
from wharf.cluster.scheduling.placement.placer import Placer
from wharf.cluster.scheduling.placement.preemption import is_preemption_enabled
from wharf.cluster.scheduling.plans.completion import EvaluationCompletion
from wharf.cluster.scheduling.plans.plan import Plan
from wharf.cluster.scheduling.reconcile.array_group import MIN_STARTED_ELEMENTS, reconcile_array
from wharf.cluster.scheduling.reconcile.classification import find_tainted_nodes
from wharf.cluster.scheduling.reconcile.deployment import (
    find_job_deployments,
    find_stable_version,
    start_deployment,
    update_deployment,
)
from wharf.cluster.scheduling.reconcile.fast_path import is_up_to_date
from wharf.cluster.scheduling.reconcile.input import ReconcileInput
from wharf.cluster.scheduling.reconcile.outcome import GroupOutcome
from wharf.cluster.scheduling.reconcile.replacement_chain import drop_missing_replacements
from wharf.cluster.scheduling.reconcile.service_group import reconcile_group, stop_group
from wharf.cluster.scheduling.reconcile.system_group import reconcile_system_group
from wharf.cluster.scheduling.steps.facts import read_snapshot_run
from wharf.cluster.state import Replica
from wharf.cluster.state.lookups import find_allocation_job, list_elements, read_element_states
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_OF_JOB,
    DEPLOYMENTS_OF_JOB,
    ELEMENTS_OF_GROUP,
    EVALUATIONS,
    JOB_VERSIONS,
    JOBS,
    NODES,
    VERSIONS_OF_JOB,
    ElementPhase,
)
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.deployments import Deployment, DeploymentStatus
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus, SchedulerType
from wharf.contract.model.jobs.constraints import Affinity, Constraint, Operand
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, JobKey
from wharf.contract.model.jobs.plan import DesiredUpdates
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.times import DecisionContext

MAX_SMALL_STEPS: Final = 500
"""The most steps of a small evaluation. A step takes about 10 microseconds."""
GROUP_STEPS: Final = 20
"""The steps that each group takes: to compare it, and to prepare the choice of nodes."""
NODES_PER_STEP: Final = 300
"""How many nodes are scored in one step, because all of them are scored at once."""
STEPS_PER_PLACEMENT: Final = 5
"""The steps of one placement, without its ports. Each port takes one step more."""
NODES_PER_COLUMN_STEP: Final = 10
"""How many nodes have their values read in one step, for a spread or a constraint `distinct_property`."""
NODES_PER_AFFINITY_STEP: Final = 1_500
"""How many nodes are scored in one step by an affinity."""
CONSTRAINTS_PER_STEP: Final = 2
"""How many constraints are prepared in one step, without the comparisons."""


def plan_evaluation(cache: SchedulerCache, snapshot: Replica, evaluation: Evaluation, context: DecisionContext) -> Plan:
    """Return the plan of one evaluation: the changes that bring its job to the desired state, and its final record.

    `cache` must have the state of `snapshot`.
    """
    return _EvaluationPlanner(cache, snapshot, evaluation, context).run()


class _EvaluationPlanner:
    """Builds the plan of one evaluation."""

    def __init__(
        self, cache: SchedulerCache, snapshot: Replica, evaluation: Evaluation, context: DecisionContext
    ) -> None:
        self._cache = cache
        self._snapshot = snapshot
        self._evaluation = evaluation
        self._context = context
        key = (evaluation.namespace, evaluation.job_id)
        self._job = snapshot.get(JOBS, *key)
        job_allocations = _list_relevant_allocations(snapshot, self._job, key)
        self._allocations = sorted(
            drop_missing_replacements(job_allocations, snapshot.get_table_records(ALLOCATIONS).records.__contains__),
            key=attrgetter("create_index", "id"),
        )
        self._deployments = find_job_deployments(self._job, snapshot.list_by_index(DEPLOYMENTS_OF_JOB, *key), context)
        self._tainted_nodes = find_tainted_nodes(self._allocations, lambda node_id: snapshot.get(NODES, node_id))
        self._placer = Placer(cache, snapshot, evaluation, context, self._allocations)
        self._executor = PlacementExecutor(
            cache, self._placer, self._job, evaluation, context, self._deployments.current
        )

    def run(self) -> Plan:
        """Reconcile and place all groups of the job, and return the plan with all changes.

        If the job is stopped or deleted, its allocations are stopped instead.
        """
        job = self._job
        self._mark_stopping_lost()
        outcomes = self._stop_groups(job) if job is None or job.stop else self._reconcile_groups(job)
        deployments, stable_job = self._update_deployments(outcomes)
        return self._build_plan(deployments, stable_job)

    # -- reconciliation ----------------------------------------------------------------------------------------------

    def _build_input(self, job: Job | None) -> ReconcileInput:
        """Return what the reconciliation of each group needs, such as the job, its deployment and lost nodes.

        A deleted job (`None`) is represented by an empty one with the same id.
        """
        evaluation = self._evaluation
        return ReconcileInput(
            job=job if job is not None else Job(id=evaluation.job_id, namespace=evaluation.namespace),
            is_batch=job is not None and job.is_finite,
            evaluation_id=evaluation.id,
            now_ns=self._context.now_ns,
            tainted_nodes=self._tainted_nodes,
            deployment=self._deployments.current,
            find_job_version=self._find_job_version,
            is_evaluation_pending=self._is_evaluation_pending,
            can_update_in_place=self._can_update_in_place,
            find_stable_version=self._find_stable_version,
        )

    def _group_allocations(self) -> dict[str, list[Allocation]]:
        """Return the job's allocations by group name, also those of groups that the job no longer has."""
        by_group: dict[str, list[Allocation]] = {}
        for allocation in self._allocations:
            by_group.setdefault(allocation.task_group, []).append(allocation)
        return by_group

    def _stop_groups(self, job: Job | None) -> list[GroupOutcome]:
        """Stop the allocations of all groups of a stopped or deleted job, and return the outcome for each group."""
        reconcile_input = self._build_input(job)
        groups = {group.name: group for group in job.groups} if job is not None else {}
        outcomes = [
            stop_group(reconcile_input, name, groups.get(name), allocations)
            for name, allocations in self._group_allocations().items()
        ]
        for outcome in outcomes:
            self._executor.apply_outcome(outcome)
        return outcomes

    def _reconcile_groups(self, job: Job) -> list[GroupOutcome]:
        """Compare desired and actual allocations of each group of an active job, and place or stop allocations.

        Allocations of groups that the job no longer has are stopped. Return the outcomes of the current groups.
        """
        reconcile_input, by_group = self._build_input(job), self._group_allocations()
        run = read_snapshot_run(self._snapshot, job) if job.is_run else None
        outcomes = []
        for group in job.groups:
            allocations = by_group.pop(group.name, [])
            if job.runs_on_every_node:
                outcomes.append(self._reconcile_system_group(reconcile_input, job, group, allocations))
                continue
            deployments = (self._deployments.current, self._deployments.previous)
            if group.array is not None:
                if run is None:
                    elements, startable = read_element_states(self._snapshot, job, group.name), None
                else:
                    elements, startable = run.steps[group.name].states, run.select_startable(group.name)
                outcome = reconcile_array(reconcile_input, group, elements, allocations, startable=startable)
            elif is_up_to_date(job, group, allocations, self._tainted_nodes, deployments):
                outcome = GroupOutcome(group.name, update_counts=DesiredUpdates(ignore=group.count), is_complete=True)
            elif group.count:
                outcome = reconcile_group(reconcile_input, group, allocations)
            else:
                outcome = stop_group(reconcile_input, group.name, group, allocations)
            outcomes.append(outcome)
            self._start_deployment(outcome, job)
            self._executor.apply_outcome(outcome)
        for name, allocations in by_group.items():
            self._executor.apply_outcome(stop_group(reconcile_input, name, None, allocations))
        self._executor.finish()
        return outcomes

    def _reconcile_system_group(
        self, reconcile_input: ReconcileInput, job: Job, group: TaskGroup, allocations: list[Allocation]
    ) -> GroupOutcome:
        """Compare desired and actual allocations of a group of a system or sysbatch job, and place or stop allocations.

        Return the outcome. If no node can run the group and it has no allocation, it is recorded as failed.
        """
        fleet = self._cache.fleet
        is_ready = self._cache.feasibility.select_ready_nodes(job)
        ready_nodes = {fleet.get_node(int(row)).id: fleet.get_node(int(row)) for row in is_ready.nonzero()[0]}
        selector = self._placer.get_selector(job, group)
        outcome = reconcile_system_group(
            reconcile_input,
            group,
            allocations,
            eligible=ready_nodes,
            find_node=lambda node_id: self._snapshot.get(NODES, node_id),
            can_run=lambda node: not selector.is_infeasible(node),
        )
        self._start_deployment(outcome, job)
        self._executor.apply_outcome(outcome)
        if outcome.infeasible_count and not outcome.placements and not allocations:
            self._executor.record_infeasible_group(group.name, selector.explain_failure())
        return outcome

    def _find_job_version(self, allocation: Allocation) -> Job | None:
        """Return the job version that the allocation runs, or `None` if it is no longer stored."""
        return find_allocation_job(self._snapshot, allocation)

    def _is_evaluation_pending(self, evaluation_id: str) -> bool:
        """Return whether the evaluation with this id exists and has not been processed yet."""
        evaluation = self._snapshot.get(EVALUATIONS, evaluation_id)
        return evaluation is not None and evaluation.status is EvaluationStatus.PENDING

    def _find_stable_version(self, group: str) -> tuple[Job, str] | None:
        """Return the newest stable job version for this group, and the id of the deployment that rolled it out."""
        key = (self._evaluation.namespace, self._evaluation.job_id)
        return find_stable_version(
            self._snapshot.list_by_index(DEPLOYMENTS_OF_JOB, *key),
            group,
            lambda deployment: self._snapshot.get(JOB_VERSIONS, *key, deployment.job_version),
        )

    def _can_update_in_place(self, allocation: Allocation, group: TaskGroup) -> bool:
        """Return whether the allocation can change to the current job version on its node, without a new placement."""
        job = self._job
        assert job is not None, "a deleted job has no updates"
        return self._placer.can_update_in_place(allocation, job, group)

    def _mark_stopping_lost(self) -> None:
        """Set allocations that are being stopped on down or deleted nodes to lost: no node will report their end."""
        for allocation in self._allocations if self._tainted_nodes else ():
            node = self._tainted_nodes.get(allocation.node_id)
            is_gone = allocation.node_id in self._tainted_nodes and (node is None or node.status is NodeStatus.DOWN)
            if is_gone and allocation.is_occupying and allocation.is_server_terminal:
                self._executor.changes.update_allocation(allocation, client_status=ClientStatus.LOST, is_stop=True)

    # -- deployments -------------------------------------------------------------------------------------------------

    def _start_deployment(self, outcome: GroupOutcome, job: Job) -> None:
        """Start a deployment if the outcome of a group requires a new one, or add the group to the one just started.

        The executor adds new allocations of the group to this deployment.
        """
        group_state, deployment = outcome.deployment, self._executor.deployment
        if not outcome.is_new_deployment or group_state is None:
            return
        if deployment is None:
            deployment = start_deployment(job, self._evaluation, {outcome.name: group_state}, self._context)
        elif deployment.create_index == WRITE_INDEX:
            groups = {**(deployment.task_groups or {}), outcome.name: group_state}
            deployment = replace(deployment, task_groups=groups)
        self._executor.deployment = deployment

    def _update_deployments(self, outcomes: Iterable[GroupOutcome]) -> tuple[list[Deployment], Job | None]:
        """Return the new and changed deployments to write, and the job version that has become stable or `None`.

        The current version becomes stable when its deployment succeeds.
        """
        changed = [] if self._deployments.cancelled is None else [self._deployments.cancelled]
        deployment = self._executor.deployment
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

    # -- result ------------------------------------------------------------------------------------------------------

    def _build_plan(self, deployments: list[Deployment], stable: Job | None) -> Plan:
        """Return the plan: all changes and placements of this evaluation, its final record and its follow-ups.

        Also stores the deployment id, the parent job with a child limit and the node class eligibility in the
        result. `stable` is the job version that has become stable, or `None`.
        """
        job, result, changes = self._job, self._executor.result, self._executor.changes
        result.deployment_id = self._executor.deployment.id if self._executor.deployment is not None else ""
        if job is not None:
            result.has_unique_constraints = has_unique_constraints(job)
            result.waits_behind = job.parent_id if self._placer.admission.child_limit_reason else ""
            result.lock_waits = self._placer.admission.list_lock_waits(job, result.queued_counts, result.failed_groups)
            if result.failed_groups and not result.has_unique_constraints:
                result.class_eligibility = self._compute_eligibility(job, result.failed_groups)
        completion = EvaluationCompletion(self._snapshot, self._evaluation, self._context)
        completed, follow_ups = completion.complete_evaluation(result, changes)
        return Plan(
            self._evaluation,
            job,
            tuple(changes.changes.values()),
            {node_id: tuple(placed) for node_id, placed in result.placements.items()},
            completed,
            follow_ups,
            deployments=tuple(deployments),
            stable_job=stable,
            all_at_once=job is not None and job.all_at_once,
        )

    def _compute_eligibility(self, job: Job, failed_groups: Iterable[str]) -> dict[str, bool] | None:
        """Return by computed node class whether its nodes could run one of these groups if they had free resources.

        Nodes of one class satisfy the same constraints. Return `None` if no node has a class.
        """
        groups_by_name = {group.name: group for group in job.groups}
        groups = [groups_by_name[name] for name in failed_groups if name in groups_by_name]
        return self._cache.feasibility.compute_class_eligibility(job, groups) or None


def is_small_evaluation(cache: SchedulerCache, snapshot: Replica, evaluation: Evaluation) -> bool:
    """Return whether the plan of the evaluation takes a few milliseconds at most, by a rough estimate of its steps.

    The estimate counts what the time depends on: allocations of the job, requested allocations and their ports, groups,
    constraints, affinities, spreads, and nodes where each node is checked on its own.
    """
    key = (evaluation.namespace, evaluation.job_id)
    job = snapshot.get(JOBS, *key)
    existing_count = _count_relevant_allocations(snapshot, job, key)
    if existing_count > MAX_SMALL_STEPS or job is None:
        return existing_count <= MAX_SMALL_STEPS
    node_count = len(cache.fleet)
    steps = existing_count
    if len(job.groups) * GROUP_STEPS > MAX_SMALL_STEPS:
        return False
    is_checked_by_node = (
        job.runs_on_every_node
        or has_unique_constraints(job)
        or is_preemption_enabled(snapshot, job)
        or any(group.volumes for group in job.groups)
    )
    compared_count = node_count if is_checked_by_node else len(cache.fleet.kind_examples)
    for group in job.groups:
        steps += _estimate_comparison_steps(job, group, node_count, compared_count)
        steps += _estimate_column_steps(job, group, node_count)
        # An array begins many elements if it is new, and few later: those are counted with the existing allocations.
        element_count = 0 if group.array is None else min(group.parallel_count, MIN_STARTED_ELEMENTS)
        requested_count = element_count or group.count * (node_count if job.runs_on_every_node else 1)
        steps += GROUP_STEPS + node_count // NODES_PER_STEP
        steps += requested_count * (STEPS_PER_PLACEMENT + _count_ports(group))
        if is_checked_by_node:
            steps += node_count * max(1, 0 if job.runs_on_every_node else group.count)
    return steps <= MAX_SMALL_STEPS


def _list_relevant_allocations(snapshot: Replica, job: Job | None, key: JobKey) -> list[Allocation]:
    """Return the allocations that the evaluation of a job reads: all of them, but of an array only those that count."""
    if job is None or not job.has_arrays:
        return snapshot.list_by_index(ALLOCATIONS_OF_JOB, *key)
    arrays = [group.name for group in job.groups if group.array is not None]
    elements = [allocation for name in arrays for allocation in list_elements(snapshot, job, name)]
    if _has_only_elements(snapshot, job):
        return elements
    others = snapshot.list_by_index(ALLOCATIONS_OF_JOB, *key)
    return [*elements, *(each for each in others if each.task_group not in arrays or not each.array_attempt)]


def _count_relevant_allocations(snapshot: Replica, job: Job | None, key: JobKey) -> int:
    """Return how many allocations `_list_relevant_allocations` reads."""
    if job is None or not _has_only_elements(snapshot, job):
        return snapshot.count_by_index(ALLOCATIONS_OF_JOB, *key)
    return sum(
        snapshot.count_by_index(ELEMENTS_OF_GROUP, *key, job.create_index, group.name, phase)
        for group in job.groups
        for phase in ElementPhase
    )


def _has_only_elements(snapshot: Replica, job: Job) -> bool:
    """Return whether all allocations of the job belong to arrays of its current groups.

    No stored version has another group. Allocations of older versions have stopped long ago.
    """
    arrays = {group.name for group in job.groups if group.array is not None}
    if not arrays:
        return False
    versions = snapshot.list_by_index(VERSIONS_OF_JOB, job.namespace, job.id)
    return all(
        group.array is not None and group.name in arrays for version in (job, *versions) for group in version.groups
    )


def _estimate_comparison_steps(job: Job, group: TaskGroup, node_count: int, compared_count: int) -> int:
    """Return about how many steps it takes to compare values of nodes with the constraints and affinities of the group.

    `compared_count`: the nodes that are compared, if others have the same values.
    """
    affinities = (*(job.affinities or ()), *list_group_affinities(group))
    unique_affinities = [affinity for affinity in affinities if has_unique_target(affinity)]
    comparisons: list[Constraint | Affinity] = [*(job.constraints or ()), *list_group_constraints(group)]
    comparisons += [affinity for affinity in affinities if not has_unique_target(affinity)]
    return estimate_comparison_steps(comparisons, compared_count) + estimate_comparison_steps(
        unique_affinities, node_count
    )


def _estimate_column_steps(job: Job, group: TaskGroup, node_count: int) -> int:
    """Return about how many steps the constraints, affinities and spreads of the group take that use the values of all nodes."""
    constraints = (*(job.constraints or ()), *list_group_constraints(group))
    affinity_count = len(job.affinities or ()) + len(list_group_affinities(group))
    distinct_count = sum(constraint.operand == Operand.DISTINCT_PROPERTY for constraint in constraints)
    spread_count = len(job.spreads or ()) + len(group.spreads or ())
    return (
        len(constraints) // CONSTRAINTS_PER_STEP
        + affinity_count * (1 + node_count // NODES_PER_AFFINITY_STEP)
        + (distinct_count + spread_count) * (1 + node_count // NODES_PER_COLUMN_STEP)
    )


def _count_ports(group: TaskGroup) -> int:
    """Return how many ports an allocation of the group requests."""
    networks = [*(group.networks or ())]
    for task in group.tasks or ():
        if task.resources is not None:
            networks += task.resources.networks or ()
    return sum(len(network.reserved_ports or ()) + len(network.dynamic_ports or ()) for network in networks)


def get_max_plan_attempts(evaluation: Evaluation) -> int:
    """Return after how many attempts without progress to commit a plan the evaluation fails (scheduling.md 6.3)."""
    return 2 if evaluation.type in (SchedulerType.BATCH, SchedulerType.SYSBATCH) else 5


def can_plan_ahead(snapshot: Replica, evaluation: Evaluation) -> bool:
    """Return whether the evaluation may be planned while the plan of another job is being committed.

    It may if other jobs affect it only through free resources. So the result is false for jobs with a quota, preemption,
    a lock or a parent job, and for deleted jobs.
    """
    job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
    if job is None or job.parent_id or is_preemption_enabled(snapshot, job) or any(group.lock for group in job.groups):
        return False
    # Only whether a quota limits the job matters. Its usage is not added up, which takes 160 ms for 100,000 allocations.
    return get_remaining_quota(snapshot, job.namespace, job.region, lambda _snapshot, _quota: {}) is None
