"""Endpoints of allocations."""

from typing import Final

from wharf.model import need
from wharf.model.allocated_resources import AllocatedResources
from wharf.model.allocation import Allocation, AllocationStub
from wharf.model.job import Job
from wharf.model.metric import AllocMetric
from wharf.model.task_state import TaskState
from wharf.wire.endpoints.endpoint import Decides, Endpoint, Join, Lists, reads

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
    ),
    reads(
        "allocation.read", "/v1/allocation/{alloc_id}", need=need.READ_JOB, decides=Decides.OBJECT,
        summary="Read an allocation.", returns=Allocation,
    ),
)  # fmt: skip
