"""Invariants of rollouts, checked on the changes of each batch.

At most `max_parallel` allocations are down for an update. There are no more canaries than desired. A reverted job has the
content of its newest stable version. No placement exceeds a quota or a limit of children, is on an ineligible node, or
repeats completed batch work.
"""

from collections.abc import Callable, Iterable
from typing import Final

from simulation.invariants import UPDATE_STOP_DESCRIPTION
from simulation.record_history import ObservedBatch, ObservedChange, RecordHistory
from simulation.timeline import InvariantViolation
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_OF_JOB,
    DEPLOYMENTS,
    DEPLOYMENTS_OF_JOB,
    JOB_VERSIONS,
    JOBS,
    NAMESPACES,
    NODES,
    QUOTAS,
    VERSIONS_OF_JOB,
)
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.nodes.node import Node, NodeStatus, SchedulingEligibility

CHANGE_NOTICE_S: Final = 15.0
"""After this time, every leader has received a changed quota or job, or has lost its leadership."""

TERMINAL_STATUSES: Final = (ClientStatus.COMPLETE, ClientStatus.FAILED, ClientStatus.LOST)


def find_reverted_job(kind: str, changed: ObservedChange) -> Job | None:
    """Return the job if the change reverts it to an older version, or else `None`. `kind` is that of the batch."""
    if changed.table != JOBS.name or changed.new is None or kind not in ("deployment-failed", "allocation-health"):
        return None
    job: Job = changed.new
    return job if changed.old is None or changed.old.version != job.version else None


