"""Tracks the allocations that must still leave draining nodes, and which jobs and nodes changed since the last check.

So a check of drains costs what changed, not what exists. It holds nothing that the replica does not: a new leader
starts with everything marked as changed. What may leave, and when, is decided in `controllers.drains`.
"""

from collections.abc import Collection, Iterable, Iterator

from wharf.cluster.state import Replica
from wharf.cluster.state.replica import AppliedChange
from wharf.cluster.state.tables import ALLOCATIONS, JOBS, NODES, UNFINISHED_ALLOCATIONS_ON_NODE
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.jobs.job import JobKey, JobType
from wharf.contract.model.nodes.node import Node


class DrainTracker:
    """The allocations that must still be moved off draining nodes, by node and by job, and what changed since the last
    check.
    """

    def __init__(self) -> None:
        self._jobs_by_node: dict[str, dict[str, JobKey]] = {}
        """By id of a draining node: the job of each movable allocation on it, by allocation id.

        Nodes without movable allocations have an empty entry.
        """
        self._allocations_by_job: dict[JobKey, dict[str, None]] = {}
        """By job, the ids of its movable allocations on draining nodes."""
        self._forced_nodes: dict[str, None] = {}  # Ids of draining nodes whose deadline has passed.
        self._changed_jobs: dict[JobKey, None] = {}  # Jobs to check, because something changed since the last check.
        self._changed_nodes: dict[str, None] = {}
        """Ids of nodes to check, because something changed since the last check."""

    @classmethod
    def from_snapshot(cls, snapshot: Replica) -> "DrainTracker":
        """Return a tracker of all draining nodes of the snapshot, with all their jobs and nodes marked for the next
        check.
        """
        tracker = cls()
        for node in snapshot.iter_all(NODES):
            tracker._update_node(snapshot, node.id, node)
        return tracker

    @property
    def draining_nodes(self) -> Collection[str]:
        """The ids of the draining nodes."""
        return self._jobs_by_node.keys()

    def list_allocations_of_job(self, key: JobKey) -> list[str]:
        """Return the sorted ids of the job's allocations that must still be moved off draining nodes.

        They are sorted so that every leader moves them in the same order.
        """
        return sorted(self._allocations_by_job.get(key, ()))

    def iter_jobs_on_node(self, node_id: str) -> Iterator[JobKey]:
        """Yield the job of each allocation that must still be moved off the node. A job may occur several times."""
        return iter(self._jobs_by_node.get(node_id, {}).values())

    def update(self, snapshot: Replica, changes: Iterable[AppliedChange]) -> None:
        """Track the changes of one committed batch. `snapshot` has the state after the batch."""
        for table, record_key, before, after in changes:
            if table == NODES.name:
                self._update_node(snapshot, record_key, after)
            elif table == ALLOCATIONS.name and self._jobs_by_node:
                self._update_allocation(record_key, before, after)
            elif table == JOBS.name and (after or before) is not None:
                job = after or before
                self._mark_job_changed((job.namespace, job.id))

    def _update_node(self, snapshot: Replica, node_id: str, node: Node | None) -> None:
        """Start, continue or stop tracking a node after it was added, changed or deleted (`None`)."""
        is_known = node_id in self._jobs_by_node
        self._forced_nodes.pop(node_id, None)  # The drain may have a new deadline.
        if node is None or node.drain_strategy is None:
            if is_known:
                for allocation_id, job in self._jobs_by_node.pop(node_id).items():
                    self._remove_allocation(allocation_id, job)
            return
        if not is_known:
            self._jobs_by_node[node_id] = {}
            for allocation in snapshot.list_by_index(UNFINISHED_ALLOCATIONS_ON_NODE, node_id):
                self._update_allocation(allocation.id, None, allocation)
        self._mark_node_changed(node_id)

    def _update_allocation(self, allocation_id: str, before: Allocation | None, after: Allocation | None) -> None:
        """Track or drop an allocation after it was added, changed or deleted, and mark its node and its job as changed."""
        allocation = after or before
        if allocation is None:
            return
        job = (allocation.namespace, allocation.job_id)
        node_allocations = self._jobs_by_node.get(allocation.node_id)
        if node_allocations is not None:
            self._changed_nodes[allocation.node_id] = None
            if after is not None and is_movable(after):
                node_allocations[allocation_id] = job
                self._allocations_by_job.setdefault(job, {})[allocation_id] = None
            elif node_allocations.pop(allocation_id, None) is not None:
                self._remove_allocation(allocation_id, job)
        self._mark_job_changed(job)

    def _remove_allocation(self, allocation_id: str, job: JobKey) -> None:
        """Remove the allocation from the entry of its job in `_allocations_by_job`."""
        job_allocations = self._allocations_by_job[job]
        del job_allocations[allocation_id]
        if not job_allocations:
            del self._allocations_by_job[job]

    def _mark_job_changed(self, job: JobKey) -> None:
        """Mark the job for the next check, if it has allocations to move off a draining node.

        Every change of the job counts: how many allocations may be moved depends on its healthy allocations on all
        nodes.
        """
        if job in self._allocations_by_job:
            self._changed_jobs[job] = None

    def _mark_node_changed(self, node_id: str) -> None:
        """Mark the draining node, and all jobs with allocations to be moved off it, for the next check."""
        self._changed_nodes[node_id] = None
        self._changed_jobs |= dict.fromkeys(self._jobs_by_node[node_id].values())

    def mark_forced(self, node_ids: Iterable[str]) -> None:
        """Record that the drain deadline of these nodes has passed, and mark them for the next check.

        Their allocations are then moved without further delay. Nodes that do not drain are ignored.
        """
        for node_id in node_ids:
            if node_id in self._jobs_by_node and node_id not in self._forced_nodes:
                self._forced_nodes[node_id] = None
                self._mark_node_changed(node_id)

    def take_changed_jobs(self, snapshot: Replica) -> list[JobKey]:
        """Return the jobs that must be checked, and clear the list of them.

        A system job is included when anything on its node changed, because its allocations leave a node last.
        """
        for node_id in self._changed_nodes:
            for key in dict.fromkeys(self._jobs_by_node.get(node_id, {}).values()):
                job = snapshot.get(JOBS, *key)
                if job is not None and job.type == JobType.SYSTEM:
                    self._changed_jobs[key] = None
        jobs, self._changed_jobs = list(self._changed_jobs), {}
        return jobs

    def take_changed_nodes(self) -> list[str]:
        """Return the ids of the draining nodes that must be checked, and clear the list of them."""
        nodes, self._changed_nodes = [node_id for node_id in self._changed_nodes if node_id in self._jobs_by_node], {}
        return nodes


def is_movable(allocation: Allocation) -> bool:
    """Return whether the allocation must still be moved in a drain: it is active and not yet marked to migrate."""
    return not allocation.is_terminal and not allocation.should_migrate
