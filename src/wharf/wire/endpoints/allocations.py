"""Endpoints of allocations."""

from typing import Final

from wharf.model import need
from wharf.model.allocated_resources import AllocatedResources
from wharf.model.allocation import Allocation, AllocationStub
from wharf.model.job import Job
from wharf.model.metric import AllocMetric
from wharf.model.registration import ServiceRegistration
from wharf.model.task_state import TaskState
from wharf.wire.endpoints.endpoint import Decides, Endpoint, Join, Lists, asks, flag, reads
from wharf.wire.work_shapes import AllocationShown, AllocationStopResponse

LISTED: Final = Lists(
    record=Allocation,
    joins=(
        Join("Job", Job | None),
        Join("AllocatedResources", AllocatedResources | None),
        Join("Metrics", AllocMetric | None),
        Join("TaskStates", dict[str, TaskState] | None),
    ),
)

ROWS: Final[tuple[Endpoint, ...]] = (
    reads(
        "allocation.list", "/v1/allocations", need=need.READ_JOB, summary="List allocations.",
        lists=LISTED, returns=list[AllocationStub],
        parameters=(
            flag("resources", "Also tell what each holds of its node."),
            flag("task_states", "Tell the states of the tasks and what happened to them; so by default."),
        ),
    ),
    reads(
        "allocation.read", "/v1/allocation/{alloc_id}", need=need.READ_JOB, decides=Decides.OBJECT,
        summary="Read an allocation, with its job as it was placed.", returns=AllocationShown,
    ),
    asks(
        "allocation.stop", "/v1/allocation/{alloc_id}/stop", need=need.STEER_ALLOCATION, decides=Decides.OBJECT,
        summary="Stop an allocation, and have another placed.", returns=AllocationStopResponse,
        parameters=(
            flag("no_shutdown_delay", "Pass over the delays that groups and tasks ask for."),
            flag("reschedule", "Place the next one as after a failure."),
        ),
    ),
    reads(
        "allocation.services", "/v1/allocation/{alloc_id}/services", need=need.READ_JOB, decides=Decides.OBJECT,
        summary="List the services that an allocation offers.", returns=list[ServiceRegistration],
    ),
)  # fmt: skip
