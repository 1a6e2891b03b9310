"""Drives the node core for every allocation: passes events to it, stores the new records, and has drivers perform the
actions.

Decides nothing itself.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from msgspec.structs import replace

from wharf.contract.model.allocations.allocation import AllocDeploymentStatus, ClientStatus, DesiredStatus
from wharf.contract.model.allocations.logs import pack_log_tails
from wharf.contract.model.allocations.resources import AllocatedPort
from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.contract.model.jobs.groups import Task
from wharf.contract.model.jobs.job import Job
from wharf.contract.wire.nodes import messages
from wharf.node.agent.allocations.allocation import TaskHooks
from wharf.node.agent.allocations.journal import (
    DeletedAllocation,
    NodeJournal,
    RestoredAllocation,
    SettledAllocation,
    StoredAssignment,
    StoredProgress,
)
from wharf.node.agent.fingerprint.host_ports import find_taken_port, is_requested_port
from wharf.node.core import events
from wharf.node.core.allocation import (
    Transition,
    apply_event,
    find_next_deadline_s,
    list_interrupted_actions,
    receive_allocation,
    reset_after_boot,
)
from wharf.node.core.allocation_spec import AllocationSpec, build_allocation_spec
from wharf.node.core.clock import ClockReading, find_earliest
from wharf.node.core.garbage_collection import (
    CollectionLimits,
    DiskUsage,
    EndedAllocation,
    choose_allocations_to_remove,
)
from wharf.node.core.outcome import Outcome
from wharf.node.core.record import AllocationRecord, TaskRecord
from wharf.node.core.steps import TaskStep
from wharf.node.drivers.port import CannotStart, Driver, TaskOrder, View
from wharf.node.files import ReadOnlyFolder
from wharf.node.files.streams import read_log_tail
from wharf.node.migration.download import MigrationDownloader
from wharf.node.migration.predecessors import PredecessorTracker, find_ephemeral_disk
from wharf.node.tasks.context import TaskSetupError, map_task_folders
from wharf.node.tasks.environment import TaskHost, build_environment
from wharf.node.tasks.folders import AllocationFolders, TaskFolders
from wharf.node.tasks.interpolation import ReferenceValues, resolve_document
from wharf.node.tasks.resources import build_granted_resources, build_labels
from wharf.world import World

log = logging.getLogger(__name__)

LOG_STREAMS: Final = ("stdout", "stderr")
"""The output streams of a task."""
EMPTY_SPEC: Final = AllocationSpec(tasks=())
"""The rules of an allocation that runs nothing here: its job is unknown or it ended before it arrived."""
FORGET_TIMEOUT_S: Final = 5.0
"""Seconds that the agent, when it ends with all tasks, waits for a disk that cannot store their ends."""


class ManagedAllocation:
    """An allocation of this node: what servers assigned, and how far it has come."""

    def __init__(self, stored_assignment: StoredAssignment, spec: AllocationSpec, record: AllocationRecord) -> None:
        self.stored_assignment = stored_assignment
        self.spec = spec
        self.record = record
        self.log_tails: bytes | None = None
        """The ends of its tasks' logs, packed, after it has ended. `None`: not read yet."""

    @property
    def assignment(self) -> messages.Assignment:
        """The allocation and its job, as servers sent them."""
        return self.stored_assignment.assignment

    @property
    def job(self) -> Job:
        """The job of the allocation."""
        assert self.assignment.job is not None
        return self.assignment.job

    def task(self, name: str) -> Task:
        """Return the task of this name from the job."""
        group = self.job.find_group(self.assignment.allocation.task_group)
        assert group is not None
        return next(task for task in group.tasks or () if task.name == name)

    def make_run_name(self, task: str, run: int) -> str:
        """Return the name of one start of a task; each name is used once."""
        position = [spec.name for spec in self.spec.tasks].index(task)
        return f"{self.record.id}.{position}.{run}"


