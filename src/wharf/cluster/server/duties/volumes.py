"""A duty of the leader: ends deletions of host volumes whose server crashed or lost the node."""

import asyncio
from typing import Final

from wharf.cluster.operations.volumes import end_old_deletions
from wharf.cluster.server.brain import Brain

CHECK_INTERVAL_S: Final = 60.0
"""How often volumes are checked. A volume is rarely affected, so a delay of a minute does not matter."""


class VolumeDuty:
    """Makes volumes usable again whose deletion began long ago and did not end."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain
        brain.duties.append(self.run)

    async def run(self) -> None:
        """Check all volumes at intervals, while the brain leads."""
        while self._brain.is_leading:
            await asyncio.sleep(CHECK_INTERVAL_S)
            await self._end_old_deletions()

    async def _end_old_deletions(self) -> None:
        """Make volumes usable again whose deletion began long ago, in as many writes as needed."""
        limit = max(1, self._brain.max_changes // 2)  # Each volume needs a condition for itself and for its node.
        while await self._brain.execute_if_due(
            lambda snapshot, context: end_old_deletions(snapshot, context, max_changes=limit),
            is_long=True,  # It reads a whole table.
        ):
            pass
