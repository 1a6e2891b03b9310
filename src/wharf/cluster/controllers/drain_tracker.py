"""What is still to leave the nodes that are drained, kept from change to change, and what of it is to be looked at again.

So a look at drains costs what changed since the last one, not what there is. It holds nothing that the state does not
hold: a new leader begins with all of it. What may leave, and when, is decided by `drainer`.
"""

from collections.abc import Collection, Iterable, Iterator

from wharf.cluster.state import Replica
from wharf.cluster.state.replica import AppliedChange
from wharf.cluster.state.tables import ALLOCATIONS, ALLOCATIONS_ON_NODE, JOBS, NODES
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.jobs.job import JobType
from wharf.contract.model.nodes.node import Node

JobKey = tuple[str, str]


class DrainTracker:
    """By node and by job, what runs on drained nodes and nobody has told to go."""

    def __init__(self) -> None:
        self._on_node: dict[str, dict[str, JobKey]] = {}
        """Of each node that is drained, also of those where nothing is left."""
        self._of_job: dict[JobKey, dict[str, None]] = {}
        self._forced: dict[str, None] = {}
        self._jobs_changed: dict[JobKey, None] = {}
        self._nodes_changed: dict[str, None] = {}

    @classmethod
    def from_snapshot(cls, snapshot: Replica) -> "DrainTracker":
        """Everything, and all of it is to be looked at."""
        leaving = cls()
        for node in snapshot.iter_all(NODES):
            leaving._hear_node(snapshot, node.id, node)
        return leaving

    @property
    def draining_nodes(self) -> Collection[str]:
        """Those that are drained."""
        return self._on_node.keys()

    def list_allocations_of_job(self, key: JobKey) -> list[str]:
        """The allocations of the job that are still to leave, in an order that every leader has."""
        return sorted(self._of_job.get(key, ()))

    def iter_jobs_on_node(self, node_id: str) -> Iterator[JobKey]:
        """Whose work is still to leave the node; some of them several times."""
        return iter(self._on_node.get(node_id, {}).values())

    def update(self, snapshot: Replica, changes: Iterable[AppliedChange]) -> None:
        """What a batch did, once the state shows it."""
        for table, key, before, after in changes:
            if table == NODES.name:
                self._hear_node(snapshot, key, after)
            elif table == ALLOCATIONS.name and self._on_node:
                self._hear_allocation(key, before, after)
            elif table == JOBS.name and (after or before) is not None:
                job = after or before
                self._look_at_job((job.namespace, job.id))

    def _hear_node(self, snapshot: Replica, node_id: str, node: Node | None) -> None:
        is_known = node_id in self._on_node
        self._forced.pop(node_id, None)  # What is asked of the drain may have become another.
        if node is None or node.drain_strategy is None:
            if is_known:
                for allocation_id, job in self._on_node.pop(node_id).items():
                    self._leave(allocation_id, job)
            return
        if not is_known:
            self._on_node[node_id] = {}
            for allocation in snapshot.list_by_index(ALLOCATIONS_ON_NODE, node_id):
                self._hear_allocation(allocation.id, None, allocation)
        self._look_at_node(node_id)

    def _hear_allocation(self, allocation_id: str, before: Allocation | None, after: Allocation | None) -> None:
        allocation = after or before
        if allocation is None:
            return
        job = (allocation.namespace, allocation.job_id)
        here = self._on_node.get(allocation.node_id)
        if here is not None:
            self._nodes_changed[allocation.node_id] = None
            if after is not None and is_movable(after):
                here[allocation_id] = job
                self._of_job.setdefault(job, {})[allocation_id] = None
            elif here.pop(allocation_id, None) is not None:
                self._leave(allocation_id, job)
        self._look_at_job(job)

    def _leave(self, allocation_id: str, job: JobKey) -> None:
        those = self._of_job[job]
        del those[allocation_id]
        if not those:
            del self._of_job[job]

    def _look_at_job(self, job: JobKey) -> None:
        """Whatever changes of it, elsewhere too, may let more of it leave, or less."""
        if job in self._of_job:
            self._jobs_changed[job] = None

    def _look_at_node(self, node_id: str) -> None:
        self._nodes_changed[node_id] = None
        self._jobs_changed |= dict.fromkeys(self._on_node[node_id].values())

    def mark_forced(self, node_ids: Iterable[str]) -> None:
        """For these nothing is waited for any more. Time alone brings that about."""
        for node_id in node_ids:
            if node_id in self._on_node and node_id not in self._forced:
                self._forced[node_id] = None
                self._look_at_node(node_id)

    def take_changed_jobs(self, snapshot: Replica) -> list[JobKey]:
        """The jobs that are to be looked at since this was asked last. System jobs wait for all others on their node."""
        for node_id in self._nodes_changed:
            for key in dict.fromkeys(self._on_node.get(node_id, {}).values()):
                job = snapshot.get(JOBS, *key)
                if job is not None and job.type == JobType.SYSTEM:
                    self._jobs_changed[key] = None
        jobs, self._jobs_changed = list(self._jobs_changed), {}
        return jobs

    def take_changed_nodes(self) -> list[str]:
        """The nodes that may be empty since this was asked last."""
        nodes, self._nodes_changed = [each for each in self._nodes_changed if each in self._on_node], {}
        return nodes


def is_movable(allocation: Allocation) -> bool:
    """It goes on, and nobody has told it to go."""
    return not allocation.is_terminal and not allocation.should_migrate
