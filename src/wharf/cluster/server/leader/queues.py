"""The leader's queues, and the update of the scheduler's cache from each batch.

A new leader fills the queues from the replica; later batches update them. This module only records work.
`leader.loop` decides what to do and in which order.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from wharf.cluster.controllers.blocked_queue import BlockedQueue
from wharf.cluster.controllers.evaluation_broker import EvaluationBroker
from wharf.cluster.engines.port import Batch
from wharf.cluster.operations.derived_state import is_settled_registration
from wharf.cluster.operations.jobs.registration import REGISTRATION_WRITE_KIND
from wharf.cluster.scheduling.cache import RecordChange, SchedulerCache
from wharf.cluster.scheduling.capacity.locks import LockName, iter_granted, list_changed_locks
from wharf.cluster.scheduling.plans.check import PLAN_WRITE_KIND
from wharf.cluster.server.leader.node_monitor import NodeMonitor
from wharf.cluster.server.leader.node_write_batcher import NodeWriteKind
from wharf.cluster.server.leader.term import LeaderTerm
from wharf.cluster.server.log.follower import Follower
from wharf.cluster.state import Replica
from wharf.cluster.state.replica import AppliedChange
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_ON_NODE,
    DEPLOYMENTS,
    EVALUATIONS,
    EVALUATIONS_BY_STATUS,
    HOST_VOLUMES,
    JOBS,
    MEMBERS,
    NAMESPACES,
    NODE_POOLS,
    NODES,
    QUOTAS,
    SCHEDULER_CONFIGURATION,
    UNFINISHED_ALLOCATIONS_ON_NODE,
)
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.cluster import Member
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus
from wharf.contract.model.jobs.job import Job, JobKey
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.node_pools import NodePool
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration
from wharf.contract.model.quotas import Quota
from wharf.contract.model.volumes import HostVolume, HostVolumeState


class FleetUpdater:
    """Applies each batch to the scheduler's cache of nodes, and records on which node classes capacity was freed."""

    def __init__(self, follower: Follower) -> None:
        self.cache = SchedulerCache()
        self._follower = follower
        self._freed_classes: dict[str, None] = {}
        self._prepared_cache = self.cache
        """The cache of the state that the replica loads."""
        follower.load_preparers.append(self._prepare_cache)
        # Must run before other listeners, because they use the cache.
        follower.change_listeners.insert(0, self._on_batch)
        follower.load_listeners.insert(0, self._reload)

    def _prepare_cache(self, loaded: Replica) -> Iterator[None]:
        """Build the cache of a loaded state in short steps, before the replica has this state."""
        self._prepared_cache = SchedulerCache()
        yield from self._prepared_cache.load_in_steps(loaded)

    def _reload(self) -> None:
        """Use the cache of the loaded state, which the replica has now."""
        self.cache = self._prepared_cache

    def _on_batch(self, batch: Batch, changed_records: Sequence[AppliedChange]) -> None:
        """Apply the changes of a batch to the cache, and record freed node classes."""
        del batch  # The changed records have all that is needed.
        replica = self._follower.replica
        nodes: list[RecordChange[Node]] = []
        allocations: list[RecordChange[Allocation]] = []
        for table, key, before, after in changed_records:
            if table == ALLOCATIONS.name:
                allocations.append((key, before, after))
            elif table == NODES.name:
                nodes.append((key, before, after))
            elif table == EVALUATIONS.name:
                # Also on a server that does not lead: it may lead later, and reservations that ended must be gone then.
                self.cache.update_reservation(replica, key, after)
            elif table == HOST_VOLUMES.name and after is not None and before is not None:
                self._record_ready_volume(before, after)
        if not nodes and not allocations:
            return
        self.cache.apply_changes(replica, nodes, allocations)
        for _, before_node, node in nodes:
            if node is not None and has_freed_capacity(before_node, node):
                self._freed_classes[node.computed_class] = None
        for _, before_allocation, allocation in allocations:
            if before_allocation is None or not before_allocation.is_occupying:
                continue
            if allocation is None or not allocation.is_occupying:
                node_of_allocation = replica.get(NODES, before_allocation.node_id)
                if node_of_allocation is not None:
                    self._freed_classes[node_of_allocation.computed_class] = None

    def _record_ready_volume(self, before: HostVolume, after: HostVolume) -> None:
        """Record the class of the node of a volume that became ready, for example because it is not deleted after all."""
        node = self._follower.replica.get(NODES, after.node_id)
        if after.state is HostVolumeState.READY and before.state is not HostVolumeState.READY and node is not None:
            self._freed_classes[node.computed_class] = None

    def take_freed_classes(self) -> list[str]:
        """Return the node classes on which capacity was freed since the last call, and clear them."""
        classes, self._freed_classes = list(self._freed_classes), {}
        return classes


