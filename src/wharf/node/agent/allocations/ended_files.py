"""The files of allocations that have ended: the ends of their logs, which servers store, and garbage collection."""

import asyncio
import logging
from collections import deque
from typing import Final

from wharf.contract.model.allocations.logs import pack_log_tails
from wharf.contract.model.jobs.step_outputs import ReportedOutputs
from wharf.contract.model.jobs.steps import MAX_OUTPUT_BYTES
from wharf.node.agent.allocations.allocation import ManagedAllocation
from wharf.node.agent.allocations.table import AllocationTable
from wharf.node.core.garbage_collection import (
    CollectionLimits,
    count_folders_to_remove,
    order_for_removal,
)
from wharf.node.core.record import AllocationRecord
from wharf.node.files import ReadOnlyFolder
from wharf.node.files.streams import read_log_tail
from wharf.node.settings import NodeSettings
from wharf.node.tasks.folders import AllocationFolders
from wharf.world import World

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

    def read_outputs(self, record: AllocationRecord) -> ReportedOutputs | None:
        """Return the texts of an ended allocation for later steps; `None` if it declares none.

        After servers have acknowledged its end, they are read from their file again: the servers may have lost them since.
        """
        if record.outputs is not None or not record.output_names:
            return record.outputs
        return self._folders.read_outputs(record.id, record.output_names, MAX_OUTPUT_BYTES)

    def remove_files(self, allocation_id: str) -> None:
        """Remove the allocation's folder, after caching the log tails that servers have not received yet."""
        if (allocation := self._table.find_unsettled(allocation_id)) is not None:
            self.read_log_tails(allocation)  # Servers have not received them yet.
        self._folders.remove_folder(allocation_id)

    async def collect_garbage(self, limits: CollectionLimits, now_ns: int) -> list[str]:
        """Remove folders of ended allocations until the limits are met. Return the ids of the removed allocations.

        The journal's entries are read only if a folder must be removed, and once for the whole pass.
        """
        folders = self._folders.list_allocations()
        usage = self._folders.measure_disk_usage()
        if not count_folders_to_remove(len(folders), usage, limits):
            return []
        ended = (found for id in folders if (found := self._table.find_ended(id)) is not None)
        waiting, removed, reduced_count = deque(order_for_removal(ended, now_ns)), list[str](), 0
        first_usage = usage
        while waiting and (count := count_folders_to_remove(len(folders) - len(removed), usage, limits)):
            for removal in [waiting.popleft() for _ in range(min(count, len(waiting)))]:
                if removal.kept_paths:
                    reduced_count += self._folders.reduce_folder(removal.id, removal.kept_paths)
                else:
                    self.remove_files(removal.id)
                    removed.append(removal.id)
            await self._folders.wait_until_removed()  # The disk usage shows only then whether that was enough.
            usage = self._folders.measure_disk_usage()
        if reduced_count:
            log.info("removed files of ended allocations except kept ones count=%s", reduced_count)
        if removed:
            log.info(
                "removed folders of ended allocations count=%s first=%s disk_percent=%.0f inodes_percent=%.0f folders=%s",
                len(removed),
                removed[0],
                first_usage.disk_percent,
                first_usage.inodes_percent,
                len(folders),
            )
        return removed

    async def run_collection(self, settings: NodeSettings, world: World) -> None:
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
            await self.collect_garbage(limits, world.now_ns())
