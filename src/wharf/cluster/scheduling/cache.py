"""The scheduler cache: what the scheduler derives from the log and keeps up to date between evaluations.

It holds the fleet (all nodes as columns), feasibility results, the usage of namespaces and quotas, and reserved nodes.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TypeVar

from wharf.cluster.scheduling.capacity.fair_share import NamespaceUsage
from wharf.cluster.scheduling.capacity.quotas import QuotaUsageTracker
from wharf.cluster.scheduling.capacity.reservation import Reservation, build_reservation
from wharf.cluster.scheduling.feasibility.checker import FeasibilityChecker
from wharf.cluster.scheduling.fleet.fleet import Fleet
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import (
    EVALUATIONS_BY_STATUS,
    JOBS,
    UNFINISHED_ALLOCATIONS_ON_NODE,
)
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.resources import AllocatedResources
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.resource_usage import Usage

R = TypeVar("R")
RecordChange = tuple[str, R | None, R | None]
"""The key of a record, the record before the change, and the record after it."""


class SchedulerCache:
    """The data that the scheduler derives from nodes, allocations and evaluations.

    Its owner reports each change of these records, so that nothing is recomputed for an evaluation.
    """

    def __init__(self) -> None:
        self.fleet = Fleet()
        """All nodes, with their capacity and the resources in use."""
        self.feasibility = FeasibilityChecker(self.fleet)
        self.namespace_usage = NamespaceUsage()
        """CPU and memory by namespace, for the fair order of retries."""
        self.quota_usage = QuotaUsageTracker()
        self.reservations: dict[str, Reservation] = {}
        """Reserved nodes by id of the waiting evaluation."""

    @classmethod
    def from_snapshot(cls, snapshot: Replica) -> "SchedulerCache":
        """Build the cache from a snapshot of the whole state, for tests and for decisions without a cache."""
        cache = cls()
        for _ in cache.load_in_steps(snapshot):
            pass
        return cache

    def load_in_steps(self, snapshot: Replica) -> Iterator[None]:
        """Fill this empty cache from a snapshot of the whole state, in short steps; yield between them.

        The snapshot must not change until the iterator is exhausted, and the cache must not be used before.
        """
        for allocations in self.fleet.load_in_steps(snapshot):
            for allocation in allocations:
                self.namespace_usage.apply_change(None, allocation, self.measure_usage)
                self.quota_usage.apply_change(None, allocation)
            yield
        for status in (EvaluationStatus.BLOCKED, EvaluationStatus.PENDING):
            for evaluations in snapshot.iter_index_in_steps(EVALUATIONS_BY_STATUS, status):
                for evaluation in evaluations:
                    self.update_reservation(snapshot, evaluation.id, evaluation)
                yield

    def measure_usage(self, resources: AllocatedResources) -> Usage:
        """Return the CPU, memory and disk that an allocation with these resources uses. Results are cached."""
        return self.fleet.measure_resources(resources)[0]

    def update_reservation(self, snapshot: Replica, evaluation_id: str, evaluation: Evaluation | None) -> None:
        """Store or delete the reservation of an evaluation after its record changed. `None`: the record was deleted.

        A reservation exists while the evaluation has a reserved node and has not ended, also while it is retried.
        """
        reservation = None
        if evaluation is not None and evaluation.reserved_node_id:
            job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
            reservation = build_reservation(evaluation, job)
        if reservation is None:
            self.reservations.pop(evaluation_id, None)
        else:
            self.reservations[evaluation_id] = reservation

    def apply_changes(
        self, snapshot: Replica, nodes: Iterable[RecordChange[Node]], allocations: Iterable[RecordChange[Allocation]]
    ) -> None:
        """Update the fleet and the usage of namespaces and quotas after one batch changed these nodes and allocations.

        A batch is one committed write. The snapshot has the state after it. Reservations are not changed.
        """
        added_node_ids: set[str] = set()
        for key, _, node in nodes:
            if node is None:
                self.fleet.remove_node(key)
            elif key in self.fleet.row_by_node_id:
                self.fleet.set_node(node)
            else:
                added_node_ids.add(key)
                self.fleet.set_node(node, snapshot.list_by_index(UNFINISHED_ALLOCATIONS_ON_NODE, key))
        added_allocations: list[Allocation] = []
        for _, before, after in allocations:
            if before is None and after is not None and _is_plain_addition(after):
                if after.is_occupying:
                    added_allocations.append(after)
                continue
            self.namespace_usage.apply_change(before, after, self.measure_usage)
            self.quota_usage.apply_change(before, after)
            # Allocations on a node that was added just now were counted when the node was added.
            before = None if before is not None and before.node_id in added_node_ids else before
            after = None if after is not None and after.node_id in added_node_ids else after
            self.fleet.apply_change(before, after)
        if added_allocations:
            self._add_allocations(added_allocations, added_node_ids)

    def _add_allocations(self, allocations: Sequence[Allocation], added_node_ids: Collection[str]) -> None:
        """Add new allocations to the usage of namespaces and quotas, and to the fleet.

        The fleet contains those on nodes in `added_node_ids` already, because the nodes were added with them.

        A plan may place thousands of allocations that share one resource record, so they are added up together.
        """
        for (namespace, _), equal_allocations in _group_by_resource_record(allocations).items():
            resources, count = equal_allocations[0].allocated_resources, len(equal_allocations)
            self.namespace_usage.add_usage(namespace, resources, count, self.measure_usage)
            self.quota_usage.add_usage(namespace, resources, count)
        self.fleet.add_allocations(
            [allocation for allocation in allocations if allocation.node_id not in added_node_ids]
            if added_node_ids
            else allocations
        )


def _is_plain_addition(allocation: Allocation) -> bool:
    """Return whether the new allocation neither preempts others nor was preempted, so that it can be added in bulk."""
    return not allocation.preempted_allocations and not allocation.preempted_by_allocation


def _group_by_resource_record(allocations: Iterable[Allocation]) -> dict[tuple[str, int], list[Allocation]]:
    """Return the allocations grouped by namespace and by the object id of their resource record.

    Allocations of a group that were placed together share one record.
    """
    equal_allocations: dict[tuple[str, int], list[Allocation]] = {}
    for allocation in allocations:
        equal_allocations.setdefault((allocation.namespace, id(allocation.allocated_resources)), []).append(allocation)
    return equal_allocations
