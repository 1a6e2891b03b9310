"""Reads of allocations and their services. Requests that their nodes execute are in `control`, `files` and `exec`."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

from msgspec.structs import replace

from wharf.cluster.api.index_lists import build_index_list
from wharf.cluster.api.lists.listing import Listing, list_by_creation
from wharf.cluster.api.replies.pieces import LazyMap
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.requests.values import parse_uuid
from wharf.cluster.api.results import (
    MissingRecord,
    ReadHandler,
    find_record,
)
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.state import Replica
from wharf.cluster.state.lookups import find_allocation_job
from wharf.cluster.state.tables import ALLOCATIONS, REGISTRATIONS_OF_ALLOCATION, SERVICES
from wharf.cluster.state.watches import watch_index, watch_key
from wharf.contract.model.allocations.allocation import (
    Allocation,
    AllocationStub,
    DesiredTransition,
    NetworkStatus,
)
from wharf.contract.model.allocations.resources import (
    build_shared_resources,
    build_task_resources,
    sum_resources,
)
from wharf.contract.model.allocations.task_event_messages import make_task_state_view
from wharf.contract.model.jobs.job import Job
from wharf.contract.wire.allocations.messages import ALLOCATION_VIEW_FIELDS, AllocationView

MAX_TASKS_BUILT_TOGETHER: Final = 50
"""Limits the time of one step: the state of a task has up to ten events, whose messages take 30 µs."""
LOOKUP_ERROR_PREFIX: Final = "alloc lookup failed: index error: "


def list_allocations(replica: Replica, request: Request, options: QueryOptions) -> Listing[Allocation]:
    """List allocations as stubs; parameters select resources and task states."""
    resources, states = request.get_flag("resources"), request.get_flag("task_states", default=True)
    return list_by_creation(
        replica, ALLOCATIONS, options,
        error_prefix=LOOKUP_ERROR_PREFIX,
        build_view=lambda allocation: build_allocation_stub(replica, allocation, has_resources=resources, has_task_states=states),
        large_records=replica.get_table_records(ALLOCATIONS).large_records,
        # Each set of requested fields has a cache name of its own.
        cache_name=f"allocation.list{' resources' * resources}{' states' * states}",
    )  # fmt: skip


def read_allocation(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    """Return the allocation. Raises `Refusal` if the caller may not read its namespace."""
    allocation_id = parse_uuid(request.get_path_value("alloc_id"), error_prefix=LOOKUP_ERROR_PREFIX)
    found, index, watched = find_record(replica, ALLOCATIONS, allocation_id, missing_text="alloc not found")
    if isinstance(found, MissingRecord):
        return ReadResult(found, index, watched)
    request.require_permission(namespace=found.namespace)
    return ReadResult(build_allocation_view(replica, found), index, watched)


def build_allocation_view(replica: Replica, allocation: Allocation) -> object:
    """Return the allocation as single reads show it: with the job version that it runs, its resources and task states."""
    allocated = allocation.allocated_resources
    legacy_fields: dict[str, Any] = {}
    if allocated is not None:
        legacy_fields = {
            "resources": sum_resources(allocated),
            "shared_resources": build_shared_resources(allocated),
            "task_resources": build_task_resources(allocated) or None,
        }
    return AllocationView(
        job=_build_job_reader(replica)(allocation),
        allocated_resources=allocated,
        metrics=allocation.metrics,
        task_states=_build_task_state_views(allocation),
        **legacy_fields,
        **{name: getattr(allocation, name) for name in ALLOCATION_VIEW_FIELDS if name != "network_status"},
        network_status=_get_network_status(allocation),
    )


def _get_network_status(allocation: Allocation) -> NetworkStatus | None:
    """Return the network of the allocation.

    In the network of the host it is empty, not missing, once the node has reported the allocation: clients read its
    fields.
    """
    is_reported = allocation.task_states is not None
    return allocation.network_status or (NetworkStatus() if is_reported else None)


def build_allocation_stub(
    replica: Replica, allocation: Allocation, *, has_resources: bool = False, has_task_states: bool = True
) -> AllocationStub:
    """Return the allocation as lists show it; the flags add its resources and task states."""
    job = find_allocation_job(replica, allocation)
    stub = AllocationStub(
        job_type=job.type if job else "",
        desired_transition=allocation.desired_transition or DesiredTransition(),
        task_states=_build_task_state_views(allocation) if has_task_states else None,
        **{name: getattr(allocation, name) for name in ALLOCATION_STUB_FIELDS},
    )
    return replace(stub, allocated_resources=allocation.allocated_resources) if has_resources else stub


def _build_task_state_views(allocation: Allocation) -> Any:
    """Return the task states as replies show them. Those of many tasks are built one by one while they are encoded."""
    if allocation.task_states is None:
        return None
    states = allocation.task_states.items()
    if len(states) <= MAX_TASKS_BUILT_TOGETHER:
        return {name: make_task_state_view(state) for name, state in states}
    return LazyMap(lambda: ((name, make_task_state_view(state)) for name, state in states))


ALLOCATION_STUB_FIELDS: Final = [
    name
    for name in AllocationStub.__struct_fields__
    if name in Allocation.__struct_fields__ and name not in ("allocated_resources", "desired_transition", "task_states")
]


def _build_job_reader(replica: Replica) -> Callable[[Allocation], Job | None]:
    """Return a function that returns the job version that an allocation runs."""
    return lambda allocation: find_allocation_job(replica, allocation)


def list_allocation_services(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    """List the services that the allocation registered."""
    allocation_id = parse_uuid(request.get_path_value("alloc_id"), error_prefix=LOOKUP_ERROR_PREFIX)
    allocation = replica.get(ALLOCATIONS, allocation_id)
    watched = [
        watch_index(REGISTRATIONS_OF_ALLOCATION, allocation_id),
        watch_key(ALLOCATIONS, allocation_id),
    ]
    if allocation is None:
        return ReadResult(MissingRecord("alloc not found"), replica.get_last_change(SERVICES, ALLOCATIONS), watched)
    request.require_permission(namespace=allocation.namespace)
    registered = build_index_list(replica, REGISTRATIONS_OF_ALLOCATION, allocation_id, is_view_small=True)
    return ReadResult(registered, replica.get_last_change(SERVICES), watched)


JOINED_FIELD_READERS: Final[dict[type, dict[str, Callable[[Replica], Callable[[Any], Any]]]]] = {
    Allocation: {
        "Job": _build_job_reader,
        "AllocatedResources": lambda _replica: attrgetter("allocated_resources"),
        "Metrics": lambda _replica: attrgetter("metrics"),
        "TaskStates": lambda _replica: attrgetter("task_states"),
    },
}

READ_HANDLERS: Final[dict[str, ReadHandler]] = {
    "allocation.list": list_allocations,
    "allocation.read": read_allocation,
    "allocation.services": list_allocation_services,
}
