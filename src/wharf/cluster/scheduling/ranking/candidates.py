"""The feasible nodes of a group as columns: what each would use with one more allocation, and what it lacks for it.

Covers amounts, and static ports and cores as far as they can be checked in advance. Scores are computed elsewhere.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from wharf.cluster.scheduling.fleet.columns import Ints, Mask
from wharf.cluster.scheduling.fleet.draft import FleetDraft
from wharf.cluster.scheduling.resources.assignment import ResourceAssigner, get_core_mhz, list_usable_cores
from wharf.cluster.scheduling.resources.ports import list_static_ports
from wharf.cluster.scheduling.resources.usage import Usage
from wharf.contract.model.jobs.networks import NetworkResource

UNLIMITED_COUNT: Final = np.iinfo(np.int64).max
"""The free slots of a node without a limit on allocations."""
CORES_DIMENSION: Final = "cores"


class Candidates:
    """The candidate nodes of one group.

    `rows` holds rows of the fleet in the order that breaks ties. All other columns are indexed by the position in
    `rows`.
    """

    def __init__(self, draft: FleetDraft, rows: Ints, assigner: ResourceAssigner, demand: Usage) -> None:
        fleet = draft.fleet
        self.rows = rows
        self._draft = draft
        self._assigner = assigner
        self._demand = demand
        self._position_by_row: Ints = np.full(len(fleet), -1, dtype=np.int64)
        self._position_by_row[rows] = np.arange(len(rows))
        self.cpu, self.memory, self.disk = fleet.cpu[rows], fleet.memory[rows], fleet.disk[rows]
        self.max_allocations = fleet.max_allocations[rows]
        self._cpu_demand: Ints = np.full(len(rows), demand.cpu, dtype=np.int64)
        self.missing_dimensions: dict[int, str] = {}
        """By position, the dimension that the node lacks and that columns cannot show: ports, cores or devices."""
        if assigner.requested_cores:
            for position in range(len(rows)):
                self._add_core_demand(position)
        # Add in place: allocating new columns would be half of the cost for a small job.
        self.cpu_after, self.memory_after, self.disk_after = (
            used[rows] for used in (draft.cpu_used, draft.memory_used, draft.disk_used)
        )
        self.cpu_after += self._cpu_demand
        self.memory_after += demand.memory_mb
        self.disk_after += demand.disk_mb
        self.free_slots: Ints = np.full(len(rows), UNLIMITED_COUNT, dtype=np.int64)
        if self.max_allocations.any():
            self.free_slots = np.where(
                self.max_allocations > 0, self.max_allocations - draft.count[rows], UNLIMITED_COUNT
            )
        self.has_capacity: Mask = self.cpu_after <= self.cpu
        self.has_capacity &= self.memory_after <= self.memory
        self.has_capacity &= self.disk_after <= self.disk
        self.has_capacity &= self.free_slots > 0
        for port in list_static_ports(assigner.networks):
            self._exclude_port_holders(port)

    def __len__(self) -> int:
        return len(self.rows)

    def find_position(self, row: int | None) -> int | None:
        """Return the position of a row of the fleet, or `None` if the row is not a candidate."""
        if row is None or row >= len(self._position_by_row):
            return None
        position = int(self._position_by_row[row])
        return position if position >= 0 else None

    def refresh_node(self, position: int) -> None:
        """Compute the columns of one candidate again after its node changed."""
        row, demand, draft = int(self.rows[position]), self._demand, self._draft
        if self._assigner.requested_cores:
            self._cpu_demand[position] = demand.cpu
            self._add_core_demand(position)
        self.cpu_after[position] = draft.cpu_used[row] + self._cpu_demand[position]
        self.memory_after[position] = draft.memory_used[row] + demand.memory_mb
        self.disk_after[position] = draft.disk_used[row] + demand.disk_mb
        if self.max_allocations[position] > 0:
            self.free_slots[position] = self.max_allocations[position] - draft.count[row]
        self.has_capacity[position] = (
            self.cpu_after[position] <= self.cpu[position]
            and self.memory_after[position] <= self.memory[position]
            and self.disk_after[position] <= self.disk[position]
            and self.free_slots[position] > 0
        )

    def refresh_nodes(self, positions: Ints) -> None:
        """Compute the columns of many candidates again. Only for groups without cores."""
        rows, demand, draft = self.rows[positions], self._demand, self._draft
        self.cpu_after[positions] = draft.cpu_used[rows] + self._cpu_demand[positions]
        self.memory_after[positions] = draft.memory_used[rows] + demand.memory_mb
        self.disk_after[positions] = draft.disk_used[rows] + demand.disk_mb
        limits = self.max_allocations[positions]
        self.free_slots[positions] = np.where(limits > 0, limits - draft.count[rows], UNLIMITED_COUNT)
        self.has_capacity[positions] = (
            (self.cpu_after[positions] <= self.cpu[positions])
            & (self.memory_after[positions] <= self.memory[positions])
            & (self.disk_after[positions] <= self.disk[positions])
            & (self.free_slots[positions] > 0)
        )

    def list_shortages(self) -> list[tuple[str, Mask]]:
        """Return the dimensions that nodes lack, in Nomad's order.

        Metrics count a node under the first dimension that it lacks.
        """
        positions_by_dimension: dict[str, list[int]] = {}
        for position, dimension in self.missing_dimensions.items():
            positions_by_dimension.setdefault(dimension, []).append(position)
        exclusive_shortages = []
        for dimension, positions in sorted(
            positions_by_dimension.items(), key=lambda item: _get_dimension_order(item[0])
        ):
            mask = np.zeros(len(self.rows), dtype=np.bool_)
            mask[positions] = True
            exclusive_shortages.append((dimension, mask))
        return [
            *exclusive_shortages,
            ("cpu", self.cpu_after > self.cpu),
            ("memory", self.memory_after > self.memory),
            ("disk", self.disk_after > self.disk),
            ("max allocation exceeded", self.free_slots <= 0),
        ]

    def find_shortage(self, position: int) -> str:
        """Return the first dimension that the candidate lacks, or an empty text."""
        return next((dimension for dimension, is_short in self.list_shortages() if is_short[position]), "")

    def _add_core_demand(self, position: int) -> None:
        """Add the speed of the cores that the group would get, or record that the node has too few free cores."""
        row = int(self.rows[position])
        node, used = self._draft.fleet.get_node(row), self._draft.get_exclusive_resources(row).cores
        free = [core for core in list_usable_cores(node) if core not in used]
        chosen = free[: self._assigner.requested_cores]
        if len(chosen) < self._assigner.requested_cores:
            self.missing_dimensions[position] = CORES_DIMENSION
        self._cpu_demand[position] += sum(get_core_mhz(node, core) for core in chosen)

    def _exclude_port_holders(self, port: int) -> None:
        """Exclude nodes where the static port is in use.

        This check may keep a node whose port is not free. The exact check follows when the node is chosen.
        """
        holders = list(self._draft.iter_rows_with_port(port))
        if not holders:
            return
        for position in np.flatnonzero(np.isin(self.rows, holders)):
            if not self._has_several_addresses(int(position)):
                dimension = f"network: reserved port collision {_find_port_label(self._assigner.networks, port)}={port}"
                self.missing_dimensions.setdefault(int(position), dimension)

    def _has_several_addresses(self, position: int) -> bool:
        resources = self._draft.fleet.get_node(int(self.rows[position])).node_resources
        networks = (resources.node_networks if resources is not None else None) or ()
        return sum(len(network.addresses or ()) for network in networks) > 1


def _get_dimension_order(dimension: str) -> int:
    """Return the sort key of a dimension: networks first, then devices, then cores."""
    return next((order for order, word in enumerate(("network", "devices")) if dimension.startswith(word)), 2)


def _find_port_label(networks: Sequence[NetworkResource], number: int) -> str:
    ports = (port for network in networks for port in network.reserved_ports or ())
    return next(port.label for port in ports if port.value == number)
