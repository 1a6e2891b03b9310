"""Prepares tasks, serves them while they run, and cleans up after them: network, devices, volumes, identities,
templates, checks and services.

The manager reports every change of an allocation's record; the hooks find out themselves what must start or stop. A
repeated report has no effect.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from wharf.contract.model.allocations.allocation import NetworkStatus
from wharf.contract.model.allocations.resources import AllocatedDevice
from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.contract.model.jobs.groups import Task
from wharf.contract.model.services import MAX_SERVICE_CHARACTERS, ServiceRegistration, find_registration_problem
from wharf.node.agent.allocations.allocation import ManagedAllocation
from wharf.node.agent.allocations.manager import AllocationManager
from wharf.node.core import events
from wharf.node.core.record import AllocationRecord
from wharf.node.core.steps import TaskStep
from wharf.node.devices.node_devices import NodeDevices
from wharf.node.devices.port import NOTHING_RESERVED, CannotReserve, Reserved
from wharf.node.drivers.port import CannotStart, Command, CommandDriver, CommandOrder, Stream, TaskNetwork, View
from wharf.node.mounts import mount_secrets, unmount_secrets
from wharf.node.networks import NetworkError
from wharf.node.networks.allocation_networks import AllocationNetworks
from wharf.node.open_files import FairSlots
from wharf.node.services.check_runner import CheckRunner
from wharf.node.services.registrations import (
    build_registration,
    is_service_up,
    list_checks,
    list_services,
)
from wharf.node.tasks.context import TaskContext, TaskSetupError, build_reference_error
from wharf.node.tasks.environment import TaskHost
from wharf.node.tasks.identities.manager import TaskIdentityManager
from wharf.node.tasks.identities.tokens import list_exposed_identities
from wharf.node.tasks.interpolation import ReferenceValues, ResolutionLimit
from wharf.node.tasks.preparation import TaskPreparation
from wharf.node.tasks.resources import list_granted_volumes
from wharf.node.volumes.task_links import ReadOnlyMounts, link_volumes
from wharf.world import World
from wharf.world.tasks import cancel_tasks, start_supervised

log = logging.getLogger(__name__)

MAX_OUTPUT_BYTES: Final = 4_096
"""Limit of the output that is read of a check script or change script; protects the memory of the node."""
CANNOT_RUN_EXIT_CODE: Final = 126
"""The exit code for a command that could not be run, as shells use it."""


class LocalTaskHooks:
    """The calls around a task's life on a real node: prepare, serve while it runs, clean up.

    Call `attach_manager` before any other method.
    """

    def __init__(
        self,
        world: World,
        identities: TaskIdentityManager,
        host: TaskHost,
        read_only_mounts: ReadOnlyMounts,
        networks: AllocationNetworks,
        devices: NodeDevices,
        *,
        probe_slots: FairSlots,
    ) -> None:
        """`probe_slots` limits the checks of the node that are probed at a time, by namespace."""
        self._world = world
        self._devices = devices
        self._reservations: dict[tuple[str, str], Reserved] = {}
        self._reserving_tasks: set[asyncio.Task[None]] = set()
        self._prepared: dict[tuple[str, str], None] = {}
        """Tasks that this agent process has prepared; the keys are (allocation id, task name)."""
        self._read_only_mounts = read_only_mounts
        self._networks = networks
        self._host = host
        self._identities = identities
        self._may_prepare = asyncio.Event()
        self._preparation = TaskPreparation(world, identities.build_task_client, self._may_prepare)
        self._check_runner = CheckRunner(world, self.handle_event, self.run_command_in_task, probe_slots)
        self._erased: dict[tuple[str, str], None] = {}
        """Dead tasks whose secrets have been erased; the keys are (allocation id, task name)."""
        self._manager: AllocationManager

    def attach_manager(self, manager: AllocationManager) -> None:
        """Set the allocation manager, which is created after this object."""
        self._manager = manager

    def allow_preparations(self) -> None:
        """Let preparations begin that take long. Called once the node is registered, or has waited long enough."""
        self._may_prepare.set()

    async def ensure_prepared(self, allocation: ManagedAllocation, task_name: str) -> None:
        """Prepare the task, unless this agent process has already prepared it. Raises `TaskSetupError`.

        The preparation by an earlier agent process does not count, because parts of it exist only in memory.
        """
        if (allocation.record.id, task_name) not in self._prepared:
            await self.prepare_task(allocation, task_name)

    async def prepare_task(self, allocation: ManagedAllocation, task_name: str) -> None:
        """Prepare everything that the task needs, and record that it is prepared. Raises `TaskSetupError`."""
        await self._prepare_parts(allocation, task_name)
        self._prepared[allocation.record.id, task_name] = None

    async def _prepare_parts(self, allocation: ManagedAllocation, task_name: str) -> None:
        """Prepare network, devices, volumes, secrets, identities, payload, artifacts and templates, in this order.

        Parts that the task does not use are skipped. Raises `TaskSetupError`.
        """
        task = allocation.task(task_name)
        if problem := self._find_service_problem(allocation):
            raise build_reference_error(problem)
        if self._networks.has_own_network(allocation.assignment.allocation, allocation.job):
            await self._ensure_network(allocation, task_name)
        await self._reserve_devices(allocation, task_name)
        if task.volume_mounts and self._manager.tasks.find_driver(allocation, task_name).view is View.HOST:
            self._link_volumes(allocation, task)
        if not (task.artifacts or task.dispatch_payload or has_secrets(task)):
            return  # Most tasks need nothing else.
        await self._may_prepare.wait()
        _, folders = self._manager.tasks.build_environment_and_folders(allocation, task_name)
        self._erased.pop((allocation.record.id, task_name), None)
        try:
            if has_secrets(task):
                mount_secrets(folders.secrets)
        except OSError as error:
            reason = f"cannot mount the secrets folder in memory: {error.strerror}"
            raise TaskSetupError(reason) from error
        task_control = _TaskControl(self, allocation.record.id, task_name)
        await self._identities.prepare_task(self._build_task_context(allocation, task_name), task_control)
        # A new context: the environment may contain the identities now.
        await self._preparation.prepare_task(self._build_task_context(allocation, task_name), task_control)

    async def _ensure_network(self, allocation: ManagedAllocation, task_name: str) -> None:
        """Create the allocation's own network if it does not exist. Raises `TaskSetupError`."""
        try:
            await self._networks.ensure_network(
                allocation.assignment.allocation, allocation.job, self._build_reference_values(allocation, task_name)
            )
        except NetworkError as error:
            reason = f"cannot create the allocation's network: {error}"
            raise TaskSetupError(reason) from error

    def find_network(self, allocation_id: str) -> TaskNetwork | None:
        """Return the allocation's own network; `None` if it has none."""
        return self._networks.find_task_network(allocation_id)

    def find_network_status(self, allocation_id: str) -> NetworkStatus | None:
        """Return the addresses of the allocation's own network; `None` if it has none."""
        return self._networks.find_network_status(allocation_id)

    async def _reserve_devices(self, allocation: ManagedAllocation, task_name: str) -> None:
        """Reserve the devices that are assigned to the task, and store the reservation. Raises `TaskSetupError`."""
        if not (devices := _list_devices(allocation, task_name)):
            return
        try:
            reserved = await self._devices.reserve_devices(devices)
        except CannotReserve as error:
            raise TaskSetupError(str(error)) from error
        self._reservations[allocation.record.id, task_name] = reserved

    async def _reserve_devices_again(self, allocation: ManagedAllocation, task_name: str) -> None:
        """Reserve the devices of a task that an earlier agent process started; a failure is only logged.

        Commands that run beside the task then see the same devices as the task.
        """
        try:
            await self._reserve_devices(allocation, task_name)
        except TaskSetupError as error:
            log.warning("failed to reserve the devices of a running task again task=%s error=%s", task_name, error)

    def find_device_reservation(self, allocation_id: str, task: str) -> Reserved:
        """Return the environment, mounts and device files that the task's devices require; empty if it has none."""
        return self._reservations.get((allocation_id, task), NOTHING_RESERVED)

    def _link_volumes(self, allocation: ManagedAllocation, task: Task) -> None:
        """Link the assigned volumes into the folder of a task that has no root file system of its own.

        Raises `TaskSetupError`.
        """
        try:
            volumes = list_granted_volumes(allocation.assignment.allocation, allocation.job, task, self._host.volumes)
        except CannotStart as error:
            raise TaskSetupError(str(error)) from error
        link_volumes(
            volumes, self._manager.tasks.build_environment_and_folders(allocation, task.name)[1], self._read_only_mounts
        )

    def build_environment(self, allocation_id: str, task: str) -> dict[str, str]:
        """Return the environment variables that come from the task's devices, identities and templates.

        If two define the same variable, templates override identities, and identities override devices.
        """
        from_devices = self.find_device_reservation(allocation_id, task).environment
        from_identities = self._identities.build_environment(allocation_id, task)
        return {**from_devices, **from_identities, **self._preparation.build_environment(allocation_id, task)}

    def on_record_changed(self, allocation: ManagedAllocation) -> None:
        """Start what running tasks need, and clean up after dead ones, after a change of the allocation's record.

        Running tasks: devices, renewal of identities, rendering of templates, and checks. Dead tasks: their
        reservations and secrets are released. An ended allocation: its checks and its network are removed.
        """
        record, id = allocation.record, allocation.record.id
        if not record.tasks or (record.is_over and allocation.assignment.job is None):
            return
        for task in record.tasks:
            if task.is_dead:
                self._prepared.pop((id, task.name), None)
                self._reservations.pop((id, task.name), None)
                self._identities.release(id, task.name)
                self._preparation.release(id, task.name)
                self._wipe_secrets(allocation, task.name)
            elif task.has_process:
                self._serve_running_task(allocation, task.name)
        if record.is_over:
            self._check_runner.remove_checks(id)
            self._networks.release_network(id)
            return
        if not self._check_runner.has_checks(id) and self._is_connected(allocation):
            assigned = allocation.assignment.allocation
            self._check_runner.set_checks(
                id,
                assigned.name,
                list_checks(
                    assigned,
                    allocation.job,
                    self._build_host(id),
                    lambda task: self._build_reference_values(allocation, task),
                ),
                namespace=assigned.namespace,
            )
        self._check_runner.update_running_checks(id, lambda task: _find_up_since_s(record, task))

    def _serve_running_task(self, allocation: ManagedAllocation, task_name: str) -> None:
        """Start to renew the identities and render the templates of a task that has a process.

        Its devices are reserved again if an earlier agent process started the task.
        """
        task = allocation.task(task_name)
        if (allocation.record.id, task_name) not in self._reservations and _list_devices(allocation, task_name):
            self._reservations[allocation.record.id, task_name] = NOTHING_RESERVED
            reserving = start_supervised(
                self._world, self._reserve_devices_again(allocation, task_name), name="devices of a task"
            )
            self._reserving_tasks.add(reserving)
            reserving.add_done_callback(self._reserving_tasks.discard)
        if not has_secrets(task):
            return
        id, task_control = allocation.record.id, _TaskControl(self, allocation.record.id, task_name)
        self._identities.keep_renewed(lambda: self._build_task_context(allocation, task_name), id, task, task_control)
        if task.templates:
            self._preparation.keep_rendered(
                lambda: self._build_task_context(allocation, task_name), id, task_name, task_control
            )

    def _wipe_secrets(self, allocation: ManagedAllocation, task: str) -> None:
        """Unmount the secrets folder of a dead task; done once for each task."""
        key = (allocation.record.id, task)
        if key not in self._erased and has_secrets(allocation.task(task)):
            self._erased[key] = None
            unmount_secrets(self._manager.tasks.build_environment_and_folders(allocation, task)[1].secrets)

    def list_services(self, allocation: ManagedAllocation) -> tuple[ServiceRegistration, ...]:
        """Return a registration for each service of the allocation that is up now, if servers can store it.

        Tasks with other services do not start. They may run already if an older version has started them.
        """
        assigned, record = allocation.assignment.allocation, allocation.record
        if not record.tasks or record.is_over:
            return ()
        limit = ResolutionLimit(MAX_SERVICE_CHARACTERS)
        registrations = [
            build_registration(
                assigned, service, self._host, self._build_reference_values(allocation, service.task), limit
            )
            for service in list_services(assigned, allocation.job, self._build_host(allocation.record.id))
            if is_service_up(record, service)
        ]
        return tuple(each for each in registrations if not find_registration_problem(each))

    def _find_service_problem(self, allocation: ManagedAllocation) -> str:
        """Return a sentence if a service of the allocation is too long or invalid with its references resolved."""
        assigned, limit = allocation.assignment.allocation, ResolutionLimit(MAX_SERVICE_CHARACTERS)
        for service in list_services(assigned, allocation.job, self._host):
            values = self._build_reference_values(allocation, service.task)
            build_registration(assigned, service, self._host, values, limit)
        return limit.problem

    def _build_host(self, allocation_id: str) -> TaskHost:
        """Return the description of the host; its allocation address is that of the allocation's own network, if any."""
        status = self.find_network_status(allocation_id)
        return self._host if status is None else replace(self._host, allocation_address=status.address)

    def _is_connected(self, allocation: ManagedAllocation) -> bool:
        """Return whether the allocation's addresses are known: it uses the host's network, or its own network exists."""
        assigned = allocation.assignment.allocation
        return (
            not self._networks.has_own_network(assigned, allocation.job)
            or self.find_network_status(assigned.id) is not None
        )

    def release(self, allocation_id: str, tasks: tuple[str, ...]) -> None:
        """Delete all data that these hooks hold about the allocation and its tasks."""
        self._check_runner.remove_checks(allocation_id)
        for task in tasks:
            self._identities.release(allocation_id, task)
            self._preparation.release(allocation_id, task)
            self._erased.pop((allocation_id, task), None)
            self._reservations.pop((allocation_id, task), None)
            self._prepared.pop((allocation_id, task), None)

    async def build_check_results(self, allocation_id: str) -> Mapping[str, Any]:  # JSON.
        """Return the results of the allocation's checks by check id."""
        return await self._check_runner.build_results(allocation_id)

    async def close(self) -> None:
        """Cancel all background work for tasks and wait until it has ended. Called when the agent ends."""
        await cancel_tasks(*self._reserving_tasks)
        await self._preparation.close()
        await self._identities.close()
        await self._networks.close()

    # -- for one task

    def _build_reference_values(self, allocation: ManagedAllocation, task: str) -> ReferenceValues:
        """Return the values of `${...}` references in a service or check of the task.

        An empty task name stands for the group. Services of the group use the first task's values: the port variables
        are the same for all tasks.
        """
        task_name = task or allocation.record.tasks[0].name
        environment, _ = self._manager.tasks.build_environment_and_folders(allocation, task_name)
        return self._manager.tasks.get_reference_values(allocation).with_variables(environment)

    def _build_task_context(self, allocation: ManagedAllocation, task_name: str) -> TaskContext:
        """Return the input for the preparation of the task: ids, folders, environment, references and payload."""
        environment, folders = self._manager.tasks.build_environment_and_folders(allocation, task_name)
        assigned = allocation.assignment.allocation
        return TaskContext(
            allocation_id=assigned.id,
            namespace=assigned.namespace,
            region=self._host.region,
            task=allocation.task(task_name),
            folders=folders,
            view=self._manager.tasks.find_driver(allocation, task_name).view,
            environment=environment,
            reference_values=self._manager.tasks.get_reference_values(allocation).with_variables(environment),
            payload=allocation.job.payload or b"",
            job_id=allocation.job.parent_id or allocation.job.id,
        )

    def handle_event(self, allocation_id: str, event: events.AllocationEvent) -> None:
        """Apply an event to the allocation; ignored if the allocation is unknown."""
        if self._manager.table.find(allocation_id) is not None:
            self._manager.handle_event(allocation_id, event)

    def signal_task(self, allocation_id: str, task: str, signal: str, reason: str) -> None:
        """Send a signal to the task if it runs, and add an event with the reason to its history."""
        allocation = self._manager.table.find(allocation_id)
        if allocation is None or allocation.record.task(task).step is not TaskStep.RUNNING:
            return
        details = {"task_signal": signal, "task_signal_reason": reason}
        self.handle_event(allocation_id, events.TaskEventOccurred(task, TaskEventType.SIGNALING, details=details))
        self._manager.tasks.find_driver(allocation, task).signal(
            allocation.make_run_name(task, allocation.record.task(task).run), signal
        )

    async def run_command_in_task(self, allocation_id: str, task: str, command: tuple[str, ...]) -> tuple[int, str]:
        """Run a command in the environment of a running task. Return (exit code, stdout followed by stderr).

        The output is limited to `MAX_OUTPUT_BYTES`. If the command cannot be run, return `CANNOT_RUN_EXIT_CODE` and the
        reason. On cancellation, such as a timeout, the command and all processes that it started are killed.
        """
        allocation = self._manager.table.find(allocation_id)
        if allocation is None or not task or not allocation.record.task(task).has_process:
            return CANNOT_RUN_EXIT_CODE, "the task is not running"
        driver = self._manager.tasks.find_driver(allocation, task)
        if not isinstance(driver, CommandDriver):
            return CANNOT_RUN_EXIT_CODE, f"driver {allocation.task(task).driver} cannot run commands in tasks"
        environment, folders = self._manager.tasks.build_environment_and_folders(allocation, task)
        run = allocation.make_run_name(task, allocation.record.task(task).run)
        order = CommandOrder(
            run=run,
            name=f"{run}.{self._world.new_id()}",
            command=command,
            environment=environment,
            folder=str(folders.task),
        )
        try:
            running_command = await driver.run_beside(order)
        except CannotStart as error:
            return CANNOT_RUN_EXIT_CODE, str(error)
        try:
            await running_command.close_input()
            output, errors = await asyncio.gather(
                _read_output(running_command, "stdout"), _read_output(running_command, "stderr")
            )
            return await running_command.wait(), (output + errors)[:MAX_OUTPUT_BYTES].decode(errors="replace")
        finally:
            await running_command.end()


