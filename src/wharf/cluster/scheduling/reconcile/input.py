"""The input of reconciliation and the stored texts of stops (scheduling.md 5.1)."""

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
    """What reconciliation reads: one consistent view of a job, and functions that look up related records."""

    job: Job
    is_batch: bool  # The job is a batch or sysbatch job, whose allocations may complete.
    evaluation_id: str  # The evaluation that is processed.
    now_ns: int  # The current time in Unix nanoseconds.
    tainted_nodes: TaintedNodes  # Nodes that are deleted, down, draining or disconnected.
    deployment: Deployment | None
    """The deployment of this job version, active or failed."""
    find_job_version: Callable[[Allocation], Job | None]
    """Returns the job version that an allocation runs."""
    is_evaluation_pending: Callable[[str], bool]
    """Returns whether the evaluation with this id is pending."""
    can_update_in_place: Callable[[Allocation, TaskGroup], bool]
    """Returns whether an allocation can be updated to this group on its node."""
    find_stable_version: Callable[[str], tuple[Job, str] | None]
    """Returns for a group its newest stable version and the id of that version's deployment.

    A version is stable if its deployment was promoted or needed no canaries.
    """


def add_state(allocation: Allocation, status: ClientStatus, now_ns: int) -> Allocation:
    """Return the allocation with one more entry in its list of states: servers set this status now."""
    state = AllocationState(value=status.value, time=to_datetime(now_ns))
    return replace(allocation, alloc_states=(*(allocation.alloc_states or ()), state))


def mark_unknown(allocation: Allocation, now_ns: int) -> Allocation:
    """Return the allocation as unknown from now on, because its node is disconnected."""
    return replace(
        add_state(allocation, ClientStatus.UNKNOWN, now_ns),
        client_status=ClientStatus.UNKNOWN,
        client_description=UNKNOWN_TEXT,
    )


def is_replacement_owed(allocation: Allocation) -> bool:
    """Return whether the allocation was stopped for an update but has no replacement yet, because no node had capacity."""
    return allocation.desired_description == UPDATING_TEXT and not allocation.next_allocation