class RolloutInvariants:
    """Checks each batch, and remembers which allocations are down for an update."""

    def __init__(self, history: RecordHistory, get_time_s: Callable[[], float]) -> None:
        self._history = history
        self._now_s = get_time_s
        self._quota_changed_s = 0.0
        self._parents_changed_s: dict[tuple[str, str], float] = {}
        self._down: dict[str, dict[str, str]] = {}
        """By deployment: the allocations that it stopped and that have no healthy replacement yet, with their group."""
        history.on_new_epoch += [self._down.clear, self._on_new_epoch]
        history.batch_checks += [
            self.check_revert_target,
            self.check_canary_count,
            self.check_max_parallel,
            self.check_batch_runs_once,
            self.check_eligible_nodes,
            self.check_running_children,
            self.check_quota,
        ]

    def _on_new_epoch(self) -> None:
        self._quota_changed_s = self._now_s()
        self._parents_changed_s |= {(job.namespace, job.id): self._now_s() for job in self._replica.iter_all(JOBS)}

    @property
    def _replica(self) -> Replica:
        return self._history.replica

    def check_revert_target(self, batch: ObservedBatch) -> None:
        """A reverted job has the content of its newest stable version."""
        for changed in batch.changes:
            job = find_reverted_job(batch.batch.kind, changed)
            if job is None:
                continue
            stored = self._replica.list_by_index(VERSIONS_OF_JOB, job.namespace, job.id)
            deleted = [
                change.old for change in batch.changes if change.table == JOB_VERSIONS.name and change.new is None
            ]
            versions = [version for version in (*stored, *deleted) if version is not None and version.id == job.id]
            stable = max((v for v in versions if v.stable), key=lambda version: version.version, default=None)
            if stable is None:
                raise InvariantViolation(
                    f"{job.id} was reverted without a stable version at {batch.batch.index}", job.id
                )
            is_same = (job.meta, job.task_groups, job.stop) == (stable.meta, stable.task_groups, stable.stop)
            if not is_same or job.stable or job.version <= stable.version:
                raise InvariantViolation(
                    f"{job.id} was reverted at {batch.batch.index}, but not to {stable.version}", job.id
                )

    def check_canary_count(self, batch: ObservedBatch) -> None:
        """A group has at most its desired number of canaries."""
        for placed in _list_placements(batch):
            if not _is_canary(placed):
                continue
            deployment = self._replica.get(DEPLOYMENTS, placed.deployment_id)
            group = (deployment.task_groups or {}).get(placed.task_group) if deployment is not None else None
            canaries = [
                canary
                for canary in self._list_allocations_of_deployment(placed)
                if _is_canary(canary) and _is_active(canary)
            ]
            if group is None or len(canaries) > group.desired_canaries:
                raise InvariantViolation(
                    f"{placed.job_id} has {len(canaries)} canaries at {batch.batch.index}; desired: "
                    f"{group.desired_canaries if group is not None else 'no group'}",
                    placed.job_id, placed.id,
                )  # fmt: skip

    def check_max_parallel(self, batch: ObservedBatch) -> None:
        """At most `max_parallel` allocations of a group are down for an update."""
        for changed in batch.changes:
            if changed.table != ALLOCATIONS.name or changed.new is None:
                continue
            new: Allocation = changed.new
            if _is_healthy(new):
                self._mark_up(new)
            elif _is_taken_by_others(new) and self._is_of_system_job(new):
                self._stop_counting_node(new)  # Preemption or the loss of the node took it down, not the update.
            elif changed.old is None and self._is_of_system_job(new) and not self._is_of_active_deployment(new):
                self._stop_counting_node(new)  # The older version is back on this node: no update is under way there.
        affected: dict[str, Deployment] = {}
        for stopped in _list_stopped_for_update(batch):
            deployment = self._find_active_deployment(stopped)
            if deployment is not None and not _was_down(stopped) and not self._is_node_down(deployment, stopped):
                affected[deployment.id] = deployment
                self._down.setdefault(deployment.id, {})[stopped.id] = stopped.task_group
        for deployment in affected.values():
            self._require_max_parallel(deployment, batch.batch.index)

    def _require_max_parallel(self, deployment: Deployment, index: int) -> None:
        version = self._replica.get(
            JOB_VERSIONS, deployment.namespace, deployment.job_id, f"{deployment.job_version:020d}"
        )
        for group in version.groups if version is not None else ():
            max_parallel = group.update.max_parallel if group.update is not None else 0
            down = [key for key, name in self._down[deployment.id].items() if name == group.name]
            if version is not None and version.type == JobType.SYSTEM:
                down = [key for key in down if self._is_on_a_node_that_is_eligible(key)]
            elif self._count_up(deployment, group.name) >= group.count - max_parallel:
                continue  # Others are up in place of those that were stopped, such as the replacement of one that had ended.
            if max_parallel and len(down) > max_parallel:
                raise InvariantViolation(
                    f"{deployment.job_id} may have {max_parallel} down for an update and has {len(down)} at {index}: "
                    f"{' '.join(down)}",
                    deployment.job_id, deployment.id, *down,
                )  # fmt: skip

    def _count_up(self, deployment: Deployment, group: str) -> int:
        """Return how many allocations of the group are up, in any version."""
        allocations = self._replica.list_by_index(ALLOCATIONS_OF_JOB, deployment.namespace, deployment.job_id)
        return sum(a.task_group == group and _is_healthy(a) and _is_active(a) and not _was_down(a) for a in allocations)

    def _mark_up(self, healthy: Allocation) -> None:
        """Count the allocations as up that a healthy allocation replaces, directly or in several steps, in any version.

        If the first allocation of its chain has no predecessor and belongs to the same deployment, it replaces the oldest
        allocation that is down and has no active successor.
        """
        if self._is_of_system_job(healthy):
            self._mark_up_on_node(healthy)
            return
        down = self._down.get(healthy.deployment_id)
        first = self._find_first(healthy)
        if down and not first.previous_allocation and first.deployment_id == healthy.deployment_id:
            unreplaced = (
                key
                for key, group in down.items()
                if group == healthy.task_group and not self._has_active_successor(key)
            )
            down.pop(next(unreplaced, ""), None)
        before: Allocation | None = healthy
        while before is not None and before.previous_allocation:
            for down_allocations in self._down.values():
                down_allocations.pop(before.previous_allocation, None)
            before = self._replica.get(ALLOCATIONS, before.previous_allocation)

    def _mark_up_on_node(self, healthy: Allocation) -> None:
        """Count a node of a system job as up: any healthy allocation on it counts, in any version."""
        if _is_active(healthy):
            self._stop_counting_node(healthy)

    def _stop_counting_node(self, allocation: Allocation) -> None:
        """No longer count the allocation of a system job on this node as down."""
        for down in self._down.values():
            for key in [key for key in down if self._is_same_slot(key, allocation)]:
                del down[key]

    def _is_node_down(self, deployment: Deployment, stopped: Allocation) -> bool:
        """Return whether this node of a system job is down already. It does not count twice."""
        down = self._down.get(deployment.id, {})
        return self._is_of_system_job(stopped) and any(self._is_same_slot(key, stopped) for key in down)

    def _is_of_system_job(self, allocation: Allocation) -> bool:
        job = self._replica.get(JOBS, allocation.namespace, allocation.job_id)
        return job is not None and job.type == JobType.SYSTEM

    def _is_of_active_deployment(self, allocation: Allocation) -> bool:
        deployment = self._find_active_deployment(allocation)
        return deployment is not None and deployment.id == allocation.deployment_id

    def _is_same_slot(self, allocation_id: str, allocation: Allocation) -> bool:
        existing = self._replica.get(ALLOCATIONS, allocation_id)
        slot = (allocation.job_id, allocation.name, allocation.node_id)
        return existing is not None and (existing.job_id, existing.name, existing.node_id) == slot

    def _find_first(self, allocation: Allocation) -> Allocation:
        """Return the first allocation in the chain of predecessors that still exist."""
        while allocation.previous_allocation:
            before = self._replica.get(ALLOCATIONS, allocation.previous_allocation)
            if before is None:
                break
            allocation = before
        return allocation

    def _get_node_id(self, allocation_id: str) -> str:
        allocation = self._replica.get(ALLOCATIONS, allocation_id)
        return allocation.node_id if allocation is not None else ""

    def _is_on_a_node_that_is_eligible(self, allocation_id: str) -> bool:
        """Return whether the node of an allocation is eligible. On any other node the allocation would stop anyway."""
        return _is_eligible(self._replica.get(NODES, self._get_node_id(allocation_id)))

    def _has_active_successor(self, allocation_id: str) -> bool:
        """Return whether the last allocation in the chain of its replacements is active."""
        after: Allocation | None = self._replica.get(ALLOCATIONS, allocation_id)
        while after is not None and after.next_allocation:
            after = self._replica.get(ALLOCATIONS, after.next_allocation)
        return after is not None and _is_active(after)

    def check_batch_runs_once(self, batch: ObservedBatch) -> None:
        """Completed batch work is not placed again, except for elements of an array in a new attempt."""
        for placed in _list_placements(batch):
            job = self._replica.get(JOBS, placed.namespace, placed.job_id)
            if job is None or not job.is_finite:
                continue
            for existing in self._replica.list_by_index(ALLOCATIONS_OF_JOB, placed.namespace, placed.job_id):
                is_same = (existing.name, existing.job_version) == (placed.name, placed.job_version)
                is_same = is_same and existing.job_create_index == placed.job_create_index
                is_same = is_same and existing.array_attempt == placed.array_attempt
                is_same = is_same and (job.type == JobType.BATCH or existing.node_id == placed.node_id)
                if (
                    is_same
                    and existing.client_status is ClientStatus.COMPLETE
                    and existing.desired_status is DesiredStatus.RUN
                ):
                    raise InvariantViolation(
                        f"{placed.name} was completed by {existing.id} and is placed again as {placed.id} at {batch.batch.index}",
                        placed.job_id, placed.id, existing.id,
                    )  # fmt: skip

    def check_eligible_nodes(self, batch: ObservedBatch) -> None:
        """Allocations are placed on eligible nodes only."""
        for placed in _list_placements(batch):
            if not _is_eligible(self._replica.get(NODES, placed.node_id)):
                raise InvariantViolation(
                    f"{placed.id} is placed at {batch.batch.index} on {placed.node_name}, which is not eligible",
                    placed.id, placed.node_id, placed.job_id,
                )  # fmt: skip

    def check_running_children(self, batch: ObservedBatch) -> None:
        """At most `max_running` children of a job run.

        Children that run when the limit is lowered continue. Placements have no condition on the parent, and a leader
        receives a changed limit a little later.
        """
        for changed in batch.changes:
            if changed.table == JOBS.name and _get_max_children(changed.old) != _get_max_children(changed.new):
                job = changed.new or changed.old
                self._parents_changed_s[job.namespace, job.id] = self._now_s()
        started_jobs = {
            (placed.namespace, placed.job_id) for placed in _list_placements(batch)
        } - self._list_jobs_active_before(batch)
        for namespace, job_id in sorted(started_jobs):
            job = self._replica.get(JOBS, namespace, job_id)
            parent = self._replica.get(JOBS, namespace, job.parent_id) if job is not None and job.parent_id else None
            max_children = _get_max_children(parent)
            if (
                parent is None
                or not max_children
                or self._now_s() < self._parents_changed_s[namespace, parent.id] + CHANGE_NOTICE_S
            ):
                continue
            children = [child.id for child in self._replica.iter_all(JOBS) if child.parent_id == parent.id]
            active = [child for child in children if self._has_active_allocation(namespace, child)]
            if len(active) > max_children:
                raise InvariantViolation(
                    f"{job_id} starts at {batch.batch.index}, and {len(active)} children of {parent.id} run; max_running is {max_children}",
                    job_id, parent.id, *active,
                )  # fmt: skip

    def _list_jobs_active_before(self, batch: ObservedBatch) -> set[tuple[str, str]]:
        """Return the jobs with placements in this batch that had active allocations before it."""
        old_by_key = {changed.key: changed.old for changed in batch.changes if changed.table == ALLOCATIONS.name}
        jobs = {(placed.namespace, placed.job_id) for placed in _list_placements(batch)}
        return {
            job
            for job in jobs
            for allocation in self._replica.list_by_index(ALLOCATIONS_OF_JOB, *job)
            if (before := old_by_key.get(allocation.id, allocation)) is not None and _is_active(before)
        }

    def _has_active_allocation(self, namespace: str, job_id: str) -> bool:
        return any(
            _is_active(allocation) for allocation in self._replica.list_by_index(ALLOCATIONS_OF_JOB, namespace, job_id)
        )

    def check_quota(self, batch: ObservedBatch) -> None:
        """No batch increases the use of a namespace beyond its quota.

        The use may exceed a quota that was lowered. Placements have no condition on the quota, and a leader receives a
        changed quota a little later.
        """
        if any(changed.table in (QUOTAS.name, NAMESPACES.name) for changed in batch.changes):
            self._quota_changed_s = self._now_s()
        if self._now_s() < self._quota_changed_s + CHANGE_NOTICE_S:
            return
        for namespace in dict.fromkeys(placed.namespace for placed in _list_placements(batch)):
            record = self._replica.get(NAMESPACES, namespace)
            quota = self._replica.get(QUOTAS, record.quota) if record is not None and record.quota else None
            for limit in quota.limits or () if quota is not None else ():
                region_limit = limit.region_limit
                changes = [change for change in batch.changes if change.table == ALLOCATIONS.name]
                before = _sum_resources(change.old for change in changes if change.old is not None)
                after = _sum_resources(change.new for change in changes if change.new is not None)
                used = _sum_resources(a for a in self._replica.iter_all(ALLOCATIONS) if a.namespace == namespace)
                for resource, maximum in (
                    ("count", region_limit.count),
                    ("cpu", region_limit.cpu),
                    ("memory_mb", region_limit.memory_mb),
                ):
                    if maximum and used[resource] > maximum and after[resource] > before[resource]:
                        raise InvariantViolation(
                            f"namespace {namespace} uses {used[resource]} {resource} of {maximum} at {batch.batch.index}",
                            *(placed.id for placed in _list_placements(batch)),
                        )

    # -- lookups -----------------------------------------------------------------------------------------------

    def _list_allocations_of_deployment(self, allocation: Allocation) -> list[Allocation]:
        allocations = self._replica.list_by_index(ALLOCATIONS_OF_JOB, allocation.namespace, allocation.job_id)
        return [sibling for sibling in allocations if sibling.deployment_id == allocation.deployment_id]

    def _find_active_deployment(self, allocation: Allocation) -> Deployment | None:
        deployments = self._replica.list_by_index(DEPLOYMENTS_OF_JOB, allocation.namespace, allocation.job_id)
        return next((deployment for deployment in deployments if deployment.is_active), None)


