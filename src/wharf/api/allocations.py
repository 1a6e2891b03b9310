"""Endpoints of allocations and evaluations."""

from typing import Final

from wharf.api.answers import Reading, by_id, in_namespace, listed, one
from wharf.api.request import ReadOptions, Request
from wharf.model.allocation import Allocation, AllocationStub, DesiredTransition
from wharf.server.reading import Found
from wharf.state import Replica
from wharf.state.tables import ALLOCATIONS, EVALUATIONS, JOB_VERSIONS


def allocation_list(replica: Replica, _request: Request, options: ReadOptions) -> Found:
    found = in_namespace(by_id(replica, ALLOCATIONS, options), options)
    return listed(replica, ALLOCATIONS, [allocation_stub(replica, allocation) for allocation in found], options)


def allocation_read(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    return Found(*one(replica, ALLOCATIONS, request.value("alloc_id"), missing="alloc not found"))


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


def evaluation_list(replica: Replica, _request: Request, options: ReadOptions) -> Found:
    return listed(replica, EVALUATIONS, in_namespace(by_id(replica, EVALUATIONS, options), options), options)


def evaluation_read(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    return Found(*one(replica, EVALUATIONS, request.value("eval_id"), missing="eval not found"))


READS: Final[dict[str, Reading]] = {
    "allocation.list": allocation_list,
    "allocation.read": allocation_read,
    "evaluation.list": evaluation_list,
    "evaluation.read": evaluation_read,
}
