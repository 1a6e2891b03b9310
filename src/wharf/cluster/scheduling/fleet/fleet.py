"""All nodes as columns: capacity, use, kind and location, so that one operation checks all nodes.

The fleet follows the log change by change and is not rebuilt for evaluations. A node keeps its row while it exists; the
row of a deleted node is reused. The fleet decides nothing: it only counts.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final, NamedTuple

import msgspec
import numpy as np

from wharf.cluster.scheduling.constraints import resolve_target
from wharf.cluster.scheduling.fleet.columns import INITIAL_ROWS, Codes, Ints, Mask, ValueCodes, grow_column
from wharf.cluster.scheduling.fleet.node_class import ClassKey, make_class_key
from wharf.cluster.scheduling.resources.exclusive import (
    ExclusiveResources,
    PortKey,
    has_exclusive_resources,
    iter_ports,
)
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS, NODES
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.resources import AllocatedResources
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.resource_usage import Usage, get_node_capacity, get_resources_usage

MISSING_CODE: Final = -1
"""The code of a value that a node does not have, and of rows without a node."""

MAX_CACHED_PROPERTIES: Final = 64
"""Limits memory: columns of constraint targets that are kept. The least recently used one is dropped."""

MAX_CACHED_SIZES: Final = 4_096
"""Limits memory: resource records whose usage is cached."""


NODES_PER_STEP: Final = 100
"""Nodes that are added before the event loop may run other tasks, while a fleet is loaded: a few milliseconds."""

ALLOCATIONS_PER_STEP: Final = 1_000
"""Allocations that are counted before the event loop may run other tasks, while a fleet is loaded: 4 ms."""

PREEMPTION_HOLD_NS: Final = 60_000_000_000
"""How long the resources of a victim that has ended are held for the allocation that preempted it: 60 seconds."""


class PreemptedCapacity(msgspec.Struct, frozen=True):
    """Resources that a preempted allocation (the victim) has freed, and that are held for the allocation that preempted
    it.
    """

    row: int  # The row of the node.
    victim: Allocation  # The allocation that has ended.
    preemptor_id: str  # The id of the allocation that will use them.
    expires_at_ns: int  # When the resources are no longer held, in Unix nanoseconds.


class PlacementAmounts(NamedTuple):
    """How much a number of placements use on each node, as columns with one entry for each node."""

    rows: Ints  # The row of the node in the fleet.
    counts: Ints  # How many allocations are placed on it.
    cpu: Ints  # The sum of their CPU in MHz.
    memory_mb: Ints
    disk_mb: Ints
    exclusive_rows: frozenset[int]  # Rows of nodes where a placement has ports, cores or devices.


class PropertyColumn:
    """The value of one reference, such as `${attr.kernel.name}`, on every node, as a column of codes."""

    __slots__ = ("codes", "target", "values")

    def __init__(self, target: str, row_count: int) -> None:
        self.target = target
        self.values: ValueCodes[str] = ValueCodes()
        self.codes: Codes = np.full(row_count, MISSING_CODE, dtype=np.int32)
        """By row, the code of the value; `MISSING_CODE`: the node has none."""

    def set_value(self, row: int, node: Node) -> None:
        """Store the code of the value that the reference has on this node in its row."""
        value = resolve_target(self.target, node)
        self.codes[row] = MISSING_CODE if value is None else self.values.encode_value(value)


class Fleet:
    """All nodes and the resources that their allocations use, as numpy columns.

    The row of a node is its index in all of them.
    """

    def __init__(self) -> None:
        self.nodes: list[Node | None] = []  # By row, the node; `None`: the row is free.
        self.row_by_node_id: dict[str, int] = {}
        self.kinds: ValueCodes[ClassKey] = ValueCodes()  # Codes of node kinds. Nodes of one kind pass the same checks.
        self.kind_examples: list[Node] = []
        """By code of a kind, the first node of this kind. Checks of the kind use it."""
        self.datacenters: ValueCodes[str] = ValueCodes()
        self.pools: ValueCodes[str] = ValueCodes()
        self.exclusive_resources: dict[int, ExclusiveResources] = {}
        """By row, the ports, cores and devices in use, if any."""
        self.port_holders: dict[int, dict[int, int]] = {}
        """By port number, the rows where the port is in use on any address, with the number of uses."""
        self.preempted_capacity: dict[str, PreemptedCapacity] = {}
        """Resources of ended victims that the preempting allocation has not used yet, by victim id."""
        self.expected_placements: Mapping[str, Sequence[Allocation]] = {}
        """By node id, placements of a plan that is being committed. Drafts count them, the columns do not."""
        self.node_revision = 0
        """Increases whenever a node is added, changed or removed."""
        self._free_rows: list[int] = []  # Rows of removed nodes, to be used again.
        self._row_capacity = INITIAL_ROWS
        self._properties: OrderedDict[str, PropertyColumn] = OrderedDict()
        """Cached columns by reference, the least recently used first."""
        self._sizes: dict[int, tuple[AllocatedResources, Usage, bool]] = {}
        """By `id()` of a resources record: the record, its usage, and whether it has ports, cores or devices."""
        self._make_columns()

    def _make_columns(self) -> None:
        """Create all columns, without nodes."""
        row_count = self._row_capacity
        self.is_ready: Mask = np.zeros(row_count, dtype=np.bool_)
        self.kind: Codes = np.full(row_count, MISSING_CODE, dtype=np.int32)
        self.datacenter: Codes = np.full(row_count, MISSING_CODE, dtype=np.int32)
        self.pool: Codes = np.full(row_count, MISSING_CODE, dtype=np.int32)
        self.cpu: Ints = np.zeros(row_count, dtype=np.int64)
        self.memory: Ints = np.zeros(row_count, dtype=np.int64)
        self.disk: Ints = np.zeros(row_count, dtype=np.int64)
        self.cpu_used: Ints = np.zeros(row_count, dtype=np.int64)
        self.memory_used: Ints = np.zeros(row_count, dtype=np.int64)
        self.disk_used: Ints = np.zeros(row_count, dtype=np.int64)
        self.max_allocations: Ints = np.zeros(row_count, dtype=np.int64)
        """How many allocations the node accepts. 0: no limit."""
        self.count: Ints = np.zeros(row_count, dtype=np.int64)

    @classmethod
    def from_snapshot(cls, snapshot: Replica) -> "Fleet":
        """Return a new fleet with the nodes and allocations of the snapshot, for tests and for decisions without a cache."""
        fleet = cls()
        for _ in fleet.load_in_steps(snapshot):
            pass
        return fleet

    def load_in_steps(self, snapshot: Replica) -> Iterator[Sequence[Allocation]]:
        """Add all nodes and allocations of the snapshot to this empty fleet, in short steps.

        Yields the allocations that each step has counted. The snapshot must not change until the iterator is exhausted.
        """
        nodes = snapshot.iter_all(NODES)
        while step_nodes := list(islice(nodes, NODES_PER_STEP)):
            for node in step_nodes:
                self.set_node(node)
            yield ()
        allocations = snapshot.iter_all(ALLOCATIONS)
        while step_allocations := list(islice(allocations, ALLOCATIONS_PER_STEP)):
            for allocation in step_allocations:
                self.apply_change(None, allocation)
            yield step_allocations
        for victim_id, capacity in list(self.preempted_capacity.items()):
            if snapshot.get(ALLOCATIONS, capacity.preemptor_id) is not None:
                del self.preempted_capacity[victim_id]

    def __len__(self) -> int:
        """Return the number of rows, including those of removed nodes."""
        return len(self.nodes)

    def get_node(self, row: int) -> Node:
        """Return the node in this row."""
        node = self.nodes[row]
        assert node is not None, f"row {row} has no node"
        return node

    @contextmanager
    def expect_placements(self, placements: Mapping[str, Sequence[Allocation]]) -> Iterator[None]:
        """Let every `FleetDraft` count these placements by node id, of a plan that is being committed, until the
        context ends.
        """
        self.expected_placements = placements
        try:
            yield
        finally:
            self.expected_placements = {}

    # -- nodes -------------------------------------------------------------------------------------------------------

    def set_node(self, node: Node, allocations: Iterable[Allocation] = ()) -> None:
        """Add or change a node.

        `allocations` are those on a new node: they may have been stored before the node, and are counted now.
        """
        self.node_revision += 1
        row = self.row_by_node_id.get(node.id)
        if row is None:
            row = self._assign_row(node.id)
            for allocation in allocations:
                if allocation.is_occupying:
                    self._add(row, allocation, 1)
        before, self.nodes[row] = self.nodes[row], node
        capacity = get_node_capacity(node)
        self.cpu[row], self.memory[row], self.disk[row] = capacity.cpu, capacity.memory_mb, capacity.disk_mb
        self.max_allocations[row] = node.node_max_allocs
        self.is_ready[row] = node.is_ready_for_placements
        if before is None or not _is_description_equal(before, node):
            self._update_description(row, node)

    def _update_description(self, row: int, node: Node) -> None:
        """Update the columns that describe the node: kind, datacenter, pool and cached references."""
        kind = self.kinds.encode_value(make_class_key(node))
        if kind == len(self.kind_examples):
            self.kind_examples.append(node)
        self.kind[row] = kind
        self.datacenter[row] = self.datacenters.encode_value(node.datacenter)
        self.pool[row] = self.pools.encode_value(node.node_pool)
        for column in self._properties.values():
            column.set_value(row, node)

    def remove_node(self, node_id: str) -> None:
        """Remove a node, clear its row, and make the row available for another node."""
        row = self.row_by_node_id.pop(node_id, None)
        if row is None:
            return
        self.node_revision += 1
        for column in (self.cpu, self.memory, self.disk, self.cpu_used, self.memory_used, self.disk_used, self.count):
            column[row] = 0
        self.is_ready[row] = False
        self.kind[row] = self.datacenter[row] = self.pool[row] = MISSING_CODE
        exclusive = self.exclusive_resources.pop(row, None)
        if exclusive is not None:
            self._count_ports(row, exclusive.ports.elements(), -1)
        self.preempted_capacity = {
            key: capacity for key, capacity in self.preempted_capacity.items() if capacity.row != row
        }
        self.nodes[row] = None
        self._free_rows.append(row)

    def _assign_row(self, node_id: str) -> int:
        """Assign a free row to the node, or a new one, and return it."""
        if self._free_rows:
            row = self._free_rows.pop()
        else:
            row = len(self.nodes)
            self.nodes.append(None)
            if row == self._row_capacity:
                self._grow_columns()
        self.row_by_node_id[node_id] = row
        return row

    def _grow_columns(self) -> None:
        """Double the size of all columns."""
        self._row_capacity *= 2
        for name in (
            "cpu",
            "memory",
            "disk",
            "cpu_used",
            "memory_used",
            "disk_used",
            "count",
            "max_allocations",
            "is_ready",
        ):
            setattr(self, name, grow_column(getattr(self, name), self._row_capacity))
        for name in ("kind", "datacenter", "pool"):
            setattr(self, name, grow_column(getattr(self, name), self._row_capacity, fill=MISSING_CODE))
        for column in self._properties.values():
            column.codes = grow_column(column.codes, self._row_capacity, fill=MISSING_CODE)

    def get_property_column(self, target: str) -> PropertyColumn:
        """Return the column of values of a reference such as `${attr.kernel.name}`.

        It is built on first use and cached.
        """
        column = self._properties.get(target)
        if column is None:
            column = PropertyColumn(target, self._row_capacity)
            for row, node in enumerate(self.nodes):
                if node is not None:
                    column.set_value(row, node)
            self._properties[target] = column
            if len(self._properties) > MAX_CACHED_PROPERTIES:
                self._properties.popitem(last=False)
        else:
            self._properties.move_to_end(target)
        return column

    # -- allocations -------------------------------------------------------------------------------------------------

    def apply_change(self, before: Allocation | None, after: Allocation | None) -> None:
        """Count the change of one allocation from `before` to `after`; `None`: it did not or does not exist.

        Also update the capacity that preempted allocations freed. Allocations on unknown nodes are ignored.
        """
        if after is not None and (after.preempted_by_allocation or after.preempted_allocations):
            self._update_preempted_capacity(after, has_ended_now=before is None or before.is_occupying)
        was_occupying = before is not None and before.is_occupying
        is_occupying = after is not None and after.is_occupying
        if was_occupying and is_occupying and _has_same_resources(before, after):
            return
        for applies, allocation, sign in ((was_occupying, before, -1), (is_occupying, after, 1)):
            row = self.row_by_node_id.get(allocation.node_id) if applies and allocation is not None else None
            if row is not None and allocation is not None:
                self._add(row, allocation, sign)

    def add_allocations(self, allocations: Iterable[Allocation]) -> None:
        """Count many new allocations at once, which must not take part in a preemption.

        The sums of each node are computed first and then added to all columns in one step.
        """
        by_node: dict[str, list[Allocation]] = {}
        for allocation in allocations:
            by_node.setdefault(allocation.node_id, []).append(allocation)
        amounts = self.sum_placements(by_node.items())
        # Each node occurs once, so no row is added twice.
        self.count[amounts.rows] += amounts.counts
        self.cpu_used[amounts.rows] += amounts.cpu
        self.memory_used[amounts.rows] += amounts.memory_mb
        self.disk_used[amounts.rows] += amounts.disk_mb
        for row in sorted(amounts.exclusive_rows):
            for allocation in by_node[self.get_node(row).id]:
                resources = allocation.allocated_resources
                if resources is not None and self.measure_resources(resources)[1]:
                    self._add_exclusive(row, resources, 1)

    def _update_preempted_capacity(self, allocation: Allocation, *, has_ended_now: bool) -> None:
        """Record the capacity that a preempted allocation frees when it ends, and drop what is used or held too long.

        The capacity counts as used when the allocation that preempted it is stored.
        """
        for victim_id in allocation.preempted_allocations or ():
            self.preempted_capacity.pop(victim_id, None)
        row = self.row_by_node_id.get(allocation.node_id)
        has_ended = has_ended_now and not allocation.is_occupying
        if allocation.preempted_by_allocation and has_ended and row is not None:
            expires_at_ns = allocation.modify_time + PREEMPTION_HOLD_NS
            self.preempted_capacity[allocation.id] = PreemptedCapacity(
                row, allocation, allocation.preempted_by_allocation, expires_at_ns
            )
        # Drop capacity that was not used in time.
        for victim_id in [
            key for key, capacity in self.preempted_capacity.items() if capacity.expires_at_ns < allocation.modify_time
        ]:
            del self.preempted_capacity[victim_id]

    def _add(self, row: int, allocation: Allocation, sign: int) -> None:
        """Count the allocation in the row, or stop counting it if `sign` is -1."""
        self.count[row] += sign
        resources = allocation.allocated_resources
        if resources is None:
            return
        usage, is_exclusive = self.measure_resources(resources)
        self.cpu_used[row] += sign * usage.cpu
        self.memory_used[row] += sign * usage.memory_mb
        self.disk_used[row] += sign * usage.disk_mb
        if is_exclusive:
            self._add_exclusive(row, resources, sign)

    def measure_resources(self, resources: AllocatedResources) -> tuple[Usage, bool]:
        """Return how much CPU, memory and disk the resources are, and whether they include ports, cores or devices.

        Allocations that one plan placed share one record, so the result is cached by the identity of the record.
        """
        cached = self._sizes.get(id(resources))
        if cached is None:
            if len(self._sizes) >= MAX_CACHED_SIZES:
                self._sizes.clear()
            # Keep the record in the entry, so that no other object gets its id.
            cached = self._sizes[id(resources)] = (
                resources,
                get_resources_usage(resources),
                has_exclusive_resources(resources),
            )
        return cached[1], cached[2]

    def _add_exclusive(self, row: int, resources: AllocatedResources, sign: int) -> None:
        """Count ports, cores and devices as in use in the row, or, if `sign` is -1, as free again."""
        exclusive = self.exclusive_resources.get(row)
        if exclusive is None:
            exclusive = self.exclusive_resources[row] = ExclusiveResources()
        if sign > 0:
            exclusive.add_resources(resources)
        else:
            exclusive.remove_resources(resources)
        if exclusive.is_empty:
            del self.exclusive_resources[row]
        self._count_ports(row, iter_ports(resources), sign)

    def _count_ports(self, row: int, ports: Iterable[PortKey], sign: int) -> None:
        """Add `sign` (1 or -1) to the number of uses of each port in the row."""
        for _address, port in ports:
            rows = self.port_holders.setdefault(port, {})
            rows[row] = rows.get(row, 0) + sign
            if rows[row] <= 0:
                del rows[row]
                if not rows:
                    del self.port_holders[port]

    # -- queries -----------------------------------------------------------------------------------------------------

    def sum_placements(self, placements: Iterable[tuple[str, Sequence[Allocation]]]) -> PlacementAmounts:
        """Return how much the placements use on each node. Unknown nodes are left out.

        `placements` are pairs of a node id, each at most once, and its new allocations.
        """
        rows: list[int] = []
        sums: list[tuple[int, int, int, int]] = []
        exclusive_rows: list[int] = []
        for node_id, placed in placements:
            row = self.row_by_node_id.get(node_id)
            if row is None:
                continue
            cpu = memory_mb = disk_mb = 0
            for allocation in placed:
                if allocation.allocated_resources is not None:
                    usage, is_exclusive = self.measure_resources(allocation.allocated_resources)
                    cpu, memory_mb, disk_mb = cpu + usage.cpu, memory_mb + usage.memory_mb, disk_mb + usage.disk_mb
                    if is_exclusive:
                        exclusive_rows.append(row)
            rows.append(row)
            sums.append((len(placed), cpu, memory_mb, disk_mb))
        columns = np.asarray(sums, dtype=np.int64).reshape(-1, 4)
        counts, cpus, memories, disks = columns.T
        return PlacementAmounts(
            np.asarray(rows, dtype=np.int64), counts, cpus, memories, disks, frozenset(exclusive_rows)
        )

    def get_usage(self, row: int) -> Usage:
        """Return the CPU, memory and disk that allocations use on the node in this row."""
        return Usage(int(self.cpu_used[row]), int(self.memory_used[row]), int(self.disk_used[row]))

    def iter_nodes(self) -> Iterator[tuple[int, Node]]:
        """Yield (row, node) for each node."""
        return ((row, node) for row, node in enumerate(self.nodes) if node is not None)


def _is_description_equal(before: Node, after: Node) -> bool:
    """Return whether the parts of the node from which its kind and references are computed are unchanged.

    Heartbeats and events change nodes often, but not these parts.
    """
    return before is after or all(getattr(before, name) == getattr(after, name) for name in _DESCRIPTION_FIELDS)


_DESCRIPTION_FIELDS: Final = (
    "name", "datacenter", "node_class", "node_pool", "attributes", "meta", "drivers", "node_resources", "host_networks",
)  # fmt: skip
"""Node fields on which kind and properties depend."""


def _has_same_resources(before: Allocation | None, after: Allocation | None) -> bool:
    """Return whether both versions occupy the same resources on the same node."""
    if before is None or after is None or before.node_id != after.node_id:
        return False
    old_resources, new_resources = before.allocated_resources, after.allocated_resources
    return old_resources is new_resources or old_resources == new_resources
