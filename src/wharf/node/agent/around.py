"""What goes on around tasks, as those see it who drive them (a port; the node's own is `upkeep`).

It decides nothing about tasks: it gives them what they need, and is told what became of them.
"""

from typing import Protocol

from wharf.model.allocation import NetworkStatus
from wharf.model.job import Job
from wharf.model.registration import ServiceRegistration
from wharf.model.task import Task
from wharf.node.core.record import AllocationRecord
from wharf.node.devices.port import Reserved
from wharf.node.drivers.port import TaskNetwork
from wharf.wire import shapes


class Work(Protocol):
    """One allocation."""

    record: AllocationRecord

    @property
    def order(self) -> shapes.DesiredAllocation: ...

    @property
    def job(self) -> Job: ...

    def task(self, name: str) -> Task: ...

    def run_of(self, task: str, run: int) -> str: ...


class AroundTasks(Protocol):
    async def prepare(self, work: Work, name: str) -> None:
        """What the task needs. Raises NotReady."""
        ...

    async def ensure(self, work: Work, name: str) -> None:
        """Before a start: what was prepared by an agent before this one may be gone. Raises NotReady."""
        ...

    def environment(self, allocation_id: str, task: str) -> dict[str, str]: ...

    def network_of(self, allocation_id: str) -> TaskNetwork | None: ...

    def network_status(self, allocation_id: str) -> NetworkStatus | None: ...

    def reserved(self, allocation_id: str, task: str) -> Reserved:
        """For the devices that it was given."""
        ...

    def services(self, work: Work) -> tuple[ServiceRegistration, ...]: ...

    def look(self, work: Work) -> None:
        """It is known, or not what it was."""
        ...

    def end(self, allocation_id: str, tasks: tuple[str, ...]) -> None:
        """Nobody needs anything of it any more."""
        ...
