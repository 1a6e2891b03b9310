"""The files of allocations that have ended: the ends of their logs, which servers store, and garbage collection."""

import asyncio
import logging
from typing import Final

from wharf.contract.model.allocations.logs import pack_log_tails
from wharf.node.agent.allocations.allocation import ManagedAllocation
from wharf.node.agent.allocations.table import AllocationTable
from wharf.node.core.garbage_collection import (
    CollectionLimits,
    DiskUsage,
    EndedAllocation,
    choose_allocations_to_remove,
)
from wharf.node.files import ReadOnlyFolder
from wharf.node.files.streams import read_log_tail
from wharf.node.settings import NodeSettings
from wharf.node.tasks.folders import AllocationFolders

log = logging.getLogger(__name__)

LOG_STREAMS: Final = ("stdout", "stderr")
"""The output streams of a task."""


class EndedAllocationFiles:
    """Reads the log tails of ended allocations and removes their folders.

    `log_tail_bytes` is the maximum number of bytes reported from the end of each log; 0 reports none.
    """

    def __init__(self, table: AllocationTable, folders: AllocationFolders, *, log_tail_bytes: int = 0) -> None:
        self._table = table
        self._folders = folders
        self._log_tail_bytes = log_tail_bytes

    def read_log_tails(self, allocation: ManagedAllocation) -> bytes:
        """Return the last bytes of each log of an ended allocation, packed; empty while the allocation runs.

        The result is cached in `allocation.log_tails`, because the files may be removed before it is reported. For an
        empty value, servers keep the log tails that they have.
        """
        if not allocation.record.is_over or not allocation.record.tasks:
            allocation.log_tails = None
            return b""
        if allocation.log_tails is None:
            path = self._folders.get_allocation_folder(allocation.record.id)
            if not path.is_dir():
                return b""
            folder, max_bytes = ReadOnlyFolder(path), self._log_tail_bytes
            allocation.log_tails = pack_log_tails(
                {
                    task.name: {stream: read_log_tail(folder, task.name, stream, max_bytes) for stream in LOG_STREAMS}
                    for task in allocation.record.tasks
                    if max_bytes
                }
            )
        return allocation.log_tails

    def remove_files(self, allocation_id: str) -> None:
        """Remove the allocation's folder, after caching the log tails that servers have not received yet."""
        if (allocation := self._table.find_unsettled(allocation_id)) is not None:
            self.read_log_tails(allocation)  # Servers have not received them yet.
        self._folders.remove_folder(allocation_id)

    def collect_garbage(self, disk_usage: DiskUsage, limits: CollectionLimits) -> list[str]:
        """Remove folders of ended allocations until the limits are met. Return the ids of the removed allocations."""
        known = [a for id in self._folders.list_allocations() if (a := self._table.find(id)) is not None]
        ended = [EndedAllocation(a.record.id, a.record.finished_s) for a in known if a.record.finished_s is not None]
        chosen = choose_allocations_to_remove(ended, len(self._table.list_live()), disk_usage, limits)
        for id in chosen:
            log.info("removing folder of ended allocation to free disk space allocation=%s", id)
            self.remove_files(id)
        return chosen

    async def run_collection(self, settings: NodeSettings) -> None:
        """Remove folders of ended allocations at intervals, when there are too many or the disk is too full.

        Runs until canceled.
        """
        limits = CollectionLimits(
            max_allocations=settings.gc_max_allocs,
            max_disk_percent=settings.gc_disk_usage_threshold,
            max_inodes_percent=settings.gc_inode_usage_threshold,
            max_parallel_removals=settings.gc_parallel_destroys,
        )
        while True:
            await asyncio.sleep(settings.gc_interval.seconds)
            previous: list[str] = []
            # The same choice again means that the removal failed; it is retried after the next interval.
            while (chosen := self.collect_garbage(self._folders.measure_disk_usage(), limits)) and chosen != previous:
                previous = chosen
                await self._folders.wait_until_removed()  # The disk usage shows only then whether that was enough.
