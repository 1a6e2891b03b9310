"""What reconciling is given of the world, and the words in which it tells why something stops (scheduling.md 5.1)."""

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.scheduling.reconcile.classification import TaintedNodes
from wharf.contract.model.allocations.allocation import Allocation, AllocationState, ClientStatus
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.times import to_datetime

NOT_NEEDED_TEXT: Final = "alloc not needed due to job update"
MIGRATING_TEXT: Final = "alloc is being migrated"
UPDATING_TEXT: Final = "alloc is being updated due to job update"
LOST_TEXT: Final = "alloc is lost since its node is down"
RESCHEDULED_TEXT: Final = "alloc was rescheduled because it failed"
RECONNECTED_TEXT: Final = "alloc not needed due to disconnected client reconnect"
UNKNOWN_TEXT: Final = "alloc is unknown since its node is disconnected"


class ReconcileInput(msgspec.Struct, frozen=True):
    """What reconciling is given of the world."""

    job: Job
    is_batch: bool
    evaluation_id: str
    now_ns: int
    tainted_nodes: TaintedNodes
    deployment: Deployment | None
    """Of this version of the job: active, or failed."""
    find_job_version: Callable[[Allocation], Job | None]
    """The version of the job that an allocation runs."""
    is_evaluation_pending: Callable[[str], bool]
    """Whether an evaluation is still to be processed."""
    can_update_in_place: Callable[[Allocation, TaskGroup], bool]
    find_stable_version: Callable[[str], tuple[Job, str] | None]
    """For a group: the newest version whose deployment is promoted or had no canaries for it, and that deployment."""


def add_state(allocation: Allocation, status: ClientStatus, now_ns: int) -> Allocation:
    """The allocation with a note of what servers said of it, and when."""
    note = AllocationState(value=status.value, time=to_datetime(now_ns))
    return replace(allocation, alloc_states=(*(allocation.alloc_states or ()), note))


def is_replacement_owed(allocation: Allocation) -> bool:
    """It was stopped for a newer one, which there was no room for yet."""
    return allocation.desired_description == UPDATING_TEXT and not allocation.next_allocation
