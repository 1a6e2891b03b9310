"""Allocations that take the place of another: each waits until that one has ended, and finds what it kept.

On the same node its folders change hands when the first task is prepared. From another node they are fetched, where the
group says `Migrate`, and the allocation begins with all of them or, after an event that says why, with nothing.
"""

import logging
from typing import Protocol

from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.contract.model.jobs.group_policies import EphemeralDisk
from wharf.contract.wire.nodes import messages
from wharf.node.core import events as on
from wharf.node.core.record import AllocationRecord
from wharf.node.migration.download import MigrationDownloader, MigrationError
from wharf.world import World

log = logging.getLogger(__name__)


class ManagedAllocation(Protocol):
    """One allocation."""

    record: AllocationRecord

    @property
    def assignment(self) -> messages.Assignment: ...


class AllocationManager(Protocol):
    def find(self, allocation_id: str) -> ManagedAllocation | None: ...

    def handle_event(self, allocation_id: str, event: on.AllocationEvent) -> None: ...


class PredecessorTracker:
    """Without `arrivals` nothing comes from other nodes."""

    def __init__(self, world: World, works: AllocationManager, downloader: MigrationDownloader | None = None) -> None:
        self._world = world
        self._works = works
        self._arrivals = downloader
        self._waiting: set[str] = set()
        """Those that wait for one of this node."""
        self._fetching: dict[str, CancelableFetch] = {}

    def should_wait(self, order: messages.Assignment) -> bool:
        former = order.allocation.previous_allocation
        return self._is_live(former) or self._is_elsewhere(order)

    def on_record_changed(self, work: ManagedAllocation) -> None:
        """It is known, or not what it was."""
        id = work.record.id
        if work.record.is_over or not work.record.waits_for_former:
            self._waiting.discard(id)
            if (fetching := self._fetching.pop(id, None)) is not None:
                fetching.cancel()
        elif not self._is_elsewhere(work.assignment):
            self._waiting.add(id)
        elif id not in self._fetching:
            self._fetching[id] = self._world.start_task(
                self._fetch(work.assignment), name="data of a former allocation"
            )

    def release_waiting(self) -> None:
        """For those whose former allocation has ended on this node meanwhile."""
        for id in list(self._waiting):
            work = self._works.find(id)
            if work is None or not self._is_live(work.assignment.allocation.previous_allocation):
                self._waiting.discard(id)
                if work is not None:
                    self._works.handle_event(id, on.PredecessorEnded())

    def _is_live(self, allocation_id: str) -> bool:
        known = self._works.find(allocation_id)
        return known is not None and not known.record.is_over

    def _is_elsewhere(self, order: messages.Assignment) -> bool:
        """Whether there is something to be fetched from another node, as far as this one knows."""
        former = order.allocation.previous_allocation
        disk = find_ephemeral_disk(order)
        is_wanted = self._arrivals is not None and disk is not None and disk.migrate
        return bool(former) and is_wanted and self._works.find(former) is None

    async def _fetch(self, order: messages.Assignment) -> None:
        assert self._arrivals is not None
        disk = find_ephemeral_disk(order)
        assert disk is not None
        kind, message = TaskEventType.HOOK_MESSAGE, ""
        try:
            message = await self._arrivals.fetch_predecessor_data(order, size_mb=disk.size_mb)
        except MigrationError as error:
            kind, message = TaskEventType.HOOK_FAILED, _without(order, str(error))
        except Exception:  # The top of a task: the allocation must not wait for ever for a fault of ours.
            log.exception("the data of a former allocation could not be fetched")
            kind, message = TaskEventType.HOOK_FAILED, _without(order, "the node's log tells why")
        id = order.allocation.id
        work = self._works.find(id)
        for task in work.record.tasks if work is not None and message else ():
            self._works.handle_event(id, on.TaskEventOccurred(task.name, kind, message))
        self._fetching.pop(id, None)
        if self._works.find(id) is not None:
            self._works.handle_event(id, on.PredecessorEnded())


class CancelableFetch(Protocol):
    def cancel(self) -> object: ...


def _without(order: messages.Assignment, why: str) -> str:
    return f"The data of allocation {order.allocation.previous_allocation} have not come: {why}. It starts without them"


def find_ephemeral_disk(order: messages.Assignment) -> EphemeralDisk | None:
    group = order.job.find_group(order.allocation.task_group) if order.job is not None else None
    return group.ephemeral_disk if group is not None else None
