"""What must hold while versions of a job take each other's place, checked on what each batch changed.

At most `max_parallel` are down by our own doing, canaries are never more than were asked for, a job that goes back goes
back to its newest stable version, and nothing is placed beyond a quota, out of its turn, or done a second time.
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
"""After so long every leader has heard of a quota or a job that was changed, or leads no more."""

TERMINAL_STATUSES: Final = (ClientStatus.COMPLETE, ClientStatus.FAILED, ClientStatus.LOST)


def find_reverted_job(kind: str, changed: ObservedChange) -> Job | None:
    """The job as a batch of this kind takes it back to an older version; None: that is not what the change is."""
    if changed.table != JOBS.name or changed.new is None or kind not in ("deployment-failed", "allocation-health"):
        return None
    job: Job = changed.new
    return job if changed.old is None or changed.old.version != job.version else None


class RolloutInvariants:
    def __init__(self, history: RecordHistory, get_time_s: Callable[[], float]) -> None:
        self._witness = history
        self._now_s = get_time_s
        self._quota_moved_s = 0.0
        self._parents_moved_s: dict[tuple[str, str], float] = {}
        self._down: dict[str, dict[str, str]] = {}
        """Of each deployment: the allocations that it took down, while nobody who took their places is well."""
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
        self._quota_moved_s = self._now_s()
        self._parents_moved_s |= {(job.namespace, job.id): self._now_s() for job in self._replica.iter_all(JOBS)}

    @property
    def _replica(self) -> Replica:
        return self._witness.replica

    def check_revert_target(self, taken: ObservedBatch) -> None:
        for changed in taken.changes:
            job = find_reverted_job(taken.batch.kind, changed)
            if job is None:
                continue
            standing = self._replica.list_by_index(VERSIONS_OF_JOB, job.namespace, job.id)
            dropped = [each.old for each in taken.changes if each.table == JOB_VERSIONS.name and each.new is None]
            mine = [each for each in (*standing, *dropped) if each is not None and each.id == job.id]
            stable = max((each for each in mine if each.stable), key=lambda each: each.version, default=None)
            if stable is None:
                raise InvariantViolation(f"{job.id} was taken back to no stable version at {taken.batch.index}", job.id)
            same = (job.meta, job.task_groups, job.stop) == (stable.meta, stable.task_groups, stable.stop)
            if not same or job.stable or job.version <= stable.version:
                raise InvariantViolation(
                    f"{job.id} was taken back at {taken.batch.index}, and not to {stable.version}", job.id
                )

    def check_canary_count(self, taken: ObservedBatch) -> None:
        for placed in _placed(taken):
            if not _is_canary(placed):
                continue
            deployment = self._replica.get(DEPLOYMENTS, placed.deployment_id)
            group = (deployment.task_groups or {}).get(placed.task_group) if deployment is not None else None
            trying = [each for each in self._of_deployment(placed) if _is_canary(each) and _is_wanted(each)]
            if group is None or len(trying) > group.desired_canaries:
                raise InvariantViolation(
                    f"{placed.job_id} has {len(trying)} canaries at {taken.batch.index} and shall have "
                    f"{group.desired_canaries if group is not None else 'none'}",
                    placed.job_id, placed.id,
                )  # fmt: skip

    def check_max_parallel(self, taken: ObservedBatch) -> None:
        for changed in taken.changes:
            if changed.table != ALLOCATIONS.name or changed.new is None:
                continue
            new: Allocation = changed.new
            if _is_well(new):
                self._is_up_again(new)
        concerned: dict[str, Deployment] = {}
        for stopped in _stopped_for_update(taken):
            deployment = self._active_of(stopped)
            if deployment is not None and not _is_ailing(stopped) and not self._is_down_there(deployment, stopped):
                concerned[deployment.id] = deployment
                self._down.setdefault(deployment.id, {})[stopped.id] = stopped.task_group
        for deployment in concerned.values():
            self._require_few_down(deployment, taken.batch.index)

    def _require_few_down(self, deployment: Deployment, index: int) -> None:
        version = self._replica.get(
            JOB_VERSIONS, deployment.namespace, deployment.job_id, f"{deployment.job_version:020d}"
        )
        for group in version.groups if version is not None else ():
            most = group.update.max_parallel if group.update is not None else 0
            down = [key for key, name in self._down[deployment.id].items() if name == group.name]
            if version is not None and version.type == JobType.SYSTEM:
                down = [key for key in down if self._is_on_a_node_that_takes_work(key)]
            if most and len(down) > most:
                raise InvariantViolation(
                    f"{deployment.job_id} may have {most} down for an update and has {len(down)} at {index}: "
                    f"{' '.join(down)}",
                    deployment.job_id, deployment.id, *down,
                )  # fmt: skip

    def _is_up_again(self, well: Allocation) -> None:
        """What it came after, by however many steps, also where it is of the version before; who came after nobody, or
        takes the place of one of its own deployment that did, fills the oldest gap of it that nobody else fills."""
        if self._is_of_system_job(well):
            self._is_up_again_on_its_node(well)
            return
        down = self._down.get(well.deployment_id)
        first = self._first_of(well)
        if down and not first.previous_allocation and first.deployment_id == well.deployment_id:
            gaps = (key for key, group in down.items() if group == well.task_group and not self._is_followed(key))
            down.pop(next(gaps, ""), None)
        before: Allocation | None = well
        while before is not None and before.previous_allocation:
            for each in self._down.values():
                each.pop(before.previous_allocation, None)
            before = self._replica.get(ALLOCATIONS, before.previous_allocation)

    def _is_up_again_on_its_node(self, well: Allocation) -> None:
        """For a system job, any healthy allocation on the node counts, whichever version and predecessor it has."""
        if not _is_wanted(well):
            return
        for down in self._down.values():
            for key in [key for key in down if self._is_same_slot(key, well)]:
                del down[key]

    def _is_down_there(self, deployment: Deployment, stopped: Allocation) -> bool:
        """For a system job, a node that is down already does not go down again."""
        down = self._down.get(deployment.id, {})
        return self._is_of_system_job(stopped) and any(self._is_same_slot(key, stopped) for key in down)

    def _is_of_system_job(self, allocation: Allocation) -> bool:
        job = self._replica.get(JOBS, allocation.namespace, allocation.job_id)
        return job is not None and job.type == JobType.SYSTEM

    def _is_same_slot(self, allocation_id: str, other: Allocation) -> bool:
        found = self._replica.get(ALLOCATIONS, allocation_id)
        slot = (other.job_id, other.name, other.node_id)
        return found is not None and (found.job_id, found.name, found.node_id) == slot

    def _first_of(self, allocation: Allocation) -> Allocation:
        """The one that began it all, as far as the log knows those before it."""
        while allocation.previous_allocation:
            before = self._replica.get(ALLOCATIONS, allocation.previous_allocation)
            if before is None:
                break
            allocation = before
        return allocation

    def _node_of(self, allocation_id: str) -> str:
        allocation = self._replica.get(ALLOCATIONS, allocation_id)
        return allocation.node_id if allocation is not None else ""

    def _is_on_a_node_that_takes_work(self, allocation_id: str) -> bool:
        """Else it would be gone from there anyway, and nobody waits for who comes after it."""
        return _takes_work(self._replica.get(NODES, self._node_of(allocation_id)))

    def _is_followed(self, allocation_id: str) -> bool:
        """Somebody who goes on came after it, by however many steps."""
        after: Allocation | None = self._replica.get(ALLOCATIONS, allocation_id)
        while after is not None and after.next_allocation:
            after = self._replica.get(ALLOCATIONS, after.next_allocation)
        return after is not None and _is_wanted(after)

    def check_batch_runs_once(self, taken: ObservedBatch) -> None:
        for placed in _placed(taken):
            job = self._replica.get(JOBS, placed.namespace, placed.job_id)
            if job is None or job.type not in (JobType.BATCH, JobType.SYSBATCH):
                continue
            for other in self._replica.list_by_index(ALLOCATIONS_OF_JOB, placed.namespace, placed.job_id):
                same = (other.name, other.job_version) == (placed.name, placed.job_version)
                same = same and other.job_create_index == placed.job_create_index
                same = same and (job.type == JobType.BATCH or other.node_id == placed.node_id)
                if same and other.client_status is ClientStatus.COMPLETE and other.desired_status is DesiredStatus.RUN:
                    raise InvariantViolation(
                        f"{placed.name} was done by {other.id} and is placed again as {placed.id} at {taken.batch.index}",
                        placed.job_id, placed.id, other.id,
                    )  # fmt: skip

    def check_eligible_nodes(self, taken: ObservedBatch) -> None:
        for placed in _placed(taken):
            if not _takes_work(self._replica.get(NODES, placed.node_id)):
                raise InvariantViolation(
                    f"{placed.id} is placed at {taken.batch.index} on {placed.node_name}, which takes no work",
                    placed.id, placed.node_id, placed.job_id,
                )  # fmt: skip

    def check_running_children(self, taken: ObservedBatch) -> None:
        """Who has begun goes on whatever is allowed later, and no write rests on the parent: a leader hears of it a
        little later."""
        for changed in taken.changes:
            if changed.table == JOBS.name and _children_most(changed.old) != _children_most(changed.new):
                job = changed.new or changed.old
                self._parents_moved_s[job.namespace, job.id] = self._now_s()
        begun = {(each.namespace, each.job_id) for each in _placed(taken)} - self._at_work_before(taken)
        for namespace, job_id in sorted(begun):
            job = self._replica.get(JOBS, namespace, job_id)
            parent = self._replica.get(JOBS, namespace, job.parent_id) if job is not None and job.parent_id else None
            most = _children_most(parent)
            if (
                parent is None
                or not most
                or self._now_s() < self._parents_moved_s[namespace, parent.id] + CHANGE_NOTICE_S
            ):
                continue
            children = [each.id for each in self._replica.iter_all(JOBS) if each.parent_id == parent.id]
            at_work = [each for each in children if self._has_work(namespace, each)]
            if len(at_work) > most:
                raise InvariantViolation(
                    f"{job_id} begins at {taken.batch.index} and {len(at_work)} children of {parent.id} run; {most} may",
                    job_id, parent.id, *at_work,
                )  # fmt: skip

    def _at_work_before(self, taken: ObservedBatch) -> set[tuple[str, str]]:
        moved = {changed.key: changed.old for changed in taken.changes if changed.table == ALLOCATIONS.name}
        jobs = {(each.namespace, each.job_id) for each in _placed(taken)}
        return {
            job
            for job in jobs
            for each in self._replica.list_by_index(ALLOCATIONS_OF_JOB, *job)
            if (before := moved.get(each.id, each)) is not None and _is_wanted(before)
        }

    def _has_work(self, namespace: str, job_id: str) -> bool:
        return any(_is_wanted(each) for each in self._replica.list_by_index(ALLOCATIONS_OF_JOB, namespace, job_id))

    def check_quota(self, taken: ObservedBatch) -> None:
        """What is there already may be more: limits are lowered whenever somebody likes, and a leader hears of it a
        little later. No write rests on the quota: what is placed until then is placed."""
        if any(changed.table in (QUOTAS.name, NAMESPACES.name) for changed in taken.changes):
            self._quota_moved_s = self._now_s()
        if self._now_s() < self._quota_moved_s + CHANGE_NOTICE_S:
            return
        for namespace in dict.fromkeys(placed.namespace for placed in _placed(taken)):
            found = self._replica.get(NAMESPACES, namespace)
            quota = self._replica.get(QUOTAS, found.quota) if found is not None and found.quota else None
            for limit in quota.limits or () if quota is not None else ():
                bounds = limit.region_limit
                changes = [each for each in taken.changes if each.table == ALLOCATIONS.name]
                before = _used(each.old for each in changes if each.old is not None)
                after = _used(each.new for each in changes if each.new is not None)
                used = _used(each for each in self._replica.iter_all(ALLOCATIONS) if each.namespace == namespace)
                for what, most in (("count", bounds.count), ("cpu", bounds.cpu), ("memory_mb", bounds.memory_mb)):
                    if most and used[what] > most and after[what] > before[what]:
                        raise InvariantViolation(
                            f"namespace {namespace} uses {used[what]} {what} of {most} at {taken.batch.index}",
                            *(placed.id for placed in _placed(taken)),
                        )

    # -- whose it is -----------------------------------------------------------------------------------------------

    def _of_deployment(self, allocation: Allocation) -> list[Allocation]:
        mine = self._replica.list_by_index(ALLOCATIONS_OF_JOB, allocation.namespace, allocation.job_id)
        return [each for each in mine if each.deployment_id == allocation.deployment_id]

    def _active_of(self, allocation: Allocation) -> Deployment | None:
        mine = self._replica.list_by_index(DEPLOYMENTS_OF_JOB, allocation.namespace, allocation.job_id)
        return next((deployment for deployment in mine if deployment.is_active), None)


def _placed(taken: ObservedBatch) -> list[Allocation]:
    return [
        changed.new
        for changed in taken.changes
        if changed.table == ALLOCATIONS.name and changed.old is None and changed.new is not None
    ]


def _children_most(parent: Job | None) -> int:
    """How many children may run at the same time; 0: any number."""
    return parent.parameterized_job.max_running if parent is not None and parent.parameterized_job is not None else 0


def _takes_work(node: Node | None) -> bool:
    return (
        node is not None
        and node.status is NodeStatus.READY
        and node.scheduling_eligibility is SchedulingEligibility.ELIGIBLE
        and node.drain_strategy is None
    )


def _stopped_for_update(taken: ObservedBatch) -> list[Allocation]:
    """As they were before."""
    return [
        changed.old
        for changed in taken.changes
        if changed.table == ALLOCATIONS.name
        and changed.old is not None
        and changed.new is not None
        and changed.old.desired_status is DesiredStatus.RUN
        and changed.new.desired_status is DesiredStatus.STOP
        and changed.new.desired_description == UPDATE_STOP_DESCRIPTION
    ]


def _is_ailing(allocation: Allocation) -> bool:
    """It was down already, or nobody knew: who stops it takes nothing away."""
    return allocation.client_status is not ClientStatus.RUNNING


def _is_canary(allocation: Allocation) -> bool:
    return allocation.deployment_status is not None and allocation.deployment_status.canary


def _is_well(allocation: Allocation) -> bool:
    return allocation.deployment_status is not None and allocation.deployment_status.healthy is True


def _is_wanted(allocation: Allocation) -> bool:
    return allocation.desired_status is DesiredStatus.RUN and allocation.client_status not in TERMINAL_STATUSES


def _used(allocations: Iterable[Allocation]) -> dict[str, int]:
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
