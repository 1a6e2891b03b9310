"""What reconciling is given of the world, and the words in which it tells why something stops (scheduling.md 5.1)."""

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.model.allocation import Allocation, AllocationState, ClientStatus
from wharf.model.deployment import Deployment
from wharf.model.group import TaskGroup
from wharf.model.job import Job
from wharf.model.moment import to_time
from wharf.scheduling.reconcile.classes import Tainted

NOT_NEEDED: Final = "alloc not needed due to job update"
MIGRATING: Final = "alloc is being migrated"
UPDATING: Final = "alloc is being updated due to job update"
LOST: Final = "alloc is lost since its node is down"
RESCHEDULED: Final = "alloc was rescheduled because it failed"
RECONNECTED: Final = "alloc not needed due to disconnected client reconnect"
UNKNOWN: Final = "alloc is unknown since its node is disconnected"


class Sight(msgspec.Struct, frozen=True):
    """What reconciling is given of the world."""

    job: Job
    is_batch: bool
    evaluation_id: str
    now_ns: int
    tainted: Tainted
    deployment: Deployment | None
    """Of this version of the job: active, or failed."""
    version_of: Callable[[Allocation], Job | None]
    """The version of the job that an allocation runs."""
    is_pending: Callable[[str], bool]
    """Whether an evaluation is still to be processed."""
    fits_in_place: Callable[[Allocation, TaskGroup], bool]
    stable_version: Callable[[str], tuple[Job, str] | None]
    """For a group: the newest version whose deployment is promoted or had no canaries for it, and that deployment."""


def with_state(allocation: Allocation, status: ClientStatus, now_ns: int) -> Allocation:
    """The allocation with a note of what servers said of it, and when."""
    note = AllocationState(value=status.value, time=to_time(now_ns))
    return replace(allocation, alloc_states=(*(allocation.alloc_states or ()), note))


def is_owed(allocation: Allocation) -> bool:
    """It was stopped for a newer one, which there was no room for yet."""
    return allocation.desired_description == UPDATING and not allocation.next_allocation
