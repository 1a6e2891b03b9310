"""Endpoints of allocations."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

from wharf.api.answers import Act, Reading, one_of_a_namespace
from wharf.api.listing import Listing, by_creation_or_prefix
from wharf.api.request import ReadOptions, Request
from wharf.model.allocation import Allocation, AllocationStub, DesiredTransition
from wharf.model.job import Job
from wharf.server.reading import Found
from wharf.server.server import Server
from wharf.state import Replica
from wharf.state.tables import ALLOCATIONS, JOB_VERSIONS

PREFIX_FAILED: Final = "alloc lookup failed: index error: "


def allocation_list(replica: Replica, _request: Request, options: ReadOptions) -> Listing[Allocation]:
    return by_creation_or_prefix(
        replica, ALLOCATIONS, options,
        where=PREFIX_FAILED, shown=lambda allocation: allocation_stub(replica, allocation),
    )  # fmt: skip


def allocation_read(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    return one_of_a_namespace(replica, request, ALLOCATIONS, request.value("alloc_id"), missing="alloc not found")


def allocation_stub(replica: Replica, allocation: Allocation) -> AllocationStub:
    """The allocation as lists show it."""
    job = replica.get(JOB_VERSIONS, *version_key(allocation))
    given = {name: getattr(allocation, name) for name in STUB_FIELDS}
    given["desired_transition"] = allocation.desired_transition or DesiredTransition()
    return AllocationStub(job_type=job.type if job else "", **given)


STUB_FIELDS: Final = [
    name
    for name in AllocationStub.__struct_fields__
    if name in Allocation.__struct_fields__ and name not in ("allocated_resources", "desired_transition")
]


def version_key(allocation: Allocation) -> tuple[str, str, int]:
    """Where the version of the job stands that the allocation was made from."""
    return allocation.namespace, allocation.job_id, allocation.job_version


def _job_of(replica: Replica) -> Callable[[Allocation], Job | None]:
    return lambda allocation: replica.get(JOB_VERSIONS, *version_key(allocation))


JOINS: Final[dict[type, dict[str, Callable[[Replica], Callable[[Any], Any]]]]] = {
    Allocation: {
        "Job": _job_of,
        "AllocatedResources": lambda _replica: attrgetter("allocated_resources"),
        "Metrics": lambda _replica: attrgetter("metrics"),
        "TaskStates": lambda _replica: attrgetter("task_states"),
    },
}

READS: Final[dict[str, Reading]] = {"allocation.list": allocation_list, "allocation.read": allocation_read}


def acts_of(_server: Server) -> dict[str, Act]:
    return {}
