"""Endpoints of allocations."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

from msgspec.structs import replace

from wharf.api.answers import Act, Done, Missing, Reading, by_creation, one
from wharf.api.finding import found_or_unknown
from wharf.api.ids import read_id
from wharf.api.listing import Listing, by_creation_or_prefix
from wharf.api.request import ReadOptions, Request
from wharf.model.allocation import Allocation, AllocationStub, DesiredTransition
from wharf.model.job import Job
from wharf.model.task_event_text import shown_state
from wharf.model.task_state import ShownTaskState
from wharf.server.answering.allocations import STOP_ALLOCATION, AllocationToStop
from wharf.server.reading import Found
from wharf.server.server import Server
from wharf.state import Replica
from wharf.state import watches as watch
from wharf.state.tables import ALLOCATIONS, JOB_VERSIONS, REGISTRATIONS_OF_ALLOCATION, SERVICES
from wharf.wire.work_shapes import SHOWN_FIELDS, AllocationShown, AllocationStopResponse

PREFIX_FAILED: Final = "alloc lookup failed: index error: "


def allocation_list(replica: Replica, request: Request, options: ReadOptions) -> Listing[Allocation]:
    resources, states = request.flag("resources"), request.flag("task_states", default=True)
    return by_creation_or_prefix(
        replica, ALLOCATIONS, options,
        where=PREFIX_FAILED,
        shown=lambda allocation: allocation_stub(replica, allocation, with_resources=resources, with_states=states),
        # What is left out or added makes another text of the same record.
        form=f"allocation.list{' resources' * resources}{' states' * states}",
    )  # fmt: skip


def allocation_read(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    allocation_id = read_id(request.value("alloc_id"), where=PREFIX_FAILED)
    found, index, watched = one(replica, ALLOCATIONS, allocation_id, missing="alloc not found")
    if isinstance(found, Missing):
        return Found(found, index, watched)
    request.require(namespace=found.namespace)
    return Found(shown_allocation(replica, found), index, watched)


def shown_allocation(replica: Replica, allocation: Allocation) -> object:
    """The allocation with its job as it was placed."""
    return AllocationShown(
        job=_job_of(replica)(allocation),
        allocated_resources=allocation.allocated_resources,
        metrics=allocation.metrics,
        task_states=_shown_states(allocation),
        **{name: getattr(allocation, name) for name in SHOWN_FIELDS},
    )


def allocation_stub(
    replica: Replica, allocation: Allocation, *, with_resources: bool = False, with_states: bool = True
) -> AllocationStub:
    """The allocation as lists show it."""
    job = replica.get(JOB_VERSIONS, *version_key(allocation))
    stub = AllocationStub(
        job_type=job.type if job else "",
        desired_transition=allocation.desired_transition or DesiredTransition(),
        task_states=_shown_states(allocation) if with_states else None,
        **{name: getattr(allocation, name) for name in STUB_FIELDS},
    )
    return replace(stub, allocated_resources=allocation.allocated_resources) if with_resources else stub


def _shown_states(allocation: Allocation) -> dict[str, ShownTaskState] | None:
    if allocation.task_states is None:
        return None
    return {name: shown_state(state) for name, state in dict(allocation.task_states).items()}


STUB_FIELDS: Final = [
    name
    for name in AllocationStub.__struct_fields__
    if name in Allocation.__struct_fields__ and name not in ("allocated_resources", "desired_transition", "task_states")
]


def version_key(allocation: Allocation) -> tuple[str, str, int]:
    """Where the version of the job stands that the allocation was made from."""
    return allocation.namespace, allocation.job_id, allocation.job_version


def _job_of(replica: Replica) -> Callable[[Allocation], Job | None]:
    return lambda allocation: replica.get(JOB_VERSIONS, *version_key(allocation))


def allocation_services(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    allocation_id = read_id(request.value("alloc_id"), where=PREFIX_FAILED)
    allocation = replica.get(ALLOCATIONS, allocation_id)
    watched = [watch.those(REGISTRATIONS_OF_ALLOCATION, allocation_id), watch.one(ALLOCATIONS, allocation_id)]
    if allocation is None:
        return Found(Missing("alloc not found"), replica.last_change(SERVICES, ALLOCATIONS), watched)
    request.require(namespace=allocation.namespace)
    registered = by_creation(replica.those(REGISTRATIONS_OF_ALLOCATION, allocation_id))
    return Found(registered, replica.last_change(SERVICES), watched)


JOINS: Final[dict[type, dict[str, Callable[[Replica], Callable[[Any], Any]]]]] = {
    Allocation: {
        "Job": _job_of,
        "AllocatedResources": lambda _replica: attrgetter("allocated_resources"),
        "Metrics": lambda _replica: attrgetter("metrics"),
        "TaskStates": lambda _replica: attrgetter("task_states"),
    },
}

READS: Final[dict[str, Reading]] = {
    "allocation.list": allocation_list,
    "allocation.read": allocation_read,
    "allocation.services": allocation_services,
}


class AllocationActs:
    """What is asked of the leader."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def stop(self, request: Request) -> Done:
        allocation_id = read_id(request.value("alloc_id"), where=PREFIX_FAILED)
        allocation = await found_or_unknown(
            self._server, ALLOCATIONS, allocation_id, unknown_text="allocation not found"
        )
        request.require(namespace=allocation.namespace)
        wanted = AllocationToStop(
            allocation_id,
            no_shutdown_delay=request.flag("no_shutdown_delay"),
            reschedule=request.flag("reschedule"),
            cause=request.id,
        )
        stopped = await self._server.leader.ask(STOP_ALLOCATION, wanted)
        return Done(AllocationStopResponse(eval_id=stopped.eval_id, index=stopped.index), stopped.index)


def acts_of(server: Server) -> dict[str, Act]:
    return {"allocation.stop": AllocationActs(server).stop}
