"""What the rest of the node needs to know of an allocation and of the hooks around its tasks, as protocols.

`task_hooks` has the real hooks; the simulation has its own. Hooks decide nothing about tasks.
"""

from typing import Protocol

from wharf.contract.model.allocations.allocation import NetworkStatus
from wharf.contract.model.jobs.groups import Task
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.services import ServiceRegistration
from wharf.contract.wire.nodes import messages
from wharf.node.core.record import AllocationRecord
from wharf.node.devices.port import Reserved
from wharf.node.drivers.port import TaskNetwork


class ManagedAllocation(Protocol):
    """An allocation of this node: what servers assigned, and how far it has come."""

    record: AllocationRecord

    @property
    def assignment(self) -> messages.Assignment:
        """The allocation and its job, as servers sent them."""
        ...

    @property
    def job(self) -> Job:
        """The job of the allocation."""
        ...

    def task(self, name: str) -> Task:
        """Return the task of this name from the job."""
        ...

    def make_run_name(self, task: str, run: int) -> str:
        """Return the name of one start of a task; each name is used once."""
        ...


class TaskHooks(Protocol):
    """Prepares, accompanies and cleans up tasks."""

    async def prepare_task(self, allocation: ManagedAllocation, task_name: str) -> None:
        """Prepare everything that the task needs. Raises `TaskSetupError`."""
        ...

    async def ensure_prepared(self, allocation: ManagedAllocation, task_name: str) -> None:
        """Prepare the task again if this agent process has not done so. Raises `TaskSetupError`.

        What an earlier agent process prepared may be lost.
        """
        ...

    def build_environment(self, allocation_id: str, task: str) -> dict[str, str]:
        """Return the environment variables that devices, identities and templates add for the task."""
        ...

    def find_network(self, allocation_id: str) -> TaskNetwork | None:
        """Return the allocation's own network; `None` if it has none."""
        ...

    def find_network_status(self, allocation_id: str) -> NetworkStatus | None:
        """Return the addresses of the allocation's own network; `None` if it has none."""
        ...

    def find_device_reservation(self, allocation_id: str, task: str) -> Reserved:
        """Return what drivers must do for the devices that are assigned to the task."""
        ...

    def list_services(self, allocation: ManagedAllocation) -> tuple[ServiceRegistration, ...]:
        """Return the registrations of the services that are up now."""
        ...

    def on_record_changed(self, allocation: ManagedAllocation) -> None:
        """Start and stop what accompanies the tasks, after a change of the allocation's record."""
        ...

    def release(self, allocation_id: str, tasks: tuple[str, ...]) -> None:
        """Forget the allocation: servers have acknowledged its end or no longer know it."""
        ...