def _list_placements(batch: ObservedBatch) -> list[Allocation]:
    return [
        changed.new
        for changed in batch.changes
        if changed.table == ALLOCATIONS.name and changed.old is None and changed.new is not None
    ]


def _get_max_children(parent: Job | None) -> int:
    """Return how many children of a job may run at the same time; 0 is unlimited."""
    return parent.parameterized_job.max_running if parent is not None and parent.parameterized_job is not None else 0


def _is_eligible(node: Node | None) -> bool:
    return (
        node is not None
        and node.status is NodeStatus.READY
        and node.scheduling_eligibility is SchedulingEligibility.ELIGIBLE
        and node.drain_strategy is None
    )


def _list_stopped_for_update(batch: ObservedBatch) -> list[Allocation]:
    """Return the allocations that the batch stops for an update, as they were before it."""
    return [
        changed.old
        for changed in batch.changes
        if changed.table == ALLOCATIONS.name
        and changed.old is not None
        and changed.new is not None
        and changed.old.desired_status is DesiredStatus.RUN
        and changed.new.desired_status is DesiredStatus.STOP
        and changed.new.desired_description == UPDATE_STOP_DESCRIPTION
    ]


def _was_down(allocation: Allocation) -> bool:
    """Return whether the allocation was not running, so that stopping it takes nothing down."""
    return allocation.client_status is not ClientStatus.RUNNING


def _is_taken_by_others(allocation: Allocation) -> bool:
    """Return whether the allocation was preempted or lost with its node."""
    return allocation.desired_status is DesiredStatus.EVICT or allocation.client_status is ClientStatus.LOST


def _is_canary(allocation: Allocation) -> bool:
    return allocation.deployment_status is not None and allocation.deployment_status.canary


def _is_healthy(allocation: Allocation) -> bool:
    return allocation.deployment_status is not None and allocation.deployment_status.healthy is True


def _is_active(allocation: Allocation) -> bool:
    return allocation.desired_status is DesiredStatus.RUN and allocation.client_status not in TERMINAL_STATUSES


def _sum_resources(allocations: Iterable[Allocation]) -> dict[str, int]:
    used = {"count": 0, "cpu": 0, "memory_mb": 0}
    for allocation in allocations:
        if allocation.client_status in TERMINAL_STATUSES:
            continue
        used["count"] += 1
        resources = allocation.allocated_resources
        for task in (resources.tasks or {}).values() if resources is not None else ():
            used["cpu"] += task.cpu.cpu_shares
            used["memory_mb"] += task.memory.memory_mb
    return used
