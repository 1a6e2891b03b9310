"""The feasible nodes of a group as columns: what each would use with one more allocation, and what it lacks for it.

Covers CPU, memory, disk and the limit on allocations, and static ports and cores as far as they can be checked before a
node is chosen. Scores are computed in `score_columns`.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from wharf.cluster.scheduling.fleet.columns import Ints, Mask
from wharf.cluster.scheduling.fleet.draft import FleetDraft
from wharf.cluster.scheduling.resources.assignment import ResourceAssigner, get_core_mhz, list_usable_cores
from wharf.cluster.scheduling.resources.ports import list_static_ports
from wharf.contract.model.jobs.networks import NetworkResource
from wharf.contract.model.resource_usage import Usage

UNLIMITED_COUNT: Final = np.iinfo(np.int64).max
"""The `allocations_left` of a node whose number of allocations is not limited."""
CORES_DIMENSION: Final = "cores"
"""The dimension of a node with too few free cores, as metrics show it."""


class Candidates:
    """The feasible nodes of one group as columns: numpy arrays with one entry for each node.

    The index into all columns is the node's position. Of nodes with equal scores, the one with the lowest position is
    chosen. CPU is in MHz, memory and disk are in MB.
    """

    def __init__(self, draft: FleetDraft, rows: Ints, assigner: ResourceAssigner, demand: Usage) -> None:
        """`draft` holds the resources in use.

        `demand` is what one allocation uses, without the MHz of reserved cores.
        """
        fleet = draft.fleet
        self.rows = rows
        """By position, the row of the node in the fleet."""
        self._draft = draft
        self._assigner = assigner
        self._demand = demand
        self._position_by_row: Ints = np.full(len(fleet), -1, dtype=np.int64)
        self._position_by_row[rows] = np.arange(len(rows))
        """By fleet row, the candidate position, or -1 for nodes that are not candidates."""
        self.cpu, self.memory, self.disk = fleet.cpu[rows], fleet.memory[rows], fleet.disk[rows]
        self.max_allocations = fleet.max_allocations[rows]
        """By position, how many allocations the node accepts. 0: no limit."""
        self._cpu_demand: Ints = np.full(len(rows), demand.cpu, dtype=np.int64)
        """By position, the CPU that one more allocation would use there, with the MHz of reserved cores."""
        self.missing_dimensions: dict[int, str] = {}
        """By position, what the node lacks apart from the amounts in the columns: ports, cores or devices.

        The text is the dimension that metrics show, such as `cores` or `network: reserved port collision http=80`.
        """
        if assigner.requested_cores:
            for position in range(len(rows)):
                self._add_core_demand(position)
        # The CPU, memory and disk in use with one more allocation of the group.
        # Add in place: allocating new columns would be half of the cost for a small job.
        self.cpu_after, self.memory_after, self.disk_after = (
            used[rows] for used in (draft.cpu_used, draft.memory_used, draft.disk_used)
        )
        self.cpu_after += self._cpu_demand
        self.memory_after += demand.memory_mb
        self.disk_after += demand.disk_mb
        self.allocations_left: Ints = np.full(len(rows), UNLIMITED_COUNT, dtype=np.int64)
        if self.max_allocations.any():
            self.allocations_left = np.where(
                self.max_allocations > 0, self.max_allocations - draft.count[rows], UNLIMITED_COUNT
            )
        """By position, how many more allocations the node's limit admits."""
        self.has_capacity: Mask = self.cpu_after <= self.cpu
        """By position, whether CPU, memory, disk and the limit on allocations admit one more allocation."""
        self.has_capacity &= self.memory_after <= self.memory
        self.has_capacity &= self.disk_after <= self.disk
        self.has_capacity &= self.allocations_left > 0
        for port in list_static_ports(assigner.networks):
            self._exclude_port_holders(port)

    def __len__(self) -> int:
        return len(self.rows)

    def find_position(self, row: int | None) -> int | None:
        """Return the candidate position of the node in this row of the fleet, or `None` if it is not a candidate.

        `row` is `None` for a node that the fleet does not know.
        """
        if row is None or row >= len(self._position_by_row):
            return None
        position = int(self._position_by_row[row])
        return position if position >= 0 else None

    def refresh_node(self, position: int) -> None:
        """Recompute the columns of the candidate at this position after the resources in use on its node changed.

        It does not clear an entry in `missing_dimensions`; `clear_missing_dimension` does.
        """
        row, demand, draft = int(self.rows[position]), self._demand, self._draft
        if self._assigner.requested_cores:
            self._cpu_demand[position] = demand.cpu
            self._add_core_demand(position)
        self.cpu_after[position] = draft.cpu_used[row] + self._cpu_demand[position]
        self.memory_after[position] = draft.memory_used[row] + demand.memory_mb
        self.disk_after[position] = draft.disk_used[row] + demand.disk_mb
        if self.max_allocations[position] > 0:
            self.allocations_left[position] = self.max_allocations[position] - draft.count[row]
        self.has_capacity[position] = (
            self.cpu_after[position] <= self.cpu[position]
            and self.memory_after[position] <= self.memory[position]
            and self.disk_after[position] <= self.disk[position]
            and self.allocations_left[position] > 0
        )

    def clear_missing_dimension(self, position: int) -> None:
        """Delete what was recorded as missing on the node of this candidate, because resources were freed there.

        The next attempt to assign resources on the node records it again if it is still missing.
        """
        self.missing_dimensions.pop(position, None)

    def refresh_nodes(self, positions: Ints) -> None:
        """Recompute the columns of many candidates after the resources in use on their nodes changed.

        Only for groups that reserve no cores: the CPU demand of each node is not recomputed.
        """
        rows, demand, draft = self.rows[positions], self._demand, self._draft
        self.cpu_after[positions] = draft.cpu_used[rows] + self._cpu_demand[positions]
        self.memory_after[positions] = draft.memory_used[rows] + demand.memory_mb
        self.disk_after[positions] = draft.disk_used[rows] + demand.disk_mb
        limits = self.max_allocations[positions]
        self.allocations_left[positions] = np.where(limits > 0, limits - draft.count[rows], UNLIMITED_COUNT)
        self.has_capacity[positions] = (
            (self.cpu_after[positions] <= self.cpu[positions])
            & (self.memory_after[positions] <= self.memory[positions])
            & (self.disk_after[positions] <= self.disk[positions])
            & (self.allocations_left[positions] > 0)
        )

    def list_shortages(self) -> list[tuple[str, Mask]]:
        """Return each dimension with the mask of the candidates that lack it for one more allocation.

        A dimension is a text such as `cpu`, `cores` or `network: reserved port collision http=80`. The order is
        Nomad's: networks, devices, cores, CPU, memory, disk, limit on allocations. Metrics count a node under the first
        dimension that it lacks.
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
            ("max allocation exceeded", self.allocations_left <= 0),
        ]

    def find_shortage(self, position: int) -> str:
        """Return the first dimension that the candidate lacks for one more allocation, such as `cpu` or `cores`.

        The text is empty if the candidate lacks nothing.
        """
        return next((dimension for dimension, is_short in self.list_shortages() if is_short[position]), "")

    def _add_core_demand(self, position: int) -> None:
        """Add the MHz of the cores that one more allocation would reserve to the CPU demand of this candidate.

        If too few cores are free, also record `cores` as the dimension that the node lacks.
        """
        row = int(self.rows[position])
        node, used = self._draft.fleet.get_node(row), self._draft.get_exclusive_resources(row).cores
        free = [core for core in list_usable_cores(node) if core not in used]
        chosen = free[: self._assigner.requested_cores]
        if len(chosen) < self._assigner.requested_cores:
            self.missing_dimensions[position] = CORES_DIMENSION
        self._cpu_demand[position] += sum(get_core_mhz(node, core) for core in chosen)

    def _exclude_port_holders(self, port: int) -> None:
        """Record a port collision as missing dimension for nodes with one address on which this static port is in use.

        A node with several addresses remains, because the port may be free on another address. The exact check follows
        when the node is chosen.
        """
        holders = list(self._draft.iter_rows_with_port(port))
        if not holders:
            return
        for position in np.flatnonzero(np.isin(self.rows, holders)):
            if not self._has_several_addresses(int(position)):
                dimension = f"network: reserved port collision {_find_port_label(self._assigner.networks, port)}={port}"
                self.missing_dimensions.setdefault(int(position), dimension)

    def _has_several_addresses(self, position: int) -> bool:
        """Return whether the networks of the candidate's node have more than one IP address in total."""
        resources = self._draft.fleet.get_node(int(self.rows[position])).node_resources
        networks = (resources.node_networks if resources is not None else None) or ()
        return sum(len(network.addresses or ()) for network in networks) > 1


def _get_dimension_order(dimension: str) -> int:
    """Return the sort key of a missing dimension: 0 for networks, 1 for devices, 2 for all others, such as cores."""
    return next((order for order, word in enumerate(("network", "devices")) if dimension.startswith(word)), 2)


def _find_port_label(networks: Sequence[NetworkResource], number: int) -> str:
    """Return the label of the static port with this number. One of the networks must request the port."""
    ports = (port for network in networks for port in network.reserved_ports or ())
    return next(port.label for port in ports if port.value == number)
