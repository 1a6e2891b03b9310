"""What is in use on nodes, as they measure it. Asks only nodes that are shown, a few at a time."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from wharf.cli.common.server_commands import Session

if TYPE_CHECKING:
    from wharf.contract.model.usage import NodeUsage

MAX_MEASURED_NODES: Final = 12
"""Limit of the nodes that one refresh asks."""
MEASURE_BUDGET_S: Final = 1.5
"""A refresh asks no further node after this time, so that keys are handled soon."""
NODE_TIMEOUT_S: Final = 1.0
VALID_S: Final = 9.0
"""A measurement is shown for this time before the node is asked again."""
RETRY_S: Final = 60.0
"""A node that did not reply is asked again after this time."""


class Measurement(NamedTuple):
    """CPU and memory in use on a node, in percent; None if the node did not reply."""

    cpu: float | None
    memory: float | None


UNKNOWN: Final = Measurement(None, None)


class MeasuredNodes:
    """The newest measurement of each node that was shown."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._found: dict[str, tuple[float, Measurement]] = {}
        """By node id, the monotonic time from which the node is asked again, and its measurement."""

    def get(self, node_id: str) -> Measurement:
        return self._found.get(node_id, (0.0, UNKNOWN))[1]

    def list_asked(self) -> list[str]:
        """Return the ids of the nodes that were asked."""
        return list(self._found)

    def measure(self, nodes: "Iterable[NodeUsage]") -> None:
        """Ask nodes whose measurement is missing or old, at most `MAX_MEASURED_NODES`, those that waited longest first."""
        begin_s = self._session.world.monotonic_s()
        due = [node for node in nodes if node.status != "down" and self._get_due_s(node.id) <= begin_s]
        for node in sorted(due, key=lambda node: self._get_due_s(node.id))[:MAX_MEASURED_NODES]:
            now_s = self._session.world.monotonic_s()
            if now_s - begin_s >= MEASURE_BUDGET_S:
                return
            measurement = self._ask(node.id)
            self._found[node.id] = (now_s + (RETRY_S if measurement == UNKNOWN else VALID_S), measurement)

    def _get_due_s(self, node_id: str) -> float:
        return self._found.get(node_id, (0.0, UNKNOWN))[0]

    def _ask(self, node_id: str) -> Measurement:
        from wharf.contract.client import Unreachable
        from wharf.contract.model.refusal import Refusal

        try:
            stats = self._session.client.nodes.stats(node_id, timeout_s=NODE_TIMEOUT_S)
        except (Refusal, Unreachable):
            return UNKNOWN
        cpus, memory = stats.get("CPU") or (), stats.get("Memory") or {}
        total = memory.get("Total") or 0
        return Measurement(
            sum(cpu["TotalPercent"] for cpu in cpus) / len(cpus) if cpus else None,
            100 * memory["Used"] / total if total else None,
        )
