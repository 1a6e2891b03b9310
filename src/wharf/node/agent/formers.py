"""Allocations that take the place of another: each waits until that one has ended, and finds what it kept.

On the same node its folders change hands when the first task is prepared. From another node they are fetched, where the
group says `Migrate`, and the allocation begins with all of them or, after an event that says why, with nothing.
"""

import logging
from typing import Protocol

from wharf.model.policies import EphemeralDisk
from wharf.model.task_state import TaskEventType
from wharf.node.agent.arrivals import Arrivals, NotArrived
from wharf.node.core import happenings as on
from wharf.node.core.record import AllocationRecord
from wharf.wire import shapes
from wharf.world import World

log = logging.getLogger(__name__)


class Work(Protocol):
    """One allocation."""

    record: AllocationRecord

    @property
    def order(self) -> shapes.DesiredAllocation: ...


class Works(Protocol):
    def find(self, allocation_id: str) -> Work | None: ...

    def happen(self, allocation_id: str, event: on.Event) -> None: ...


class Formers:
    """Without `arrivals` nothing comes from other nodes."""

    def __init__(self, world: World, works: Works, arrivals: Arrivals | None = None) -> None:
        self._world = world
        self._works = works
        self._arrivals = arrivals
        self._waiting: set[str] = set()
        """Those that wait for one of this node."""
        self._fetching: dict[str, Fetching] = {}

    def must_wait(self, order: shapes.DesiredAllocation) -> bool:
        former = order.allocation.previous_allocation
        return self._is_live(former) or self._is_elsewhere(order)

    def look(self, work: Work) -> None:
        """It is known, or not what it was."""
        id = work.record.id
        if work.record.is_over or not work.record.waits_for_former:
            self._waiting.discard(id)
            if (fetching := self._fetching.pop(id, None)) is not None:
                fetching.cancel()
        elif not self._is_elsewhere(work.order):
            self._waiting.add(id)
        elif id not in self._fetching:
            self._fetching[id] = self._world.start(self._fetch(work.order), name="data of a former allocation")

    def end_waiting(self) -> None:
        """For those whose former allocation has ended on this node meanwhile."""
        for id in list(self._waiting):
            work = self._works.find(id)
            if work is None or not self._is_live(work.order.allocation.previous_allocation):
                self._waiting.discard(id)
                if work is not None:
                    self._works.happen(id, on.FormerEnded())

    def _is_live(self, allocation_id: str) -> bool:
        known = self._works.find(allocation_id)
        return known is not None and not known.record.is_over

    def _is_elsewhere(self, order: shapes.DesiredAllocation) -> bool:
        """Whether there is something to be fetched from another node, as far as this one knows."""
        former = order.allocation.previous_allocation
        disk = disk_of(order)
        is_wanted = self._arrivals is not None and disk is not None and disk.migrate
        return bool(former) and is_wanted and self._works.find(former) is None

    async def _fetch(self, order: shapes.DesiredAllocation) -> None:
        assert self._arrivals is not None
        disk = disk_of(order)
        assert disk is not None
        kind, message = TaskEventType.HOOK_MESSAGE, ""
        try:
            message = await self._arrivals.fetch(order, size_mb=disk.size_mb)
        except NotArrived as error:
            kind, message = TaskEventType.HOOK_FAILED, _without(order, str(error))
        except Exception:  # The top of a task: the allocation must not wait for ever for a fault of ours.
            log.exception("the data of a former allocation could not be fetched")
            kind, message = TaskEventType.HOOK_FAILED, _without(order, "the node's log tells why")
        id = order.allocation.id
        work = self._works.find(id)
        for task in work.record.tasks if work is not None and message else ():
            self._works.happen(id, on.Said(task.name, kind, message))
        self._fetching.pop(id, None)
        if self._works.find(id) is not None:
            self._works.happen(id, on.FormerEnded())


class Fetching(Protocol):
    def cancel(self) -> object: ...


def _without(order: shapes.DesiredAllocation, why: str) -> str:
    return f"The data of allocation {order.allocation.previous_allocation} have not come: {why}. It starts without them"


def disk_of(order: shapes.DesiredAllocation) -> EphemeralDisk | None:
    group = order.job.group(order.allocation.task_group) if order.job is not None else None
    return group.ephemeral_disk if group is not None else None
