"""What goes on around tasks, as those see it who drive them (a port; the node's own is `upkeep`).

It decides nothing about tasks: it gives them what they need, and is told what became of them.
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
    """One allocation."""

    record: AllocationRecord

    @property
    def assignment(self) -> messages.Assignment: ...

    @property
    def job(self) -> Job: ...

    def task(self, name: str) -> Task: ...

    def make_run_name(self, task: str, run: int) -> str: ...


class TaskHooks(Protocol):
    async def prepare_task(self, work: ManagedAllocation, name: str) -> None:
        """What the task needs. Raises NotReady."""
        ...

    async def ensure_prepared(self, work: ManagedAllocation, name: str) -> None:
        """Before a start: what was prepared by an agent before this one may be gone. Raises NotReady."""
        ...

    def build_environment(self, allocation_id: str, task: str) -> dict[str, str]: ...

    def find_network(self, allocation_id: str) -> TaskNetwork | None: ...

    def find_network_status(self, allocation_id: str) -> NetworkStatus | None: ...

    def find_device_reservation(self, allocation_id: str, task: str) -> Reserved:
        """For the devices that it was given."""
        ...

    def list_services(self, work: ManagedAllocation) -> tuple[ServiceRegistration, ...]: ...

    def on_record_changed(self, work: ManagedAllocation) -> None:
        """It is known, or not what it was."""
        ...

    def release(self, allocation_id: str, tasks: tuple[str, ...]) -> None:
        """Nobody needs anything of it any more."""
        ...
