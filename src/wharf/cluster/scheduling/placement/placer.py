"""Placements become allocations on nodes: the best node for each, and the record that says so."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from wharf.cluster.scheduling.cache import NamespaceVolumes, SchedulerCache, get_placement_rules
from wharf.cluster.scheduling.capacity.child_limits import explain_child_limit
from wharf.cluster.scheduling.capacity.quotas import (
    QuotaRefusals,
    get_remaining_quota,
    measure_amounts,
    sum_requested_amounts,
)
from wharf.cluster.scheduling.feasibility.checker import ScreeningResult, make_volume_check
from wharf.cluster.scheduling.feasibility.distinct import PlacedSibling
from wharf.cluster.scheduling.feasibility.location import is_in_pool_and_datacenter
from wharf.cluster.scheduling.feasibility.volumes import (
    can_write_volumes,
    find_claim_holder,
    find_claim_node,
    has_sticky_volumes,
    list_single_writer_volumes,
)
from wharf.cluster.scheduling.fleet.draft import FleetDraft
from wharf.cluster.scheduling.fleet.fleet import MISSING_CODE, PreemptedCapacity
from wharf.cluster.scheduling.placement.preemption import VictimSearch, is_preemptible_by, is_preemption_enabled
from wharf.cluster.scheduling.ranking.metrics import add_node_failure
from wharf.cluster.scheduling.ranking.seeded_random import SeededRandom
from wharf.cluster.scheduling.ranking.selector import (
    NodeChoice,
    NodePreferences,
    NodeSelector,
    PlacementRules,
    VolumeCheck,
)
from wharf.cluster.scheduling.reconcile.outcome import PlacementRequest
from wharf.cluster.scheduling.reconcile.rescheduling import build_tracker, list_avoided_nodes
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import JOBS, NODES
from wharf.contract.model.allocations.allocation import (
    Allocation,
    AllocDeploymentStatus,
    ClientStatus,
    DesiredStatus,
    DesiredTransition,
)
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.times import DecisionContext


class Placer:
    """The nodes as one evaluation goes through them. What it places counts at once for what it places next."""

    def __init__(
        self,
        cache: SchedulerCache,
        snapshot: Replica,
        evaluation: Evaluation,
        moment: DecisionContext,
        allocations: Sequence[Allocation],
    ) -> None:
        self._ground = cache
        self._snapshot = snapshot
        self._evaluation = evaluation
        self._moment = moment
        self._chance = SeededRandom(evaluation.id, snapshot.index)
        self.draft = FleetDraft(cache.fleet)
        self._allocations = allocations
        self._noted: dict[str, PlacedSibling] | None = None
        self._placings: dict[tuple[str, int, int], NodeSelector] = {}
        self._anywhere: dict[tuple[str, int, int], ScreeningResult] = {}
        self._rules: PlacementRules | None = None
        job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
        self._allowance = (
            None
            if job is None
            else get_remaining_quota(snapshot, job.namespace, job.region, cache.quota_usage.get_quota_usage)
        )
        self.child_limit_reason = "" if job is None else explain_child_limit(snapshot, job, allocations)
        """Why nothing of the job may begin yet, though there be room."""
        self._kept: list[PreemptedCapacity] = []
        """Room that was left for work as urgent as this job's."""
        self._preemption: VictimSearch | None = None
        if job is not None:
            self._keep_out(job)
            self._preemption = VictimSearch(snapshot, self.draft, job) if is_preemption_enabled(snapshot, job) else None
        self._refused = QuotaRefusals()
        self._placed_on: dict[str, list[Allocation]] = {}
        self._away_from_home: dict[str, AllocMetric] = {}
        """By group, why the node with the volumes of one of its allocations could not take it."""
        self._failed_on_nodes: dict[str, AllocMetric] = {}
        """By group, why the nodes that were to take one did not, each asked alone."""
        self._given: dict[str, None] = {}
        """Ids of allocations that were told of before they were made, and are made now."""

    def _keep_out(self, job: Job) -> None:
        """Room that others left for somebody more urgent than this job is none for it."""
        fleet = self._ground.fleet
        for kept in fleet.preempted_capacity.values():
            if kept.expires_at_ns <= self._moment.now_ns:
                continue
            left, resources = kept.victim, kept.victim.allocated_resources
            of = self._snapshot.get(JOBS, left.namespace, left.job_id)
            if of is not None and is_preemptible_by(of.priority, job.priority):
                self._kept.append(kept)
            elif resources is not None:
                self.draft.add_allocation(kept.row, resources, fleet.measure_resources(resources)[0])
        for reservation in self._ground.reservations.values():
            row = fleet.row_by_node_id.get(reservation.node_id)
            is_own = (reservation.namespace, reservation.job_id) == (job.namespace, job.id)
            if row is not None and not is_own and job.priority <= reservation.priority:
                self.draft.reserve_capacity(row, reservation.demand)

    def find_victims(self, placement: PlacementRequest, node: Node | None = None) -> tuple[Allocation, ...]:
        """Those who must go so that this one finds room when they have gone; on the one node, if it is told."""
        if self._preemption is None or self.child_limit_reason:
            return ()
        if self._allowance is not None and self._allowance.list_exceeded_limits(sum_requested_amounts(placement.group)):
            return ()
        placing = self.get_selector(placement.job, placement.group)
        rows = [int(row) for row in placing.list_full_rows()]
        if node is not None:
            rows = [row for row in rows if row == self._ground.fleet.row_by_node_id.get(node.id)]
        room = self._preemption.find_victims(rows, placing.demand)
        return () if room is None else room.victims

    def get_selector(self, job: Job, group: TaskGroup) -> NodeSelector:
        """Of this group of this version, made when it is first asked for."""
        key = (group.name, job.version, job.create_index)
        found = self._placings.get(key)
        if found is None:
            found = self._placings[key] = NodeSelector(
                self.draft,
                self.screen_group(job, group),
                job,
                group,
                rules=self.get_rules(job),
                random=self._chance,
                siblings=self._neighbours.values(),
                volume_check=self._has_volumes(job, group),
            )
        return found

    def _has_volumes(self, job: Job, group: TaskGroup) -> VolumeCheck | None:
        """What only the allocation's own index, or what else was put there, tells of a node's volumes; None: nothing."""
        by_index = make_volume_check(group, NamespaceVolumes(self._snapshot, job.namespace))
        if not list_single_writer_volumes(group):
            return by_index

        def has_volumes(node: Node, index: int) -> bool:
            placed = self._placed_on.get(node.id, ())
            return (by_index is None or by_index(node, index)) and can_write_volumes(
                self._snapshot, node, group, index, placed
            )

        return has_volumes

    @property
    def _neighbours(self) -> dict[str, PlacedSibling]:
        """By id: the job's allocations that stand somewhere and shall go on, those placed by this evaluation too. They
        are looked up when it is first asked for them: most evaluations never ask.
        """
        if self._noted is None:
            row_of = self._ground.fleet.row_by_node_id
            self._noted = {
                each.id: PlacedSibling(row, each.task_group)
                for each in self._allocations
                if not each.is_terminal and (row := row_of.get(each.node_id)) is not None
            }
        return self._noted

    def _note(self, allocation: Allocation) -> PlacedSibling | None:
        row = self._ground.fleet.row_by_node_id.get(allocation.node_id)
        if row is None:
            return None
        neighbour = self._neighbours[allocation.id] = PlacedSibling(row, allocation.task_group)
        return neighbour

    def exclude_allocation(self, allocation: Allocation) -> None:
        """It is to stop: it stands in nobody's way any more, though what it holds it holds until it has ended."""
        neighbour = self._neighbours.pop(allocation.id, None)
        if neighbour is not None:
            for placing in self._placings.values():
                placing.count_sibling(neighbour, -1)

    def restore_allocation(self, allocation: Allocation) -> None:
        """Undo `leaves`."""
        neighbour = self._note(allocation)
        if neighbour is not None:
            for placing in self._placings.values():
                placing.count_sibling(neighbour)

    def screen_group(self, job: Job, group: TaskGroup) -> ScreeningResult:
        return self._ground.feasibility.screen_group(job, group, NamespaceVolumes(self._snapshot, job.namespace))

    def screen_all_nodes(self, job: Job, group: TaskGroup) -> ScreeningResult:
        """Of all nodes, also those that take nothing new: what is there already may stay."""
        key = (group.name, job.version, job.create_index)
        found = self._anywhere.get(key)
        if found is None:
            every = self._ground.fleet.kind[: len(self._ground.fleet)] != MISSING_CODE
            volume_of = NamespaceVolumes(self._snapshot, job.namespace)
            found = self._anywhere[key] = self._ground.feasibility.screen_nodes(every, job, group, volume_of)
        return found

    def get_rules(self, job: Job) -> PlacementRules:
        if self._rules is None:
            self._rules = get_placement_rules(self._snapshot, job)
        return self._rules

    def place_allocation(self, placement: PlacementRequest) -> Allocation | None:
        """On the best node. None: on none; the group's `failure` says why."""
        if self._is_over_quota(placement):
            return None
        home = self._home(placement)
        if home is not None:
            chosen = self.get_selector(placement.job, placement.group).try_node(home, NodePreferences(placement.name))
            if chosen is None:
                why = self.get_selector(placement.job, placement.group).explain_node_failure(home)
                self._away_from_home.setdefault(placement.group.name, why)
                return None
            return self._allocation(placement, chosen)
        previous = placement.previous
        sticky = placement.group.ephemeral_disk.sticky or placement.group.ephemeral_disk.migrate
        prefer = previous.node_id if previous is not None and sticky and not placement.is_reschedule else ""
        if previous is not None and previous.should_migrate and previous.desired_transition is not None:
            prefer = previous.desired_transition.move_to or prefer
        avoid = list_avoided_nodes(previous) if previous is not None and placement.is_reschedule else ()
        chosen = self.get_selector(placement.job, placement.group).choose_node(
            NodePreferences(placement.name, avoid, prefer)
        )
        return None if chosen is None else self._allocation(placement, chosen)

    def place_batch(self, placements: Sequence[PlacementRequest], **fields: Any) -> list[Allocation]:
        """After one was placed: those that follow, of the same group and new like it, the first of them first. They are
        placed as `place` would place them. Fewer, where that is to be asked for the next. `fields`: what all of them
        have beside that.
        """
        first = placements[0]
        if self._kept or self._allowance is not None or self.child_limit_reason or has_sticky_volumes(first.group):
            return []
        placing = self.get_selector(first.job, first.group)
        chosen = placing.choose_nodes(len(placements))
        if not chosen:
            return []
        others = [each for each in self._placings.values() if each is not placing]
        like = replace(self._record(first, chosen[0]), **fields)
        neighbours, rows, new_id = self._neighbours, self._ground.fleet.row_by_node_id, self._moment.new_id
        allocations = []
        for placement, each in zip(placements, chosen, strict=False):
            node = each.node
            allocation = replace(like, id=new_id(), name=placement.name, node_id=node.id, node_name=node.name)
            neighbour = neighbours[allocation.id] = PlacedSibling(rows[node.id], allocation.task_group)
            for other in others:
                other.count_sibling(neighbour)
            self._placed_on.setdefault(node.id, []).append(allocation)
            allocations.append(allocation)
        return allocations

    def _home(self, placement: PlacementRequest) -> Node | None:
        """The node that holds the volumes of the one before it, to which it comes back; None: it may go anywhere."""
        if not has_sticky_volumes(placement.group):
            return None
        before = placement.previous or find_claim_holder(self._allocations, placement.group.name, placement.name)
        return None if before is None else find_claim_node(self._snapshot, placement.group, before)

    def place_on_node(self, node: Node, placement: PlacementRequest) -> Allocation | None:
        """On this node or nowhere."""
        if self._is_over_quota(placement):
            return None
        chosen = self.get_selector(placement.job, placement.group).try_node(node, NodePreferences(placement.name))
        return None if chosen is None else self._allocation(placement, chosen)

    def get_failure_metric(self, placement: PlacementRequest) -> AllocMetric | None:
        at_home = self._away_from_home.get(placement.group.name)
        return (
            self._quota_failure(placement)
            or at_home
            or self.get_selector(placement.job, placement.group).failure_metric
        )

    def get_node_failure_metric(self, node: Node, placement: PlacementRequest) -> AllocMetric:
        """Why that node did not take it, and those that did not before it."""
        refused = self._quota_failure(placement)
        if refused is not None:
            return refused
        name = placement.group.name
        why = self.get_selector(placement.job, placement.group).explain_node_failure(node)
        before = self._failed_on_nodes.get(name)
        told = self._failed_on_nodes[name] = why if before is None else add_node_failure(before, why)
        return told

    def _is_over_quota(self, placement: PlacementRequest) -> bool:
        """The one place where the scheduler asks: whether the namespace, and the job's parent, may have one more."""
        if self.child_limit_reason:
            self._refused.record_refusal(placement.group.name, (self.child_limit_reason,))
            return True
        if self._allowance is None:
            return False
        why = self._allowance.list_exceeded_limits(sum_requested_amounts(placement.group))
        if why:
            self._refused.record_refusal(placement.group.name, why)
        return bool(why)

    def _quota_failure(self, placement: PlacementRequest) -> AllocMetric | None:
        name = placement.group.name
        why = self._refused.reasons.get(name)
        if why is None:
            return None
        number = self._refused.counts[name]
        return AllocMetric(node_pool=placement.job.node_pool, quota_exhausted=why, coalesced_failures=number - 1)

    def can_update_in_place(self, allocation: Allocation, job: Job, group: TaskGroup) -> bool:
        """Whether the new version may go on where the old one runs, with what that has."""
        node = self._snapshot.get(NODES, allocation.node_id)
        if node is None or not is_in_pool_and_datacenter(job, node):
            return False
        row = self._ground.fleet.row_by_node_id.get(node.id)
        return row is not None and bool(self.screen_all_nodes(job, group).feasible[row])

    def can_fit_after_stop(self, allocation: Allocation, job: Job, group: TaskGroup) -> bool:
        """Whether the new version would have room where the old one runs, when that has ended."""
        row = self._ground.fleet.row_by_node_id.get(allocation.node_id)
        resources = allocation.allocated_resources
        if row is None or resources is None or row >= len(self.draft.count):
            return False
        if not allocation.is_occupying:
            return True
        if self._allowance is not None and self._allowance.list_exceeded_limits(
            sum_requested_amounts(group), released=measure_amounts(resources)
        ):
            return False
        node = self._ground.fleet.get_node(row)
        self.draft.remove_allocation(row, resources)
        trial = NodeSelector(
            self.draft,
            restrict_to_row(self.screen_group(job, group), row),
            job,
            group,
            rules=self.get_rules(job),
            random=self._chance,
        )
        fits = not trial.find_obstacle(node)
        self.draft.restore_allocation(row, resources)
        return fits

    def _in_kept_room(self, allocation: Allocation) -> Allocation:
        """Where somebody went for work of this job, this is the work that was told of."""
        kept = [each for each in self._kept if each.victim.node_id == allocation.node_id]
        for_id = next((each.preemptor_id for each in kept if each.preemptor_id not in self._given), "")
        if not for_id:
            return allocation
        self._given[for_id] = None
        victims = tuple(each.victim.id for each in kept if each.preemptor_id == for_id)
        return replace(allocation, id=for_id, preempted_allocations=victims)

    def _tell_the_others(self, allocation: Allocation, placement: PlacementRequest) -> None:
        """Whoever placed it knows already; other groups, and other versions of this one, do not."""
        neighbour = self._note(allocation)
        own = self.get_selector(placement.job, placement.group)
        for placing in self._placings.values():
            if neighbour is not None and placing is not own:
                placing.count_sibling(neighbour)

    def _record(self, placement: PlacementRequest, chosen: NodeChoice, allocation_id: str = "") -> Allocation:
        job, now_ns = placement.job, self._moment.now_ns
        return Allocation(
            id=allocation_id,
            namespace=job.namespace,
            eval_id=self._evaluation.id,
            name=placement.name,
            node_id=chosen.node.id,
            node_name=chosen.node.name,
            job_id=job.id,
            job_version=job.version,
            job_create_index=job.create_index,
            task_group=placement.group.name,
            allocated_resources=chosen.resources,
            metrics=chosen.metric,
            desired_status=DesiredStatus.RUN,
            desired_transition=_NO_TRANSITION,
            client_status=ClientStatus.PENDING,
            deployment_id=placement.deployment_id,
            create_index=WRITE_INDEX,
            alloc_modify_index=WRITE_INDEX,
            create_time=now_ns,
            modify_time=now_ns,
        )

    def _allocation(self, placement: PlacementRequest, chosen: NodeChoice) -> Allocation:
        now_ns, previous = self._moment.now_ns, placement.previous
        allocation = self._in_kept_room(self._record(placement, chosen, self._moment.new_id()))
        self._placed_on.setdefault(allocation.node_id, []).append(allocation)
        self._tell_the_others(allocation, placement)
        if self._allowance is not None:
            self._allowance.consume_amounts(measure_amounts(chosen.resources))
        if placement.is_canary:
            allocation = replace(
                allocation, deployment_status=AllocDeploymentStatus(canary=True, modify_index=WRITE_INDEX)
            )
        if previous is None:
            return allocation
        tracker = None
        if placement.is_reschedule:
            tracker = build_tracker(previous, placement.group, now_ns, placement.failed_at_ns)
        return replace(allocation, previous_allocation=previous.id, reschedule_tracker=tracker)


_NO_TRANSITION = DesiredTransition()


def restrict_to_row(screened: ScreeningResult, row: int) -> ScreeningResult:
    """The same, as if there were no other node."""
    passing = screened.feasible.copy()
    passing[:] = False
    passing[row] = screened.feasible[row]
    return msgspec.structs.replace(screened, feasible=passing)
