"""Keeps the scheduler's ground at the head of the log: what each batch does to nodes and allocations, in its order."""

from collections.abc import Sequence
from typing import Final

from wharf.engines.port import Batch
from wharf.model.allocation import Allocation
from wharf.model.node import Node
from wharf.scheduling.ground import Ground, Heard
from wharf.server.follower import Follower
from wharf.state.replica import Taken
from wharf.state.tables import ALLOCATIONS, NODES


class GroundKeeper:
    """`ground` is the fleet as the replica has it, whenever nobody waits."""

    def __init__(self, follower: Follower) -> None:
        self.ground = Ground()
        self._follower = follower
        self._freed: dict[str, None] = {}
        # Before others that listen: what they decide, they decide on the ground as it is now.
        follower.takers.insert(0, self._hear)
        follower.on_load.insert(0, self._begin_anew)

    def _begin_anew(self) -> None:
        self.ground = Ground.of(self._follower.replica)

    def _hear(self, batch: Batch, taken: Sequence[Taken]) -> None:
        del batch  # What it did is told beside it.
        replica = self._follower.replica
        nodes: list[Heard[Node]] = []
        allocations: list[Heard[Allocation]] = []
        for table, key, before, after in taken:
            if table == ALLOCATIONS.name:
                allocations.append((key, before, after))
            elif table == NODES.name:
                nodes.append((key, before, after))
        if not nodes and not allocations:
            return
        self.ground.hear(replica, nodes, allocations)
        for _, before_node, node in nodes:
            if node is not None and gives_room(before_node, node):
                self._freed[node.computed_class] = None
        for _, before_allocation, allocation in allocations:
            if before_allocation is None or not before_allocation.is_occupying:
                continue
            if allocation is None or not allocation.is_occupying:
                at = replica.get(NODES, before_allocation.node_id)
                if at is not None:
                    self._freed[at.computed_class] = None

    def take_freed(self) -> list[str]:
        """The kinds of nodes on which room came since it was last asked."""
        freed, self._freed = list(self._freed), {}
        return freed


def gives_room(before: Node | None, after: Node) -> bool:
    """Whether the node takes something now that it would not have taken before."""
    if not after.is_ready_for_placements:
        return False
    if before is None or not before.is_ready_for_placements:
        return True
    return any(getattr(before, name) != getattr(after, name) for name in ASKED_FOR)


ASKED_FOR: Final = (
    "computed_class", "name", "drivers", "host_volumes", "host_networks", "node_resources", "reserved_resources",
    "node_max_allocs",
)  # fmt: skip
"""What jobs may ask of a node."""
