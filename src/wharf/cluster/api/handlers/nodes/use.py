"""Reads how full one node is, and the newest allocations on it, without reading their jobs."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from wharf.cluster.api.handlers.allocations.records import build_allocation_stub
from wharf.cluster.api.handlers.nodes.usages import AllocationUsages
from wharf.cluster.api.index_lists import NewestRecords, visit_in_slices
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import MissingRecord, ReadHandler, SlicedValue
from wharf.cluster.server.cpu_budget import SlicedWork
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS, ALLOCATIONS_ON_NODE, NODES
from wharf.cluster.state.watches import watch_index, watch_key
from wharf.contract.model.acl.permissions import READ_JOB
from wharf.contract.model.allocations.allocation import Allocation, AllocationStub
from wharf.contract.model.refusal import invalid_request
from wharf.contract.wire.nodes.use import DEFAULT_SHOWN_ALLOCATIONS, MAX_SHOWN_ALLOCATIONS, DeviceUse, NodeUse

STUBS_PER_CHECK: Final = 20
"""Stubs that are built before the CPU time is checked: about half a millisecond."""


def read_node_use(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    """Return what the allocations of a node request, and the newest ones in namespaces that the caller may read."""
    node_id = request.get_path_value("node_id")
    limit = request.get_number("limit", default=DEFAULT_SHOWN_ALLOCATIONS)
    if not 0 < limit <= MAX_SHOWN_ALLOCATIONS:
        raise invalid_request(f"limit is {limit}; it must be a number from 1 to {MAX_SHOWN_ALLOCATIONS}")
    watched = [watch_key(NODES, node_id), watch_index(ALLOCATIONS_ON_NODE, node_id)]
    if replica.get(NODES, node_id) is None:
        return ReadResult(MissingRecord("node not found"), replica.get_last_change(NODES), watched)
    is_visible = request.build_namespace_test(READ_JOB)

    async def build(work: SlicedWork) -> NodeUse:
        reader = _UseReader(limit, is_visible)
        await visit_in_slices(replica, ALLOCATIONS_ON_NODE, node_id, visit=reader.add, work=work, prefers_new=True)
        return await reader.build(replica, work)

    return ReadResult(SlicedValue(build), replica.get_last_change(NODES, ALLOCATIONS), watched)


class _UseReader:
    """Adds up what allocations use, and collects the newest ones."""

    def __init__(self, limit: int, is_visible: Callable[[Any], bool]) -> None:
        self._limit = limit
        self._is_visible = is_visible
        self._count = 0
        self._occupying = NewestRecords[Allocation](limit)
        self._ended = NewestRecords[Allocation](limit)
        self._cpu = 0
        self._memory_mb = 0
        self._usages = AllocationUsages()
        self._devices: Counter[tuple[str, str, str]] = Counter()

    def add(self, allocation: Allocation) -> None:
        """Add an allocation of the node."""
        is_occupying = not allocation.client_status.is_terminal
        if is_occupying:
            self._add_usage(allocation)
        if self._is_visible(allocation):
            self._count += 1
            newest = self._occupying if is_occupying else self._ended
            if newest.may_contain(allocation):
                newest.add(allocation)

    def _add_usage(self, allocation: Allocation) -> None:
        resources = allocation.allocated_resources
        usage = self._usages.get(allocation)
        self._cpu += usage.cpu
        self._memory_mb += usage.memory_mb
        for task in ((resources.tasks if resources is not None else None) or {}).values():
            for device in task.devices or ():
                self._devices[device.vendor, device.type, device.name] += len(device.device_ids or ())

    async def build(self, replica: Replica, work: SlicedWork) -> NodeUse:
        """Return the reply."""
        shown = [*self._occupying.take_sorted(), *self._ended.take_sorted()][: self._limit]
        build_stub = partial(build_allocation_stub, replica)
        stubs: list[AllocationStub] = []
        for start in range(0, len(shown), STUBS_PER_CHECK):
            stubs += map(build_stub, shown[start : start + STUBS_PER_CHECK])
            if work.is_slice_over():
                await work.pause()
        return NodeUse(
            cpu=self._cpu,
            memory_mb=self._memory_mb,
            devices=tuple(
                DeviceUse(vendor=vendor, type=kind, name=name, in_use=count)
                for (vendor, kind, name), count in sorted(self._devices.items())
            ),
            allocation_count=self._count,
            allocations=tuple(stubs),
        )


READ_HANDLERS: Final[dict[str, ReadHandler]] = {"node.use": read_node_use}
