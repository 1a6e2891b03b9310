"""What the scheduler stands on: the fleet as it follows the log, and what was found out about its nodes."""

from collections.abc import Collection, Iterable, Sequence
from typing import TypeVar

import msgspec

from wharf.model.allocated_resources import AllocatedResources
from wharf.model.allocation import Allocation
from wharf.model.evaluation import Evaluation, EvaluationStatus
from wharf.model.host_volume import HostVolume
from wharf.model.job import Job
from wharf.model.node import Node
from wharf.model.scheduler_configuration import SchedulerAlgorithm
from wharf.scheduling.feasibility import Feasibility
from wharf.scheduling.fleet import Fleet
from wharf.scheduling.placing import Rules
from wharf.scheduling.quota_use import QuotaUse
from wharf.scheduling.reservation import Reservation, reservation_of
from wharf.scheduling.shares import Shares
from wharf.scheduling.usage import Usage
from wharf.state import Replica
from wharf.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_ON_NODE,
    EVALUATIONS_BY_STATUS,
    HOST_VOLUMES,
    JOBS,
    NODE_POOLS,
    SCHEDULER_CONFIGURATION,
)

R = TypeVar("R")
Heard = tuple[str, R | None, R | None]
"""The key of a record, what stood there before, and what stands there now."""


class Ground:
    """Follows the state change by change: told of each node and allocation before and after, and of who waits."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.feasibility = Feasibility(self.fleet)
        self.shares = Shares()
        self.quota_use = QuotaUse()
        self.reservations: dict[str, Reservation] = {}
        """By id of the evaluation that waits."""

    @classmethod
    def of(cls, snapshot: Replica) -> "Ground":
        """As the state stands: for a new leader, and for tests."""
        ground = cls()
        ground.fleet = Fleet.of(snapshot)
        ground.feasibility = Feasibility(ground.fleet)
        for allocation in snapshot.all(ALLOCATIONS):
            ground.shares.move(None, allocation, ground.size)
        ground.hear_of_all_that_wait(snapshot)
        return ground

    def size(self, resources: AllocatedResources) -> Usage:
        return self.fleet.size(resources)[0]

    def hear_of_all_that_wait(self, snapshot: Replica) -> None:
        """As the state stands: for who did not hear of them one by one."""
        self.reservations.clear()
        for status in (EvaluationStatus.BLOCKED, EvaluationStatus.PENDING):
            for evaluation in snapshot.those_by_key(EVALUATIONS_BY_STATUS, status):
                self.hear_of_waiting(snapshot, evaluation.id, evaluation)

    def hear_of_waiting(self, snapshot: Replica, evaluation_id: str, evaluation: Evaluation | None) -> None:
        """The newest version of an evaluation; none: it is gone. What waits keeps its node while it is tried."""
        reservation = None
        if evaluation is not None and evaluation.reserved_node_id:
            job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
            reservation = reservation_of(evaluation, job)
        if reservation is None:
            self.reservations.pop(evaluation_id, None)
        else:
            self.reservations[evaluation_id] = reservation

    def hear(self, snapshot: Replica, nodes: Iterable[Heard[Node]], allocations: Iterable[Heard[Allocation]]) -> None:
        """One batch, as it changed nodes and allocations; the snapshot shows the state after it."""
        come: set[str] = set()
        for key, _, node in nodes:
            if node is None:
                self.fleet.drop_node(key)
            elif key in self.fleet.row_of:
                self.fleet.set_node(node)
            else:
                come.add(key)
                self.fleet.set_node(node, snapshot.those(ALLOCATIONS_ON_NODE, key))
        came: list[Allocation] = []
        for _, before, after in allocations:
            if before is None and after is not None and _is_only_new(after):
                if after.is_occupying:
                    came.append(after)
                continue
            self.shares.move(before, after, self.size)
            self.quota_use.move(before, after)
            # What is on a node that came just now was counted with it.
            before = None if before is not None and before.node_id in come else before
            after = None if after is not None and after.node_id in come else after
            self.fleet.move(before, after)
        if came:
            self._hear_of_new(came, come)

    def _hear_of_new(self, came: Sequence[Allocation], on_new_nodes: Collection[str]) -> None:
        """What plans place by the thousand: siblings share their resources, so they are counted together."""
        for (namespace, _), siblings in _alike(came).items():
            self.shares.come(namespace, siblings[0].allocated_resources, len(siblings), self.size)
        for allocation in came if self.quota_use.counts_anything else ():
            self.quota_use.move(None, allocation)
        self.fleet.come([each for each in came if each.node_id not in on_new_nodes] if on_new_nodes else came)


def _is_only_new(allocation: Allocation) -> bool:
    """Nobody was pushed aside for it, nor it for anybody."""
    return not allocation.preempted_allocations and not allocation.preempted_by_allocation


def _alike(allocations: Iterable[Allocation]) -> dict[tuple[str, int], list[Allocation]]:
    """By namespace, and by the object that tells what they hold."""
    found: dict[tuple[str, int], list[Allocation]] = {}
    for allocation in allocations:
        found.setdefault((allocation.namespace, id(allocation.allocated_resources)), []).append(allocation)
    return found


def rules_for(snapshot: Replica, job: Job) -> Rules:
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
    return Rules(algorithm or SchedulerAlgorithm.BINPACK, oversubscribe)


class Volumes(msgspec.Struct, frozen=True):
    """The volumes of hosts that a namespace knows."""

    snapshot: Replica
    namespace: str

    def __call__(self, volume_id: str) -> HostVolume | None:
        return self.snapshot.get(HOST_VOLUMES, self.namespace, volume_id)
