"""What goes on around tasks while they are prepared and run: their files, their checks, their place in the list of services.

It is told of every change of an allocation's record, and sees by itself what must begin or end; told twice it does nothing.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final, Protocol

from msgspec.structs import replace

from wharf.contract.model.allocations.allocation import NetworkStatus
from wharf.contract.model.allocations.resources import AllocatedDevice
from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.contract.model.jobs.groups import Task
from wharf.contract.model.services import ServiceRegistration
from wharf.node.agent.allocations.allocation import ManagedAllocation
from wharf.node.core import events as on
from wharf.node.core.record import AllocationRecord
from wharf.node.core.steps import TaskStep
from wharf.node.devices.node_devices import NodeDevices
from wharf.node.devices.port import NOTHING_RESERVED, CannotReserve, Reserved
from wharf.node.drivers.port import CannotStart, Command, CommandDriver, CommandOrder, Driver, Stream, TaskNetwork, View
from wharf.node.mounts import mount_secrets, unmount_secrets
from wharf.node.networks import NetworkError
from wharf.node.networks.allocation_networks import AllocationNetworks
from wharf.node.services.check_runner import CheckRunner
from wharf.node.services.registrations import build_registration, is_service_up, list_checks, list_services
from wharf.node.tasks.context import TaskContext, TaskSetupError
from wharf.node.tasks.environment import TaskHost
from wharf.node.tasks.folders import TaskFolders
from wharf.node.tasks.identities.manager import TaskIdentityManager
from wharf.node.tasks.identities.tokens import list_exposed_identities
from wharf.node.tasks.interpolation import ReferenceValues
from wharf.node.tasks.preparation import TaskPreparation
from wharf.node.tasks.resources import list_granted_volumes
from wharf.node.volumes.task_links import ReadOnlyMounts, link_volumes
from wharf.world import World

log = logging.getLogger(__name__)

MAX_OUTPUT_BYTES: Final = 4_096
CANNOT_RUN_EXIT_CODE: Final = 126
"""The exit code of a command that could not be run, as shells have it."""


class AllocationManager(Protocol):
    reference_values: ReferenceValues

    def find(self, allocation_id: str) -> ManagedAllocation | None: ...

    def handle_event(self, allocation_id: str, event: on.AllocationEvent) -> None: ...

    def get_environment_and_folders(
        self, work: Any, name: str
    ) -> tuple[dict[str, str], TaskFolders]: ...  # Its own kind of work.

    def find_driver(self, work: Any, name: str) -> Driver: ...  # As above.


class LocalTaskHooks:
    """`attach` it before anything else."""

    def __init__(
        self,
        world: World,
        naming: TaskIdentityManager,
        place: TaskHost,
        views: ReadOnlyMounts,
        connecting: AllocationNetworks,
        devices: NodeDevices,
    ) -> None:
        self._world = world
        self._devices = devices
        self._reserved: dict[tuple[str, str], Reserved] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self._prepared: dict[tuple[str, str], None] = {}
        """Tasks that have all that they need, in the life of this agent."""
        self._views = views
        self._connecting = connecting
        self._place = place
        self._naming = naming
        self._tending = TaskPreparation(world, naming.build_task_client)
        self._checking = CheckRunner(world, self.handle_event, self.run_command_in_task)
        self._wiped: dict[tuple[str, str], None] = {}
        """Tasks that are over, whose secrets are gone."""
        self._works: AllocationManager

    def attach_manager(self, works: AllocationManager) -> None:
        self._works = works

    async def ensure_prepared(self, work: ManagedAllocation, name: str) -> None:
        """Before a start: what was prepared by an agent before this one is not all on disk. Raises NotReady."""
        if (work.record.id, name) not in self._prepared:
            await self.prepare_task(work, name)

    async def prepare_task(self, work: ManagedAllocation, name: str) -> None:
        """Raises TaskSetupError."""
        await self._prepare(work, name)
        self._prepared[work.record.id, name] = None

    async def _prepare(self, work: ManagedAllocation, name: str) -> None:
        task = work.task(name)
        if self._connecting.has_own_network(work.assignment.allocation, work.job):
            await self._connect(work, name)
        await self._reserve(work, name)
        if task.volume_mounts and self._works.find_driver(work, name).view is View.HOST:
            self._link_volumes(work, task)
        if not (task.artifacts or task.dispatch_payload or has_secrets(task)):
            return  # As most: what they need is there.
        _, folders = self._works.get_environment_and_folders(work, name)
        self._wiped.pop((work.record.id, name), None)
        try:
            if has_secrets(task):
                mount_secrets(folders.secrets)
        except OSError as error:
            why = f"the folder of its secrets cannot be kept in memory: {error.strerror}"
            raise TaskSetupError(why, TaskEventType.SETUP_FAILURE, "setup_error") from error
        tells = _Tells(self, work.record.id, name)
        await self._naming.prepare_task(self._task_work(work, name), tells)
        # Again: its identities may be in its variables now.
        await self._tending.prepare_task(self._task_work(work, name), tells)

    async def _connect(self, work: ManagedAllocation, name: str) -> None:
        """Raises TaskSetupError."""
        try:
            await self._connecting.ensure_network(work.assignment.allocation, work.job, self._facts(work, name))
        except NetworkError as error:
            why = f"the allocation's network cannot be made: {error}"
            raise TaskSetupError(why, TaskEventType.SETUP_FAILURE, "setup_error") from error

    def find_network(self, allocation_id: str) -> TaskNetwork | None:
        return self._connecting.find_task_network(allocation_id)

    def find_network_status(self, allocation_id: str) -> NetworkStatus | None:
        return self._connecting.find_network_status(allocation_id)

    async def _reserve(self, work: ManagedAllocation, name: str) -> None:
        """What the task needs for the devices that it was given. Raises TaskSetupError."""
        if not (devices := _devices_of(work, name)):
            return
        try:
            reserved = await self._devices.reserve_devices(devices)
        except CannotReserve as error:
            raise TaskSetupError(str(error), TaskEventType.SETUP_FAILURE, "setup_error") from error
        self._reserved[work.record.id, name] = reserved

    async def _reserve_again(self, work: ManagedAllocation, name: str) -> None:
        """For commands beside a task that an agent before this one started: they find its devices as it does."""
        try:
            await self._reserve(work, name)
        except TaskSetupError as error:
            log.warning("the devices of a task that runs are not known any more: %s", error)

    def find_device_reservation(self, allocation_id: str, task: str) -> Reserved:
        return self._reserved.get((allocation_id, task), NOTHING_RESERVED)

    def _link_volumes(self, work: ManagedAllocation, task: Task) -> None:
        """For a task that has no file system of its own. Raises TaskSetupError."""
        try:
            volumes = list_granted_volumes(work.assignment.allocation, work.job, task, self._place.volumes)
        except CannotStart as error:
            raise TaskSetupError(str(error), TaskEventType.SETUP_FAILURE, "setup_error") from error
        link_volumes(volumes, self._works.get_environment_and_folders(work, task.name)[1], self._views)

    def build_environment(self, allocation_id: str, task: str) -> dict[str, str]:
        of_devices = self.find_device_reservation(allocation_id, task).environment
        named = self._naming.build_environment(allocation_id, task)
        return {**of_devices, **named, **self._tending.build_environment(allocation_id, task)}

    def on_record_changed(self, work: ManagedAllocation) -> None:
        record, id = work.record, work.record.id
        if not record.tasks or (record.is_over and work.assignment.job is None):
            return
        for task in record.tasks:
            if task.is_dead:
                self._prepared.pop((id, task.name), None)
                self._reserved.pop((id, task.name), None)
                self._naming.release(id, task.name)
                self._tending.release(id, task.name)
                self._wipe_secrets(work, task.name)
            elif task.has_process:
                self._keep(work, task.name)
        if record.is_over:
            self._checking.remove_checks(id)
            self._connecting.release_network(id)
            return
        if not self._checking.has_checks(id) and self._is_connected(work):
            wanted = work.assignment.allocation
            self._checking.set_checks(
                id,
                wanted.name,
                list_checks(wanted, work.job, self._place_of(id), lambda task: self._facts(work, task)),
            )
        self._checking.update_running_checks(id, lambda task: _up_since_s(record, task))

    def _keep(self, work: ManagedAllocation, name: str) -> None:
        wanted = work.task(name)
        if (work.record.id, name) not in self._reserved and _devices_of(work, name):
            self._reserved[work.record.id, name] = NOTHING_RESERVED
            asking = self._world.start_task(self._reserve_again(work, name), name="devices of a task")
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)
        if not has_secrets(wanted):
            return
        id, tells = work.record.id, _Tells(self, work.record.id, name)
        self._naming.keep_renewed(lambda: self._task_work(work, name), id, wanted, tells)
        if wanted.templates:
            self._tending.keep_rendered(lambda: self._task_work(work, name), id, name, tells)

    def _wipe_secrets(self, work: ManagedAllocation, task: str) -> None:
        key = (work.record.id, task)
        if key not in self._wiped and has_secrets(work.task(task)):
            self._wiped[key] = None
            unmount_secrets(self._works.get_environment_and_folders(work, task)[1].secrets)

    def list_services(self, work: ManagedAllocation) -> tuple[ServiceRegistration, ...]:
        """Of what runs now."""
        wanted, record = work.assignment.allocation, work.record
        if not record.tasks or record.is_over:
            return ()
        return tuple(
            build_registration(wanted, announced, self._place, self._facts(work, announced.task))
            for announced in list_services(wanted, work.job, self._place_of(work.record.id))
            if is_service_up(record, announced)
        )

    def _place_of(self, allocation_id: str) -> TaskHost:
        status = self.find_network_status(allocation_id)
        return self._place if status is None else replace(self._place, allocation_address=status.address)

    def _is_connected(self, work: ManagedAllocation) -> bool:
        """Until then nobody knows where its ports are."""
        wanted = work.assignment.allocation
        return not self._connecting.has_own_network(wanted, work.job) or self.find_network_status(wanted.id) is not None

    def release(self, allocation_id: str, tasks: tuple[str, ...]) -> None:
        """Nobody wants to know of it any more."""
        self._checking.remove_checks(allocation_id)
        for task in tasks:
            self._naming.release(allocation_id, task)
            self._tending.release(allocation_id, task)
            self._wiped.pop((allocation_id, task), None)
            self._reserved.pop((allocation_id, task), None)
            self._prepared.pop((allocation_id, task), None)

    async def build_check_results(self, allocation_id: str) -> Mapping[str, Any]:  # JSON.
        return await self._checking.build_results(allocation_id)

    async def close(self) -> None:
        for asking in self._asking:
            asking.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        await self._tending.close()
        await self._naming.close()
        await self._connecting.close()

    # -- for one task

    def _facts(self, work: ManagedAllocation, task: str) -> ReferenceValues:
        """Of a service that is its group's: those of the first task, whose variables of ports are the same."""
        name = task or work.record.tasks[0].name
        environment, _ = self._works.get_environment_and_folders(work, name)
        return self._works.reference_values.with_variables(environment)

    def _task_work(self, work: ManagedAllocation, name: str) -> TaskContext:
        environment, folders = self._works.get_environment_and_folders(work, name)
        wanted = work.assignment.allocation
        return TaskContext(
            allocation_id=wanted.id,
            namespace=wanted.namespace,
            region=self._place.region,
            task=work.task(name),
            folders=folders,
            view=self._works.find_driver(work, name).view,
            environment=environment,
            reference_values=self._works.reference_values.with_variables(environment),
            payload=work.job.payload or b"",
        )

    def handle_event(self, allocation_id: str, event: on.AllocationEvent) -> None:
        if self._works.find(allocation_id) is not None:
            self._works.handle_event(allocation_id, event)

    def signal_task(self, allocation_id: str, task: str, name: str, reason: str) -> None:
        work = self._works.find(allocation_id)
        if work is None or work.record.task(task).step is not TaskStep.RUNNING:
            return
        details = {"task_signal": name, "task_signal_reason": reason}
        self.handle_event(allocation_id, on.TaskEventOccurred(task, TaskEventType.SIGNALING, details=details))
        self._works.find_driver(work, task).signal(work.make_run_name(task, work.record.task(task).run), name)

    async def run_command_in_task(self, allocation_id: str, task: str, command: tuple[str, ...]) -> tuple[int, str]:
        """Cancelled when it takes too long: then it is ended, with all that it started."""
        work = self._works.find(allocation_id)
        if work is None or not task or not work.record.task(task).has_process:
            return CANNOT_RUN_EXIT_CODE, "the task does not run"
        driver = self._works.find_driver(work, task)
        if not isinstance(driver, CommandDriver):
            return CANNOT_RUN_EXIT_CODE, f"the driver {work.task(task).driver} runs no commands beside its tasks"
        environment, folders = self._works.get_environment_and_folders(work, task)
        run = work.make_run_name(task, work.record.task(task).run)
        order = CommandOrder(
            run=run,
            name=f"{run}.{self._world.new_id()}",
            command=command,
            environment=environment,
            folder=str(folders.task),
        )
        try:
            begun = await driver.run_beside(order)
        except CannotStart as error:
            return CANNOT_RUN_EXIT_CODE, str(error)
        try:
            await begun.close_input()
            said, also_said = await asyncio.gather(_all_said(begun, "stdout"), _all_said(begun, "stderr"))
            return await begun.wait(), (said + also_said)[:MAX_OUTPUT_BYTES].decode(errors="replace")
        finally:
            await begun.end()


