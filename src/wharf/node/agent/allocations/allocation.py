"""An allocation of this node, and the protocol of the hooks around its tasks.

`task_hooks` has the hooks of a real node; the simulation has its own. Hooks decide nothing about tasks.
"""

from typing import Final, Protocol

from wharf.contract.model.allocations.allocation import NetworkStatus
from wharf.contract.model.jobs.groups import Task
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.services import ServiceRegistration
from wharf.contract.wire.nodes.messages import Assignment
from wharf.node.agent.allocations.journal import StoredAssignment
from wharf.node.core.allocation_spec import AllocationSpec
from wharf.node.core.record import AllocationRecord
from wharf.node.devices.port import Reserved
from wharf.node.drivers.port import TaskNetwork

EMPTY_SPEC: Final = AllocationSpec(tasks=())
"""The rules of an allocation that runs nothing here: its job is unknown or it ended before it arrived."""


class ManagedAllocation:
    """An allocation of this node: what servers assigned, and how far it has come."""

    def __init__(self, stored_assignment: StoredAssignment, spec: AllocationSpec, record: AllocationRecord) -> None:
        self.stored_assignment = stored_assignment
        self.spec = spec
        self.record = record
        self.log_tails: bytes | None = None
        """The ends of its tasks' logs, packed, after it has ended. `None`: not read yet."""

    @property
    def assignment(self) -> Assignment:
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


class TaskHooks(Protocol):
    """Prepares tasks, serves them while they run, and cleans up after them."""

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
        """Start and stop renewals, renderings and checks of the tasks, after a change of the allocation's record."""
        ...

    def release(self, allocation_id: str, tasks: tuple[str, ...]) -> None:
        """Delete what is held for the allocation: servers have acknowledged its end or no longer know it."""
        ...
