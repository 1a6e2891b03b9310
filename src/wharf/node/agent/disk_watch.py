"""Reports a nearly full disk of the node, before the first write to it fails.

What happens when a write fails is decided by the journal. Folders of ended allocations are removed by `ended_files`.
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from wharf.contract.model.nodes.node import NodeEventSubsystem
from wharf.node.agent.servers.node_events import NodeEventQueue
from wharf.node.threads import ThreadGroup, run_in_thread
from wharf.world.disk_space import DiskSpace, measure_disk_space

log = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 2.0


class DiskWatch:
    """Checks the disks of the node's folders, and reports when one becomes nearly full or has space again."""

    def __init__(self, folders: Sequence[Path], events: NodeEventQueue) -> None:
        self._folders = folders
        self._events = events
        self._reported: set[Path] = set()
        """The folders whose disk was reported as nearly full."""

    async def run(self) -> None:
        """Check the disks at intervals. Runs until canceled."""
        while True:
            for folder in self._folders:
                try:
                    space = await run_in_thread(ThreadGroup.DISKS, measure_disk_space, folder)
                except OSError:
                    continue  # The journal reports a disk that is gone.
                self.handle(folder, space)
            await asyncio.sleep(CHECK_INTERVAL_S)

    def handle(self, folder: Path, space: DiskSpace) -> None:
        """Report the disk of the folder if it has become nearly full, or has space again."""
        if space.is_nearly_full == (folder in self._reported):
            return
        if space.is_nearly_full:
            self._reported.add(folder)
            free_mb, needed_mb = space.available_bytes >> 20, space.needed_bytes >> 20
            log.warning("disk of the node is nearly full folder=%s free_mb=%s needed_mb=%s", folder, free_mb, needed_mb)
            message = f"The disk of {folder} {space.describe_shortage()}: free some space before no task starts"
            self._events.add_event(NodeEventSubsystem.STORAGE, message)
        else:
            self._reported.discard(folder)
            log.warning("disk of the node has free space again folder=%s", folder)
            self._events.add_event(NodeEventSubsystem.STORAGE, f"The disk of {folder} has free space again")
