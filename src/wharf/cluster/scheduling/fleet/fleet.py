"""The nodes as columns: what each has, what is taken of it, of what kind it is; so one step looks at all of them.

It follows the log change by change and is never built anew for an evaluation. A node has a row as long as it exists;
the row of one that is gone is given to the next that comes. It holds no rules: it counts, and says where things are.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from wharf.cluster.scheduling.resources.usage import Usage, get_node_capacity, get_resources_usage
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS, NODES
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.resources import AllocatedResources
from wharf.contract.model.nodes.node import Node

MISSING_CODE: Final = -1
"""The number of what a node does not have, and of the row of no node."""

MAX_CACHED_PROPERTIES: Final = 64
"""Columns made on demand, of the properties that jobs spread over; the one not asked for longest goes."""

MAX_CACHED_SIZES: Final = 4_096


PREEMPTION_HOLD_NS: Final = 60_000_000_000
"""For so long after it ended, the room of what was pushed aside is kept for what pushed it."""


class PreemptedCapacity(msgspec.Struct, frozen=True):
    """Room that a victim left. `for_id`: the allocation that shall have it, once it is made."""

    row: int
    victim: Allocation
    preemptor_id: str
    expires_at_ns: int


class PlacementAmounts(NamedTuple):
    """What placements take, node by node: columns that go together. `holding`: rows where something is held one by one."""

    rows: Ints
    counts: Ints
    cpu: Ints
    memory_mb: Ints
    disk_mb: Ints
    exclusive_rows: frozenset[int]


class PropertyColumn:
    """One target, resolved on every node: the number of its value by row."""

    __slots__ = ("codes", "target", "words")

    def __init__(self, target: str, room: int) -> None:
        self.target = target
        self.words: ValueCodes[str] = ValueCodes()
        self.codes: Codes = np.full(room, MISSING_CODE, dtype=np.int32)

    def set_value(self, row: int, node: Node) -> None:
        value = resolve_target(self.target, node)
        self.codes[row] = MISSING_CODE if value is None else self.words.encode_value(value)


class Fleet:
    """All nodes, and all that occupies them."""

    def __init__(self) -> None:
        self.nodes: list[Node | None] = []
        self.row_by_node_id: dict[str, int] = {}
        self.kinds: ValueCodes[ClassKey] = ValueCodes()
        self.kind_examples: list[Node] = []
        """By kind, the node that it was first seen on: it answers for all of them."""
        self.datacenters: ValueCodes[str] = ValueCodes()
        self.pools: ValueCodes[str] = ValueCodes()
        self.exclusive_resources: dict[int, ExclusiveResources] = {}
        self.port_holders: dict[int, dict[int, int]] = {}
        """Port number to the rows where somebody holds it on some address, and how often."""
        self.preempted_capacity: dict[str, PreemptedCapacity] = {}
        """By id of the victim: what was pushed aside, has ended, and was not followed yet by what it went for."""
        self.expected_placements: Mapping[str, Sequence[Allocation]] = {}
        """By node, what a plan on its way will place there: drafts count it, the columns do not."""
        self.node_revision = 0
        """Moves whenever a node comes, changes or goes."""
        self._free: list[int] = []
        self._room = INITIAL_ROWS
        self._properties: OrderedDict[str, PropertyColumn] = OrderedDict()
        self._sizes: dict[int, tuple[AllocatedResources, Usage, bool]] = {}
        self._make_columns()

    def _make_columns(self) -> None:
        room = self._room
        self.is_ready: Mask = np.zeros(room, dtype=np.bool_)
        self.kind: Codes = np.full(room, MISSING_CODE, dtype=np.int32)
        self.datacenter: Codes = np.full(room, MISSING_CODE, dtype=np.int32)
        self.pool: Codes = np.full(room, MISSING_CODE, dtype=np.int32)
        self.cpu: Ints = np.zeros(room, dtype=np.int64)
        self.memory: Ints = np.zeros(room, dtype=np.int64)
        self.disk: Ints = np.zeros(room, dtype=np.int64)
        self.cpu_used: Ints = np.zeros(room, dtype=np.int64)
        self.memory_used: Ints = np.zeros(room, dtype=np.int64)
        self.disk_used: Ints = np.zeros(room, dtype=np.int64)
        self.count_most: Ints = np.zeros(room, dtype=np.int64)
        """How many allocations the node takes at most; 0: any number."""
        self.count: Ints = np.zeros(room, dtype=np.int64)

    @classmethod
    def from_snapshot(cls, snapshot: Replica) -> "Fleet":
        """As the state stands: for a new leader, and for tests."""
        fleet = cls()
        for node in snapshot.iter_all(NODES):
            fleet.set_node(node)
        for allocation in snapshot.iter_all(ALLOCATIONS):
            fleet.apply_change(None, allocation)
        for victim_id, kept in list(fleet.preempted_capacity.items()):
            if snapshot.get(ALLOCATIONS, kept.preemptor_id) is not None:
                del fleet.preempted_capacity[victim_id]
        return fleet

    def __len__(self) -> int:
        """Rows, those of nodes that are gone included."""
        return len(self.nodes)

    def get_node(self, row: int) -> Node:
        node = self.nodes[row]
        assert node is not None, f"row {row} has no node"
        return node

    @contextmanager
    def expect_placements(self, placements: Mapping[str, Sequence[Allocation]]) -> Iterator[None]:
        """For one piece of work that does not wait: drafts count this as if it stood."""
        self.expected_placements = placements
        try:
            yield
        finally:
            self.expected_placements = {}

    # -- nodes -----------------------------------------------------------------------------------------------------

    def set_node(self, node: Node, allocations: Iterable[Allocation] = ()) -> None:
        """A node that is different now, or new; `here`: what was put on it before it was known, or while it was gone."""
        self.node_revision += 1
        row = self.row_by_node_id.get(node.id)
        if row is None:
            row = self._new_row(node.id)
            for allocation in allocations:
                if allocation.is_occupying:
                    self._add(row, allocation, 1)
        before, self.nodes[row] = self.nodes[row], node
        room = get_node_capacity(node)
        self.cpu[row], self.memory[row], self.disk[row] = room.cpu, room.memory_mb, room.disk_mb
        self.count_most[row] = node.node_max_allocs
        self.is_ready[row] = node.is_ready_for_placements
        if before is None or not _describe_alike(before, node):
            self._describe(row, node)

    def _describe(self, row: int, node: Node) -> None:
        kind = self.kinds.encode_value(make_class_key(node))
        if kind == len(self.kind_examples):
            self.kind_examples.append(node)
        self.kind[row] = kind
        self.datacenter[row] = self.datacenters.encode_value(node.datacenter)
        self.pool[row] = self.pools.encode_value(node.node_pool)
        for column in self._properties.values():
            column.set_value(row, node)

    def remove_node(self, node_id: str) -> None:
        row = self.row_by_node_id.pop(node_id, None)
        if row is None:
            return
        self.node_revision += 1
        for column in (self.cpu, self.memory, self.disk, self.cpu_used, self.memory_used, self.disk_used, self.count):
            column[row] = 0
        self.is_ready[row] = False
        self.kind[row] = self.datacenter[row] = self.pool[row] = MISSING_CODE
        held = self.exclusive_resources.pop(row, None)
        if held is not None:
            self._note_ports(row, held.ports.elements(), -1)
        self.preempted_capacity = {key: kept for key, kept in self.preempted_capacity.items() if kept.row != row}
        self.nodes[row] = None
        self._free.append(row)

    def _new_row(self, node_id: str) -> int:
        if self._free:
            row = self._free.pop()
        else:
            row = len(self.nodes)
            self.nodes.append(None)
            if row == self._room:
                self._grow()
        self.row_by_node_id[node_id] = row
        return row

    def _grow(self) -> None:
        self._room *= 2
        for name in (
            "cpu",
            "memory",
            "disk",
            "cpu_used",
            "memory_used",
            "disk_used",
            "count",
            "count_most",
            "is_ready",
        ):
            setattr(self, name, grow_column(getattr(self, name), self._room))
        for name in ("kind", "datacenter", "pool"):
            setattr(self, name, grow_column(getattr(self, name), self._room, fill=MISSING_CODE))
        for column in self._properties.values():
            column.codes = grow_column(column.codes, self._room, fill=MISSING_CODE)

    def get_property_column(self, target: str) -> PropertyColumn:
        """The column of a target, made when it is first asked for."""
        column = self._properties.get(target)
        if column is None:
            column = PropertyColumn(target, self._room)
            for row, node in enumerate(self.nodes):
                if node is not None:
                    column.set_value(row, node)
            self._properties[target] = column
            if len(self._properties) > MAX_CACHED_PROPERTIES:
                self._properties.popitem(last=False)
        else:
            self._properties.move_to_end(target)
        return column

    # -- what occupies them ----------------------------------------------------------------------------------------

    def apply_change(self, before: Allocation | None, after: Allocation | None) -> None:
        """An allocation came, changed, or is gone. One on a node that is not known occupies nothing here."""
        if after is not None and (after.preempted_by_allocation or after.preempted_allocations):
            self._keep(after, has_ended_now=before is None or before.is_occupying)
        leaves = before is not None and before.is_occupying
        comes = after is not None and after.is_occupying
        if leaves and comes and _holds_alike(before, after):
            return
        for is_so, allocation, sign in ((leaves, before, -1), (comes, after, 1)):
            row = self.row_by_node_id.get(allocation.node_id) if is_so and allocation is not None else None
            if row is not None and allocation is not None:
                self._add(row, allocation, sign)

    def add_allocations(self, allocations: Iterable[Allocation]) -> None:
        """Many at once that are new and occupy their nodes: the columns are moved in one step."""
        by_node: dict[str, list[Allocation]] = {}
        for allocation in allocations:
            by_node.setdefault(allocation.node_id, []).append(allocation)
        came = self.sum_placements(by_node.items())
        # A node is there once, so no row is named twice.
        self.count[came.rows] += came.counts
        self.cpu_used[came.rows] += came.cpu
        self.memory_used[came.rows] += came.memory_mb
        self.disk_used[came.rows] += came.disk_mb
        for row in sorted(came.exclusive_rows):
            for allocation in by_node[self.get_node(row).id]:
                resources = allocation.allocated_resources
                if resources is not None and self.measure_resources(resources)[1]:
                    self._hold(row, resources, 1)

    def _keep(self, allocation: Allocation, *, has_ended_now: bool) -> None:
        for victim_id in allocation.preempted_allocations or ():
            self.preempted_capacity.pop(victim_id, None)
        row = self.row_by_node_id.get(allocation.node_id)
        is_over = has_ended_now and not allocation.is_occupying
        if allocation.preempted_by_allocation and is_over and row is not None:
            until_ns = allocation.modify_time + PREEMPTION_HOLD_NS
            self.preempted_capacity[allocation.id] = PreemptedCapacity(
                row, allocation, allocation.preempted_by_allocation, until_ns
            )
        # What is not asked for in time is forgotten, some time.
        for victim_id in [
            key for key, kept in self.preempted_capacity.items() if kept.expires_at_ns < allocation.modify_time
        ]:
            del self.preempted_capacity[victim_id]

    def _add(self, row: int, allocation: Allocation, sign: int) -> None:
        self.count[row] += sign
        resources = allocation.allocated_resources
        if resources is None:
            return
        usage, has_holdings = self.measure_resources(resources)
        self.cpu_used[row] += sign * usage.cpu
        self.memory_used[row] += sign * usage.memory_mb
        self.disk_used[row] += sign * usage.disk_mb
        if has_holdings:
            self._hold(row, resources, sign)

    def measure_resources(self, resources: AllocatedResources) -> tuple[Usage, bool]:
        """What it takes, and whether anything of it is held one by one. Siblings share the object, so it is asked once."""
        found = self._sizes.get(id(resources))
        if found is None:
            if len(self._sizes) >= MAX_CACHED_SIZES:
                self._sizes.clear()
            # The object is kept beside what is known of it, so that its id stays its own.
            found = self._sizes[id(resources)] = (
                resources,
                get_resources_usage(resources),
                has_exclusive_resources(resources),
            )
        return found[1], found[2]

    def _hold(self, row: int, resources: AllocatedResources, sign: int) -> None:
        held = self.exclusive_resources.get(row)
        if held is None:
            held = self.exclusive_resources[row] = ExclusiveResources()
        if sign > 0:
            held.add_resources(resources)
        else:
            held.remove_resources(resources)
        if held.is_empty:
            del self.exclusive_resources[row]
        self._note_ports(row, iter_ports(resources), sign)

    def _note_ports(self, row: int, ports: Iterable[PortKey], sign: int) -> None:
        for _address, port in ports:
            rows = self.port_holders.setdefault(port, {})
            rows[row] = rows.get(row, 0) + sign
            if rows[row] <= 0:
                del rows[row]
                if not rows:
                    del self.port_holders[port]

    # -- questions -------------------------------------------------------------------------------------------------

    def sum_placements(self, placements: Iterable[tuple[str, Sequence[Allocation]]]) -> PlacementAmounts:
        """What is placed on each node, added up. Nodes that are not known are left out."""
        rows: list[int] = []
        sums: list[tuple[int, int, int, int]] = []
        holding: list[int] = []
        for node_id, placed in placements:
            row = self.row_by_node_id.get(node_id)
            if row is None:
                continue
            cpu = memory_mb = disk_mb = 0
            for allocation in placed:
                if allocation.allocated_resources is not None:
                    usage, is_held = self.measure_resources(allocation.allocated_resources)
                    cpu, memory_mb, disk_mb = cpu + usage.cpu, memory_mb + usage.memory_mb, disk_mb + usage.disk_mb
                    if is_held:
                        holding.append(row)
            rows.append(row)
            sums.append((len(placed), cpu, memory_mb, disk_mb))
        columns = np.asarray(sums, dtype=np.int64).reshape(-1, 4)
        number, cpus, memories, disks = columns.T
        return PlacementAmounts(np.asarray(rows, dtype=np.int64), number, cpus, memories, disks, frozenset(holding))

    def get_usage(self, row: int) -> Usage:
        return Usage(int(self.cpu_used[row]), int(self.memory_used[row]), int(self.disk_used[row]))

    def iter_nodes(self) -> Iterator[tuple[int, Node]]:
        return ((row, node) for row, node in enumerate(self.nodes) if node is not None)


def _describe_alike(before: Node, after: Node) -> bool:
    """Nothing that tells kinds or properties apart differs. Heartbeats and events change nodes all the time."""
    return before is after or all(getattr(before, name) == getattr(after, name) for name in _DESCRIBING)


_DESCRIBING: Final = (
    "name", "datacenter", "node_class", "node_pool", "attributes", "meta", "drivers", "node_resources", "host_networks",
)  # fmt: skip


def _holds_alike(before: Allocation | None, after: Allocation | None) -> bool:
    if before is None or after is None or before.node_id != after.node_id:
        return False
    ours, theirs = before.allocated_resources, after.allocated_resources
    return ours is theirs or ours == theirs