def _list_devices(allocation: ManagedAllocation, task_name: str) -> tuple[AllocatedDevice, ...]:
    """Return the devices that servers have assigned to the task."""
    allocated = allocation.assignment.allocation.allocated_resources
    task_resources = (allocated.tasks or {}).get(task_name) if allocated is not None else None
    return tuple(task_resources.devices or ()) if task_resources is not None else ()


class _TaskControl:
    """The operations on a task that its identities and templates may use: events, restart, signal and commands."""

    def __init__(self, hooks: LocalTaskHooks, allocation_id: str, task: str) -> None:
        self._hooks = hooks
        self._allocation_id = allocation_id
        self._task = task

    def record_event(self, event_type: TaskEventType, message: str = "", **details: str) -> None:
        """Add an event to the history of the task."""
        self._hooks.handle_event(
            self._allocation_id, events.TaskEventOccurred(self._task, event_type, message, details)
        )

    def restart_task(self, reason: str) -> None:
        """Request a restart of the task; the reason appears in its history."""
        self._hooks.handle_event(self._allocation_id, events.RestartRequested((self._task,), reason=reason))

    def signal_task(self, signal: str, reason: str) -> None:
        """Send a signal to the task if it runs; the reason appears in its history."""
        self._hooks.signal_task(self._allocation_id, self._task, signal, reason)

    async def run_command(self, command: tuple[str, ...], *, timeout_s: float) -> tuple[int, str]:
        """Run a command beside the task.

        Return (exit code, output). Raises `TimeoutError` after `timeout_s` seconds.
        """
        async with asyncio.timeout(timeout_s):
            return await self._hooks.run_command_in_task(self._allocation_id, self._task, command)


def has_secrets(task: Task) -> bool:
    """Return whether the node may write secrets for the task: it has templates, secrets or exposed identities.

    Other tasks get no secrets folder in memory, because mounting it takes longer than a short task runs.
    """
    return bool(task.templates or task.secrets or list_exposed_identities(task))


async def _read_output(command: Command, stream: Stream) -> bytes:
    """Read a stream of the command to its end and return its first `MAX_OUTPUT_BYTES`."""
    output = b""
    while chunk := await command.read(stream):
        output = (output + chunk)[:MAX_OUTPUT_BYTES]
    return output


def _find_up_since_s(record: AllocationRecord, task: str) -> float | None:
    """Return when the task was started, on the monotonic clock, or `None` unless it is running and not being stopped.

    If `task` is empty, return the earliest start of the group's running tasks.
    """
    tasks = [record.task(task)] if task else record.tasks
    start_times = [task_record.started_s for task_record in tasks if task_record.step is TaskStep.RUNNING]
    return min(start_times, default=None)
