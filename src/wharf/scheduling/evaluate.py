"""One evaluation from snapshot to plan: a first scheduler, for every type of job.

It compares what the job wants with what is there, group by group and name by name, and puts what is missing on the
fullest node that has room. Updates in place, deployments, constraints and the rest come with the scheduling issue.
"""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from wharf.model.allocated_resources import (
    AllocatedCpu,
    AllocatedMemory,
    AllocatedResources,
    AllocatedSharedResources,
    AllocatedTaskResources,
)
from wharf.model.allocation import Allocation, ClientStatus, DesiredStatus, DesiredTransition
from wharf.model.changes import THIS
from wharf.model.evaluation import Evaluation, EvaluationStatus, EvaluationTrigger
from wharf.model.group import TaskGroup
from wharf.model.job import Job, JobType
from wharf.model.machine import advance
from wharf.model.metric import AllocMetric
from wharf.model.moment import Moment
from wharf.model.node import Node, NodeStatus
from wharf.model.transitions import ALLOCATION
from wharf.scheduling.plan import Plan
from wharf.scheduling.reach import is_in_reach
from wharf.scheduling.usage import Usage, demand_of, room_of, usage_of
from wharf.state import Replica
from wharf.state.tables import ALLOCATIONS_OF_JOB, ALLOCATIONS_ON_NODE, EVALUATIONS_OF_JOB, JOBS, NODES, SUMMARIES

NOT_NEEDED: Final = "alloc not needed due to job update"
MIGRATED: Final = "alloc is being migrated"
LOST: Final = "alloc is lost since its node is down"
EXISTS: Final = 'existing blocked evaluation exists for job "{}"'
SUCCESSFUL: Final = 'evaluation "{}" successful'
MORE_RECENT: Final = "canceled after more recent eval was processed"
CANCELED_AT_ONCE: Final = 2
"""So that the end of an evaluation fits the smallest write; those beyond are canceled by the next."""

UNPLACED: Final = "created to place remaining allocations"
EVERY_NODE_TYPES: Final = (JobType.SYSTEM, JobType.SYSBATCH)
ENDING_TYPES: Final = (JobType.BATCH, JobType.SYSBATCH)
FAILURES_REPLACED: Final = 3
"""How often one slot of one version is filled again after a failure. Without delays between them, which come with the
scheduling issue, more would only be a storm."""


def evaluate(snapshot: Replica, evaluation: Evaluation, moment: Moment) -> Plan:
    """The plan of one evaluation."""
    job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
    run = _Run(snapshot, evaluation, moment)
    run.lose_what_cannot_run()
    if job is None or job.stop:
        run.stop_everything()
    else:
        for group in job.groups:
            run.reconcile(job, group)
        run.stop_groups_gone(job)
    return run.plan()