class AllocationManager:
    """All allocations of the node. Implements `AssignmentHandler` for servers and `Watcher` for drivers."""

    def __init__(
        self,
        world: World,
        journal: NodeJournal,
        folders: AllocationFolders,
        drivers: Mapping[str, Driver],
        *,
        host: TaskHost,
        reference_values: ReferenceValues,
        task_hooks: TaskHooks,
        on_change: Callable[[str], None],
        on_port_taken: Callable[[int], None] = lambda _port: None,
        max_kill_timeout_s: float,
        log_tail_bytes: int = 0,
        downloader: MigrationDownloader | None = None,
    ) -> None:
        self._world = world
        self._journal = journal
        self._folders = folders
        self._drivers = drivers
        self._host = host
        self.reference_values = reference_values
        """What `${...}` references mean on this node, for tasks that start from now on."""
        self._task_hooks = task_hooks
        self._preparing: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._on_change = on_change
        self._on_port_taken = on_port_taken
        self._max_kill_timeout_s = max_kill_timeout_s
        self._log_tail_bytes = log_tail_bytes
        self._agent_environment = dict(os.environ)  # A copy, because each read of `os.environ` decodes it.
        self._allocations: dict[str, ManagedAllocation] = {}
        self._live: dict[str, ManagedAllocation] = {}
        """The allocations that are not over, by id."""
        self._settled: dict[str, int] = {}
        """Ended allocations that servers have acknowledged, by id: the index of their assignment.

        There can be many, so everything else about them is only in the journal.
        """
        self._predecessors = PredecessorTracker(world, self, downloader)
        self._background_tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._is_ending = False
        self._ignored_assignments: dict[str, int] = {}
        """Assignments that arrived after `stop_all`, by id: their index. They are ignored."""
        self._silent_since_s: float | None = None

    # -- assignments and reports (implements `AssignmentHandler`)

    def find_assignment_index(self, allocation_id: str) -> int | None:
        """Return the index of the assignment that was applied last; `None` if the allocation is unknown."""
        if (index := self._settled.get(allocation_id)) is not None:
            return index
        allocation = self._allocations.get(allocation_id)
        return (
            allocation.assignment.allocation.alloc_modify_index
            if allocation is not None
            else self._ignored_assignments.get(allocation_id)
        )

    def list_allocations(self) -> list[str]:
        """Return the ids of all allocations that servers know and that this node has."""
        return [
            *self._settled,
            *(id for id, allocation in self._allocations.items() if not allocation.stored_assignment.is_gone),
        ]

    def has_allocation(self, allocation_id: str) -> bool:
        """Return whether this node has the allocation and servers still know it."""
        allocation = self._allocations.get(allocation_id)
        return allocation_id in self._settled or (allocation is not None and not allocation.stored_assignment.is_gone)

    def apply_assignment(self, assignment: messages.Assignment) -> None:
        """Start, update or stop the allocation as servers want it now."""
        assigned = assignment.allocation
        if assigned.id in self._settled:
            self._update_settled(assigned)
            return
        existing = self._allocations.get(assigned.id)
        if existing is None and self._is_ending:
            self._ignored_assignments[assigned.id] = (
                assigned.alloc_modify_index
            )  # Servers send it again when the node is back.
            return
        spec = self._build_spec(assignment)
        if existing is not None and [task.name for task in existing.spec.tasks] != [task.name for task in spec.tasks]:
            # The job was purged or replaced. The running tasks end by the rules of the job that they were started with.
            assignment, spec = replace(assignment, job=existing.assignment.job), existing.spec
        stored_assignment = StoredAssignment(assigned.id, assignment)
        if existing is None:
            self._journal.append_entry(stored_assignment)
            if assigned.desired_status is not DesiredStatus.RUN or assigned.client_status.is_terminal:
                # It ended before this node received it, or the node has lost its journal.
                transition = apply_event(AllocationRecord(assigned.id), EMPTY_SPEC, events.StopRequested(), self._now())
                self._apply_transition(ManagedAllocation(stored_assignment, EMPTY_SPEC, transition.record), transition)
            else:
                is_waiting = self._predecessors.should_wait(assignment)
                transition = receive_allocation(assigned.id, spec, self._now(), is_waiting_for_predecessor=is_waiting)
                self._apply_transition(ManagedAllocation(stored_assignment, spec, transition.record), transition)
            return
        is_new_deployment = existing.assignment.allocation.deployment_id != assigned.deployment_id
        existing.stored_assignment, existing.spec = stored_assignment, spec
        if assigned.desired_status is not DesiredStatus.RUN:
            desired_transition = assigned.desired_transition
            self.handle_event(
                assigned.id,
                events.StopRequested(
                    skips_delays=desired_transition is not None and bool(desired_transition.no_shutdown_delay)
                ),
            )
        elif is_new_deployment:
            self.handle_event(assigned.id, events.HealthWatchStarted())
        # Stored after its effects, because an assignment that is in the journal is not applied again after a crash.
        self._journal.append_entry(stored_assignment)

    def _update_settled(self, assigned: messages.AssignedAllocation) -> None:
        """Apply an assignment of an allocation that is over: only its index is of interest."""
        settled = self._journal.read_settled(assigned.id)
        self._store_settled(
            replace(settled, index=assigned.alloc_modify_index, client_status=assigned.client_status), assigned.id
        )
        if not assigned.client_status.is_terminal:  # Servers were restored from a snapshot that predates its end.
            self._on_change(assigned.id)

    def _store_settled(self, settled: SettledAllocation, id: str) -> None:
        """Store that the allocation is settled.

        Pass the id object that other tables hold: there can be many settled allocations, and sharing it saves memory.
        """
        self._journal.append_entry(settled)
        self._settled[id] = settled.index

    def _update_live(self, allocation: ManagedAllocation) -> None:
        """Update the table of live allocations."""
        id = allocation.record.id
        if allocation.record.is_over:
            self._live.pop(id, None)
        else:
            self._live[id] = allocation

    def drop_allocation(self, allocation_id: str) -> None:
        """Stop an allocation that servers no longer know, and forget it once it is over."""
        if self._settled.pop(allocation_id, None) is not None:
            self._delete_files_and_entries(allocation_id)
            return
        allocation = self._allocations[allocation_id]
        allocation.stored_assignment = StoredAssignment(allocation_id, allocation.assignment, is_gone=True)
        self.handle_event(allocation_id, events.StopRequested())
        if allocation_id in self._allocations:
            self._journal.append_entry(allocation.stored_assignment)
        self._forget_if_ended(allocation)

    def build_update(self, allocation_id: str) -> messages.AllocationUpdate:
        """Return the state of the allocation as servers are sent it."""
        allocation = self.find(allocation_id)
        assert allocation is not None, "the caller has checked has_allocation"
        record = allocation.record
        if not record.tasks and allocation.assignment.allocation.client_status.is_terminal:
            status = allocation.assignment.allocation.client_status
            status = status if status is not ClientStatus.LOST else ClientStatus.COMPLETE
        else:
            status = record.status
        return messages.AllocationUpdate(
            id=allocation_id,
            client_status=status,
            client_description=record.description if record.tasks else "",
            task_states={task.name: task.to_task_state() for task in record.tasks} if record.tasks else None,
            deployment_status=(
                AllocDeploymentStatus(healthy=record.is_healthy) if record.is_healthy is not None else None
            ),
            log_tails=self._read_log_tails(allocation),
            services=self._task_hooks.list_services(allocation),
            network_status=self._task_hooks.find_network_status(allocation_id),
        )

    async def wait_until_stored(self) -> None:
        """Wait until everything that was reported before is on the disk."""
        await self._journal.wait_until_synced()

    def on_end_acknowledged(self, allocation_id: str) -> None:
        """Keep only a short entry about an ended allocation, because servers know that it is over."""
        allocation = self._allocations.get(allocation_id)
        if allocation is not None and allocation.record.is_over:
            del self._allocations[allocation_id]
            assigned = allocation.assignment.allocation
            settled = SettledAllocation(allocation.record, assigned.alloc_modify_index, assigned.client_status)
            self._store_settled(settled, allocation.record.id)
            self._task_hooks.release(allocation.record.id, tuple(task.name for task in allocation.record.tasks))

    def _read_log_tails(self, allocation: ManagedAllocation) -> bytes:
        """Return the ends of the logs of an ended allocation, packed; empty while it runs.

        They are read while the files exist and kept until they are reported. An empty value makes servers keep the
        tails that they have.
        """
        if not allocation.record.is_over or not allocation.record.tasks:
            allocation.log_tails = None
            return b""
        if allocation.log_tails is None and not self._folders.get_allocation_folder(allocation.record.id).is_dir():
            return b""
        if allocation.log_tails is None:
            folder = ReadOnlyFolder(self._folders.get_allocation_folder(allocation.record.id))
            max_bytes = self._log_tail_bytes
            allocation.log_tails = pack_log_tails(
                {
                    task.name: {stream: read_log_tail(folder, task.name, stream, max_bytes) for stream in LOG_STREAMS}
                    for task in allocation.record.tasks
                    if max_bytes
                }
            )
        return allocation.log_tails

    def on_server_contact(self) -> None:
        """Record that a server has replied."""
        if self._silent_since_s is not None:
            self._silent_since_s = None
            self._apply_to_all(events.ServerContactRestored())

    def on_server_silence(self, since_s: float) -> None:
        """Record that no server has replied since `since_s` of the monotonic clock."""
        if self._silent_since_s is None:
            self._silent_since_s = since_s
            self._apply_to_all(events.ServerContactLost(since_s))

    def _apply_to_all(self, event: events.AllocationEvent) -> None:
        """Apply an event to all allocations that stop after a loss of contact."""
        for id, allocation in list(self._allocations.items()):
            if not allocation.record.is_over and allocation.spec.stop_after_contact_lost_s is not None:
                self.handle_event(id, event)

    # -- reports of drivers (implements `Watcher`)

    def on_begun(self, run: str) -> None:
        """Apply a driver's report that a run has started."""
        if (found := self._find_run(run)) is not None:
            allocation, task, number = found
            self.handle_event(allocation.record.id, events.TaskStarted(task, number))

    def on_refused(self, run: str, reason: str) -> None:
        """Apply a driver's report that a run was not started and will not be."""
        if (found := self._find_run(run)) is not None:
            allocation, task, number = found
            self.find_driver(allocation, task).forget(run)
            self.handle_event(allocation.record.id, events.TaskStartFailed(task, number, reason))

    def on_said(self, run: str, message: str) -> None:
        """Add a driver's message to the history of the task."""
        if (found := self._find_run(run)) is not None:
            allocation, task, _ = found
            event = events.TaskEventOccurred(task, TaskEventType.DRIVER, details={"driver_message": message})
            self.handle_event(allocation.record.id, event)

    def on_ended(self, run: str, outcome: Outcome) -> None:
        """Apply the outcome of a run; the driver may forget the run once the outcome is stored."""
        if (found := self._find_run(run)) is not None:
            allocation, task, number = found
            driver = self.find_driver(allocation, task)
            self.handle_event(allocation.record.id, events.TaskEnded(task, number, outcome))
            self.run_when_stored(lambda: driver.forget(run))

    # -- lookups

    def find(self, allocation_id: str) -> ManagedAllocation | None:
        """Return the allocation; a settled one has no job. `None` if it is unknown."""
        if allocation_id not in self._settled:
            return self._allocations.get(allocation_id)
        settled = self._journal.read_settled(allocation_id)
        assigned = messages.AssignedAllocation(
            id=allocation_id, alloc_modify_index=settled.index, client_status=settled.client_status
        )
        return ManagedAllocation(
            StoredAssignment(allocation_id, messages.Assignment(allocation=assigned)), EMPTY_SPEC, settled.record
        )

    def list_live(self) -> list[ManagedAllocation]:
        """Return the allocations that are not over."""
        return list(self._live.values())

    def list_ended(self) -> list[str]:
        """Return the ids of all allocations that are over."""
        return [*self._settled, *(id for id, allocation in self._allocations.items() if allocation.record.is_over)]

    def get_environment_and_folders(
        self, allocation: ManagedAllocation, task_name: str
    ) -> tuple[dict[str, str], TaskFolders]:
        """Return the environment variables and the folders of a task."""
        id = allocation.record.id
        folders = self._folders.get_task_folders(id, task_name)
        assigned = allocation.assignment.allocation
        task, view = allocation.task(task_name), self.find_driver(allocation, task_name).view
        environment = build_environment(
            assigned,
            allocation.job,
            task,
            map_task_folders(folders, view),
            self._host,
            self.reference_values,
            agent_environment=self._agent_environment if view is not View.OWN else {},
            network=self._task_hooks.find_network_status(id),
        )
        return environment | self._task_hooks.build_environment(id, task_name), folders

    def find_driver(self, allocation: ManagedAllocation, task_name: str) -> Driver:
        """Return the driver of the task; the driver with the empty name stands in for a missing one."""
        driver_name = allocation.task(task_name).driver
        return self._drivers.get(driver_name) or self._drivers[""]

    def _find_run(self, run: str) -> tuple[ManagedAllocation, str, int] | None:
        """Return the allocation, task name and number of a run; `None` if the allocation or task is unknown."""
        allocation_id, position, run_number = run.rsplit(".", 2)
        allocation = self._allocations.get(allocation_id)
        if allocation is None or int(position) >= len(allocation.spec.tasks):
            return None
        return allocation, allocation.spec.tasks[int(position)].name, int(run_number)

    # -- applying events

    def handle_event(self, allocation_id: str, event: events.AllocationEvent) -> None:
        """Apply an event to the allocation and perform everything that follows. Settled allocations ignore events."""
        if allocation_id in self._settled:
            return
        allocation = self._allocations[allocation_id]
        self._apply_transition(allocation, apply_event(allocation.record, allocation.spec, event, self._now()))

    def _apply_transition(self, allocation: ManagedAllocation, transition: Transition) -> None:
        """Store the new record, perform its actions and call the hooks."""
        is_new = transition.record.id not in self._allocations
        changed = transition.record != allocation.record or is_new
        self._allocations[transition.record.id] = allocation
        allocation.record = transition.record
        self._update_live(allocation)
        if changed:
            self._journal.append_entry(StoredProgress(transition.record))
            self._on_change(transition.record.id)
            self._wake.set()
        self._cancel_preparations(allocation)
        for action in transition.actions:
            self._perform(allocation, action)
        if changed:
            self._task_hooks.on_record_changed(allocation)
            self._predecessors.on_record_changed(allocation)
            self._forget_if_ended(allocation)
            if transition.record.is_over:
                self._predecessors.release_waiting()

    def _cancel_preparations(self, allocation: ManagedAllocation) -> None:
        """Cancel preparations of tasks that no longer are in that step."""
        for task in allocation.record.tasks:
            if task.step is not TaskStep.PREPARING:
                preparation = self._preparing.pop((allocation.record.id, task.name), None)
                if preparation is not None:
                    preparation.cancel()

    def _forget_if_ended(self, allocation: ManagedAllocation) -> None:
        """Forget an allocation that is over and that servers no longer know."""
        id = allocation.record.id
        if allocation.stored_assignment.is_gone and allocation.record.is_over and id in self._allocations:
            del self._allocations[id]
            self._task_hooks.release(id, tuple(task.name for task in allocation.record.tasks))
            self._delete_files_and_entries(id)

    def _delete_files_and_entries(self, id: str) -> None:
        """Remove the folder and the journal entries of an allocation."""
        self._folders.remove_folder(id)
        self._journal.append_entry(DeletedAllocation(id))

    def _now(self) -> ClockReading:
        """Return both clocks and a random number for one event."""
        return ClockReading(self._world.now_ns(), self._world.monotonic_s(), self._world.random.random())

    def _build_spec(self, assignment: messages.Assignment) -> AllocationSpec:
        """Derive the rules of the allocation from its job."""
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
        """Until canceled: pass `DeadlineReached` to every allocation of which something is due."""
        self._predecessors.release_waiting()
        while True:
            self._wake.clear()
            due_s = find_earliest(
                [find_next_deadline_s(allocation.record, allocation.spec) for allocation in self._live.values()]
            )
            wait_s = None if due_s is None else max(0.0, due_s - self._world.monotonic_s())
            try:
                await asyncio.wait_for(self._wake.wait(), wait_s)
                await asyncio.sleep(0)
            except TimeoutError:
                now_s = self._world.monotonic_s()
                for id, allocation in list(self._live.items()):
                    due_s = find_next_deadline_s(allocation.record, allocation.spec)
                    if due_s is not None and due_s <= now_s:
                        self.handle_event(id, events.DeadlineReached())

    # -- performing actions

    def _perform(self, allocation: ManagedAllocation, action: events.TaskAction) -> None:
        """Perform one action."""
        match action:
            case events.PrepareTask(task):
                preparation = self._preparing.get((allocation.record.id, task))
                if preparation is None or preparation.done():  # A repeated action does not start a second preparation.
                    self._preparing[allocation.record.id, task] = self._run_in_background(
                        self._prepare(allocation, task)
                    )
            case events.StartTask(task, run):
                self._run_in_background(self._start(allocation, task, run))
            case events.CancelStart(task, run):
                self.find_driver(allocation, task).give_up(allocation.make_run_name(task, run))
            case events.SignalTask(task, run, signal):
                self.find_driver(allocation, task).signal(allocation.make_run_name(task, run), signal)
            case events.KillTask(task, run):
                self.find_driver(allocation, task).kill(allocation.make_run_name(task, run))
            case _:
                raise AssertionError(f"unknown action {action}")

    def _run_in_background(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine in the background and log its failure."""
        task = self._world.start_task(coroutine, name="task action")
        self._background_tasks.add(task)
        task.add_done_callback(self._on_background_task_done)
        return task

    def _on_background_task_done(self, task: asyncio.Task[None]) -> None:
        """Remove a finished background task and log its failure."""
        self._background_tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task action failed: unexpected error", exc_info=error)

    async def _prepare(self, allocation: ManagedAllocation, task_name: str) -> None:
        """Create the task's folders, check its ports and call the hooks; report the result as an event."""
        id = allocation.record.id
        try:
            self._folders.create_task_folders(id, task_name)
            self._move_predecessor_data(allocation, task_name)
        except OSError as error:
            reason = f"cannot create the task's folders: {error.strerror}"
            self._report_preparation(id, task_name, events.TaskPreparationFailed(task_name, reason))
            return
        if (taken_port := self._find_taken_port(allocation)) is not None:
            reason = f"port {taken_port.value} ({taken_port.label}) is in use by another program on this node"
            self._on_port_taken(taken_port.value)
            # A port that the job names may become free. Otherwise a replacement with another port or node is better.
            is_final = not is_requested_port(allocation.job, allocation.assignment.allocation.task_group, taken_port)
            self._report_preparation(id, task_name, events.TaskPreparationFailed(task_name, reason, is_final=is_final))
            return
        try:
            await self._task_hooks.prepare_task(allocation, task_name)
        except TaskSetupError as error:
            failure = events.TaskPreparationFailed(
                task_name, str(error), error.event_type, error.detail_name, is_final=error.is_final
            )
            self._report_preparation(id, task_name, failure)
            return
        self._report_preparation(id, task_name, events.TaskPrepared(task_name))

    def _move_predecessor_data(self, allocation: ManagedAllocation, task_name: str) -> None:
        """Move the data of the predecessor here, if the group has a sticky disk. Raises `OSError`."""
        disk, predecessor_id = (
            find_ephemeral_disk(allocation.assignment),
            allocation.assignment.allocation.previous_allocation,
        )
        if disk is not None and (disk.sticky or disk.migrate) and predecessor_id:
            self._folders.move_predecessor_data(predecessor_id, allocation.record.id, task_name)

    def _find_taken_port(self, allocation: ManagedAllocation) -> AllocatedPort | None:
        """Return a port of the allocation that another program holds; `None` if all are free.

        Checked only while no task runs, because afterwards the allocation holds its ports itself.
        """
        if any(task.has_process or task.step is TaskStep.STARTING for task in allocation.record.tasks):
            return None
        allocated = allocation.assignment.allocation.allocated_resources
        ports = (allocated.shared.ports or ()) if allocated is not None else ()
        return find_taken_port(ports, self._host.address)

    def _report_preparation(self, id: str, task_name: str, event: events.AllocationEvent) -> None:
        """Report the result of a preparation, if the allocation is still known."""
        self._preparing.pop((id, task_name), None)
        if id in self._allocations:
            self.handle_event(id, event)

    async def _start(self, allocation: ManagedAllocation, task_name: str, run: int) -> None:
        """Have the driver start the run; report a failure as an event."""
        id = allocation.record.id
        # After a power cut the journal must show that this run may have been started.
        await self._journal.wait_until_synced()
        if not self._is_starting(allocation, task_name, run):
            return
        try:
            await self._task_hooks.ensure_prepared(allocation, task_name)
        except TaskSetupError as error:
            self.handle_event(
                id,
                events.TaskStartFailed(task_name, run, str(error), error.is_final, error.event_type, error.detail_name),
            )
            return
        if not self._is_starting(allocation, task_name, run):
            return
        task = allocation.task(task_name)
        environment, _ = self.get_environment_and_folders(allocation, task_name)
        missing: list[str] = []
        config = resolve_document(task.config or {}, self.reference_values.with_variables(environment), missing)
        if missing:
            reason = f"unknown reference: {', '.join(missing)}"
            event_type = TaskEventType.FAILED_VALIDATION
            self.handle_event(
                id,
                events.TaskStartFailed(
                    task_name, run, reason, is_final=True, event_type=event_type, detail_name="validation_error"
                ),
            )
            return
        assert isinstance(config, dict)
        try:
            order = self._build_task_order(allocation, task_name, run, config, environment)
            await self.find_driver(allocation, task_name).start(order)
        except CannotStart as error:
            self.handle_event(id, events.TaskStartFailed(task_name, run, str(error), is_final=error.is_final))

    def _build_task_order(
        self,
        allocation: ManagedAllocation,
        task_name: str,
        run: int,
        config: dict[str, object],
        environment: dict[str, str],
    ) -> TaskOrder:
        """Build the order for the driver. Raises `CannotStart`."""
        task, assigned, host = allocation.task(task_name), allocation.assignment.allocation, self._host
        folders = self._folders.get_task_folders(assigned.id, task_name)
        return TaskOrder(
            run=allocation.make_run_name(task_name, run),
            task=task_name,
            config=config,
            environment=environment,
            task_folder=folders.task,
            log_folder=folders.logs,
            log=task.log_config,
            user=task.user,
            allocation_id=assigned.id,
            shared_folder=folders.shared,
            network=self._task_hooks.find_network(assigned.id),
            given=build_granted_resources(
                assigned,
                allocation.job,
                task,
                host.volumes,
                total_mhz=host.total_mhz,
                reserved=self._task_hooks.find_device_reservation(assigned.id, task_name),
            ),
            labels=build_labels(assigned, allocation.job, task_name, node_id=host.node_id, node_name=host.node_name),
        )

    def run_when_stored(self, action: Callable[[], None]) -> None:
        """Call `action`, such as the cleanup of a run, once everything that was appended to the journal is on the
        disk.

        While the disk is full, the outcome that drivers and supervisor hold is the only copy.
        """
        self._run_in_background(self._run_after_sync(action))

    async def _run_after_sync(self, action: Callable[[], None]) -> None:
        """Wait until the journal is on the disk, then call `action`."""
        await self._journal.wait_until_synced()
        action()

    @staticmethod
    def _is_starting(allocation: ManagedAllocation, task_name: str, run: int) -> bool:
        """Return whether the task still is at the start of this run."""
        record = allocation.record.task(task_name)
        return record.step is TaskStep.STARTING and record.run == run

    # -- restart of the agent

    def restore(
        self, stored_allocations: Mapping[str, RestoredAllocation | SettledAllocation], *, has_rebooted: bool
    ) -> None:
        """Take over the allocations from the journal, before anything else happens to them."""
        for id, restored in stored_allocations.items():
            if isinstance(restored, SettledAllocation):
                self._settled[id] = restored.index
                if has_rebooted:
                    self._store_settled(replace(restored, record=reset_after_boot(restored.record)), id)
                continue
            if restored.record is None:  # It was assigned, but nothing was done yet; servers will send it again.
                self._journal.append_entry(DeletedAllocation(id))
                continue
            record = reset_after_boot(restored.record) if has_rebooted else restored.record
            spec = (
                self._build_spec(restored.stored_assignment.assignment)
                if record.tasks and not record.is_over
                else EMPTY_SPEC
            )
            if not record.is_over and [task.name for task in record.tasks] != [task.name for task in spec.tasks]:
                log.error("ignoring journal entry: tasks of assignment and progress differ", extra={"allocation": id})
                continue
            if has_rebooted:  # Without this, an agent that ends before any change would leave times of the old clock.
                self._journal.append_entry(StoredProgress(record))
            self._allocations[id] = ManagedAllocation(restored.stored_assignment, spec, record)
            self._update_live(self._allocations[id])
            self._task_hooks.on_record_changed(self._allocations[id])
            self._on_change(id)
        for allocation in list(self._allocations.values()):
            self._predecessors.on_record_changed(allocation)
            self._forget_if_ended(allocation)

    async def recover_driver(self, driver: Driver) -> None:
        """Have the driver report what became of its runs, and repeat actions that may not have been performed."""
        runs = [
            allocation.make_run_name(task.name, task.run)
            for allocation in self._allocations.values()
            for task in allocation.record.tasks
            if task.should_recover and self.find_driver(allocation, task.name) is driver
        ]
        await driver.recover(runs)
        for allocation in list(self._allocations.values()):
            for action in list_interrupted_actions(allocation.record, allocation.spec):
                if self.find_driver(allocation, action.task) is driver:
                    self._perform(allocation, action)
        self._wake.set()

    def is_current_run(self, run: str) -> bool:
        """Return whether the task is at this run, so that its end must be reported."""
        found = self._find_run(run)
        if found is None:
            return False
        allocation, name, number = found
        task = allocation.record.task(name)
        return task.run == number and (task.has_process or task.step is TaskStep.STARTING)

    # -- garbage collection

    def collect_garbage(self, disk_usage: DiskUsage, limits: CollectionLimits) -> list[str]:
        """Remove folders of ended allocations, as far as the limits require it. Return their ids."""
        stored = [allocation for id in self._folders.list_allocations() if (allocation := self.find(id)) is not None]
        ended = [EndedAllocation(a.record.id, a.record.finished_s) for a in stored if a.record.finished_s is not None]
        chosen = choose_allocations_to_remove(ended, len(self._live), disk_usage, limits)
        for id in chosen:
            log.info("removing folder of ended allocation to free disk space", extra={"allocation": id})
            self.remove_files(id)
        return chosen

    def remove_files(self, allocation_id: str) -> None:
        """Remove the folder of the allocation; the ends of its logs are read before, unless they were reported."""
        if (allocation := self._allocations.get(allocation_id)) is not None:
            self._read_log_tails(allocation)  # Servers have not received them yet.
        self._folders.remove_folder(allocation_id)

    # -- shutdown

    async def stop_all(self) -> None:
        """Stop every task and wait for the ends. New assignments are ignored from now on.

        Otherwise servers would place replacements on this node while other tasks are still ending.
        """
        self._is_ending = True
        for id, allocation in list(self._allocations.items()):
            if not allocation.record.is_over:
                self.handle_event(id, events.StopRequested(skips_delays=True))
        await self.wait_until(lambda: not self._live)
        # Drivers clean up a run once its end is stored.
        if self._background_tasks:
            await asyncio.wait(self._background_tasks, timeout=FORGET_TIMEOUT_S)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; it is checked after every change of an allocation."""
        while not condition():
            self._wake.clear()
            await self._wake.wait()

    def list_live_tasks(self) -> list[TaskRecord]:
        """Return the tasks that have a process."""
        return [task for allocation in self._live.values() for task in allocation.record.tasks if task.has_process]
