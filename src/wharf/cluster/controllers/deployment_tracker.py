"""Which running deployments must be checked: those that changed, and those with a deadline that passed.

The work for each change does not depend on the number of deployments. `controllers.deployments` decides the next step of
a deployment. Holds nothing that the replica does not: `reset` fills it from the replica.
"""

import heapq
from collections.abc import Iterable
from typing import Final

from wharf.cluster.controllers.deployments import next_deadline_ns
from wharf.contract.model.deployments import Deployment

MIN_COMPACTED_ENTRIES: Final = 64
"""A smaller heap of deadlines is not rebuilt. A larger one is, if more than half of its entries are outdated."""


class DeploymentTracker:
    """The active deployments that changed since the last check, and the deadlines of all active ones."""

    def __init__(self) -> None:
        self._changed: dict[str, None] = {}
        """Ids of active deployments that changed since the last call of `take_due`."""
        self._deadlines_ns: dict[str, int] = {}
        """By id, the next deadline of each active deployment that has one."""
        self._heap: list[tuple[int, str]] = []
        """Deadlines with ids. An entry that differs from `_deadlines_ns` is outdated and is dropped when it is reached."""
        self._late: dict[str, None] = {}
        """Ids of deployments whose deadline has passed. They are checked until they change."""

    def reset(self, deployments: Iterable[Deployment]) -> None:
        """Replace the content: all active ones of these deployments count as changed."""
        self._changed, self._deadlines_ns, self._heap, self._late = {}, {}, [], {}
        for deployment in deployments:
            self.update(deployment.id, deployment)

    def update(self, deployment_id: str, deployment: Deployment | None) -> None:
        """Record the change of a deployment. `None`: it was deleted."""
        if deployment is None or not deployment.is_active:
            for entries in (self._changed, self._deadlines_ns, self._late):
                entries.pop(deployment_id, None)
            return
        self._changed[deployment_id] = None
        deadline_ns = next_deadline_ns(deployment)
        if deadline_ns == self._deadlines_ns.get(deployment_id):
            return
        self._late.pop(deployment_id, None)
        if deadline_ns is None:
            del self._deadlines_ns[deployment_id]
            return
        self._deadlines_ns[deployment_id] = deadline_ns
        heapq.heappush(self._heap, (deadline_ns, deployment_id))
        if len(self._heap) > max(MIN_COMPACTED_ENTRIES, 2 * len(self._deadlines_ns)):
            self._heap = [(deadline, tracked_id) for tracked_id, deadline in self._deadlines_ns.items()]
            heapq.heapify(self._heap)

    def take_due(self, now_ns: int) -> list[str]:
        """Return the ids of the deployments to check at this time. Those that changed are returned only once."""
        for deployment_id in [late for late in self._late if self._deadlines_ns[late] > now_ns]:
            del self._late[deployment_id]  # The clock was set back.
            heapq.heappush(self._heap, (self._deadlines_ns[deployment_id], deployment_id))
        while self._heap and self._heap[0][0] <= now_ns:
            deadline_ns, deployment_id = heapq.heappop(self._heap)
            if self._deadlines_ns.get(deployment_id) == deadline_ns:
                self._late[deployment_id] = None
        changed, self._changed = self._changed, {}
        return list(changed | self._late)

    def next_deadline_ns(self) -> int | None:
        """Return the earliest deadline in Unix nanoseconds, or `None` if there is none. It may have passed."""
        if self._late:
            return min(map(self._deadlines_ns.__getitem__, self._late))
        while self._heap and self._deadlines_ns.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
