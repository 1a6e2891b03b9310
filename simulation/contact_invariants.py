"""Invariants of contact: faults that must not cost a node or an allocation never do.

They are checked in a phase of their own (`run`), in which no other faults happen.
"""

from typing import Final

from simulation.record_history import ObservedBatch, ObservedChange, RecordHistory
from simulation.timeline import InvariantViolation
from wharf.cluster.state.tables import ALLOCATIONS, NODES
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.nodes.node import NodeStatus

LOST_NODE_STATES: Final = (NodeStatus.DOWN, NodeStatus.DISCONNECTED)
LOST_ALLOCATION_STATES: Final = (ClientStatus.LOST, ClientStatus.UNKNOWN)


class ContactInvariants:
    """Requires that no watched node, and no allocation on one, is declared lost."""

    def __init__(self, history: RecordHistory) -> None:
        self.watched_count = 0
        """How many nodes were watched by all calls of `begin`."""
        self._history = history
        self._watched: dict[str, str] = {}
        """The names of the watched nodes, by id."""
        history.batch_checks.append(self.check_contact)

    def begin(self, node_names: set[str]) -> None:
        """Watch the nodes with these names that are ready. Others are lost because of earlier faults."""
        self._watched = {
            node.id: node.name
            for node in self._history.replica.iter_all(NODES)
            if node.name in node_names and node.status is NodeStatus.READY
        }
        self.watched_count += len(self._watched)

    def end(self) -> None:
        """Watch no node any more."""
        self._watched = {}

    def check_contact(self, observed: ObservedBatch) -> None:
        """Raise `InvariantViolation` if the batch declares a watched node, or an allocation on one, lost."""
        if not self._watched:
            return
        for changed in observed.changes:
            if changed.new is None or changed.old is None:
                continue
            if changed.table == NODES.name and changed.new.id in self._watched:
                self._require_state(changed, "status", LOST_NODE_STATES, changed.new.id, observed.batch.index)
            elif changed.table == ALLOCATIONS.name and changed.new.node_id in self._watched:
                self._require_state(
                    changed, "client_status", LOST_ALLOCATION_STATES, changed.new.node_id, observed.batch.index
                )

    def _require_state(
        self, changed: ObservedChange, field: str, lost_states: tuple[object, ...], node_id: str, index: int
    ) -> None:
        """Raise `InvariantViolation` if the field of the record changed to one of these states."""
        old, new = getattr(changed.old, field), getattr(changed.new, field)
        if new is not old and new in lost_states:
            raise InvariantViolation(
                f"{changed.table} {changed.new.id} on {self._watched[node_id]} went from {old} to {new} at {index}, although "
                "only faults happened that must not cost a node",
                changed.new.id, node_id, self._watched[node_id],
            )  # fmt: skip
