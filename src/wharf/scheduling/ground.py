"""What the scheduler stands on: the fleet as it follows the log, and what was found out about its nodes."""

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from wharf.model.allocation import Allocation
from wharf.model.host_volume import HostVolume
from wharf.model.job import Job
from wharf.model.node import Node
from wharf.model.scheduler_configuration import SchedulerAlgorithm
from wharf.scheduling.feasibility import Feasibility
from wharf.scheduling.fleet import Fleet
from wharf.scheduling.placing import Rules
from wharf.state import Replica
from wharf.state.tables import ALLOCATIONS_ON_NODE, HOST_VOLUMES, NODE_POOLS, SCHEDULER_CONFIGURATION

R = TypeVar("R")
Heard = tuple[str, R | None, R | None]
"""The key of a record, what stood there before, and what stands there now."""


class Ground:
    """Follows the state change by change: told of each node and allocation before and after."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.feasibility = Feasibility(self.fleet)

    @classmethod
    def of(cls, snapshot: Replica) -> "Ground":
        """As the state stands: for a new leader, and for tests."""
        ground = cls()
        ground.fleet = Fleet.of(snapshot)
        ground.feasibility = Feasibility(ground.fleet)
        return ground

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
        for _, before, after in allocations:
            # What is on a node that came just now was counted with it.
            before = None if before is not None and before.node_id in come else before
            after = None if after is not None and after.node_id in come else after
            self.fleet.move(before, after)


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
