"""Reads the whole fleet in few bytes: a letter for each node and each unfinished allocation."""

from collections import Counter
from collections.abc import Callable
from itertools import islice
from operator import attrgetter
from typing import Any, Final

from wharf.cluster.api.handlers.nodes.usages import AllocationUsages
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ReadHandler, SlicedValue
from wharf.cluster.server.cpu_budget import SlicedWork
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS, NODES, UNFINISHED_ALLOCATIONS_ON_NODE
from wharf.cluster.state.watches import watch_table
from wharf.contract.model.acl.permissions import READ_JOB
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.nodes.node import Node, NodeStatus, SchedulingEligibility
from wharf.contract.model.refusal import invalid_request
from wharf.contract.model.resource_usage import Usage, get_node_capacity
from wharf.contract.wire.nodes.fleet import LETTERS, MAX_FLEET_NODES, FleetGrouping, FleetPicture, FleetValue

GroupValue = Any
"""What a letter stands for: a text, or a pair of texts. Values of one grouping have one type, so they can be sorted."""
OTHERS: Final = "others"
STOPPING: Final = "stopping"
ALLOCATIONS_PER_CHECK: Final = 200
"""Allocations that are read before the CPU time is checked: a step of about 0.3 ms."""


def read_fleet(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    """Return all nodes with their unfinished allocations in namespaces that the caller may read."""
    text = request.get_text("by") or FleetGrouping.STATE
    if text not in tuple(FleetGrouping):
        raise invalid_request(f'by is "{text[:50]}"; it must be one of {", ".join(FleetGrouping)}')
    is_visible = request.build_namespace_test(READ_JOB)
    get_value = GROUPINGS[FleetGrouping(text)]

    async def build(work: SlicedWork) -> FleetPicture:
        return await _FleetBuilder(replica, is_visible, get_value).build(work)

    watched = [watch_table(NODES), watch_table(ALLOCATIONS)]
    return ReadResult(SlicedValue(build), replica.get_last_change(NODES, ALLOCATIONS), watched)


class _FleetBuilder:
    """Builds one fleet in slices. Nodes and allocations may change meanwhile; each is read once."""

    def __init__(
        self, replica: Replica, is_visible: Callable[[Any], bool], get_value: Callable[[Allocation], GroupValue]
    ) -> None:
        self._replica = replica
        self._is_visible = is_visible
        self._get_value = get_value
        self._counts: Counter[GroupValue] = Counter()
        self._usages = AllocationUsages()

    async def build(self, work: SlicedWork) -> FleetPicture:
        """Read all nodes, then choose the letters of the most frequent values."""
        work.restart()
        nodes = sorted(islice(self._replica.iter_all(NODES), MAX_FLEET_NODES), key=attrgetter("name"))
        hidden_count = self._replica.count_records(NODES) - len(nodes)
        values_by_node: list[list[GroupValue]] = []
        cpu: list[int] = []
        memory: list[int] = []
        unchecked = 0
        for node in nodes:
            values, usage = self._read_allocations(node)
            capacity = get_node_capacity(node)
            values_by_node.append(values)
            cpu.append(_get_percent(usage.cpu, capacity.cpu))
            memory.append(_get_percent(usage.memory_mb, capacity.memory_mb))
            unchecked += len(values) + 1
            if unchecked >= ALLOCATIONS_PER_CHECK:
                unchecked = 0
                if work.is_slice_over():
                    await work.pause()
        shown, letters = self._choose_letters()
        parts: list[str] = []
        for position in range(0, len(values_by_node), ALLOCATIONS_PER_CHECK):
            some = values_by_node[position : position + ALLOCATIONS_PER_CHECK]
            parts += ["".join([letters[value] for value in each]) for each in some]
            if work.is_slice_over():
                await work.pause()
        return FleetPicture(
            names=tuple(node.name for node in nodes),
            states="".join(map(_get_state_letter, nodes)),
            cpu=tuple(cpu),
            memory=tuple(memory),
            allocations=",".join(parts),
            values=shown,
            hidden_nodes=hidden_count,
        )

    def _read_allocations(self, node: Node) -> tuple[list[GroupValue], Usage]:
        """Return the values of the node's visible allocations, in the order of their values, and what they use together."""
        cpu = memory = 0
        values: list[GroupValue] = []
        for allocation in self._replica.list_by_index(UNFINISHED_ALLOCATIONS_ON_NODE, node.id):
            if allocation.is_occupying and self._is_visible(allocation):
                values.append(self._get_value(allocation))
                usage = self._usages.get(allocation)
                cpu += usage.cpu
                memory += usage.memory_mb
        self._counts.update(values)
        values.sort()  # Equal letters side by side compress well.
        return values, Usage(cpu, memory)

    def _choose_letters(self) -> tuple[tuple[FleetValue, ...], dict[GroupValue, str]]:
        """Return the letters of the most frequent values; all others share the last letter."""
        ordered = sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))
        own = len(LETTERS) if len(ordered) <= len(LETTERS) else len(LETTERS) - 1
        letters: dict[GroupValue, str] = dict.fromkeys((value for value, _ in ordered[own:]), LETTERS[-1])
        shown: list[FleetValue] = []
        for letter, (value, count) in zip(LETTERS, ordered[:own], strict=False):
            letters[value] = letter
            shown.append(FleetValue(letter=letter, text=_format_value(value), count=count))
        if rest := sum(count for _, count in ordered[own:]):
            shown.append(FleetValue(letter=LETTERS[-1], text=OTHERS, count=rest))
        return tuple(shown), letters


def _get_state(allocation: Allocation) -> str:
    if allocation.is_server_terminal:
        return STOPPING
    return "starting" if allocation.client_status is ClientStatus.PENDING else str(allocation.client_status)


GROUPINGS: Final[dict[FleetGrouping, Callable[[Allocation], GroupValue]]] = {
    FleetGrouping.STATE: _get_state,
    FleetGrouping.JOB: attrgetter("namespace", "job_id"),
    FleetGrouping.NAMESPACE: attrgetter("namespace"),
}


def _format_value(value: GroupValue) -> str:
    return " / ".join(value) if isinstance(value, tuple) else str(value)


def _get_state_letter(node: Node) -> str:
    if node.status is NodeStatus.INITIALIZING:
        return "n"
    if node.status is not NodeStatus.READY:
        return "a"
    if node.drain:
        return "d"
    return "r" if node.scheduling_eligibility is SchedulingEligibility.ELIGIBLE else "i"


def _get_percent(amount: int, capacity: int) -> int:
    return min(100, round(100 * amount / capacity)) if capacity > 0 else 0


READ_HANDLERS: Final[dict[str, ReadHandler]] = {"node.fleet": read_fleet}
