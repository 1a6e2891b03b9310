"""What the scheduler stands on: the fleet as it follows the log, and what was found out about its nodes."""

from collections.abc import Collection, Iterable, Sequence
from typing import TypeVar

import msgspec

from wharf.cluster.scheduling.capacity.fair_share import NamespaceUsage
from wharf.cluster.scheduling.capacity.quotas import QuotaUsageTracker
from wharf.cluster.scheduling.capacity.reservation import Reservation, build_reservation
from wharf.cluster.scheduling.feasibility.checker import FeasibilityChecker
from wharf.cluster.scheduling.fleet.fleet import Fleet
from wharf.cluster.scheduling.ranking.selector import PlacementRules
from wharf.cluster.scheduling.resources.usage import Usage
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_ON_NODE,
    EVALUATIONS_BY_STATUS,
    HOST_VOLUMES,
    JOBS,
    NODE_POOLS,
    SCHEDULER_CONFIGURATION,
)
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.resources import AllocatedResources
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.operator.scheduler_configuration import SchedulerAlgorithm
from wharf.contract.model.volumes import HostVolume

R = TypeVar("R")
RecordChange = tuple[str, R | None, R | None]
"""The key of a record, what stood there before, and what stands there now."""


class SchedulerCache:
    """Follows the state change by change: told of each node and allocation before and after, and of who waits."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.feasibility = FeasibilityChecker(self.fleet)
        self.namespace_usage = NamespaceUsage()
        self.quota_usage = QuotaUsageTracker()
        self.reservations: dict[str, Reservation] = {}
        """By id of the evaluation that waits."""

    @classmethod
    def from_snapshot(cls, snapshot: Replica) -> "SchedulerCache":
        """As the state stands: for a new leader, and for tests."""
        ground = cls()
        ground.fleet = Fleet.from_snapshot(snapshot)
        ground.feasibility = FeasibilityChecker(ground.fleet)
        for allocation in snapshot.iter_all(ALLOCATIONS):
            ground.namespace_usage.apply_change(None, allocation, ground.measure_usage)
        ground.load_reservations(snapshot)
        return ground

    def measure_usage(self, resources: AllocatedResources) -> Usage:
        return self.fleet.measure_resources(resources)[0]

    def load_reservations(self, snapshot: Replica) -> None:
        """As the state stands: for who did not hear of them one by one."""
        self.reservations.clear()
        for status in (EvaluationStatus.BLOCKED, EvaluationStatus.PENDING):
            for evaluation in snapshot.list_by_index_sorted(EVALUATIONS_BY_STATUS, status):
                self.update_reservation(snapshot, evaluation.id, evaluation)

    def update_reservation(self, snapshot: Replica, evaluation_id: str, evaluation: Evaluation | None) -> None:
        """The newest version of an evaluation; none: it is gone. What waits keeps its node while it is tried."""
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
        """One batch, as it changed nodes and allocations; the snapshot shows the state after it."""
        come: set[str] = set()
        for key, _, node in nodes:
            if node is None:
                self.fleet.remove_node(key)
            elif key in self.fleet.row_by_node_id:
                self.fleet.set_node(node)
            else:
                come.add(key)
                self.fleet.set_node(node, snapshot.list_by_index(ALLOCATIONS_ON_NODE, key))
        came: list[Allocation] = []
        for _, before, after in allocations:
            if before is None and after is not None and _is_only_new(after):
                if after.is_occupying:
                    came.append(after)
                continue
            self.namespace_usage.apply_change(before, after, self.measure_usage)
            self.quota_usage.apply_change(before, after)
            # What is on a node that came just now was counted with it.
            before = None if before is not None and before.node_id in come else before
            after = None if after is not None and after.node_id in come else after
            self.fleet.apply_change(before, after)
        if came:
            self._hear_of_new(came, come)

    def _hear_of_new(self, came: Sequence[Allocation], on_new_nodes: Collection[str]) -> None:
        """What plans place by the thousand: siblings share their resources, so they are counted together."""
        for (namespace, _), siblings in _alike(came).items():
            self.namespace_usage.add_usage(
                namespace, siblings[0].allocated_resources, len(siblings), self.measure_usage
            )
        for allocation in came if self.quota_usage.is_tracking else ():
            self.quota_usage.apply_change(None, allocation)
        self.fleet.add_allocations(
            [each for each in came if each.node_id not in on_new_nodes] if on_new_nodes else came
        )


def _is_only_new(allocation: Allocation) -> bool:
    """Nobody was pushed aside for it, nor it for anybody."""
    return not allocation.preempted_allocations and not allocation.preempted_by_allocation


def _alike(allocations: Iterable[Allocation]) -> dict[tuple[str, int], list[Allocation]]:
    """By namespace, and by the object that tells what they hold."""
    found: dict[tuple[str, int], list[Allocation]] = {}
    for allocation in allocations:
        found.setdefault((allocation.namespace, id(allocation.allocated_resources)), []).append(allocation)
    return found


def get_placement_rules(snapshot: Replica, job: Job) -> PlacementRules:
    """As the cluster says, unless the job's pool says otherwise."""
    configuration = snapshot.get(SCHEDULER_CONFIGURATION)
    pool = snapshot.get(NODE_POOLS, job.node_pool)
    own = pool.scheduler_configuration if pool is not None else None
    algorithm = own.scheduler_algorithm if own is not None else ""
    if not algorithm and configuration is not None:
        algorithm = configuration.scheduler_algorithm
    oversubscribe = own.memory_oversubscription_enabled if own is not None else None
    if oversubscribe is None:
        oversubscribe = configuration is not None and configuration.memory_oversubscription_enabled
    return PlacementRules(algorithm or SchedulerAlgorithm.BINPACK, oversubscribe)


class NamespaceVolumes(msgspec.Struct, frozen=True):
    """The volumes of hosts that a namespace knows."""

    snapshot: Replica
    namespace: str

    def __call__(self, volume_id: str) -> HostVolume | None:
        return self.snapshot.get(HOST_VOLUMES, self.namespace, volume_id)
