"""One evaluation from snapshot to plan: what should differ, which nodes take what is missing, and how it ends.

One evaluation on a state for which nobody keeps a fleet: dry runs on imagined states, and tests.

Which evaluations can be decided without knowing how another job's plan, that is on its way, will end.
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
from wharf.cluster.scheduling.reconcile import service_group as of_group
from wharf.cluster.scheduling.reconcile import system_group
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
"""Fewer are placed one by one as fast."""


def plan_evaluation(cache: SchedulerCache, snapshot: Replica, evaluation: Evaluation, moment: DecisionContext) -> Plan:
    """The plan of one evaluation, for the state as the snapshot and the ground have it."""
    return _Schedule(cache, snapshot, evaluation, moment).run()


class _Schedule:
    def __init__(
        self, ground: SchedulerCache, snapshot: Replica, evaluation: Evaluation, moment: DecisionContext
    ) -> None:
        self._ground = ground
        self._snapshot = snapshot
        self._evaluation = evaluation
        self._moment = moment
        key = (evaluation.namespace, evaluation.job_id)
        self._job = snapshot.get(JOBS, *key)
        everyone = snapshot.list_by_index(ALLOCATIONS_OF_JOB, *key)
        self._allocations = sorted(drop_missing_replacements(snapshot, everyone), key=attrgetter("create_index", "id"))
        self._rollout = find_job_deployments(self._job, snapshot.list_by_index(DEPLOYMENTS_OF_JOB, *key), moment)
        self._allotment = Placer(ground, snapshot, evaluation, moment, self._allocations)
        self._tainted = find_tainted_nodes(self._allocations, lambda node_id: snapshot.get(NODES, node_id))
        self._changing = AllocationChanges(moment.now_ns)
        self._placed: dict[str, list[Allocation]] = {}
        self._failed: dict[str, AllocMetric] = {}
        self._queued: dict[str, int] = {}
        self._updates: dict[str, DesiredUpdates] = {}
        self._later: list[FollowUp] = []
        self._deployment = self._rollout.current
        self._evicted: list[Allocation] = []
        """Allocations of other jobs that must make room."""
        self._together: list[list[PlacementRequest]] = []
        """New work of the groups of a batch job: it is placed when all of it is known."""
        self._held_back: list[tuple[PlacementRequest, Allocation]] = []
        """New work that begins all at once: it is placed if nothing of it failed."""
        self._would_go: list[tuple[PlacementRequest, tuple[Allocation, ...]]] = []
        """For each of those that failed, who would make room for it."""

    def run(self) -> Plan:
        job = self._job
        self._lose_what_was_stopped()
        if job is None or job.stop:
            outcomes = [
                of_group.stop_group(self._sight(job), name, job.find_group(name) if job is not None else None, those)
                for name, those in self._by_group().items()
            ] if self._allocations else []  # fmt: skip
            for outcome in outcomes:
                self._carry_out(outcome, job)
        else:
            outcomes = self._reconcile(job)
        deployments, stable = self._deployments(outcomes)
        return self._plan(deployments, stable)

    # -- what should differ ----------------------------------------------------------------------------------------

    def _sight(self, job: Job | None) -> ReconcileInput:
        evaluation = self._evaluation
        return ReconcileInput(
            job=job if job is not None else Job(id=evaluation.job_id, namespace=evaluation.namespace),
            is_batch=job is not None and job.type in BATCH_TYPES,
            evaluation_id=evaluation.id,
            now_ns=self._moment.now_ns,
            tainted_nodes=self._tainted,
            deployment=self._rollout.current,
            find_job_version=self._version_of,
            is_evaluation_pending=self._is_pending,
            can_update_in_place=self._fits_in_place,
            find_stable_version=self._stable_version,
        )

    def _by_group(self) -> dict[str, list[Allocation]]:
        by_group: dict[str, list[Allocation]] = {}
        for allocation in self._allocations:
            by_group.setdefault(allocation.task_group, []).append(allocation)
        return by_group

    def _reconcile(self, job: Job) -> list[GroupOutcome]:
        sight, by_group = self._sight(job), self._by_group()
        outcomes = []
        for group in job.groups:
            those = by_group.pop(group.name, [])
            if job.type in EVERY_NODE_TYPES:
                outcomes.append(self._on_every_node(sight, job, group, those))
                continue
            rollout = self._rollout
            if is_up_to_date(job, group, those, self._tainted, (rollout.current, rollout.previous)):
                outcome = GroupOutcome(group.name, update_counts=DesiredUpdates(ignore=group.count), is_complete=True)
            elif group.count:
                outcome = of_group.reconcile_group(sight, group, those)
            else:
                outcome = of_group.stop_group(sight, group.name, group, those)
            outcomes.append(outcome)
            self._begin(outcome, job)
            self._carry_out(outcome, job)
        for name, those in by_group.items():
            self._carry_out(of_group.stop_group(sight, name, None, those), job)
        self._place_together(job)
        self._place_what_was_held_back()
        return outcomes

    def _begin(self, outcome: GroupOutcome, job: Job) -> None:
        """The first group that needs it begins the deployment; the others join it."""
        state = outcome.deployment
        if not outcome.is_new_deployment or state is None:
            return
        if self._deployment is None:
            self._deployment = start_deployment(job, self._evaluation, {outcome.name: state}, self._moment)
        elif self._deployment.create_index == WRITE_INDEX:
            groups = {**(self._deployment.task_groups or {}), outcome.name: state}
            self._deployment = replace(self._deployment, task_groups=groups)

    def _version_of(self, allocation: Allocation) -> Job | None:
        job = self._snapshot.get(JOB_VERSIONS, allocation.namespace, allocation.job_id, allocation.job_version)
        return job if job is not None and job.create_index == allocation.job_create_index else None

    def _is_pending(self, evaluation_id: str) -> bool:
        found = self._snapshot.get(EVALUATIONS, evaluation_id)
        return found is not None and found.status is EvaluationStatus.PENDING

    def _stable_version(self, group: str) -> tuple[Job, str] | None:
        key = (self._evaluation.namespace, self._evaluation.job_id)
        deployments = sorted(
            self._snapshot.list_by_index(DEPLOYMENTS_OF_JOB, *key), key=lambda each: each.create_index, reverse=True
        )
        for deployment in deployments:
            state = (deployment.task_groups or {}).get(group)
            if state is not None and (state.promoted or not state.desired_canaries):
                job = self._snapshot.get(JOB_VERSIONS, *key, deployment.job_version)
                if job is not None and job.create_index == deployment.job_create_index:
                    return job, deployment.id
        return None

    def _fits_in_place(self, allocation: Allocation, group: TaskGroup) -> bool:
        job = self._job
        assert job is not None, "nothing is updated for a job that is gone"
        return self._allotment.can_update_in_place(allocation, job, group)

    def _lose_what_was_stopped(self) -> None:
        """What was to stop already, on a node that is down or gone, has stopped for all that anybody will ever know."""
        for allocation in self._allocations if self._tainted else ():
            node = self._tainted.get(allocation.node_id)
            is_gone = allocation.node_id in self._tainted and (node is None or node.status is NodeStatus.DOWN)
            is_open = allocation.client_status in (ClientStatus.RUNNING, ClientStatus.PENDING)
            if is_gone and is_open and allocation.is_server_terminal:
                self._changing.update_allocation(allocation, client_status=ClientStatus.LOST, is_stop=True)

    # -- carrying it out -------------------------------------------------------------------------------------------

    def _carry_out(self, outcome: GroupOutcome, job: Job | None) -> None:
        self._updates[outcome.name] = outcome.update_counts
        for allocation in (*outcome.disconnects, *outcome.reconnects):
            self._changing.set_base(allocation)
        for stop in outcome.stops:  # Also of those that are back and found to be too many.
            self._stop(stop)
        self._later += outcome.follow_ups
        if job is None:
            return
        for allocation in outcome.in_place_updates:
            self._update_in_place(allocation, job)
        self._queued.setdefault(outcome.name, 0)
        places = _most_urgent_first(outcome.placements)
        if self._fills_nodes(job) and places and _are_alike(places[0], places[-1]):
            self._together.append(places)
        else:
            self._place_all(places)
        for replacement in outcome.replacements:
            self._replace(replacement)

    def _on_every_node(
        self, sight: ReconcileInput, job: Job, group: TaskGroup, those: list[Allocation]
    ) -> GroupOutcome:
        fleet = self._ground.fleet
        in_reach = self._ground.feasibility.select_ready_nodes(job)
        wanted = {fleet.get_node(int(row)).id: fleet.get_node(int(row)) for row in in_reach.nonzero()[0]}
        nodes = system_group.SystemNodes(
            eligible=wanted,
            is_in_pool_and_datacenter=lambda node: is_in_pool_and_datacenter(job, node),
            find_node=lambda node_id: self._snapshot.get(NODES, node_id),
            can_run=lambda node: not placing.is_infeasible(node),
        )
        placing = self._allotment.get_selector(job, group)
        result = system_group.reconcile_system_group(sight, group, those, nodes)
        outcome = result.outcome
        self._begin(outcome, job)
        self._carry_out(outcome, job)
        for each in result.placements:
            self._place_on(each.node, each.placement)
        for node, replacement in result.replacements:
            is_new = replacement.placement.job is job
            if is_new and placing.is_infeasible(node):  # The new version does not belong there at all.
                self._stop(replacement.stop)
            else:
                self._replace(replacement, node)
        if result.infeasible_count and not result.placements and not those:
            self._failed.setdefault(group.name, placing.explain_failure())
            self._queued[group.name] += 1
        return outcome

    def _fills_nodes(self, job: Job) -> bool:
        """Whether several groups may be placed among each other: of services the first group comes first."""
        is_of_several = job.type == JobType.BATCH and len(job.groups) > 1
        return is_of_several and self._allotment.get_rules(job).algorithm == SchedulerAlgorithm.BINPACK

    def _place_together(self, job: Job) -> None:
        waiting = [deque(places) for places in self._together]
        groups = [places[0].group for places in self._together]
        counts = [len(places) for places in waiting]
        for at, number in order_groups_for_fleet(
            self._ground.fleet, self._ground.feasibility.select_ready_nodes(job), groups, counts
        ):
            self._place_all([waiting[at].popleft() for _ in range(number)])

    def _place_all(self, places: list[PlacementRequest]) -> None:
        """One by one, but for those at the end that are new and alike: the first of these, then all the others at once."""
        first_alike = len(places)
        while first_alike and _are_alike(places[first_alike - 1], places[-1]):
            first_alike -= 1
        if len(places) - first_alike < MIN_BATCH_PLACEMENTS:
            first_alike = len(places)
        for placement in places[: first_alike + 1]:
            self._place(placement)
        alike = places[first_alike + 1 :]
        placed = self._allotment.place_batch(alike, **self._deployed(alike[0])) if alike else []
        if alike and _begins_all_at_once(alike[0]):
            self._held_back += zip(alike, placed, strict=False)
        else:
            for allocation in placed:
                self._placed.setdefault(allocation.node_id, []).append(allocation)
        for placement in alike[len(placed) :]:
            self._place(placement)

    def _keep(self, placement: PlacementRequest, allocation: Allocation) -> None:
        if _begins_all_at_once(placement):
            self._held_back.append((placement, allocation))
        else:
            self._placed.setdefault(allocation.node_id, []).append(allocation)

    def _place_what_was_held_back(self) -> None:
        """All of it, or where something failed nothing: then all of it waits. Others go for it only where that helps."""
        if not self._failed:
            for _, allocation in self._held_back:
                self._placed.setdefault(allocation.node_id, []).append(allocation)
            return
        for placement, allocation in self._held_back:
            name = placement.group.name
            self._queued[name] += 1
            known = self._failed.get(name)
            self._failed[name] = (
                build_all_at_once_metric(allocation.metrics or AllocMetric())
                if known is None
                else replace(known, coalesced_failures=known.coalesced_failures + 1)
            )
        if all(victims for _, victims in self._would_go):
            for placement, victims in self._would_go:
                self._evict(placement, victims)

    def _deployed(self, placement: PlacementRequest) -> dict[str, Any]:
        """What the deployment that goes on adds to an allocation that is none of its canaries."""
        deployment = self._deployment
        if deployment is None or placement.deployment_id or not self._is_of(deployment, placement):
            return {}
        return {"deployment_id": deployment.id, "deployment_status": AllocDeploymentStatus(modify_index=WRITE_INDEX)}

    def _place(self, placement: PlacementRequest) -> None:
        allocation = self._allotment.place_allocation(placement)
        if allocation is None:
            self._push_aside(placement)
            self._could_not_place(placement, self._allotment.get_failure_metric(placement))
        else:
            self._take(placement, allocation)

    def _place_on(self, node: Node, placement: PlacementRequest) -> None:
        allocation = self._allotment.place_on_node(node, placement)
        if allocation is None:
            self._push_aside(placement, node)
            self._could_not_place(placement, self._allotment.get_node_failure_metric(node, placement))
        else:
            self._take(placement, allocation)

    def _push_aside(self, placement: PlacementRequest, node: Node | None = None) -> None:
        """What must go is told to go; what takes its place is placed when that has ended, by the evaluation that waits."""
        victims = self._allotment.find_victims(placement, node)
        if _begins_all_at_once(placement):
            self._would_go.append((placement, victims))
        elif victims:
            self._evict(placement, victims)

    def _evict(self, placement: PlacementRequest, victims: Iterable[Allocation]) -> None:
        for_id, name = self._moment.new_id(), placement.group.name
        for victim in victims:
            evicted = self._changing.update_allocation(
                victim,
                is_stop=True,
                desired_status=DesiredStatus.EVICT,
                desired_description=f"Preempted by alloc ID {for_id}",
                preempted_by_allocation=for_id,
            )
            self._evicted.append(evicted)
            updates = self._updates[name]
            self._updates[name] = replace(updates, preemptions=updates.preemptions + 1)

    def _take(self, placement: PlacementRequest, allocation: Allocation) -> None:
        deployment = self._deployment
        if deployment is not None and not allocation.deployment_id and self._is_of(deployment, placement):
            status = allocation.deployment_status or AllocDeploymentStatus(modify_index=WRITE_INDEX)
            allocation = replace(allocation, deployment_id=deployment.id, deployment_status=status)
        self._keep(placement, allocation)
        previous = placement.previous
        if placement.stop is not None:
            self._stop(placement.stop)
        if previous is not None:
            outcome = RescheduleOutcome.OK if placement.is_reschedule else None
            self._changing.link_replacement(previous, next_allocation=allocation.id, outcome=outcome)

    def _is_of(self, deployment: Deployment, placement: PlacementRequest) -> bool:
        is_version = (placement.job.version, placement.job.create_index) == (
            deployment.job_version,
            deployment.job_create_index,
        )
        return is_version and deployment.is_active and placement.group.name in (deployment.task_groups or {})

    def _could_not_place(self, placement: PlacementRequest, why: AllocMetric | None) -> None:
        name = placement.group.name
        self._queued[name] = self._queued.get(name, 0) + 1
        if why is not None:
            self._failed[name] = why
        if placement.previous is not None and placement.is_reschedule:
            self._changing.link_replacement(placement.previous, outcome=RescheduleOutcome.NO_PLACEMENT)

    def _replace(self, replacement: ReplacementRequest, node: Node | None = None) -> None:
        """The old one goes on running until there is room for the new, or will be once it is gone itself."""
        placement, old = replacement.placement, replacement.stop.allocation
        self._allotment.exclude_allocation(old)
        allotment = self._allotment
        allocation = allotment.place_allocation(placement) if node is None else allotment.place_on_node(node, placement)
        if allocation is not None:
            self._stop(replacement.stop)
            self._take(placement, allocation)
            return
        self._allotment.restore_allocation(old)
        if self._allotment.can_fit_after_stop(old, placement.job, placement.group):
            self._stop(replacement.stop)
        why = (
            self._allotment.get_failure_metric(placement)
            if node is None
            else self._allotment.get_node_failure_metric(node, placement)
        )
        self._could_not_place(placement, why)

    def _stop(self, stop: AllocationStop) -> None:
        self._allotment.exclude_allocation(stop.allocation)
        self._changing.stop_allocation(stop)

    def _update_in_place(self, allocation: Allocation, job: Job) -> None:
        fields: dict[str, Any] = {
            "job_version": job.version,
            "job_create_index": job.create_index,
            "eval_id": self._evaluation.id,
        }
        deployment = self._deployment
        if deployment is not None and deployment.is_active and allocation.task_group in (deployment.task_groups or {}):
            fields["deployment_id"] = deployment.id
            fields["deployment_status"] = AllocDeploymentStatus(modify_index=WRITE_INDEX)
        self._changing.update_allocation(allocation, **fields)

    # -- how it ends -----------------------------------------------------------------------------------------------

    def _deployments(self, outcomes: Iterable[GroupOutcome]) -> tuple[list[Deployment], Job | None]:
        """Deployments as they shall be, and the version that is stable from now on."""
        found = [] if self._rollout.cancelled is None else [self._rollout.cancelled]
        deployment = self._deployment
        if deployment is None:
            return found, None
        if deployment.create_index == WRITE_INDEX:
            return [*found, deployment], None
        went_on = update_deployment(deployment, outcomes, self._moment)
        if went_on is None:
            return found, None
        is_done = went_on.status is DeploymentStatus.SUCCESSFUL
        stable = self._job if is_done and self._job is not None and not self._job.stable else None
        return [*found, went_on], stable

    def _eligibility(self) -> dict[str, bool] | None:
        job = self._job
        assert job is not None, "nothing is placed for a job that is gone"
        failed = [group for name in self._failed if (group := job.find_group(name)) is not None]
        return self._ground.feasibility.compute_class_eligibility(job, failed) or None

    def _plan(self, deployments: list[Deployment], stable: Job | None) -> Plan:
        annotations = PlanAnnotations(
            desired_tg_updates=self._updates or None,
            preempted_allocs=tuple(map(_stub_of, self._evicted)) or None,
        )
        escapes = self._job is not None and has_unique_constraints(self._job)
        more = EvaluationResult(
            failed_groups=self._failed,
            queued_counts=self._queued,
            annotations=annotations,
            deployment_id=self._deployment.id if self._deployment is not None else "",
            follow_ups=tuple(self._later),
            has_unique_constraints=escapes,
            has_placements=bool(self._placed),
            waits_behind=self._job.parent_id if self._job is not None and self._allotment.child_limit_reason else "",
            class_eligibility=self._eligibility() if self._failed and not escapes else None,
        )
        ending = EvaluationCompletion(self._snapshot, self._evaluation, self._moment).complete_evaluation(more)
        known = {each.id: each for each in self._allocations} if ending.follow_up_ids else {}
        for allocation_id, evaluation_id in ending.follow_up_ids.items():
            self._changing.update_allocation(known[allocation_id], followup_eval_id=evaluation_id)
        return Plan(
            self._evaluation,
            self._job,
            tuple(self._changing.changes.values()),
            {node_id: tuple(placed) for node_id, placed in self._placed.items()},
            ending.evaluation,
            ending.follow_ups,
            deployments=tuple(deployments),
            stable_job=stable,
            all_at_once=self._job is not None and self._job.all_at_once,
        )


def _stub_of(allocation: Allocation) -> AllocationStub:
    names = ("id", "name", "namespace", "node_id", "node_name", "job_id", "job_version", "task_group", "client_status")
    return AllocationStub(
        **{name: getattr(allocation, name) for name in names},
        desired_status=allocation.desired_status,
        desired_description=allocation.desired_description,
        preempted_by_allocation=allocation.preempted_by_allocation,
    )


def get_max_plan_attempts(evaluation: Evaluation) -> int:
    """How often it is tried without coming on, before it gives up (scheduling.md 6.3)."""
    return 2 if evaluation.type in (SchedulerType.BATCH, SchedulerType.SYSBATCH) else 5


def _are_alike(one: PlacementRequest, other: PlacementRequest) -> bool:
    """Both new, of one group and deployment, with nothing of their own but their names."""
    is_new = one.previous is None and one.stop is None and not one.is_canary and not one.is_reschedule
    return is_new and one.job is other.job and one.group is other.group and one.deployment_id == other.deployment_id


def _begins_all_at_once(placement: PlacementRequest) -> bool:
    """What takes the place of something, and what every node is to have, is placed as there is room for it."""
    job = placement.job
    return job.all_at_once and placement.previous is None and job.type not in EVERY_NODE_TYPES


def _most_urgent_first(places: Iterable[PlacementRequest]) -> list[PlacementRequest]:
    """Canaries, then what takes the place of something, then what is new."""
    return sorted(places, key=lambda place: (not place.is_canary, place.previous is None))


def plan_evaluation_from_state(snapshot: Replica, evaluation: Evaluation, moment: DecisionContext) -> Plan:
    """The plan of one evaluation."""
    return plan_evaluation(SchedulerCache.from_snapshot(snapshot), snapshot, evaluation, moment)


def can_plan_ahead(snapshot: Replica, evaluation: Evaluation) -> bool:
    """Whether other jobs concern it by nothing but the room that they leave on nodes: no quota is shared with them, nobody
    may be pushed aside, and no parent lets only some of its children run.
    """
    job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
    if job is None or job.parent_id or is_preemption_enabled(snapshot, job):
        return False
    return get_remaining_quota(snapshot, job.namespace, job.region) is None
