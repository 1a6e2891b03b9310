"""Keeps the scheduler's ground at the head of the log: what each batch does to nodes and allocations, in its order."""

from wharf.engines.port import Batch
from wharf.model.allocation import Allocation
from wharf.model.node import Node
from wharf.scheduling.ground import Ground, Heard
from wharf.server.follower import Follower
from wharf.state.tables import ALLOCATIONS, NODES


class GroundKeeper:
    """`ground` is the fleet as the replica has it, whenever nobody waits."""

    def __init__(self, follower: Follower) -> None:
        self.ground = Ground()
        self._follower = follower
        self._before: dict[tuple[str, str], Node | Allocation | None] = {}
        follower.before.append(self._look)
        # Before others that listen: what they decide, they decide on the ground as it is now.
        follower.listeners.insert(0, self._hear)
        follower.on_load.insert(0, self._begin_anew)

    def _begin_anew(self) -> None:
        self.ground = Ground.of(self._follower.replica)

    def _look(self, batch: Batch) -> None:
        """What the batch is about to change, as it stands."""
        replica = self._follower.replica
        self._before = {
            (change.table, change.key): replica.get(replica.tables[change.table], change.key)
            for change in batch.changes
            if change.table in (NODES.name, ALLOCATIONS.name)
        }

    def _hear(self, batch: Batch) -> None:
        del batch  # It was looked at before it was taken in.
        replica = self._follower.replica
        nodes: list[Heard[Node]] = []
        allocations: list[Heard[Allocation]] = []
        for (table, key), before in self._before.items():
            if table == NODES.name:
                assert before is None or isinstance(before, Node), "nodes are in the table of nodes"
                nodes.append((key, before, replica.get(NODES, key)))
            else:
                assert before is None or isinstance(before, Allocation), "allocations are in their table"
                allocations.append((key, before, replica.get(ALLOCATIONS, key)))
        self._before = {}
        self.ground.hear(replica, nodes, allocations)
