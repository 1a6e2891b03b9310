"""Performs the actions of the node core on tasks: prepares, starts, signals and kills them through their drivers.

Results are reported to the `AllocationManager` as events. Also finds the driver, the folders and the environment of a
task.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from wharf.contract.model.allocations.resources import AllocatedPort
from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.node.agent.allocations.allocation import ManagedAllocation, TaskHooks
from wharf.node.agent.allocations.journal import NodeJournal
from wharf.node.agent.allocations.predecessors import find_ephemeral_disk
from wharf.node.agent.allocations.table import AllocationTable
from wharf.node.agent.fingerprint.host_ports import find_taken_port, is_requested_port
from wharf.node.core import events
from wharf.node.core.steps import TaskStep
from wharf.node.drivers.port import CannotStart, Driver, TaskOrder, View
from wharf.node.tasks.context import TaskSetupError, map_task_folders
from wharf.node.tasks.environment import TaskHost, build_environment, find_unusable_variable
from wharf.node.tasks.folders import AllocationFolders, TaskFolders
from wharf.node.tasks.interpolation import (
    ReferenceValues,
    ResolutionLimit,
    describe_missing,
    find_zero_byte,
    resolve_document,
)
from wharf.node.tasks.resources import build_granted_resources, build_labels
from wharf.world import World
from wharf.world.tasks import cancel_tasks, start_supervised

log = logging.getLogger(__name__)


class HeldStarts:
    """The allocations from the journal whose tasks may not start before servers have said that they have not ended.

    An older or truncated journal shows ended tasks as not started. Started again, a batch task would do its work twice.
    Running tasks continue.
    """

    def __init__(self) -> None:
        self._held: dict[str, asyncio.Event] = {}

    def hold(self, allocation_id: str) -> None:
        """Let starts of the allocation's tasks wait."""
        self._held[allocation_id] = asyncio.Event()

    def release(self, allocation_id: str) -> None:
        """Let tasks of the allocation start, if it was held."""
        if (changed := self._held.pop(allocation_id, None)) is not None:
            changed.set()

    def is_held(self, allocation_id: str) -> bool:
        """Return whether starts of the allocation's tasks must wait."""
        return allocation_id in self._held

    def list_held(self) -> list[str]:
        """Return the ids of the held allocations."""
        return list(self._held)

    def notify_change(self, allocation_id: str) -> None:
        """Have waiting starts of the allocation check whether they are still wanted."""
        if allocation_id in self._held:
            self._held[allocation_id].set()
            self._held[allocation_id] = asyncio.Event()

    async def wait_until_released(self, allocation_id: str, *, is_obsolete: Callable[[], bool]) -> bool:
        """Wait until the allocation is not held, or until the start is obsolete. Return whether the start may go on."""
        while (changed := self._held.get(allocation_id)) is not None:
            if is_obsolete():
                return False
            await changed.wait()
        return True


