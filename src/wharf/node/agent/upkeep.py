"""What goes on around tasks while they are prepared and run: their files, their checks, their place in the list of services.

It is told of every change of an allocation's record, and sees by itself what must begin or end; told twice it does nothing.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final, Protocol

from msgspec.structs import replace

from wharf.model.allocated_resources import AllocatedDevice
from wharf.model.allocation import NetworkStatus
from wharf.model.registration import ServiceRegistration
from wharf.model.task import Task
from wharf.model.task_state import TaskEventType
from wharf.node.agent.announcing import checks_of, is_up, registration, services_of
from wharf.node.agent.around import Work
from wharf.node.agent.checking import Checking
from wharf.node.agent.connecting import Connecting
from wharf.node.agent.environment import Place
from wharf.node.agent.folders import TaskFolders
from wharf.node.agent.interpolation import Facts
from wharf.node.agent.naming import Naming
from wharf.node.agent.volume_use import volumes_of
from wharf.node.core import happenings as on
from wharf.node.core.record import AllocationRecord
from wharf.node.core.steps import TaskStep
from wharf.node.devices.devices import NodeDevices
from wharf.node.devices.port import NOTHING_RESERVED, CannotReserve, Reserved
from wharf.node.drivers.beside import Command, CommandOrder, RunsBeside, Stream
from wharf.node.drivers.port import CannotStart, Driver, TaskNetwork, View
from wharf.node.networks import CannotConnect
from wharf.node.preparing.identities import exposed_by
from wharf.node.preparing.secrets import mount_secrets, unmount_secrets
from wharf.node.preparing.tending import Tending
from wharf.node.preparing.work import NotReady, TaskWork
from wharf.node.volumes.views import Views, link_volumes
from wharf.world import World

log = logging.getLogger(__name__)

OUTPUT_MAX_BYTES: Final = 4_096
NOT_RUN: Final = 126
"""The exit code of a command that could not be run, as shells have it."""


class Works(Protocol):
    facts: Facts

    def find(self, allocation_id: str) -> Work | None: ...

    def happen(self, allocation_id: str, event: on.Event) -> None: ...

    def surroundings(self, work: Any, name: str) -> tuple[dict[str, str], TaskFolders]: ...  # Its own kind of work.

    def driver_of(self, work: Any, name: str) -> Driver: ...  # As above.


class Upkeep:
    """`attach` it before anything else."""

    def __init__(
        self, world: World, naming: Naming, place: Place, views: Views, connecting: Connecting, devices: NodeDevices
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
        self._tending = Tending(world, naming.client_of)
        self._checking = Checking(world, self.happen, self.run_in_task)
        self._wiped: dict[tuple[str, str], None] = {}
        """Tasks that are over, whose secrets are gone."""
        self._works: Works

    def attach(self, works: Works) -> None:
        self._works = works

    async def ensure(self, work: Work, name: str) -> None:
        """Before a start: what was prepared by an agent before this one is not all on disk. Raises NotReady."""
        if (work.record.id, name) not in self._prepared:
            await self.prepare(work, name)

    async def prepare(self, work: Work, name: str) -> None:
        """Raises NotReady."""
        await self._prepare(work, name)
        self._prepared[work.record.id, name] = None

    async def _prepare(self, work: Work, name: str) -> None:
        task = work.task(name)
        if self._connecting.has_own(work.order.allocation, work.job):
            await self._connect(work, name)
        await self._reserve(work, name)
        if task.volume_mounts and self._works.driver_of(work, name).view is View.HOST:
            self._link_volumes(work, task)
        if not (task.artifacts or task.dispatch_payload or has_secrets(task)):
            return  # As most: what they need is there.
        _, folders = self._works.surroundings(work, name)
        self._wiped.pop((work.record.id, name), None)
        try:
            if has_secrets(task):
                mount_secrets(folders.secrets)
        except OSError as error:
            why = f"the folder of its secrets cannot be kept in memory: {error.strerror}"
            raise NotReady(why, TaskEventType.SETUP_FAILURE, "setup_error") from error
        tells = _Tells(self, work.record.id, name)
        await self._naming.prepare(self._task_work(work, name), tells)
        # Again: its identities may be in its variables now.
        await self._tending.prepare(self._task_work(work, name), tells)

    async def _connect(self, work: Work, name: str) -> None:
        """Raises NotReady."""
        try:
            await self._connecting.ensure(work.order.allocation, work.job, self._facts(work, name))
        except CannotConnect as error:
            why = f"the allocation's network cannot be made: {error}"
            raise NotReady(why, TaskEventType.SETUP_FAILURE, "setup_error") from error

    def network_of(self, allocation_id: str) -> TaskNetwork | None:
        return self._connecting.network_of(allocation_id)

    def network_status(self, allocation_id: str) -> NetworkStatus | None:
        return self._connecting.status_of(allocation_id)

    async def _reserve(self, work: Work, name: str) -> None:
        """What the task needs for the devices that it was given. Raises NotReady."""
        if not (devices := _devices_of(work, name)):
            return
        try:
            reserved = await self._devices.reserve(devices)
        except CannotReserve as error:
            raise NotReady(str(error), TaskEventType.SETUP_FAILURE, "setup_error") from error
        self._reserved[work.record.id, name] = reserved

    async def _reserve_again(self, work: Work, name: str) -> None:
        """For commands beside a task that an agent before this one started: they find its devices as it does."""
        try:
            await self._reserve(work, name)
        except NotReady as error:
            log.warning("the devices of a task that runs are not known any more: %s", error)

    def reserved(self, allocation_id: str, task: str) -> Reserved:
        return self._reserved.get((allocation_id, task), NOTHING_RESERVED)

    def _link_volumes(self, work: Work, task: Task) -> None:
        """For a task that has no file system of its own. Raises NotReady."""
        try:
            volumes = volumes_of(work.order.allocation, work.job, task, self._place.volumes)
        except CannotStart as error:
            raise NotReady(str(error), TaskEventType.SETUP_FAILURE, "setup_error") from error
        link_volumes(volumes, self._works.surroundings(work, task.name)[1], self._views)

    def environment(self, allocation_id: str, task: str) -> dict[str, str]:
        of_devices = self.reserved(allocation_id, task).environment
        named = self._naming.environment(allocation_id, task)
        return {**of_devices, **named, **self._tending.environment(allocation_id, task)}

    def look(self, work: Work) -> None:
        record, id = work.record, work.record.id
        if not record.tasks or (record.is_over and work.order.job is None):
            return
        for task in record.tasks:
            if task.is_dead:
                self._prepared.pop((id, task.name), None)
                self._reserved.pop((id, task.name), None)
                self._naming.end(id, task.name)
                self._tending.end(id, task.name)
                self._wipe_secrets(work, task.name)
            elif task.has_process:
                self._keep(work, task.name)
        if record.is_over:
            self._checking.end(id)
            self._connecting.release(id)
            return
        if not self._checking.is_known(id) and self._is_connected(work):
            wanted = work.order.allocation
            self._checking.take(
                id,
                wanted.name,
                checks_of(wanted, work.job, self._place_of(id), lambda task: self._facts(work, task)),
            )
        self._checking.look(id, lambda task: _up_since_s(record, task))

    def _keep(self, work: Work, name: str) -> None:
        wanted = work.task(name)
        if (work.record.id, name) not in self._reserved and _devices_of(work, name):
            self._reserved[work.record.id, name] = NOTHING_RESERVED
            asking = self._world.start(self._reserve_again(work, name), name="devices of a task")
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)
        if not has_secrets(wanted):
            return
        id, tells = work.record.id, _Tells(self, work.record.id, name)
        self._naming.keep(lambda: self._task_work(work, name), id, wanted, tells)
        if wanted.templates:
            self._tending.keep(lambda: self._task_work(work, name), id, name, tells)

    def _wipe_secrets(self, work: Work, task: str) -> None:
        key = (work.record.id, task)
        if key not in self._wiped and has_secrets(work.task(task)):
            self._wiped[key] = None
            unmount_secrets(self._works.surroundings(work, task)[1].secrets)

    def services(self, work: Work) -> tuple[ServiceRegistration, ...]:
        """Of what runs now."""
        wanted, record = work.order.allocation, work.record
        if not record.tasks or record.is_over:
            return ()
        return tuple(
            registration(wanted, announced, self._place, self._facts(work, announced.task))
            for announced in services_of(wanted, work.job, self._place_of(work.record.id))
            if is_up(record, announced)
        )

    def _place_of(self, allocation_id: str) -> Place:
        status = self.network_status(allocation_id)
        return self._place if status is None else replace(self._place, own_address=status.address)

    def _is_connected(self, work: Work) -> bool:
        """Until then nobody knows where its ports are."""
        wanted = work.order.allocation
        return not self._connecting.has_own(wanted, work.job) or self.network_status(wanted.id) is not None

    def end(self, allocation_id: str, tasks: tuple[str, ...]) -> None:
        """Nobody wants to know of it any more."""
        self._checking.end(allocation_id)
        for task in tasks:
            self._naming.end(allocation_id, task)
            self._tending.end(allocation_id, task)
            self._wiped.pop((allocation_id, task), None)
            self._reserved.pop((allocation_id, task), None)
            self._prepared.pop((allocation_id, task), None)

    async def check_results(self, allocation_id: str) -> Mapping[str, Any]:  # JSON.
        return await self._checking.results(allocation_id)

    async def close(self) -> None:
        for asking in self._asking:
            asking.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        await self._tending.close()
        await self._naming.close()
        await self._connecting.close()

    # -- for one task

    def _facts(self, work: Work, task: str) -> Facts:
        """Of a service that is its group's: those of the first task, whose variables of ports are the same."""
        name = task or work.record.tasks[0].name
        environment, _ = self._works.surroundings(work, name)
        return self._works.facts.with_variables(environment)

    def _task_work(self, work: Work, name: str) -> TaskWork:
        environment, folders = self._works.surroundings(work, name)
        wanted = work.order.allocation
        return TaskWork(
            allocation_id=wanted.id,
            namespace=wanted.namespace,
            region=self._place.region,
            task=work.task(name),
            folders=folders,
            view=self._works.driver_of(work, name).view,
            environment=environment,
            facts=self._works.facts.with_variables(environment),
            payload=work.job.payload or b"",
        )

    def happen(self, allocation_id: str, event: on.Event) -> None:
        if self._works.find(allocation_id) is not None:
            self._works.happen(allocation_id, event)

    def signal(self, allocation_id: str, task: str, name: str, reason: str) -> None:
        work = self._works.find(allocation_id)
        if work is None or work.record.task(task).step is not TaskStep.RUNNING:
            return
        details = {"task_signal": name, "task_signal_reason": reason}
        self.happen(allocation_id, on.Said(task, TaskEventType.SIGNALING, details=details))
        self._works.driver_of(work, task).signal(work.run_of(task, work.record.task(task).run), name)

    async def run_in_task(self, allocation_id: str, task: str, command: tuple[str, ...]) -> tuple[int, str]:
        """Cancelled when it takes too long: then it is ended, with all that it started."""
        work = self._works.find(allocation_id)
        if work is None or not task or not work.record.task(task).has_process:
            return NOT_RUN, "the task does not run"
        driver = self._works.driver_of(work, task)
        if not isinstance(driver, RunsBeside):
            return NOT_RUN, f"the driver {work.task(task).driver} runs no commands beside its tasks"
        environment, folders = self._works.surroundings(work, task)
        run = work.run_of(task, work.record.task(task).run)
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
            return NOT_RUN, str(error)
        try:
            await begun.close_input()
            said, also_said = await asyncio.gather(_all_said(begun, "stdout"), _all_said(begun, "stderr"))
            return await begun.wait(), (said + also_said)[:OUTPUT_MAX_BYTES].decode(errors="replace")
        finally:
            await begun.end()