def _devices_of(work: ManagedAllocation, name: str) -> tuple[AllocatedDevice, ...]:
    allocated = work.assignment.allocation.allocated_resources
    of_task = (allocated.tasks or {}).get(name) if allocated is not None else None
    return tuple(of_task.devices or ()) if of_task is not None else ()


class _Tells:
    """What templates can have done about their task."""

    def __init__(self, upkeep: LocalTaskHooks, allocation_id: str, task: str) -> None:
        self._upkeep = upkeep
        self._allocation_id = allocation_id
        self._task = task

    def record_event(self, kind: TaskEventType, message: str = "", **details: str) -> None:
        self._upkeep.handle_event(self._allocation_id, on.TaskEventOccurred(self._task, kind, message, details))

    def restart_task(self, reason: str) -> None:
        self._upkeep.handle_event(self._allocation_id, on.RestartRequested((self._task,), reason=reason))

    def signal_task(self, name: str, reason: str) -> None:
        self._upkeep.signal_task(self._allocation_id, self._task, name, reason)

    async def run_command(self, command: tuple[str, ...], *, timeout_s: float) -> tuple[int, str]:
        async with asyncio.timeout(timeout_s):
            return await self._upkeep.run_command_in_task(self._allocation_id, self._task, command)


def has_secrets(task: Task) -> bool:
    """Whether the node itself may put some there. To mount costs more than a short task runs: so not for every one."""
    return bool(task.templates or task.secrets or list_exposed_identities(task))


async def _all_said(command: Command, stream: Stream) -> bytes:
    said = b""
    while piece := await command.read(stream):
        said = (said + piece)[:MAX_OUTPUT_BYTES]
    return said


def _up_since_s(record: AllocationRecord, task: str) -> float | None:
    """When it began to run; of the whole group: the first of its tasks. None: it does not, or is to end."""
    tasks = [record.task(task)] if task else record.tasks
    since = [each.started_s for each in tasks if each.step is TaskStep.RUNNING]
    return min(since, default=None)
