"""Tracks allocations that replace another one: each waits until its predecessor has ended, and then gets its data.

On the same node the folders are moved when the first task is prepared. From another node they are downloaded if the
group has `Migrate`. If the download fails, an event says why and the allocation starts without the data.
"""

import asyncio
import logging
from collections.abc import Callable

from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.contract.model.jobs.group_policies import EphemeralDisk
from wharf.contract.wire.nodes import messages
from wharf.node.agent.allocations.allocation import ManagedAllocation
from wharf.node.agent.allocations.table import AllocationTable
from wharf.node.core import events
from wharf.node.migration.download import MigrationDownloader, MigrationError
from wharf.world import World
from wharf.world.tasks import start_supervised

log = logging.getLogger(__name__)


class PredecessorTracker:
    """Makes allocations wait for the allocation that they replace, and downloads its data from another node.

    Without a downloader, only predecessors on this node are waited for.
    """

    def __init__(
        self,
        world: World,
        table: AllocationTable,
        handle_event: Callable[[str, events.AllocationEvent], None],
        downloader: MigrationDownloader | None = None,
    ) -> None:
        self._world = world
        self._table = table
        self._handle_event = handle_event
        self._downloader = downloader
        self._waiting: set[str] = set()
        """The ids of allocations that wait for a predecessor on this node."""
        self._downloads: dict[str, asyncio.Task[None]] = {}

    def should_wait(self, assignment: messages.Assignment) -> bool:
        """Return whether the allocation must wait: its predecessor still runs here, or its data must be downloaded."""
        predecessor_id = assignment.allocation.previous_allocation
        return self._is_live(predecessor_id) or self._is_download_needed(assignment)

    def on_record_changed(self, allocation: ManagedAllocation) -> None:
        """Start or end the wait or the download for this allocation, as its changed record requires."""
        id = allocation.record.id
        if allocation.record.is_over or not allocation.record.is_waiting_for_predecessor:
            self._waiting.discard(id)
            if (download := self._downloads.pop(id, None)) is not None:
                download.cancel()
        elif not self._is_download_needed(allocation.assignment):
            self._waiting.add(id)
        elif id not in self._downloads:
            self._downloads[id] = start_supervised(
                self._world, self._download(allocation.assignment), name="download of a predecessor's data"
            )

    def release_waiting(self) -> None:
        """Apply `PredecessorEnded` to each waiting allocation whose predecessor on this node has ended."""
        for id in list(self._waiting):
            allocation = self._table.find(id)
            if allocation is None or not self._is_live(allocation.assignment.allocation.previous_allocation):
                self._waiting.discard(id)
                if allocation is not None:
                    self._handle_event(id, events.PredecessorEnded())

    def _is_live(self, allocation_id: str) -> bool:
        """Return whether the allocation is on this node and has not ended."""
        allocation = self._table.find(allocation_id)
        return allocation is not None and not allocation.record.is_over

    def _is_download_needed(self, assignment: messages.Assignment) -> bool:
        """Return whether the predecessor's data must be downloaded: migration is requested, and it is not on this node."""
        predecessor_id = assignment.allocation.previous_allocation
        disk = find_ephemeral_disk(assignment)
        is_requested = self._downloader is not None and disk is not None and disk.migrate
        return bool(predecessor_id) and is_requested and self._table.find(predecessor_id) is None

    async def _download(self, assignment: messages.Assignment) -> None:
        """Download the predecessor's data, add the result to the tasks' histories, and apply `PredecessorEnded`.

        If the download fails, the allocation starts without the data.
        """
        assert self._downloader is not None
        disk = find_ephemeral_disk(assignment)
        assert disk is not None
        event_type, message = TaskEventType.HOOK_MESSAGE, ""
        try:
            message = await self._downloader.fetch_predecessor_data(assignment, size_mb=disk.size_mb)
        except MigrationError as error:
            event_type, message = TaskEventType.HOOK_FAILED, _format_failure(assignment, str(error))
        except Exception:  # The allocation must not wait forever because of a bug here.
            log.exception("failed to download data of a predecessor: unexpected error")
            event_type, message = (
                TaskEventType.HOOK_FAILED,
                _format_failure(assignment, "internal error, see the node's log"),
            )
        id = assignment.allocation.id
        allocation = self._table.find(id)
        for task in allocation.record.tasks if allocation is not None and message else ():
            self._handle_event(id, events.TaskEventOccurred(task.name, event_type, message))
        self._downloads.pop(id, None)
        if self._table.find(id) is not None:
            self._handle_event(id, events.PredecessorEnded())


def _format_failure(assignment: messages.Assignment, reason: str) -> str:
    """Return the message for the tasks' histories after a failed download of the predecessor's data."""
    return (
        f"Failed to download the data of allocation {assignment.allocation.previous_allocation}: {reason}. "
        "Starting without them"
    )


def find_ephemeral_disk(assignment: messages.Assignment) -> EphemeralDisk | None:
    """Return the ephemeral disk of the allocation's group; `None` if the job is unknown."""
    group = assignment.job.find_group(assignment.allocation.task_group) if assignment.job is not None else None
    return group.ephemeral_disk if group is not None else None
