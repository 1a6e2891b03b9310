"""The table of the node's allocations. It finds them by id and by run, and stores which of them are settled.

It decides nothing: events are applied by `manager`, assignments by `assignments`.
"""

from collections.abc import Iterator

from wharf.contract.wire.nodes.messages import AssignedAllocation, Assignment
from wharf.node.agent.allocations.allocation import EMPTY_SPEC, ManagedAllocation
from wharf.node.agent.allocations.journal import NodeJournal, SettledAllocation, StoredAssignment
from wharf.node.core.record import TaskRecord
from wharf.node.core.steps import TaskStep
from wharf.node.tasks.resources import list_volume_requests


class AllocationTable:
    """All allocations of the node.

    An allocation is settled when it is over and servers have acknowledged that. There can be many settled ones, so
    only the journal has their records.
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
        """Return the allocation; a settled one has no job. `None` if it is unknown."""
        if allocation_id not in self._settled:
            return self._unsettled.get(allocation_id)
        settled = self._journal.read_settled(allocation_id)
        assigned = AssignedAllocation(
            id=allocation_id, alloc_modify_index=settled.index, client_status=settled.client_status
        )
        return ManagedAllocation(
            StoredAssignment(allocation_id, Assignment(allocation=assigned)), EMPTY_SPEC, settled.record
        )

    def find_assignment_index(self, allocation_id: str) -> int | None:
        """Return the index of the assignment that was applied last; `None` if the allocation is unknown."""
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
        """Return the ids of all allocations that are over."""
        return [*self._settled, *(id for id, allocation in self._unsettled.items() if allocation.record.is_over)]

    # -- allocations that are not settled

    def get_unsettled(self, allocation_id: str) -> ManagedAllocation:
        """Return the allocation. Raises `KeyError` if it is settled or unknown."""
        return self._unsettled[allocation_id]

    def find_unsettled(self, allocation_id: str) -> ManagedAllocation | None:
        """Return the allocation; `None` if it is settled or unknown."""
        return self._unsettled.get(allocation_id)

    def list_unsettled(self) -> list[ManagedAllocation]:
        """Return the allocations that are not settled."""
        return list(self._unsettled.values())

    def put(self, allocation: ManagedAllocation) -> None:
        """Add the allocation, or update the table after a change of its record."""
        id = allocation.record.id
        self._unsettled[id] = allocation
        if allocation.record.is_over:
            self._live.pop(id, None)
        else:
            self._live[id] = allocation

    def remove(self, allocation_id: str) -> None:
        """Remove an allocation that is over and not settled."""
        del self._unsettled[allocation_id]

    # -- allocations that are not over

    def list_live(self) -> list[ManagedAllocation]:
        """Return the allocations that are not over."""
        return list(self._live.values())

    def has_live(self) -> bool:
        """Return whether any allocation is not over."""
        return bool(self._live)

    def list_live_tasks(self) -> list[TaskRecord]:
        """Return the tasks that have a process."""
        return [task for allocation in self._live.values() for task in allocation.record.tasks if task.has_process]

    def list_volume_users(self, volume: str) -> list[str]:
        """Return the ids of allocations that servers know, that request the volume and that are not over."""
        return list(self._iter_volume_users(volume))

    def _iter_volume_users(self, volume: str) -> Iterator[str]:
        """Yield the ids that `list_volume_users` returns."""
        for id in self.list_allocations():
            allocation = self.find(id)
            if allocation is None or allocation.record.is_over or allocation.assignment.job is None:
                continue
            requests = list_volume_requests(allocation.assignment.allocation, allocation.assignment.job)
            if volume in [name for name, _ in requests.values()]:
                yield id

    # -- settled allocations

    def is_settled(self, allocation_id: str) -> bool:
        """Return whether the allocation is settled."""
        return allocation_id in self._settled

    def settle(self, allocation: ManagedAllocation) -> None:
        """Replace an allocation that is over by a short entry in the journal."""
        id = allocation.record.id
        assigned = allocation.assignment.allocation
        del self._unsettled[id]
        self.store_settled(
            SettledAllocation(allocation.record, assigned.alloc_modify_index, assigned.client_status), id
        )

    def store_settled(self, settled: SettledAllocation, id: str) -> None:
        """Store the entry of a settled allocation.

        Pass the id object that other tables hold: there can be many settled allocations, and sharing it saves memory.
        """
        self._journal.append_entry(settled)
        self._settled[id] = settled.index

    def restore_settled(self, settled: SettledAllocation, id: str) -> None:
        """Add a settled allocation that the journal already contains."""
        self._settled[id] = settled.index

    def remove_settled(self, allocation_id: str) -> bool:
        """Remove the allocation if it is settled. Return whether it was."""
        return self._settled.pop(allocation_id, None) is not None

    # -- runs

    def find_run(self, run: str) -> tuple[ManagedAllocation, str, int] | None:
        """Return the allocation, task name and number of a run; `None` if the allocation or task is unknown."""
        allocation_id, position, run_number = run.rsplit(".", 2)
        allocation = self._unsettled.get(allocation_id)
        if allocation is None or int(position) >= len(allocation.spec.tasks):
            return None
        return allocation, allocation.spec.tasks[int(position)].name, int(run_number)

    def is_current_run(self, run: str) -> bool:
        """Return whether the task is at this run, so that its end must be reported."""
        found = self.find_run(run)
        if found is None:
            return False
        allocation, name, number = found
        task = allocation.record.task(name)
        return task.run == number and (task.has_process or task.step is TaskStep.STARTING)
