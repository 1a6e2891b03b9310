"""An allocation of this node, and the protocol of the hooks around its tasks.

`task_hooks` has the hooks of a real node; the simulation has its own. Hooks decide nothing about tasks.
"""

from typing import Final, Protocol

from wharf.contract.model.allocations.allocation import NetworkStatus
from wharf.contract.model.jobs.groups import Task
from wharf.contract.model.jobs.job import Job, JobType
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
    """An allocation of this node: the assignment from the servers, and its current state (`record`)."""

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

    @property
    def is_batch(self) -> bool:
        """Whether its job runs to an end; `False` if the job is unknown."""
        return self.assignment.job is not None and self.assignment.job.type in (JobType.BATCH, JobType.SYSBATCH)

    def task(self, name: str) -> Task:
        """Return the task with this name from the job. Raises `StopIteration` if the group has no such task."""
        group = self.job.find_group(self.assignment.allocation.task_group)
        assert group is not None
        return next(task for task in group.tasks or () if task.name == name)

    def make_run_name(self, task_name: str, run_number: int) -> str:
        """Return the unique name of one start of a task: `<allocation id>.<position of the task>.<number of the
        start>`.
        """
        position = [spec.name for spec in self.spec.tasks].index(task_name)
        return f"{self.record.id}.{position}.{run_number}"


class TaskHooks(Protocol):
    """The calls around a task's life: prepare it, serve it while it runs, and clean up after it."""

    async def prepare_task(self, allocation: ManagedAllocation, task_name: str) -> None:
        """Prepare everything that the task needs, such as devices, secrets and templates. Raises `TaskSetupError`."""
        ...

    async def ensure_prepared(self, allocation: ManagedAllocation, task_name: str) -> None:
        """Prepare the task, unless this agent process has already prepared it. Raises `TaskSetupError`.

        The preparation by an earlier agent process does not count, because parts of it may be lost.
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
        """Return the environment, mounts and device files that the task's devices require of its driver."""
        ...

    def list_services(self, allocation: ManagedAllocation) -> tuple[ServiceRegistration, ...]:
        """Return a registration for each service of the allocation that is up now."""
        ...

    def on_record_changed(self, allocation: ManagedAllocation) -> None:
        """Start or stop the renewal of identities, the rendering of templates and the checks of the allocation's tasks.

        Called after each change of the allocation's record.
        """
        ...

    def release(self, allocation_id: str, tasks: tuple[str, ...]) -> None:
        """Delete the hooks' data about the allocation: servers have acknowledged its end or no longer know it."""
        ...
