"""Placements become allocations on nodes: the best node for each, and the record that says so."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from wharf.model.allocation import (
    Allocation,
    AllocDeploymentStatus,
    ClientStatus,
    DesiredStatus,
    DesiredTransition,
)
from wharf.model.changes import THIS
from wharf.model.evaluation import Evaluation
from wharf.model.group import TaskGroup
from wharf.model.job import Job
from wharf.model.metric import AllocMetric
from wharf.model.moment import Moment
from wharf.model.node import Node
from wharf.scheduling.chance import Chance
from wharf.scheduling.claims import holder_of, home_of, is_sticky
from wharf.scheduling.distinct import Neighbour
from wharf.scheduling.draft import Draft
from wharf.scheduling.feasibility import Screened, volumes_by_index
from wharf.scheduling.fleet import NOWHERE, Kept
from wharf.scheduling.ground import Ground, Volumes, rules_for
from wharf.scheduling.placing import Chosen, GroupPlacing, HasVolumes, Place, Rules
from wharf.scheduling.preemption import Preemption, is_below, may_preempt
from wharf.scheduling.quota import Refusals, allowance_of, amounts_asked, amounts_of
from wharf.scheduling.reach import is_in_reach
from wharf.scheduling.reconcile.outcome import Placement
from wharf.scheduling.reconcile.rescheduling import nodes_to_avoid, tracker_after
from wharf.scheduling.telling import one_more
from wharf.scheduling.turns import out_of_turn
from wharf.scheduling.writers import is_free_to_write, writes_alone
from wharf.state import Replica
from wharf.state.tables import JOBS, NODES


class Allotment:
    """The nodes as one evaluation goes through them. What it places counts at once for what it places next."""

    def __init__(
        self,
        ground: Ground,
        snapshot: Replica,
        evaluation: Evaluation,
        moment: Moment,
        allocations: Sequence[Allocation],
    ) -> None:
        self._ground = ground
        self._snapshot = snapshot
        self._evaluation = evaluation
        self._moment = moment
        self._chance = Chance(evaluation.id, snapshot.index)
        self.draft = Draft(ground.fleet)
        self._allocations = allocations
        self._noted: dict[str, Neighbour] | None = None
        self._placings: dict[tuple[str, int, int], GroupPlacing] = {}
        self._anywhere: dict[tuple[str, int, int], Screened] = {}
        self._rules: Rules | None = None
        job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
        self._allowance = (
            None if job is None else allowance_of(snapshot, job.namespace, job.region, ground.quota_use.of_quota)
        )
        self.out_of_turn = "" if job is None else out_of_turn(snapshot, job, allocations)
        """Why nothing of the job may begin yet, though there be room."""
        self._kept: list[Kept] = []
        """Room that was left for work as urgent as this job's."""
        self._preemption: Preemption | None = None
        if job is not None:
            self._keep_out(job)
            self._preemption = Preemption(snapshot, self.draft, job) if may_preempt(snapshot, job) else None
        self._refused = Refusals()
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
        for kept in fleet.kept.values():
            if kept.until_ns <= self._moment.now_ns:
                continue
            left, resources = kept.victim, kept.victim.allocated_resources
            of = self._snapshot.get(JOBS, left.namespace, left.job_id)
            if of is not None and is_below(of.priority, job.priority):
                self._kept.append(kept)
            elif resources is not None:
                self.draft.take(kept.row, resources, fleet.size(resources)[0])
        for reservation in self._ground.reservations.values():
            row = fleet.row_of.get(reservation.node_id)
            is_own = (reservation.namespace, reservation.job_id) == (job.namespace, job.id)
            if row is not None and not is_own and job.priority <= reservation.priority:
                self.draft.keep(row, reservation.demand)

    def push_aside(self, placement: Placement, node: Node | None = None) -> tuple[Allocation, ...]:
        """Those who must go so that this one finds room when they have gone; on the one node, if it is told."""
        if self._preemption is None or self.out_of_turn:
            return ()
        if self._allowance is not None and self._allowance.exceeded(amounts_asked(placement.group)):
            return ()
        placing = self.placing(placement.job, placement.group)
        rows = [int(row) for row in placing.lacking_room()]
        if node is not None:
            rows = [row for row in rows if row == self._ground.fleet.row_of.get(node.id)]
        room = self._preemption.find(rows, placing.demand)
        return () if room is None else room.victims

    def placing(self, job: Job, group: TaskGroup) -> GroupPlacing:
        """Of this group of this version, made when it is first asked for."""
        key = (group.name, job.version, job.create_index)
        found = self._placings.get(key)
        if found is None:
            found = self._placings[key] = GroupPlacing(
                self.draft,
                self.screened(job, group),
                job,
                group,
                rules=self.rules(job),
                chance=self._chance,
                neighbours=self._neighbours.values(),
                has_volumes=self._has_volumes(job, group),
            )
        return found

    def _has_volumes(self, job: Job, group: TaskGroup) -> HasVolumes | None:
        """What only the allocation's own index, or what else was put there, tells of a node's volumes; None: nothing."""
        by_index = volumes_by_index(group, Volumes(self._snapshot, job.namespace))
        if not writes_alone(group):
            return by_index

        def has_volumes(node: Node, index: int) -> bool:
            placed = self._placed_on.get(node.id, ())
            return (by_index is None or by_index(node, index)) and is_free_to_write(
                self._snapshot, node, group, index, placed
            )

        return has_volumes

    @property
    def _neighbours(self) -> dict[str, Neighbour]:
        """By id: the job's allocations that stand somewhere and shall go on, those placed by this evaluation too. They
        are looked up when it is first asked for them: most evaluations never ask.
        """
        if self._noted is None:
            row_of = self._ground.fleet.row_of
            self._noted = {
                each.id: Neighbour(row, each.task_group)
                for each in self._allocations
                if not each.is_terminal and (row := row_of.get(each.node_id)) is not None
            }
        return self._noted

    def _note(self, allocation: Allocation) -> Neighbour | None:
        row = self._ground.fleet.row_of.get(allocation.node_id)
        if row is None:
            return None
        neighbour = self._neighbours[allocation.id] = Neighbour(row, allocation.task_group)
        return neighbour

    def leaves(self, allocation: Allocation) -> None:
        """It is to stop: it stands in nobody's way any more, though what it holds it holds until it has ended."""
        neighbour = self._neighbours.pop(allocation.id, None)
        if neighbour is not None:
            for placing in self._placings.values():
                placing.join(neighbour, -1)

    def stays(self, allocation: Allocation) -> None:
        """Undo `leaves`."""
        neighbour = self._note(allocation)
        if neighbour is not None:
            for placing in self._placings.values():
                placing.join(neighbour)

    def screened(self, job: Job, group: TaskGroup) -> Screened:
        return self._ground.feasibility.screened(job, group, Volumes(self._snapshot, job.namespace))

    def screened_anywhere(self, job: Job, group: TaskGroup) -> Screened:
        """Of all nodes, also those that take nothing new: what is there already may stay."""
        key = (group.name, job.version, job.create_index)
        found = self._anywhere.get(key)
        if found is None:
            every = self._ground.fleet.kind[: len(self._ground.fleet)] != NOWHERE
            volume_of = Volumes(self._snapshot, job.namespace)
            found = self._anywhere[key] = self._ground.feasibility.screen(every, job, group, volume_of)
        return found

    def rules(self, job: Job) -> Rules:
        if self._rules is None:
            self._rules = rules_for(self._snapshot, job)
        return self._rules

    def place(self, placement: Placement) -> Allocation | None:
        """On the best node. None: on none; the group's `failure` says why."""
        if self._is_over_quota(placement):
            return None
        home = self._home(placement)
        if home is not None:
            chosen = self.placing(placement.job, placement.group).choose_on(home, Place(placement.name))
            if chosen is None:
                why = self.placing(placement.job, placement.group).why_not_on(home)
                self._away_from_home.setdefault(placement.group.name, why)
                return None
            return self._allocation(placement, chosen)
        previous = placement.previous
        sticky = placement.group.ephemeral_disk.sticky or placement.group.ephemeral_disk.migrate
        prefer = previous.node_id if previous is not None and sticky and not placement.is_reschedule else ""
        if previous is not None and previous.is_to_migrate and previous.desired_transition is not None:
            prefer = previous.desired_transition.move_to or prefer
        avoid = nodes_to_avoid(previous) if previous is not None and placement.is_reschedule else ()
        chosen = self.placing(placement.job, placement.group).choose(Place(placement.name, avoid, prefer))
        return None if chosen is None else self._allocation(placement, chosen)

    def place_more(self, placements: Sequence[Placement], **fields: Any) -> list[Allocation]:
        """After one was placed: those that follow, of the same group and new like it, the first of them first. They are
        placed as `place` would place them. Fewer, where that is to be asked for the next. `fields`: what all of them
        have beside that.
        """
        first = placements[0]
        if self._kept or self._allowance is not None or self.out_of_turn or is_sticky(first.group):
            return []
        placing = self.placing(first.job, first.group)
        chosen = placing.choose_more(len(placements))
        if not chosen:
            return []
        others = [each for each in self._placings.values() if each is not placing]
        like = replace(self._record(first, chosen[0]), **fields)
        neighbours, rows, new_id = self._neighbours, self._ground.fleet.row_of, self._moment.new_id
        allocations = []
        for placement, each in zip(placements, chosen, strict=False):
            node = each.node
            allocation = replace(like, id=new_id(), name=placement.name, node_id=node.id, node_name=node.name)
            neighbour = neighbours[allocation.id] = Neighbour(rows[node.id], allocation.task_group)
            for other in others:
                other.join(neighbour)
            self._placed_on.setdefault(node.id, []).append(allocation)
            allocations.append(allocation)
        return allocations

    def _home(self, placement: Placement) -> Node | None:
        """The node that holds the volumes of the one before it, to which it comes back; None: it may go anywhere."""
        if not is_sticky(placement.group):
            return None
        before = placement.previous or holder_of(self._allocations, placement.group.name, placement.name)
        return None if before is None else home_of(self._snapshot, placement.group, before)

    def place_on(self, node: Node, placement: Placement) -> Allocation | None:
        """On this node or nowhere."""
        if self._is_over_quota(placement):
            return None
        chosen = self.placing(placement.job, placement.group).choose_on(node, Place(placement.name))
        return None if chosen is None else self._allocation(placement, chosen)

    def failure(self, placement: Placement) -> AllocMetric | None:
        at_home = self._away_from_home.get(placement.group.name)
        return self._quota_failure(placement) or at_home or self.placing(placement.job, placement.group).failure

    def failure_on(self, node: Node, placement: Placement) -> AllocMetric:
        """Why that node did not take it, and those that did not before it."""
        refused = self._quota_failure(placement)
        if refused is not None:
            return refused
        name = placement.group.name
        why = self.placing(placement.job, placement.group).why_not_on(node)
        before = self._failed_on_nodes.get(name)
        told = self._failed_on_nodes[name] = why if before is None else one_more(before, why)
        return told

    def _is_over_quota(self, placement: Placement) -> bool:
        """The one place where the scheduler asks: whether the namespace, and the job's parent, may have one more."""
        if self.out_of_turn:
            self._refused.note(placement.group.name, (self.out_of_turn,))
            return True
        if self._allowance is None:
            return False
        why = self._allowance.exceeded(amounts_asked(placement.group))
        if why:
            self._refused.note(placement.group.name, why)
        return bool(why)

    def _quota_failure(self, placement: Placement) -> AllocMetric | None:
        name = placement.group.name
        why = self._refused.reasons.get(name)
        if why is None:
            return None
        number = self._refused.numbers[name]
        return AllocMetric(node_pool=placement.job.node_pool, quota_exhausted=why, coalesced_failures=number - 1)

    def may_stay(self, allocation: Allocation, job: Job, group: TaskGroup) -> bool:
        """Whether the new version may go on where the old one runs, with what that has."""
        node = self._snapshot.get(NODES, allocation.node_id)
        if node is None or not is_in_reach(job, node):
            return False
        row = self._ground.fleet.row_of.get(node.id)
        return row is not None and bool(self.screened_anywhere(job, group).passing[row])

    def would_fit_once_gone(self, allocation: Allocation, job: Job, group: TaskGroup) -> bool:
        """Whether the new version would have room where the old one runs, when that has ended."""
        row = self._ground.fleet.row_of.get(allocation.node_id)
        resources = allocation.allocated_resources
        if row is None or resources is None or row >= len(self.draft.count):
            return False
        if not allocation.is_occupying:
            return True
        if self._allowance is not None and self._allowance.exceeded(
            amounts_asked(group), instead_of=amounts_of(resources)
        ):
            return False
        node = self._ground.fleet.node(row)
        self.draft.give_back(row, resources)
        trial = GroupPlacing(
            self.draft,
            only(self.screened(job, group), row),
            job,
            group,
            rules=self.rules(job),
            chance=self._chance,
        )
        fits = not trial.lack(node)
        self.draft.hold_again(row, resources)
        return fits

    def _in_kept_room(self, allocation: Allocation) -> Allocation:
        """Where somebody went for work of this job, this is the work that was told of."""
        kept = [each for each in self._kept if each.victim.node_id == allocation.node_id]
        for_id = next((each.for_id for each in kept if each.for_id not in self._given), "")
        if not for_id:
            return allocation
        self._given[for_id] = None
        victims = tuple(each.victim.id for each in kept if each.for_id == for_id)
        return replace(allocation, id=for_id, preempted_allocations=victims)

    def _tell_the_others(self, allocation: Allocation, placement: Placement) -> None:
        """Whoever placed it knows already; other groups, and other versions of this one, do not."""
        neighbour = self._note(allocation)
        own = self.placing(placement.job, placement.group)
        for placing in self._placings.values():
            if neighbour is not None and placing is not own:
                placing.join(neighbour)

    def _record(self, placement: Placement, chosen: Chosen, allocation_id: str = "") -> Allocation:
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
            create_index=THIS,
            alloc_modify_index=THIS,
            create_time=now_ns,
            modify_time=now_ns,
        )

    def _allocation(self, placement: Placement, chosen: Chosen) -> Allocation:
        now_ns, previous = self._moment.now_ns, placement.previous
        allocation = self._in_kept_room(self._record(placement, chosen, self._moment.new_id()))
        self._placed_on.setdefault(allocation.node_id, []).append(allocation)
        self._tell_the_others(allocation, placement)
        if self._allowance is not None:
            self._allowance.take(amounts_of(chosen.resources))
        if placement.is_canary:
            allocation = replace(allocation, deployment_status=AllocDeploymentStatus(canary=True, modify_index=THIS))
        if previous is None:
            return allocation
        tracker = None
        if placement.is_reschedule:
            tracker = tracker_after(previous, placement.group, now_ns, placement.failed_at_ns)
        return replace(allocation, previous_allocation=previous.id, reschedule_tracker=tracker)


_NO_TRANSITION = DesiredTransition()


def only(screened: Screened, row: int) -> Screened:
    """The same, as if there were no other node."""
    passing = screened.passing.copy()
    passing[:] = False
    passing[row] = screened.passing[row]
    return msgspec.structs.replace(screened, passing=passing)