def has_freed_capacity(before: Node | None, after: Node) -> bool:
    """Whether a changed node may accept allocations that it could not accept before.

    `before`: `None` for a new node.
    """
    if not after.is_ready_for_placements:
        return False
    if before is None or not before.is_ready_for_placements:
        return True
    return any(getattr(before, name) != getattr(after, name) for name in PLACEMENT_FIELDS)


PLACEMENT_FIELDS: Final = (
    "computed_class", "name", "drivers", "host_volumes", "host_networks", "node_resources", "reserved_resources",
    "node_max_allocs",
)  # fmt: skip
"""The node fields that decide whether a job can be placed on it."""


class LeaderQueues:
    """The pending work of the leader. `wake_event` is set whenever there may be new work."""

    def __init__(self, follower: Follower, term: LeaderTerm, nodes: NodeMonitor) -> None:
        self._follower = follower
        self._term = term
        self._nodes = nodes
        self.fleet_updater = FleetUpdater(follower)
        self.wake_event = asyncio.Event()
        self.broker = EvaluationBroker()
        self.blocked = BlockedQueue()
        self.unsettled_jobs: dict[JobKey, None] = {}
        """Jobs whose status and summary must be recomputed."""
        self.changed_nodes: dict[str, None] = {}
        """Nodes whose jobs may not all have an evaluation since the node changed."""
        self._changed_locks: dict[LockName, None] = {}
        """Locks of which a slot may be free for a step that waits."""
        self.have_members_changed = True
        follower.change_listeners.append(self._on_batch)
        follower.load_finishers.append(self._finish_load)

    def rebuild_in_steps(self) -> Iterator[None]:
        """Fill all queues from the replica, for a new leader or a reloaded replica; yield between the steps.

        Batches may be applied between the steps, and update the queues. Existing heartbeat deadlines are not changed.
        """
        self.clear()
        replica = self._follower.replica
        self._nodes.expect_all()
        for evaluations in replica.iter_index_in_steps(EVALUATIONS_BY_STATUS, EvaluationStatus.PENDING):
            for evaluation in evaluations:
                self._update_evaluation(evaluation)
            yield
        for evaluations in replica.iter_index_in_steps(EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED):
            for evaluation in evaluations:
                self._update_evaluation(evaluation)
            yield
        self.blocked.retry_all()  # Capacity freed before this term is unknown.
        yield
        for jobs in replica.iter_all_in_steps(JOBS):
            self.unsettled_jobs |= {(job.namespace, job.id): None for job in jobs}
            yield
        for nodes in replica.iter_all_in_steps(NODES):
            self.changed_nodes |= {node.id: None for node in nodes}
            yield
        # Includes deleted nodes that still have allocations.
        self.changed_nodes |= {str(node_id): None for node_id in replica.iter_index_values(ALLOCATIONS_ON_NODE)}
        self.wake_event.set()

    def clear(self) -> None:
        """Empty all queues."""
        self.broker, self.blocked = EvaluationBroker(), BlockedQueue()
        self.fleet_updater.take_freed_classes()
        self.unsettled_jobs, self.changed_nodes, self._changed_locks = {}, {}, {}
        self.have_members_changed = True

    def _update_evaluation(self, evaluation: Evaluation) -> None:
        """Update the queues after an evaluation changed."""
        self.broker.update(evaluation)
        self.blocked.update(evaluation)

    def _finish_load(self) -> Iterator[None]:
        """Rebuild the queues after the replica was reloaded, while this server leads."""
        if self._term.leadership is not None:
            yield from self.rebuild_in_steps()

    def _on_batch(self, batch: Batch, changed_records: Sequence[AppliedChange]) -> None:
        """Add the work that a batch creates to the queues. Does nothing unless this server leads.

        Plans and reports contain the statuses and summaries that follow from them, so their jobs need no other write. Nor do
        most registrations of new jobs.
        """
        if self._term.leadership is None:
            return
        is_settled = batch.kind in SETTLED_WRITE_KINDS or (
            batch.kind == REGISTRATION_WRITE_KIND and is_settled_registration(self._follower.replica, changed_records)
        )
        self.blocked.on_capacity_freed(self.fleet_updater.take_freed_classes(), batch.index)
        for table, key, before, record in changed_records:
            if table not in WATCHED_TABLES:
                continue
            if changed_locks := list_changed_locks(table, before, record):
                self._changed_locks |= dict.fromkeys(sorted(changed_locks))
            match record:
                case Allocation() | Deployment():
                    if not is_settled:
                        self.unsettled_jobs[record.namespace, record.job_id] = None
                case Evaluation():
                    self._update_evaluation(record)
                    if not is_settled:
                        self.unsettled_jobs[record.namespace, record.job_id] = None
                case Node():
                    self.changed_nodes[record.id] = None
                case SchedulerConfiguration() | NodePool() | Namespace() | Quota():
                    self.blocked.retry_all()
                case Job():
                    if not is_settled:
                        self.unsettled_jobs[record.namespace, record.id] = None
                    if record.parent_id or record.is_periodic or record.is_parameterized:
                        self.blocked.on_slot_freed(record.namespace, record.parent_id or record.id, batch.index)
                case None if table == EVALUATIONS.name:
                    self.broker.remove(key)
                    self.blocked.remove(key)
                case None if table == JOBS.name:
                    self.blocked.retry_all()  # A blocked job may have waited for the deleted one.
                case None if table == NODES.name:
                    self._nodes.remove(key)
                    self.changed_nodes[key] = None  # Some of its jobs may still need an evaluation.
                    self._record_freed_locks(key)
                case None | Member():
                    self.have_members_changed = self.have_members_changed or table == MEMBERS.name
                case _:
                    pass
        self.wake_event.set()

    def _record_freed_locks(self, node_id: str) -> None:
        """Record the locks of lost allocations of a deleted node: they hold them no longer."""
        unfinished = self._follower.replica.list_by_index(UNFINISHED_ALLOCATIONS_ON_NODE, node_id)
        self._changed_locks |= {(each.namespace, each.lock_key): None for each in unfinished if each.lock_key}

    def mark_freed_locks(self) -> None:
        """Mark for a retry the evaluations that may have a free slot of a lock, in the order of its queue."""
        changed, self._changed_locks = self._changed_locks, {}
        for lock in changed:
            self.blocked.mark_for_retry(each.evaluation.id for each in iter_granted(self._follower.replica, lock))


SETTLED_WRITE_KINDS: Final = frozenset({PLAN_WRITE_KIND, NodeWriteKind.REPORT.value})
"""Kinds of frequent writes that only the leader makes, with the derived state that follows from them (records 0131, 0332)."""

WATCHED_TABLES: Final = frozenset({
    MEMBERS.name, EVALUATIONS.name, NODES.name, ALLOCATIONS.name, JOBS.name, DEPLOYMENTS.name,
    SCHEDULER_CONFIGURATION.name, NODE_POOLS.name, NAMESPACES.name, QUOTAS.name,
})  # fmt: skip
"""Changes in other tables create no work for the leader."""
