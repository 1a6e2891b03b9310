"""The table of the node's allocations. It finds them by id and by run, and stores which of them are settled.

It decides nothing: events are applied by `manager`, assignments by `assignments`.
"""

import re
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from wharf.contract.wire.nodes.messages import AssignedAllocation, Assignment
from wharf.node.agent.allocations.allocation import EMPTY_SPEC, ManagedAllocation
from wharf.node.agent.allocations.journal import NodeJournal, SettledAllocation, StoredAssignment
from wharf.node.core.garbage_collection import EndedAllocation
from wharf.node.core.record import TaskRecord
from wharf.node.core.steps import TaskStep
from wharf.node.tasks.resources import list_volume_requests

_RUN_NAME: Final = re.compile(r"(?P<allocation>.+)\.(?P<position>[0-9]{1,9})\.(?P<number>[0-9]{1,9})", re.DOTALL)


class AllocationTable:
    """All allocations of the node, by id.

    An allocation is settled when it has ended and servers have acknowledged that. There can be many settled ones, so only
    the journal has their records.
    """

    def __init__(self, journal: NodeJournal) -> None:
        self._journal = journal
        self._unsettled: dict[str, ManagedAllocation] = {}
        self._live: dict[str, ManagedAllocation] = {}
        """The allocations that are not over, by id."""
        self._settled: dict[str, int] = {}
        """The index of the assignment of each settled allocation, by id."""

    # -- all allocations

    def find(self, allocation_id: str) -> ManagedAllocation | None:
        """Return the allocation; `None` if it is unknown.

        One whose end servers have acknowledged is rebuilt from the journal, without its job.
        """
        if allocation_id not in self._settled:
            return self._unsettled.get(allocation_id)
        settled = self._journal.read_settled(allocation_id)
        assigned = AssignedAllocation(
            id=allocation_id, alloc_modify_index=settled.index, client_status=settled.client_status
        )
        return ManagedAllocation(
            StoredAssignment(allocation_id, Assignment(allocation=assigned)), EMPTY_SPEC, settled.record
        )

    def find_ended(self, allocation_id: str) -> EndedAllocation | None:
        """Return when the allocation ended, and the kind of its job; `None` if it has not ended or is unknown."""
        if allocation_id in self._settled:
            settled = self._journal.read_settled(allocation_id)
            return EndedAllocation(allocation_id, settled.record.ended_ns, settled.is_batch, settled.record.kept_paths)
        allocation = self._unsettled.get(allocation_id)
        if allocation is None or not allocation.record.is_over:
            return None
        record = allocation.record
        return EndedAllocation(allocation_id, record.ended_ns, allocation.is_batch, record.kept_paths)

    def find_namespace(self, allocation_id: str) -> str:
        """Return the namespace of the allocation; empty if the node has not stored it, as for settled ones."""
        allocation = self._unsettled.get(allocation_id)
        return allocation.assignment.allocation.namespace if allocation is not None else ""

    def find_assignment_index(self, allocation_id: str) -> int | None:
        """Return the modify index of the last assignment of this allocation; `None` if the allocation is unknown."""
        if (index := self._settled.get(allocation_id)) is not None:
            return index
        allocation = self._unsettled.get(allocation_id)
        return allocation.assignment.allocation.alloc_modify_index if allocation is not None else None

    def list_allocations(self) -> list[str]:
        """Return the ids of all allocations that servers know and that this node has."""
        return [
            *self._settled,
            *(id for id, allocation in self._unsettled.items() if not allocation.stored_assignment.is_gone),
        ]

    def has_allocation(self, allocation_id: str) -> bool:
        """Return whether this node has the allocation and servers still know it."""
        allocation = self._unsettled.get(allocation_id)
        return allocation_id in self._settled or (allocation is not None and not allocation.stored_assignment.is_gone)

    def list_ended(self) -> list[str]:
        """Return the ids of all allocations that have ended."""
        return [*self._settled, *(id for id, allocation in self._unsettled.items() if allocation.record.is_over)]

    # -- allocations that are not settled

    def get_unsettled(self, allocation_id: str) -> ManagedAllocation:
        """Return the allocation. Raises `KeyError` if it is unknown, or if servers have acknowledged its end."""
        return self._unsettled[allocation_id]

    def find_unsettled(self, allocation_id: str) -> ManagedAllocation | None:
        """Return the allocation; `None` if it is unknown, or if servers have acknowledged its end."""
        return self._unsettled.get(allocation_id)

    def list_unsettled(self) -> list[ManagedAllocation]:
        """Return all allocations, except those whose end servers have acknowledged."""
        return list(self._unsettled.values())

    def put(self, allocation: ManagedAllocation) -> None:
        """Store the allocation under its id, and add it to or remove it from the live ones, as its record requires."""
        id = allocation.record.id
        self._unsettled[id] = allocation
        if allocation.record.is_over:
            self._live.pop(id, None)
        else:
            self._live[id] = allocation

    def remove(self, allocation_id: str) -> None:
        """Remove an allocation that has ended but not acknowledged by servers. Raises `KeyError` if there is none."""
        del self._unsettled[allocation_id]

    # -- allocations that are not over

    def list_live(self) -> list[ManagedAllocation]:
        """Return the allocations that have not ended."""
        return list(self._live.values())

    def has_live(self) -> bool:
        """Return whether any allocation has not ended."""
        return bool(self._live)

    def list_live_tasks(self) -> list[TaskRecord]:
        """Return the records of all tasks that have a process."""
        return [task for allocation in self._live.values() for task in allocation.record.tasks if task.has_process]

    def list_volume_users(self, volume: str) -> list[str]:
        """Return the ids of the allocations that request the volume, have not ended, and are known to servers."""
        return list(self._iter_volume_users(volume))

    def _iter_volume_users(self, volume: str) -> Iterator[str]:
        """Yield the ids of the allocations that request the volume, have not ended, and are known to servers."""
        for id, allocation in self._live.items():
            if allocation.stored_assignment.is_gone or allocation.assignment.job is None:
                continue
            requests = list_volume_requests(allocation.assignment.allocation, allocation.assignment.job)
            if volume in [name for name, _ in requests.values()]:
                yield id

    # -- settled allocations

    def is_settled(self, allocation_id: str) -> bool:
        """Return whether the allocation has ended and servers have acknowledged that."""
        return allocation_id in self._settled

    def settle(self, allocation: ManagedAllocation) -> None:
        """Replace an allocation whose end servers have acknowledged by a short entry in the journal."""
        id = allocation.record.id
        assigned = allocation.assignment.allocation
        del self._unsettled[id]
        self.store_settled(
            SettledAllocation(
                # Many ended allocations are held in memory, but not their texts. Servers have them.
                replace(allocation.record, outputs=None),
                assigned.alloc_modify_index,
                assigned.client_status,
                is_batch=allocation.is_batch,
            ),
            id,
        )

    def store_settled(self, settled: SettledAllocation, id: str) -> None:
        """Append the entry of an allocation whose end servers have acknowledged, and store its assignment's index in memory.

        `id` must be the string object that other tables hold: sharing it saves memory, because there can be many.
        """
        self._journal.append_entry(settled)
        self._settled[id] = settled.index

    def restore_settled(self, settled: SettledAllocation, id: str) -> None:
        """Add an allocation whose end servers have acknowledged; the journal already contains its entry."""
        self._settled[id] = settled.index

    def remove_settled(self, allocation_id: str) -> bool:
        """Remove the allocation from the table, if servers have acknowledged its end. Return whether it was."""
        return self._settled.pop(allocation_id, None) is not None

    # -- runs

    def find_run(self, run_name: str) -> tuple[ManagedAllocation, str, int] | None:
        """Return (allocation, task name, number of the start) for the name of a run; `None` if the task is unknown.

        A run is one start of a task; its name is `<allocation id>.<position of the task>.<number of the start>`. Any
        process or container of the machine can claim any name, so a text of another form is an unknown task.
        """
        parts = _RUN_NAME.fullmatch(run_name)
        allocation = self._unsettled.get(parts["allocation"]) if parts is not None else None
        if parts is None or allocation is None or int(parts["position"]) >= len(allocation.spec.tasks):
            return None
        return allocation, allocation.spec.tasks[int(parts["position"])].name, int(parts["number"])

    def is_current_run(self, run: str) -> bool:
        """Return whether this is the latest run of its task and its end was not reported yet.

        A run is one start of a task; `run` is its name.
        """
        found = self.find_run(run)
        if found is None:
            return False
        allocation, name, number = found
        task = allocation.record.task(name)
        return task.run == number and (task.has_process or task.step is TaskStep.STARTING)
