"""Lists of nodes in an order that people choose, such as the fullest first, and what the allocations of each node request."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from wharf.cluster.api.handlers.nodes.usages import AllocationUsages
from wharf.cluster.api.lists.listing import Listing
from wharf.cluster.api.lists.sorted_snapshot import SortedSnapshot
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.server.cpu_budget import SlicedWork
from wharf.cluster.state import Replica
from wharf.cluster.state.table_snapshot import TableSnapshot
from wharf.cluster.state.tables import ALLOCATIONS, NODES, UNFINISHED_ALLOCATIONS_ON_NODE
from wharf.cluster.state.watches import watch_table
from wharf.contract.model.nodes.node import Node, NodeStatus, SchedulingEligibility
from wharf.contract.model.refusal import invalid_request
from wharf.contract.model.resource_usage import Usage, get_node_capacity
from wharf.contract.wire.nodes.messages import NodeListStub
from wharf.contract.wire.nodes.use import NodeOrder, RequestedResources

NODES_PER_CHECK: Final = 10
"""Nodes whose allocations are added up before the CPU time is checked: about half a millisecond with twenty on each."""
FULL: Final = 1_000
"""The share of a full node, in thousandths."""
NodePosition = tuple[str, str, str]
"""The sort key of a node: what the order compares, then its name and its ID."""


class NodeUseReader:
    """Adds up what the allocations of nodes request. Each node is read once, also if the list is sorted by it."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._usages = AllocationUsages()
        self._known: dict[str, Usage] = {}

    def read(self, node: Node) -> Usage:
        """Return the CPU and memory that the allocations request which use the node, also those that the caller may not read."""
        known = self._known.get(node.id)
        if known is None:
            cpu = memory = 0
            for allocation in self._replica.list_by_index(UNFINISHED_ALLOCATIONS_ON_NODE, node.id):
                if allocation.is_occupying:
                    usage = self._usages.get(allocation)
                    cpu, memory = cpu + usage.cpu, memory + usage.memory_mb
            known = self._known[node.id] = Usage(cpu, memory)
        return known

    def read_share(self, node: Node) -> int:
        """Return the larger of the requested shares of CPU and memory, in thousandths of the node's capacity."""
        requested, capacity = self.read(node), get_node_capacity(node)
        pairs = ((requested.cpu, capacity.cpu), (requested.memory_mb, capacity.memory_mb))
        return max(min(FULL, FULL * used // total) if total > 0 else 0 for used, total in pairs)


def show_use(
    listing: Listing[Node], replica: Replica, use: NodeUseReader, build_stub: Callable[[Node], NodeListStub]
) -> Listing[Node]:
    """Return the listing with what the allocations of each node request. Such lists are not cached: they change all the time."""

    def build_view(node: Node) -> NodeListStub:
        requested = use.read(node)
        shown = RequestedResources(cpu=requested.cpu, memory_mb=requested.memory_mb)
        return msgspec.structs.replace(build_stub(node), requested_resources=shown)

    async def prepare_view(nodes: Sequence[Node], work: SlicedWork) -> Callable[[Node], NodeListStub]:
        work.restart()
        for number, node in enumerate(nodes, start=1):
            use.read(node)
            if not number % NODES_PER_CHECK and work.is_slice_over():
                await work.pause()
        return build_view

    return replace(_depend_on_allocations(listing, replica), prepare_view=prepare_view, cache_name="")


def sort_nodes(
    listing: Listing[Node], replica: Replica, order: NodeOrder, options: QueryOptions, use: NodeUseReader
) -> Listing[Node]:
    """Return the listing in another order. A page token contains the sort key, so a node that changes moves no other one."""
    get_key = _build_keys(use)[order]

    def get_position(node: Node) -> NodePosition:
        return get_key(node), node.name, node.id

    def open_sorted(token: str, reverse: bool) -> SortedSnapshot[Node]:
        start = _parse_position(token) if token else None

        def build_entries(nodes: Iterable[Node]) -> list[tuple[NodePosition, Node]]:
            entries = [(get_position(node), node) for node in nodes]
            if start is None:
                return entries
            return [each for each in entries if (each[0] <= start if reverse else each[0] >= start)]

        return SortedSnapshot(
            TableSnapshot(replica, NODES, prefix=options.prefix),
            build_entries,
            _iterate_nodes,
            reverse=reverse,
            records_per_check=NODES_PER_CHECK if order is NodeOrder.USE else 0,
        )

    sorted_listing = replace(
        listing,
        make_token=lambda node: ".".join(map(_quote_part, get_position(node))),
        open_sorted=open_sorted,
        open_snapshot=None,
        base_cache_spec=None,
        cache_name="",
    )
    return _depend_on_allocations(sorted_listing, replica) if order is NodeOrder.USE else sorted_listing


def _build_keys(use: NodeUseReader) -> dict[NodeOrder, Callable[[Node], str]]:
    return {
        NodeOrder.NAME: lambda _node: "",
        NodeOrder.STATE: _get_urgency,
        NodeOrder.POOL: lambda node: node.node_pool,
        NodeOrder.USE: lambda node: f"{FULL - use.read_share(node):04}",
    }


def _get_urgency(node: Node) -> str:
    """Return the place of the node's state in a list that begins with nodes that need a person."""
    if node.status is not NodeStatus.READY:
        return str((NodeStatus.DOWN, NodeStatus.DISCONNECTED, NodeStatus.INITIALIZING).index(node.status))
    if node.drain:
        return "3"
    return "5" if node.scheduling_eligibility is SchedulingEligibility.ELIGIBLE else "4"


def _depend_on_allocations(listing: Listing[Node], replica: Replica) -> Listing[Node]:
    """Return the listing with the index and the watches of lists that allocations change."""
    return replace(
        listing,
        index=replica.get_last_change(NODES, ALLOCATIONS),
        watched=[watch_table(NODES), watch_table(ALLOCATIONS)],
    )


def _iterate_nodes(entries: Iterable[tuple[NodePosition, Node]]) -> Iterator[Node]:
    return map(itemgetter(1), entries)


def _quote_part(text: str) -> str:
    """Return a part of a page token: ASCII without dots, because tokens are sent in headers, and dots separate parts."""
    return quote(text, safe="").replace(".", "%2E")


def _parse_position(token: str) -> NodePosition:
    """Return the sort key in a page token. Raises `Refusal` if it is not the token of a sorted list."""
    parts = token.split(".")
    if len(parts) != 3:
        raise invalid_request("next_token is not one of a list of nodes in this order: begin again without it")
    key, name, node_id = map(unquote, parts)
    return key, name, node_id