class TaskRunner:
    """Performs the node core's actions on tasks through their drivers, and reports the results as events."""

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
        handle_event: Callable[[str, events.AllocationEvent], None],
        on_port_taken: Callable[[int], None],
    ) -> None:
        self._world = world
        self._journal = journal
        self._table = table
        self._folders = folders
        self._drivers = drivers
        self._host = host
        self.reference_values = reference_values
        """What `${...}` references mean on this node, for tasks that start from now on."""
        self._task_hooks = task_hooks
        self._handle_event = handle_event
        self._on_port_taken = on_port_taken
        self.held_starts = HeldStarts()
        self._preparing: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._repeating: dict[tuple[str, str], asyncio.Task[None]] = {}
        """Preparations that an earlier agent process did and that are repeated before a start."""
        self._background_tasks: set[asyncio.Task[None]] = set()
        self._agent_environment = dict(os.environ)  # A copy, because each read of `os.environ` decodes it.

    # -- one task

    def find_driver(self, allocation: ManagedAllocation, task_name: str) -> Driver:
        """Return the driver of the task; for an unknown driver name, a driver that refuses every start.

        The refusing driver is registered under the empty name.
        """
        driver_name = allocation.task(task_name).driver
        return self._drivers.get(driver_name) or self._drivers[""]

    def get_reference_values(self, allocation: ManagedAllocation) -> ReferenceValues:
        """Return what `${...}` references of the allocation mean, besides variables of its tasks."""
        return self.reference_values.with_step_outputs(allocation.assignment.allocation.step_outputs)

    def build_environment_and_folders(
        self, allocation: ManagedAllocation, task_name: str, limit: ResolutionLimit | None = None
    ) -> tuple[dict[str, str], TaskFolders]:
        """Return (environment variables, folders) of a task. `limit` limits the results of references."""
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
            self.get_reference_values(allocation),
            agent_environment=self._agent_environment if view is not View.OWN else {},
            network=self._task_hooks.find_network_status(id),
            limit=limit,
        )
        return environment | self._task_hooks.build_environment(id, task_name), folders

    # -- actions

    def perform(self, allocation: ManagedAllocation, action: events.NodeTaskAction) -> None:
        """Begin one action on a task: prepare, start, cancel the start, signal or kill.

        Does not wait for its result.
        """
        match action:
            case events.PrepareTask(task):
                preparation = self._preparing.get((allocation.record.id, task))
                if preparation is None or preparation.done():  # A repeated action does not start a second preparation.
                    self._preparing[allocation.record.id, task] = self._run_in_background(
                        self._prepare(allocation, task)
                    )
            case events.StartTask(task, run):
                self._run_in_background(
                    self._start(allocation, task, run), partial(self._on_start_failed, allocation, task, run)
                )
            case events.CancelStart(task, run):
                self.find_driver(allocation, task).give_up(allocation.make_run_name(task, run))
            case events.SignalTask(task, run, signal):
                self.find_driver(allocation, task).signal(allocation.make_run_name(task, run), signal)
            case events.KillTask(task, run):
                self.find_driver(allocation, task).kill(allocation.make_run_name(task, run))
            case _:
                raise AssertionError(f"unknown action {action}")

    def cancel_preparations(self, allocation: ManagedAllocation) -> None:
        """Cancel the running preparations of those tasks that need them no longer."""
        for task in allocation.record.tasks:
            if task.step is not TaskStep.STARTING:
                repetition = self._repeating.pop((allocation.record.id, task.name), None)
                if repetition is not None:
                    repetition.cancel()
            if task.step is not TaskStep.PREPARING:
                preparation = self._preparing.pop((allocation.record.id, task.name), None)
                if preparation is not None:
                    preparation.cancel()

    def _run_in_background(
        self, coroutine: Coroutine[Any, Any, None], on_failure: Callable[[Exception], None] | None = None
    ) -> asyncio.Task[None]:
        """Start the coroutine as an asyncio task and return that task; an unexpected error is logged."""
        task = start_supervised(self._world, coroutine, name="task action", on_failure=on_failure)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)
        return task

    def _on_start_failed(self, allocation: ManagedAllocation, task_name: str, run: int, error: Exception) -> None:
        """Apply the failure of a start because of an unexpected error: otherwise the task would start for ever."""
        if self._is_starting(allocation, task_name, run):
            driver, run_name = self.find_driver(allocation, task_name), allocation.make_run_name(task_name, run)
            driver.kill(run_name)  # It may have started all the same.
            driver.forget(run_name)
            reason = f"unexpected error of the node: {type(error).__name__}; its log has the details"
            self._handle_event(allocation.record.id, events.TaskStartFailed(task_name, run, reason))

    async def wait_for_actions(self, *, timeout_s: float) -> None:
        """Wait until all running actions are done, but not longer than `timeout_s`."""
        if self._background_tasks:
            await asyncio.wait(self._background_tasks, timeout=timeout_s)

    async def cancel_actions(self) -> None:
        """Cancel all running actions and wait until they have ended; the next agent process performs them again."""
        await cancel_tasks(*self._background_tasks)

    def run_when_stored(self, action: Callable[[], None]) -> None:
        """Call `action`, such as the cleanup of a run, once all journal entries until now are on the disk.

        While the disk is full, the outcome that drivers and task supervisor hold is the only copy.
        """
        self._run_in_background(self._run_after_sync(action))

    async def _run_after_sync(self, action: Callable[[], None]) -> None:
        """Wait until all journal entries until now are on the disk, then call `action`."""
        await self._journal.wait_until_synced()
        action()

    # -- preparation

    async def _prepare(self, allocation: ManagedAllocation, task_name: str) -> None:
        """Create the task's folders, check its ports and call the hooks' preparation.

        The result is applied as `TaskPrepared` or `TaskPreparationFailed`. While the allocation is held, nothing happens.
        """
        id = allocation.record.id
        await self.held_starts.wait_until_released(id, is_obsolete=lambda: False)  # Canceled when it is obsolete.
        try:
            self._folders.create_task_folders(id, task_name)
            if allocation.spec.output_names:
                self._folders.create_outputs_file(id)
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
        except Exception as error:  # A task must not wait forever because of a mistake of the agent.
            reason = _log_unexpected_error(allocation, task_name, error)
            self._report_preparation(id, task_name, events.TaskPreparationFailed(task_name, reason))
            return
        self._report_preparation(id, task_name, events.TaskPrepared(task_name))

    def _move_predecessor_data(self, allocation: ManagedAllocation, task_name: str) -> None:
        """Move the replaced allocation's data into this allocation, if the group's disk is sticky or migrates.

        Raises `OSError`.
        """
        disk, predecessor_id = (
            find_ephemeral_disk(allocation.assignment),
            allocation.assignment.allocation.previous_allocation,
        )
        if disk is not None and (disk.sticky or disk.migrate) and predecessor_id:
            self._folders.move_predecessor_data(predecessor_id, allocation.record.id, task_name)

    def _find_taken_port(self, allocation: ManagedAllocation) -> AllocatedPort | None:
        """Return the first port of the allocation that another program holds; `None` if all are free.

        `None` also if a task of the allocation runs or is starting, because it may hold the ports itself.
        """
        if any(task.has_process or task.step is TaskStep.STARTING for task in allocation.record.tasks):
            return None
        allocated = allocation.assignment.allocation.allocated_resources
        ports = (allocated.shared.ports or ()) if allocated is not None else ()
        return find_taken_port(ports, self._host.address)

    def _report_preparation(self, allocation_id: str, task_name: str, event: events.AllocationEvent) -> None:
        """End the preparation of the task and apply its result as an event, if the allocation is still known."""
        self._preparing.pop((allocation_id, task_name), None)
        if self._table.find_unsettled(allocation_id) is not None:
            self._handle_event(allocation_id, event)

    # -- start

    async def _start(self, allocation: ManagedAllocation, task_name: str, run: int) -> None:
        """Have the driver start a run of the task; a failure is applied as `TaskStartFailed`.

        Waits for the journal and for servers first, and does nothing if the run was canceled meanwhile.
        """
        id = allocation.record.id
        # After a power cut the journal must show that this run may have been started.
        await self._journal.wait_until_synced()
        if not await self.held_starts.wait_until_released(
            id, is_obsolete=lambda: not self._is_starting(allocation, task_name, run) or allocation.record.is_to_stop
        ):
            # It is stopped instead. The run may exist: the agent may have ended just after it had started it.
            if self._is_starting(allocation, task_name, run):
                await self.find_driver(allocation, task_name).recover([allocation.make_run_name(task_name, run)])
            return
        if not self._is_starting(allocation, task_name, run):
            return
        try:
            await self._ensure_prepared(allocation, task_name)
        except TaskSetupError as error:
            self._handle_event(
                id,
                events.TaskStartFailed(task_name, run, str(error), error.is_final, error.event_type, error.detail_name),
            )
            return
        if not self._is_starting(allocation, task_name, run):
            return
        environment, config, problem = self._resolve_references(allocation, task_name)
        if problem:
            self._handle_event(
                id,
                events.TaskStartFailed(
                    task_name,
                    run,
                    problem,
                    is_final=True,
                    event_type=TaskEventType.FAILED_VALIDATION,
                    detail_name="validation_error",
                ),
            )
            return
        try:
            order = self._build_task_order(allocation, task_name, run, config, environment)
            await self.find_driver(allocation, task_name).start(order)
        except CannotStart as error:
            self._handle_event(id, events.TaskStartFailed(task_name, run, str(error), is_final=error.is_final))

    def _resolve_references(
        self, allocation: ManagedAllocation, task_name: str
    ) -> tuple[dict[str, str], dict[str, object], str]:
        """Return (environment, configuration for the driver, problem) of a task, with all references resolved.

        The problem names a text that is too long or that no program can receive, or references that are unknown. It is
        empty if there is none.
        """
        missing: list[str] = []
        limit = ResolutionLimit()
        environment, _ = self.build_environment_and_folders(allocation, task_name, limit)
        values = self.get_reference_values(allocation).with_variables(environment)
        config = resolve_document(allocation.task(task_name).config or {}, values, missing, limit)
        assert isinstance(config, dict)
        problem = (
            limit.problem
            or (describe_missing(missing) if missing else "")
            or find_unusable_variable(environment)
            or find_zero_byte(config)
        )
        return environment, config, problem

    async def _ensure_prepared(self, allocation: ManagedAllocation, task_name: str) -> None:
        """Prepare the task again if an earlier agent process has prepared it. Returns early if it must stop.

        Raises `TaskSetupError`.
        """
        key = (allocation.record.id, task_name)
        repetition = self._world.start_task(
            self._task_hooks.ensure_prepared(allocation, task_name), name="repeated preparation"
        )
        self._repeating[key] = repetition
        try:
            await asyncio.wait([repetition])
        finally:
            repetition.cancel()
            if self._repeating.get(key) is repetition:
                del self._repeating[key]
        if repetition.cancelled() or (error := repetition.exception()) is None:
            return
        if isinstance(error, TaskSetupError):
            raise error
        raise TaskSetupError(_log_unexpected_error(allocation, task_name, error)) from error

    def _build_task_order(
        self,
        allocation: ManagedAllocation,
        task_name: str,
        run: int,
        config: dict[str, object],
        environment: dict[str, str],
    ) -> TaskOrder:
        """Return the start order for the driver: configuration, folders, user, network, resources and labels.

        Raises `CannotStart`.
        """
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

    @staticmethod
    def _is_starting(allocation: ManagedAllocation, task_name: str, run: int) -> bool:
        """Return whether the task is in the step `STARTING` of exactly this run."""
        record = next((task for task in allocation.record.tasks if task.name == task_name), None)
        return record is not None and record.step is TaskStep.STARTING and record.run == run


def _log_unexpected_error(allocation: ManagedAllocation, task_name: str, error: BaseException) -> str:
    """Log an unexpected error of a preparation, and return the reason for the task's history."""
    log.error(
        "failed to prepare a task: unexpected error allocation=%s task=%s",
        allocation.record.id,
        task_name,
        exc_info=error,
    )
    return f"unexpected error of the node: {type(error).__name__}; its log has the details"
