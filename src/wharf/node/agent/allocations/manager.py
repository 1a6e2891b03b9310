"""Drives the node core for every allocation: passes events to it, stores the new records, and has `TaskRunner` perform
the actions.

Decides nothing itself. Servers' assignments arrive through `assignments`, drivers' reports through `run_events`.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from msgspec.structs import replace

from wharf.contract.model.allocations.allocation import DesiredStatus
from wharf.contract.wire.nodes.messages import Assignment
from wharf.node.agent.allocations.allocation import EMPTY_SPEC, ManagedAllocation, TaskHooks
from wharf.node.agent.allocations.journal import (
    DeletedAllocation,
    NodeJournal,
    RestoredAllocation,
    SettledAllocation,
    StoredAssignment,
    StoredProgress,
)
from wharf.node.agent.allocations.predecessors import PredecessorTracker
from wharf.node.agent.allocations.table import AllocationTable
from wharf.node.agent.allocations.task_runner import TaskRunner
from wharf.node.core import events
from wharf.node.core.allocation import (
    Transition,
    add_outputs,
    apply_event,
    find_next_deadline_s,
    list_interrupted_actions,
    receive_allocation,
    reset_after_boot,
)
from wharf.node.core.allocation_spec import AllocationSpec, build_allocation_spec
from wharf.node.core.clock import ClockReading, find_earliest
from wharf.node.core.record import AllocationRecord
from wharf.node.drivers.port import Driver
from wharf.node.migration.download import MigrationDownloader
from wharf.node.tasks.environment import TaskHost
from wharf.node.tasks.folders import AllocationFolders
from wharf.node.tasks.interpolation import ReferenceValues
from wharf.world import World

log = logging.getLogger(__name__)

CLEANUP_TIMEOUT_S: Final = 5.0
"""Seconds that the agent, when it ends with all tasks, waits for a disk that cannot store their ends."""


class AllocationManager:
    """Applies events to the node's allocations: computes the new record, stores it and performs its actions.

    `table` has the allocations, `tasks` performs the actions.
    """

    def __init__(
        self,
        world: World,
        journal: NodeJournal,
        table: AllocationTable,
        folders: AllocationFolders,
        drivers: Mapping[str, Driver],
        *,
        host: TaskHost,
        reference_values: ReferenceValues,
        task_hooks: TaskHooks,
        on_change: Callable[[str], None],
        on_port_taken: Callable[[int], None] = lambda _port: None,
        max_kill_timeout_s: float,
        downloader: MigrationDownloader | None = None,
    ) -> None:
        """`on_change` is called with the id of an allocation whose state must be reported to servers."""
        self._world = world
        self._journal = journal
        self._folders = folders
        self._task_hooks = task_hooks
        self._max_kill_timeout_s = max_kill_timeout_s
        self._predecessors = PredecessorTracker(world, table, self.handle_event, downloader)
        self._wake = asyncio.Event()
        """Set after every change of an allocation."""
        self.on_change = on_change
        self.is_ending = False
        """Whether `stop_all` was called: new assignments are ignored from then on."""
        self.table = table
        self.tasks = TaskRunner(
            world,
            journal,
            table,
            folders,
            drivers,
            host=host,
            reference_values=reference_values,
            task_hooks=task_hooks,
            handle_event=self.handle_event,
            on_port_taken=on_port_taken,
        )

    # -- events

    def add_allocation(self, assignment: Assignment) -> None:
        """Store a new allocation and start it.

        It is stored as already ended if servers want it stopped or know that it has ended.
        """
        assigned, spec = assignment.allocation, self.build_spec(assignment)
        stored_assignment = StoredAssignment(assigned.id, assignment)
        self._journal.append_entry(stored_assignment)
        if assigned.desired_status is not DesiredStatus.RUN or assigned.client_status.is_terminal:
            # It ended before this node received it, or the node has lost its journal.
            spec = EMPTY_SPEC
            transition = apply_event(
                AllocationRecord(assigned.id), spec, events.AllocationStopRequested(), self._read_clock()
            )
        else:
            is_waiting = self._predecessors.should_wait(assignment)
            transition = receive_allocation(
                assigned.id, spec, self._read_clock(), is_waiting_for_predecessor=is_waiting
            )
        self._apply_transition(ManagedAllocation(stored_assignment, spec, transition.record), transition)

    def end_allocation(self, assignment: Assignment) -> None:
        """End a restored allocation that has ended long ago, as servers know: the journal has lost its end.

        A task that runs is stopped. Without one, the allocation gets the client status that servers know.
        """
        id = assignment.allocation.id
        self.handle_event(id, events.AllocationStopRequested(skips_delays=True))
        allocation = self.table.find_unsettled(id)
        if allocation is None or not allocation.record.is_over:
            return
        self._journal.append_entry(StoredAssignment(id, assignment))
        transition = apply_event(AllocationRecord(id), EMPTY_SPEC, events.AllocationStopRequested(), self._read_clock())
        self._apply_transition(
            ManagedAllocation(StoredAssignment(id, assignment), EMPTY_SPEC, transition.record), transition
        )

    def handle_event(self, allocation_id: str, event: events.AllocationEvent) -> None:
        """Apply an event to the allocation, store the result and perform the resulting actions.

        Has no effect on an allocation whose end servers have acknowledged. Raises `KeyError` if it is unknown.
        """
        if self.table.is_settled(allocation_id):
            return
        allocation = self.table.get_unsettled(allocation_id)
        self._apply_transition(allocation, apply_event(allocation.record, allocation.spec, event, self._read_clock()))

    def _apply_transition(self, allocation: ManagedAllocation, transition: Transition) -> None:
        """Store the new record in table and journal, perform the actions of the transition, and notify the hooks.

        Afterwards delete the allocation if servers no longer know it, and release waiting successors, if it has ended.
        """
        record = self._add_outputs(allocation, transition.record)
        changed = record != allocation.record or self.table.find_unsettled(record.id) is None
        allocation.record = record
        self.table.put(allocation)
        if changed:
            self._journal.append_entry(StoredProgress(record))
            self.on_change(record.id)
            self._wake.set()
        self.tasks.cancel_preparations(allocation)
        for action in transition.actions:
            self.tasks.perform(allocation, action)
        if changed:
            self.tasks.held_starts.notify_change(record.id)
            if record.is_over:
                self.tasks.held_starts.release(record.id)
            try:
                self._task_hooks.on_record_changed(allocation)
            except Exception:  # An unexpected error about one allocation must not end the node, with all others.
                log.exception("serving the tasks of an allocation failed: unexpected error allocation=%s", record.id)
            self._predecessors.on_record_changed(allocation)
            self.delete_if_ended(allocation)
            if record.is_over:
                self._predecessors.release_waiting()

    def _add_outputs(self, allocation: ManagedAllocation, record: AllocationRecord) -> AllocationRecord:
        """Return the record with the outputs of its programs, if the event has ended the allocation.

        One journal entry then has the end and the outputs, so a restart of the agent loses neither alone.
        """
        spec = allocation.spec
        if not record.is_over or allocation.record.is_over or not any(task.has_started for task in record.tasks):
            return record
        if spec.kept_paths:
            record = replace(record, kept_paths=spec.kept_paths)
        if not spec.output_names:
            return record
        outputs = self._folders.read_outputs(record.id, spec.output_names, spec.max_output_bytes)
        return add_outputs(record, spec, outputs, self._read_clock())

    def delete_if_ended(self, allocation: ManagedAllocation) -> None:
        """Delete the allocation, its folder and its journal entries, if it has ended and servers no longer know it."""
        id = allocation.record.id
        is_over = allocation.record.is_over
        if allocation.stored_assignment.is_gone and is_over and self.table.find_unsettled(id) is not None:
            self.table.remove(id)
            self._task_hooks.release(id, tuple(task.name for task in allocation.record.tasks))
            self.delete_files_and_entries(id)

    def delete_files_and_entries(self, allocation_id: str) -> None:
        """Remove the allocation's folder and mark its journal entries as deleted."""
        self._folders.remove_folder(allocation_id)
        self._journal.append_entry(DeletedAllocation(allocation_id))

    def _read_clock(self) -> ClockReading:
        """Return the wall clock, the monotonic clock and a random number, as one event needs them."""
        return ClockReading(self._world.now_ns(), self._world.monotonic_s(), self._world.random.random())

    def build_spec(self, assignment: Assignment) -> AllocationSpec:
        """Return the rules for the allocation's tasks, derived from its job; `EMPTY_SPEC` if the job or group is
        unknown.
        """
        if assignment.job is None:
            return EMPTY_SPEC
        assigned = assignment.allocation
        spec = build_allocation_spec(
            assignment.job,
            assigned.task_group,
            is_deployed=bool(assigned.deployment_id),
            max_kill_timeout_s=self._max_kill_timeout_s,
        )
        return spec or EMPTY_SPEC

    async def run_deadlines(self) -> None:
        """Apply `DeadlineReached` to every allocation when one of its deadlines has passed. Runs until canceled."""
        self._predecessors.release_waiting()
        while True:
            self._wake.clear()
            due_s = find_earliest(
                [find_next_deadline_s(allocation.record, allocation.spec) for allocation in self.table.list_live()]
            )
            wait_s = None if due_s is None else max(0.0, due_s - self._world.monotonic_s())
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
                await asyncio.sleep(0)
            except TimeoutError:
                now_s = self._world.monotonic_s()
                for allocation in self.table.list_live():
                    due_s = find_next_deadline_s(allocation.record, allocation.spec)
                    if due_s is not None and due_s <= now_s:
                        self.handle_event(allocation.record.id, events.DeadlineReached())

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; it is checked after every change of an allocation."""
        while not condition():
            self._wake.clear()
            await self._wake.wait()

    # -- start and end of the agent

    def restore(
        self, stored_allocations: Mapping[str, RestoredAllocation | SettledAllocation], *, has_rebooted: bool
    ) -> None:
        """Add the allocations that the journal had, before any event is applied to them."""
        for id, stored in stored_allocations.items():
            if isinstance(stored, SettledAllocation):
                self._restore_settled(id, stored, has_rebooted=has_rebooted)
            else:
                self._restore_unsettled(id, stored, has_rebooted=has_rebooted)
        for allocation in self.table.list_unsettled():
            self._predecessors.on_record_changed(allocation)
            self.delete_if_ended(allocation)

    def _restore_settled(self, id: str, settled: SettledAllocation, *, has_rebooted: bool) -> None:
        """Add an allocation whose end servers have acknowledged; after a reboot, store it without times of the old
        boot.
        """
        self.table.restore_settled(settled, id)
        if has_rebooted:
            self.table.store_settled(replace(settled, record=reset_after_boot(settled.record)), id)

    def _restore_unsettled(self, id: str, stored: RestoredAllocation, *, has_rebooted: bool) -> None:
        """Add an allocation from the journal whose end servers have not acknowledged.

        One without progress is deleted, because servers send it again. One whose journal entries contradict each other
        is ignored.
        """
        if stored.record is None:  # It was assigned, but nothing was done yet; servers will send it again.
            self._journal.append_entry(DeletedAllocation(id))
            return
        record = reset_after_boot(stored.record) if has_rebooted else stored.record
        has_live_tasks = record.tasks and not record.is_over
        spec = self.build_spec(stored.stored_assignment.assignment) if has_live_tasks else EMPTY_SPEC
        if not record.is_over and [task.name for task in record.tasks] != [task.name for task in spec.tasks]:
            log.error("ignoring journal entry: tasks of assignment and progress differ allocation=%s", id)
            return
        if has_rebooted:  # Without this, an agent that ends before any change would leave times of the old clock.
            self._journal.append_entry(StoredProgress(record))
        allocation = ManagedAllocation(stored.stored_assignment, spec, record)
        self.table.put(allocation)
        if not record.is_over:
            self.tasks.held_starts.hold(id)
        self._task_hooks.on_record_changed(allocation)
        self.on_change(id)

    async def recover_driver(self, driver: Driver) -> None:
        """Have the driver report the state of its runs, and repeat actions that may have been interrupted.

        A run is one start of a task.
        """
        runs = [
            allocation.make_run_name(task.name, task.run)
            for allocation in self.table.list_unsettled()
            for task in allocation.record.tasks
            if task.should_recover and self.tasks.find_driver(allocation, task.name) is driver
        ]
        await driver.recover(runs)
        for allocation in self.table.list_unsettled():
            for action in list_interrupted_actions(allocation.record, allocation.spec):
                if self.tasks.find_driver(allocation, action.task) is driver:
                    self.tasks.perform(allocation, action)
        self._wake.set()

    async def stop_all(self) -> None:
        """Stop every task, wait until all have ended, and wait up to `CLEANUP_TIMEOUT_S` for the cleanup.

        New assignments are ignored from now on. Otherwise servers would place replacements on this node while other
        tasks are still ending.
        """
        self.is_ending = True
        for allocation in self.table.list_unsettled():
            if not allocation.record.is_over:
                self.handle_event(allocation.record.id, events.AllocationStopRequested(skips_delays=True))
        await self.wait_until(lambda: not self.table.has_live())
        # Drivers clean up a run once its end is stored.
        await self.tasks.wait_for_actions(timeout_s=CLEANUP_TIMEOUT_S)
