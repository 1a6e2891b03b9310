"""Chooses a node for each placement request of an evaluation and builds the allocation record.

It also applies quotas, child limits, reserved nodes, preempted capacity and volumes. It does not decide what to place.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.capacity.admission import PlacementAdmission
from wharf.cluster.scheduling.feasibility.checker import ScreeningResult
from wharf.cluster.scheduling.feasibility.distinct import PlacedSibling, SiblingIndex, has_job_wide_constraints
from wharf.cluster.scheduling.feasibility.location import is_in_pool_and_datacenter
from wharf.cluster.scheduling.feasibility.volumes import (
    NamespaceVolumes,
    VolumeCheck,
    can_write_volumes,
    find_claim_holder,
    find_claim_node,
    has_sticky_volumes,
    list_single_writer_volumes,
    make_volume_check,
)
from wharf.cluster.scheduling.fleet.draft import FleetDraft
from wharf.cluster.scheduling.fleet.fleet import MISSING_CODE, PreemptedCapacity
from wharf.cluster.scheduling.placement.preemption import VictimSearch, is_preemptible_by, is_preemption_enabled
from wharf.cluster.scheduling.ranking.metrics import add_node_failure
from wharf.cluster.scheduling.ranking.rules import PlacementRules, get_placement_rules
from wharf.cluster.scheduling.ranking.seeded_random import SeededRandom
from wharf.cluster.scheduling.ranking.selector import (
    NodeChoice,
    NodeSelector,
)
from wharf.cluster.scheduling.reconcile.outcome import PlacementRequest
from wharf.cluster.scheduling.reconcile.rescheduling import build_tracker, list_avoided_nodes
from wharf.cluster.scheduling.reconcile.step_retry import EMPTY_TRACKER
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import JOBS, KEYRING_KEYS_BY_STATE, NODES
from wharf.contract.model.allocations.allocation import (
    Allocation,
    AllocDeploymentStatus,
    ClientStatus,
    DesiredStatus,
    DesiredTransition,
)
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.cluster import KeyState
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.times import DecisionContext


class Placer:
    """Chooses nodes for the allocations of one evaluation and builds their records.

    Each placement counts as used for the next one. Nothing is written to the log.
    """

    def __init__(
        self,
        cache: SchedulerCache,
        snapshot: Replica,
        evaluation: Evaluation,
        context: DecisionContext,
        allocations: Sequence[Allocation],
    ) -> None:
        self._cache = cache
        self._snapshot = snapshot
        self._evaluation = evaluation
        self._context = context
        self._random = SeededRandom(evaluation.id, snapshot.index)
        self._draft = FleetDraft(cache.fleet)
        """The resources in use on all nodes, with the placements of this evaluation."""
        self._allocations = allocations
        """The job's existing allocations."""
        self._siblings_or_none: SiblingIndex | None = None
        """The value of `_siblings`. `None`: it is not computed yet."""
        self._selectors: dict[tuple[str, int, int], NodeSelector] = {}
        """By group name, job version and create index of the job."""
        self._selectors_by_group: dict[str, list[NodeSelector]] = {}
        """The same selectors by group name: one for each job version."""
        self._job_wide_selectors: list[NodeSelector] = []
        """The selectors of jobs with a distinct constraint, which depend on the allocations of all groups."""
        self._screenings_of_all_nodes: dict[tuple[str, int, int], ScreeningResult] = {}
        """Feasibility of all nodes, ready or not, by group name, job version and create index of the job."""
        self._signing_key_id = find_signing_key_id(snapshot)
        """The key that signs the first identity tokens of new allocations; empty if there is none."""
        self._rules: PlacementRules | None = None
        job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
        self.admission = PlacementAdmission(snapshot, cache.quota_usage, job, allocations)
        self._usable_capacity: list[PreemptedCapacity] = []
        """Preempted capacity that this job may use, because it could have preempted the victims itself."""
        self._preemption: VictimSearch | None = None
        if job is not None:
            self._block_promised_capacity(job)
            self._preemption = (
                VictimSearch(snapshot, self._draft, job) if is_preemption_enabled(snapshot, job) else None
            )
        self._placed_on: dict[str, list[Allocation]] = {}
        """By node id, the allocations that this evaluation has placed there."""
        self._volume_node_failures: dict[str, AllocMetric] = {}
        """By group, why the node that holds the volumes of the group's last allocation could not take it."""
        self._node_failures: dict[str, AllocMetric] = {}
        """By group, why the requested nodes of a system job could not take their allocations."""
        self._used_promised_ids: dict[str, None] = {}
        """Promised ids that this evaluation has used, as an ordered set.

        Each victim of a preemption records the id of the future allocation that replaces it: this is the promised id.
        """

    def _block_promised_capacity(self, job: Job) -> None:
        """Count capacity that this job must leave to more urgent jobs as used.

        This is what ended victims freed for a preempting job, and the demand of waiting evaluations on their reserved
        nodes. It is added to the draft, this evaluation's copy of the resources in use. Preempted capacity that the job
        may use is collected in `_usable_capacity` instead.
        """
        fleet = self._cache.fleet
        for capacity in fleet.preempted_capacity.values():
            if capacity.expires_at_ns <= self._context.now_ns:
                continue
            victim, resources = capacity.victim, capacity.victim.allocated_resources
            victim_job = self._snapshot.get(JOBS, victim.namespace, victim.job_id)
            if victim_job is not None and is_preemptible_by(victim_job.priority, job.priority):
                self._usable_capacity.append(capacity)
            elif resources is not None:
                self._draft.add_allocation(capacity.row, resources, fleet.measure_resources(resources)[0])
        for reservation in self._cache.reservations.values():
            row = fleet.row_by_node_id.get(reservation.node_id)
            is_for_this_job = (reservation.namespace, reservation.job_id) == (job.namespace, job.id)
            if row is not None and not is_for_this_job and job.priority <= reservation.priority:
                self._draft.reserve_capacity(row, reservation.demand, reservation.cores, reservation.devices)

    def find_victims(self, request: PlacementRequest) -> tuple[Allocation, ...]:
        """Return the allocations to preempt for this failed request (its victims).

        Empty: preemption is not allowed for the job, does not help, or a quota, child limit or lock caused the failure.
        """
        if self._preemption is None or self.admission.list_reasons(request.group):
            return ()
        selector = self.get_selector(request.job, request.group)
        rows = [int(row) for row in selector.list_full_rows()]
        if request.node is not None:
            rows = [row for row in rows if row == self._cache.fleet.row_by_node_id.get(request.node.id)]
        return self._preemption.find_victims(rows, selector.demand)

    def get_selector(self, job: Job, group: TaskGroup) -> NodeSelector:
        """Return the selector that chooses nodes for the group in this job version.

        It is built on first use and cached.
        """
        key = (group.name, job.version, job.create_index)
        selector = self._selectors.get(key)
        if selector is None:
            is_job_wide = has_job_wide_constraints(job)
            selector = self._selectors[key] = NodeSelector(
                self._draft,
                self._screen_group(job, group),
                job,
                group,
                rules=self.get_rules(job),
                random=self._random,
                siblings=self._siblings.list_all() if is_job_wide else self._siblings.list_group(group.name),
                volume_check=self._make_volume_check(job, group),
            )
            self._selectors_by_group.setdefault(group.name, []).append(selector)
            if is_job_wide:
                self._job_wide_selectors.append(selector)
        return selector

    def _iter_affected_selectors(self, group: str) -> Iterator[NodeSelector]:
        """Yield the selectors whose scores or constraints depend on the allocations of this group.

        A job may have 1,000 groups with a selector each, so the others are left out.
        """
        group_selectors = self._selectors_by_group.get(group, ())
        yield from group_selectors
        for selector in self._job_wide_selectors:
            if selector not in group_selectors:
                yield selector

    def _make_volume_check(self, job: Job, group: TaskGroup) -> VolumeCheck | None:
        """Return the check of a node's volumes that must run for each single allocation of the group.

        Volumes may depend on the index in the allocation's name, and single-writer volumes on other allocations on the
        node. Return `None` if neither applies. Then the feasibility check of the nodes is sufficient.
        """
        check_by_index = make_volume_check(group, NamespaceVolumes(self._snapshot, job.namespace))
        if not list_single_writer_volumes(group):
            return check_by_index

        def has_volumes(node: Node, index: int) -> bool:
            """Return whether the allocation with this index has its volumes on the node and may write them."""
            placed = self._placed_on.get(node.id, ())
            return (check_by_index is None or check_by_index(node, index)) and can_write_volumes(
                self._snapshot, node, group, index, placed
            )

        return has_volumes

    @property
    def _siblings(self) -> "SiblingIndex":
        """The job's active allocations that have a node, with those that this evaluation placed.

        They are collected on first use, because most evaluations do not need them.
        """
        if self._siblings_or_none is None:
            row_by_node_id = self._cache.fleet.row_by_node_id
            siblings = self._siblings_or_none = SiblingIndex()
            for allocation in self._allocations:
                if not allocation.is_terminal and (row := row_by_node_id.get(allocation.node_id)) is not None:
                    siblings.add(allocation.id, PlacedSibling(row, allocation.task_group))
        return self._siblings_or_none

    def _add_sibling(self, allocation: Allocation) -> PlacedSibling | None:
        """Add the allocation to `_siblings`, the job's allocations with a node, and return the new entry.

        Return `None`, and add nothing, if the node is unknown.
        """
        row = self._cache.fleet.row_by_node_id.get(allocation.node_id)
        if row is None:
            return None
        sibling = PlacedSibling(row, allocation.task_group)
        self._siblings.add(allocation.id, sibling)
        return sibling

    def exclude_allocation(self, allocation: Allocation) -> None:
        """Remove an allocation that will be stopped from the siblings (the job's allocations that have a node).

        It no longer affects the scores of nodes. Its CPU, memory, disk and ports stay in use until its node reports
        that it has ended.
        """
        sibling = self._siblings.remove(allocation.id)
        if sibling is not None:
            self._draft.departure_count += 1
            for selector in self._iter_affected_selectors(sibling.group):
                selector.count_sibling(sibling, -1)

    def restore_allocation(self, allocation: Allocation) -> None:
        """Undo `exclude_allocation`: add the allocation to the siblings (the job's allocations with a node) again."""
        sibling = self._add_sibling(allocation)
        if sibling is not None:
            for selector in self._iter_affected_selectors(sibling.group):
                selector.count_sibling(sibling)

    def _screen_group(self, job: Job, group: TaskGroup) -> ScreeningResult:
        """Return which ready nodes in the job's node pool and datacenters are feasible for the group."""
        return self._cache.feasibility.screen_group(job, group, NamespaceVolumes(self._snapshot, job.namespace))

    def _screen_all_nodes(self, job: Job, group: TaskGroup) -> ScreeningResult:
        """Return which nodes are feasible for the group, even if they accept no placements. The result is cached.

        Running allocations may stay on nodes that accept no placements.
        """
        key = (group.name, job.version, job.create_index)
        cached = self._screenings_of_all_nodes.get(key)
        if cached is None:
            exists = self._cache.fleet.kind[: len(self._cache.fleet)] != MISSING_CODE
            find_volume = NamespaceVolumes(self._snapshot, job.namespace)
            cached = self._screenings_of_all_nodes[key] = self._cache.feasibility.screen_nodes(
                exists, job, group, find_volume
            )
        return cached

    def get_rules(self, job: Job) -> PlacementRules:
        """Return the placement rules of the job: the scoring algorithm and memory oversubscription. Cached."""
        if self._rules is None:
            self._rules = get_placement_rules(self._snapshot, job)
        return self._rules

    def place_allocation(self, request: PlacementRequest) -> Allocation | None:
        """Choose a node for the request, and return the new allocation.

        If the request names a node, only this node is tried. An allocation with sticky volumes goes only to the node
        that has them. Otherwise it is the node with the best score. Nodes where the allocation failed before get a
        lower score; the node with its ephemeral disk, or the one that a move requires, is preferred.

        Return `None` if a quota, child limit or lock refuses the placement, or no node can take the allocation.
        `get_failure_metric` then says why.
        """
        if not self.admission.try_admit(request.group):
            return None
        if request.node is not None:
            selector = self.get_selector(request.job, request.group)
            choice = selector.try_node(request.node, request.name)
            return None if choice is None else self._build_allocation(request, choice)
        volume_node = self._find_volume_node(request)
        if volume_node is not None:
            choice = self.get_selector(request.job, request.group).try_node(volume_node, request.name)
            if choice is None:
                reason = self.get_selector(request.job, request.group).explain_node_failure(volume_node)
                self._volume_node_failures[request.group.name] = reason
                return None
            return self._build_allocation(request, choice)
        self._volume_node_failures.pop(request.group.name, None)
        previous = request.previous
        sticky = request.group.ephemeral_disk.sticky or request.group.ephemeral_disk.migrate
        preferred = previous.node_id if previous is not None and sticky and not request.is_reschedule else ""
        if previous is not None and previous.should_migrate and previous.desired_transition is not None:
            preferred = previous.desired_transition.move_to or preferred
        avoided = list_avoided_nodes(previous) if previous is not None and request.is_reschedule else ()
        choice = self.get_selector(request.job, request.group).choose_node(
            request.name, avoided=avoided, preferred=preferred
        )
        return None if choice is None else self._build_allocation(request, choice)

    def place_batch(self, requests: Sequence[PlacementRequest], **fields: Any) -> list[Allocation]:
        """Place many requests that differ only in name, and return the new allocations in the order of the requests.

        The nodes are those that `place_allocation` would choose one by one, but many are chosen at once, which is
        faster. A similar request must have been placed with `place_allocation` before. The result is shorter than
        `requests` if nodes run out of capacity, and empty if more than CPU, memory and disk must be checked, such as
        ports, volumes or a quota. The caller places the remaining requests with `place_allocation`. `fields` are set on
        all allocations.
        """
        first = requests[0]
        is_limited = self.admission.has_limits or first.group.lock is not None
        if self._usable_capacity or is_limited or has_sticky_volumes(first.group):
            return []
        selector = self.get_selector(first.job, first.group)
        choices = selector.choose_nodes(len(requests))
        if not choices:
            return []
        other_selectors = [
            candidate for candidate in self._iter_affected_selectors(first.group.name) if candidate is not selector
        ]
        template = replace(self._build_record(first, choices[0]), **fields)
        siblings, rows, new_id = self._siblings, self._cache.fleet.row_by_node_id, self._context.new_id
        allocations = []
        for request, choice in zip(requests, choices, strict=False):
            node = choice.node
            allocation = replace(template, id=new_id(), name=request.name, node_id=node.id, node_name=node.name)
            if request.array_attempt:
                allocation = replace(allocation, array_attempt=request.array_attempt, array_item=request.array_item)
            sibling = PlacedSibling(rows[node.id], allocation.task_group)
            siblings.add(allocation.id, sibling)
            for other_selector in other_selectors:
                other_selector.count_sibling(sibling)
            self._placed_on.setdefault(node.id, []).append(allocation)
            allocations.append(allocation)
        return allocations

    def _find_volume_node(self, request: PlacementRequest) -> Node | None:
        """Return the node with the sticky volumes that the allocation must use, or `None` if it may go to any node."""
        if not has_sticky_volumes(request.group):
            return None
        predecessor = request.previous or find_claim_holder(self._allocations, request.group.name, request.name)
        return None if predecessor is None else find_claim_node(self._snapshot, request.group, predecessor)

    def is_infeasible(self, request: PlacementRequest, node: Node) -> bool:
        """Return whether the node does not meet the requirements of the request's group, or accepts no placements.

        Free resources do not matter.
        """
        return self.get_selector(request.job, request.group).is_infeasible(node)

    def get_failure_metric(self, request: PlacementRequest) -> AllocMetric | None:
        """Return why the request, which `place_allocation` could not place, failed, or `None` if no failure is known.

        If some placements of the group found no node and others were refused by quota, child limit or lock, the
        metric has both reasons. If the request names a node, the failure of this node is added to the failures of
        earlier nodes of the group, and their sum is returned.
        """
        failure = self._find_node_failure(request)
        refusal = self.admission.build_refusal_metric(request.job, request.group)
        if failure is None or refusal is None:
            return failure or refusal
        return replace(
            failure,
            quota_exhausted=refusal.quota_exhausted,
            coalesced_failures=failure.coalesced_failures + refusal.coalesced_failures + 1,
        )

    def _find_node_failure(self, request: PlacementRequest) -> AllocMetric | None:
        """Return why nodes could not take the request, or earlier ones of its group, or `None` if no node was tried."""
        name, was_refused = request.group.name, self.admission.was_refused(request.group)
        if request.node is not None:
            if not was_refused:
                failure = self.get_selector(request.job, request.group).explain_node_failure(request.node)
                earlier = self._node_failures.get(name)
                self._node_failures[name] = failure if earlier is None else add_node_failure(earlier, failure)
            return self._node_failures.get(name)
        if name in self._volume_node_failures:
            return self._volume_node_failures[name]
        # A refused placement needs no selector: building one is expensive.
        selector = self._selectors.get((name, request.job.version, request.job.create_index))
        return None if selector is None else selector.failure_metric

    def can_update_in_place(self, allocation: Allocation, job: Job, group: TaskGroup) -> bool:
        """Return whether the node of the allocation meets the requirements of the new version of job and group.

        Free resources are not checked: the allocation keeps those that it has.
        """
        node = self._snapshot.get(NODES, allocation.node_id)
        if node is None or not is_in_pool_and_datacenter(job, node):
            return False
        row = self._cache.fleet.row_by_node_id.get(node.id)
        return row is not None and bool(self._screen_all_nodes(job, group).feasible[row])

    def can_fit_after_stop(self, allocation: Allocation, job: Job, group: TaskGroup) -> bool:
        """Return whether the new version would fit on the node of this allocation once the allocation has ended.

        The check removes the allocation from the draft (this evaluation's copy of the resources in use), and then adds
        it again. Quota and child limit are checked too.
        """
        row = self._cache.fleet.row_by_node_id.get(allocation.node_id)
        resources = allocation.allocated_resources
        if row is None or resources is None or row >= len(self._draft.count):
            return False
        if not allocation.is_occupying:
            return True
        if self.admission.list_reasons(group, released=resources):
            return False
        node = self._cache.fleet.get_node(row)
        self._draft.remove_allocation(row, resources)
        selector = NodeSelector(
            self._draft,
            _restrict_to_row(self._screen_group(job, group), row),
            job,
            group,
            rules=self.get_rules(job),
            random=self._random,
        )
        fits = not selector.find_obstacle(node)
        self._draft.restore_allocation(row, resources)
        return fits

    def _use_promised_id(self, allocation: Allocation) -> Allocation:
        """Return the allocation with the promised id, if victims were preempted on its node for this job.

        Each victim records the id of the future allocation that replaces it. The first promised id of the node that
        this evaluation has not used yet is taken, and its victims are recorded in the allocation. Otherwise return the
        allocation unchanged.
        """
        freed = [capacity for capacity in self._usable_capacity if capacity.victim.node_id == allocation.node_id]
        promised_id = next(
            (capacity.preemptor_id for capacity in freed if capacity.preemptor_id not in self._used_promised_ids), ""
        )
        if not promised_id:
            return allocation
        self._used_promised_ids[promised_id] = None
        victims = tuple(capacity.victim.id for capacity in freed if capacity.preemptor_id == promised_id)
        return replace(allocation, id=promised_id, preempted_allocations=victims)

    def _count_sibling(self, allocation: Allocation, request: PlacementRequest) -> None:
        """Add the new allocation to the siblings (the job's allocations with a node), which affect the scores of nodes.

        Also count it in the node selectors of other groups and job versions. The selector of its own group and version
        counted it when it chose the node.
        """
        sibling = self._add_sibling(allocation)
        own_selector = self.get_selector(request.job, request.group)
        for selector in self._iter_affected_selectors(allocation.task_group) if sibling is not None else ():
            if sibling is not None and selector is not own_selector:
                selector.count_sibling(sibling)

    def _build_record(self, request: PlacementRequest, choice: NodeChoice, allocation_id: str = "") -> Allocation:
        """Return a new, pending allocation record for the chosen node. The caller may set the id later."""
        job, now_ns = request.job, self._context.now_ns
        return Allocation(
            id=allocation_id,
            namespace=job.namespace,
            eval_id=self._evaluation.id,
            name=request.name,
            node_id=choice.node.id,
            node_name=choice.node.name,
            job_id=job.id,
            job_version=job.version,
            job_create_index=job.create_index,
            task_group=request.group.name,
            allocated_resources=choice.resources,
            metrics=choice.metric,
            desired_status=DesiredStatus.RUN,
            desired_transition=_NO_TRANSITION,
            client_status=ClientStatus.PENDING,
            deployment_id=request.deployment_id,
            signing_key_id=self._signing_key_id,
            reschedule_tracker=EMPTY_TRACKER if request.group.retry is not None else None,
            array_attempt=request.array_attempt,
            array_item=request.array_item,
            lock_key=request.group.lock.key if request.group.lock is not None else "",
            create_index=WRITE_INDEX,
            alloc_modify_index=WRITE_INDEX,
            create_time=now_ns,
            modify_time=now_ns,
        )

    def _build_allocation(self, request: PlacementRequest, choice: NodeChoice) -> Allocation:
        """Build the allocation record for the chosen node, with deployment status, predecessor and reschedule history.

        The allocation is counted as placed: on its node, in the siblings and node selectors, in the quota, and in its lock.
        """
        now_ns, previous = self._context.now_ns, request.previous
        allocation = self._use_promised_id(self._build_record(request, choice, self._context.new_id()))
        self._placed_on.setdefault(allocation.node_id, []).append(allocation)
        self._count_sibling(allocation, request)
        self.admission.consume_quota(choice.resources)
        self.admission.take_slot(request.group)
        if request.is_canary:
            allocation = replace(
                allocation, deployment_status=AllocDeploymentStatus(canary=True, modify_index=WRITE_INDEX)
            )
        if previous is None:
            return allocation
        tracker = None
        if request.is_reschedule:
            tracker = build_tracker(previous, request.group, now_ns, request.failed_at_ns)
        return replace(allocation, previous_allocation=previous.id, reschedule_tracker=tracker)


def find_signing_key_id(snapshot: Replica) -> str:
    """Return the id of the active key of the keyring, or an empty text."""
    active = snapshot.list_by_index_sorted(KEYRING_KEYS_BY_STATE, KeyState.ACTIVE)
    return active[0].key_id if active else ""


_NO_TRANSITION = DesiredTransition()
"""Requests no migration and no reschedule. All new allocations share it."""


def _restrict_to_row(screened: ScreeningResult, row: int) -> ScreeningResult:
    """Return a copy of the feasibility result in which at most the node in this fleet row is feasible."""
    feasible = screened.feasible.copy()
    feasible[:] = False
    feasible[row] = screened.feasible[row]
    return msgspec.structs.replace(screened, feasible=feasible, metric=None)