class _Run:
    """What one evaluation has decided so far."""

    def __init__(self, snapshot: Replica, evaluation: Evaluation, moment: Moment) -> None:
        self._snapshot = snapshot
        self._evaluation = evaluation
        self._moment = moment
        self._stops: list[Allocation] = []
        self._placements: dict[str, list[Allocation]] = {}
        self._failed: dict[str, AllocMetric] = {}
        self._queued: dict[str, int] = {}
        self._used: dict[str, Usage] = {}
        mine = snapshot.those(ALLOCATIONS_OF_JOB, evaluation.namespace, evaluation.job_id)
        self._all = sorted(mine, key=lambda allocation: (allocation.create_index, allocation.id))
        self._existing = [allocation for allocation in self._all if not allocation.is_terminal]
        summary = snapshot.get(SUMMARIES, evaluation.namespace, evaluation.job_id)
        if summary is not None:
            self._queued = dict.fromkeys(summary.summary, 0)  # A group that is gone, or stopped, waits for nothing.

    def lose_what_cannot_run(self) -> None:
        """Nothing runs on a node that is down or gone, whatever was wanted there."""
        for allocation in self._all:
            if allocation.client_status in (ClientStatus.PENDING, ClientStatus.RUNNING, ClientStatus.UNKNOWN):
                node = self._snapshot.get(NODES, allocation.node_id)
                if node is None or node.status is NodeStatus.DOWN:
                    self._lose(allocation)
        lost = {allocation.id for allocation in self._stops}
        self._existing = [allocation for allocation in self._existing if allocation.id not in lost]

    def stop_everything(self) -> None:
        for allocation in self._existing:
            self._stop(allocation, NOT_NEEDED)

    def stop_groups_gone(self, job: Job) -> None:
        names = {group.name for group in job.groups}
        for allocation in self._existing:
            if allocation.task_group not in names:
                self._stop(allocation, NOT_NEEDED)

    def reconcile(self, job: Job, group: TaskGroup) -> None:
        """Stop what is too much, place what is missing."""
        kept: dict[str, Allocation] = {}
        for allocation in self._existing:
            if allocation.task_group != group.name:
                continue
            if allocation.is_to_migrate:
                self._stop(allocation, MIGRATED)  # Its slot is free, and filled again at once.
                continue
            slot = _slot(allocation, job)
            if slot in kept:
                self._stop(allocation, NOT_NEEDED)  # One name, one allocation: the older one stays.
            else:
                kept[slot] = allocation
        wanted = self._wanted(job, group, kept)
        for slot, allocation in kept.items():
            if slot not in wanted:
                self._stop(allocation, NOT_NEEDED)
        missing = [slot for slot in wanted if slot not in kept and not self._is_given_up(job, group, slot)]
        self._queued[group.name] = 0
        self._place(job, group, missing)

    def _wanted(self, job: Job, group: TaskGroup, kept: dict[str, Allocation]) -> dict[str, str]:
        """Every slot that shall be filled, with the allocation's name; for system jobs a slot is a node."""
        if job.type in EVERY_NODE_TYPES:
            name = f"{job.id}.{group.name}[0]"
            wanted = {node.id: name for node in self._candidates(job)} if group.count else {}
            # What runs on a node that only gets nothing new goes on running there.
            for node_id in kept if group.count else ():
                node = self._snapshot.get(NODES, node_id)
                if node is not None and is_in_reach(job, node):
                    wanted[node_id] = name
        else:
            names = [f"{job.id}.{group.name}[{index}]" for index in range(group.count)]
            wanted = {name: name for name in names}
        if job.type in ENDING_TYPES:
            for done in self._of_this_version(job, group, ClientStatus.COMPLETE):
                slot = _slot(done, job)
                if slot not in kept:
                    wanted.pop(slot, None)
        return wanted

    def _of_this_version(self, job: Job, group: TaskGroup, status: ClientStatus) -> list[Allocation]:
        version = (group.name, job.version, job.create_index, status)
        return [a for a in self._all if (a.task_group, a.job_version, a.job_create_index, a.client_status) == version]

    def _is_given_up(self, job: Job, group: TaskGroup, slot: str) -> bool:
        failed = self._of_this_version(job, group, ClientStatus.FAILED)
        return sum(_slot(allocation, job) == slot for allocation in failed) > FAILURES_REPLACED

    def _place(self, job: Job, group: TaskGroup, slots: Sequence[str]) -> None:
        candidates = self._candidates(job)
        resources = _resources(group)
        demand = demand_of(group)
        for slot in slots:
            possible = [node for node in candidates if node.id == slot] if job.type in EVERY_NODE_TYPES else candidates
            node, exhausted = self._fullest_with_room(possible, demand)
            if node is None:
                self._queued[group.name] += 1
                self._failed.setdefault(group.name, _failure(job, candidates, exhausted))
                continue
            name = slot if job.type not in EVERY_NODE_TYPES else f"{job.id}.{group.name}[0]"
            allocation = self._allocation(job, group, name, node, resources, len(candidates))
            self._placements.setdefault(node.id, []).append(allocation)
            self._used[node.id] = self._usage(node) + demand

    def _candidates(self, job: Job) -> list[Node]:
        return [node for node in self._snapshot.all(NODES) if node.is_ready_for_placements and is_in_reach(job, node)]

    def _fullest_with_room(self, nodes: Sequence[Node], demand: Usage) -> tuple[Node | None, dict[str, int]]:
        best, best_left = None, -1.0
        exhausted: dict[str, int] = {}
        for node in nodes:
            room = room_of(node)
            used = self._usage(node) + demand
            lacking = used.exceeded(room)
            if lacking:
                exhausted[lacking] = exhausted.get(lacking, 0) + 1
                continue
            fullness = used.cpu / max(1, room.cpu) + used.memory_mb / max(1, room.memory_mb)
            if fullness > best_left:
                best, best_left = node, fullness
        return best, exhausted

    def _usage(self, node: Node) -> Usage:
        if node.id not in self._used:
            here = self._snapshot.those(ALLOCATIONS_ON_NODE, node.id)
            self._used[node.id] = Usage.total(usage_of(a) for a in here if a.is_occupying)
        return self._used[node.id]

    def _allocation(
        self, job: Job, group: TaskGroup, name: str, node: Node, resources: AllocatedResources, looked_at: int
    ) -> Allocation:
        now_ns = self._moment.now_ns
        return Allocation(
            id=self._moment.new_id(),
            namespace=job.namespace,
            eval_id=self._evaluation.id,
            name=name,
            node_id=node.id,
            node_name=node.name,
            job_id=job.id,
            job_version=job.version,
            job_create_index=job.create_index,
            task_group=group.name,
            allocated_resources=resources,
            metrics=AllocMetric(nodes_evaluated=looked_at, nodes_in_pool=looked_at, node_pool=job.node_pool),
            desired_status=DesiredStatus.RUN,
            desired_transition=DesiredTransition(),
            client_status=ClientStatus.PENDING,
            create_index=THIS,
            alloc_modify_index=THIS,
            create_time=now_ns,
            modify_time=now_ns,
        )

    def _stop(self, allocation: Allocation, why: str) -> None:
        self._stops.append(
            replace(
                allocation,
                desired_status=DesiredStatus.STOP,
                desired_description=why,
                alloc_modify_index=THIS,
                modify_time=self._moment.now_ns,
            )
        )

    def _lose(self, allocation: Allocation) -> None:
        if allocation.is_server_terminal:
            lost = replace(allocation, modify_time=self._moment.now_ns)
        else:
            self._stop(allocation, LOST)
            lost = self._stops.pop()
        status = advance(ALLOCATION, allocation.client_status, ClientStatus.LOST, record_id=allocation.id)
        self._stops.append(replace(lost, client_status=status))

    def plan(self) -> Plan:
        evaluation, now_ns = self._evaluation, self._moment.now_ns
        was_blocked = evaluation.triggered_by in (EvaluationTrigger.QUEUED_ALLOCS, EvaluationTrigger.MAX_PLAN_ATTEMPTS)
        finished = replace(
            evaluation,
            status=EvaluationStatus.BLOCKED if self._failed and was_blocked else EvaluationStatus.COMPLETE,
            failed_tg_allocs=self._failed or None,
            queued_allocations=self._queued or None,
            snapshot_index=self._snapshot.index,
            modify_time=max(now_ns, evaluation.create_time + 1),
        )
        follow_ups: tuple[Evaluation, ...] = ()
        if self._failed and not was_blocked:
            blocked = self._blocked_evaluation()
            finished = replace(finished, blocked_eval=blocked.id)
            follow_ups = (blocked, *self._superseded(EXISTS.format(evaluation.job_id)))
        elif not self._failed:
            follow_ups = self._superseded(SUCCESSFUL.format(evaluation.id))
        follow_ups += self._redundant()
        placements = {node_id: tuple(placed) for node_id, placed in self._placements.items()}
        job = self._snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
        return Plan(evaluation, job, tuple(self._stops), placements, finished, follow_ups)

    def _superseded(self, why: str) -> tuple[Evaluation, ...]:
        """The job's other blocked evaluations, canceled: one a job is enough, and none where all is placed."""
        return self._canceled(EvaluationStatus.BLOCKED, why)

    def _redundant(self) -> tuple[Evaluation, ...]:
        """The job's other pending evaluations: this one has seen all that they could see (scheduling.md 1.3)."""
        return self._canceled(EvaluationStatus.PENDING, MORE_RECENT)

    def _canceled(self, status: EvaluationStatus, why: str) -> tuple[Evaluation, ...]:
        now_ns = self._moment.now_ns
        mine = self._snapshot.those_by_key(EVALUATIONS_OF_JOB, self._evaluation.namespace, self._evaluation.job_id)
        others = [other for other in mine if other.status is status and other.id != self._evaluation.id]
        return tuple(
            replace(
                other,
                status=EvaluationStatus.CANCELED,
                status_description=why,
                modify_time=max(now_ns, other.create_time + 1),
            )
            for other in others[:CANCELED_AT_ONCE]
        )

    def _blocked_evaluation(self) -> Evaluation:
        evaluation, now_ns = self._evaluation, self._moment.now_ns
        return Evaluation(
            id=self._moment.new_id(),
            namespace=evaluation.namespace,
            priority=evaluation.priority,
            type=evaluation.type,
            triggered_by=EvaluationTrigger.QUEUED_ALLOCS,
            job_id=evaluation.job_id,
            job_modify_index=evaluation.job_modify_index,
            status=EvaluationStatus.BLOCKED,
            status_description=UNPLACED,
            previous_eval=evaluation.id,
            failed_tg_allocs=self._failed,
            snapshot_index=self._snapshot.index,
            create_index=THIS,
            create_time=now_ns,
            modify_time=now_ns,
        )


def _slot(allocation: Allocation, job: Job) -> str:
    return allocation.node_id if job.type in EVERY_NODE_TYPES else allocation.name


def _resources(group: TaskGroup) -> AllocatedResources:
    tasks = {
        task.name: AllocatedTaskResources(
            cpu=AllocatedCpu(cpu_shares=task.resources.cpu),
            memory=AllocatedMemory(memory_mb=task.resources.memory_mb),
        )
        for task in group.tasks or ()
        if task.resources is not None
    }
    return AllocatedResources(
        tasks=tasks,
        task_lifecycles=dict.fromkeys(tasks),
        shared=AllocatedSharedResources(disk_mb=group.ephemeral_disk.size_mb),
    )


def _failure(job: Job, candidates: Sequence[Node], exhausted: dict[str, int]) -> AllocMetric:
    available: dict[str, int] = {}
    for node in candidates:
        available[node.datacenter] = available.get(node.datacenter, 0) + 1
    return AllocMetric(
        nodes_evaluated=len(candidates),
        nodes_in_pool=len(candidates),
        node_pool=job.node_pool,
        nodes_available=available,
        nodes_exhausted=sum(exhausted.values()),
        dimension_exhausted=exhausted or None,
    )