def _devices_of(work: Work, name: str) -> tuple[AllocatedDevice, ...]:
    allocated = work.order.allocation.allocated_resources
    of_task = (allocated.tasks or {}).get(name) if allocated is not None else None
    return tuple(of_task.devices or ()) if of_task is not None else ()


class _Tells:
    """What templates can have done about their task."""

    def __init__(self, upkeep: Upkeep, allocation_id: str, task: str) -> None:
        self._upkeep = upkeep
        self._allocation_id = allocation_id
        self._task = task

    def say(self, kind: TaskEventType, message: str = "", **details: str) -> None:
        self._upkeep.happen(self._allocation_id, on.Said(self._task, kind, message, details))

    def restart(self, reason: str) -> None:
        self._upkeep.happen(self._allocation_id, on.RestartAsked((self._task,), reason=reason))

    def signal(self, name: str, reason: str) -> None:
        self._upkeep.signal(self._allocation_id, self._task, name, reason)

    async def run(self, command: tuple[str, ...], *, within_s: float) -> tuple[int, str]:
        async with asyncio.timeout(within_s):
            return await self._upkeep.run_in_task(self._allocation_id, self._task, command)


def has_secrets(task: Task) -> bool:
    """Whether the node itself may put some there. To mount costs more than a short task runs: so not for every one."""
    return bool(task.templates or task.secrets or exposed_by(task))


async def _all_said(command: Command, stream: Stream) -> bytes:
    said = b""
    while piece := await command.read(stream):
        said = (said + piece)[:OUTPUT_MAX_BYTES]
    return said


def _up_since_s(record: AllocationRecord, task: str) -> float | None:
    """When it began to run; of the whole group: the first of its tasks. None: it does not, or is to end."""
    tasks = [record.task(task)] if task else record.tasks
    since = [each.started_s for each in tasks if each.step is TaskStep.RUNNING]
    return min(since, default=None)
