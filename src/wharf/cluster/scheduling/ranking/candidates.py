"""The nodes that could run a group, as columns: what each would hold with one more allocation, and what it lacks for that.

It knows amounts, and what is held one by one where that can be told beforehand. How good a node is it does not know.
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
CORES_DIMENSION: Final = "cores"


class Candidates:
    """`rows` are of the fleet, in the order in which equals are taken; every other column goes by place in it."""

    def __init__(self, draft: FleetDraft, rows: Ints, grants: ResourceAssigner, demand: Usage) -> None:
        fleet = draft.fleet
        self.rows = rows
        self._draft = draft
        self._grants = grants
        self._demand = demand
        self._place_of_row: Ints = np.full(len(fleet), -1, dtype=np.int64)
        self._place_of_row[rows] = np.arange(len(rows))
        self.cpu, self.memory, self.disk = fleet.cpu[rows], fleet.memory[rows], fleet.disk[rows]
        self.count_most = fleet.count_most[rows]
        self._cpu_asked: Ints = np.full(len(rows), demand.cpu, dtype=np.int64)
        self.missing_dimensions: dict[int, str] = {}
        """By place: what the node has not got, of what only it could tell."""
        if grants.requested_cores:
            for at in range(len(rows)):
                self._ask_for_cores(at)
        # In place where that is possible: to clear the memory of new columns is half of what a small job's columns cost.
        self.cpu_after, self.memory_after, self.disk_after = (
            used[rows] for used in (draft.cpu_used, draft.memory_used, draft.disk_used)
        )
        self.cpu_after += self._cpu_asked
        self.memory_after += demand.memory_mb
        self.disk_after += demand.disk_mb
        self.free_slots: Ints = np.full(len(rows), UNLIMITED_COUNT, dtype=np.int64)
        if self.count_most.any():
            self.free_slots = np.where(self.count_most > 0, self.count_most - draft.count[rows], UNLIMITED_COUNT)
        self.has_capacity: Mask = self.cpu_after <= self.cpu
        self.has_capacity &= self.memory_after <= self.memory
        self.has_capacity &= self.disk_after <= self.disk
        self.has_capacity &= self.free_slots > 0
        for port in list_static_ports(grants.networks):
            self._rule_out_holders(port)

    def __len__(self) -> int:
        return len(self.rows)

    def find_position(self, row: int | None) -> int | None:
        """The place of a row of the fleet; None: it is no candidate."""
        if row is None or row >= len(self._place_of_row):
            return None
        place = int(self._place_of_row[row])
        return place if place >= 0 else None

    def refresh_node(self, at: int) -> None:
        """What stands on the node has changed."""
        row, demand, draft = int(self.rows[at]), self._demand, self._draft
        if self._grants.requested_cores:
            self._cpu_asked[at] = demand.cpu
            self._ask_for_cores(at)
        self.cpu_after[at] = draft.cpu_used[row] + self._cpu_asked[at]
        self.memory_after[at] = draft.memory_used[row] + demand.memory_mb
        self.disk_after[at] = draft.disk_used[row] + demand.disk_mb
        if self.count_most[at] > 0:
            self.free_slots[at] = self.count_most[at] - draft.count[row]
        self.has_capacity[at] = (
            self.cpu_after[at] <= self.cpu[at]
            and self.memory_after[at] <= self.memory[at]
            and self.disk_after[at] <= self.disk[at]
            and self.free_slots[at] > 0
        )

    def refresh_nodes(self, places: Ints) -> None:
        """The same of many at once, where amounts alone were asked for."""
        rows, demand, draft = self.rows[places], self._demand, self._draft
        self.cpu_after[places] = draft.cpu_used[rows] + self._cpu_asked[places]
        self.memory_after[places] = draft.memory_used[rows] + demand.memory_mb
        self.disk_after[places] = draft.disk_used[rows] + demand.disk_mb
        most = self.count_most[places]
        self.free_slots[places] = np.where(most > 0, most - draft.count[rows], UNLIMITED_COUNT)
        self.has_capacity[places] = (
            (self.cpu_after[places] <= self.cpu[places])
            & (self.memory_after[places] <= self.memory[places])
            & (self.disk_after[places] <= self.disk[places])
            & (self.free_slots[places] > 0)
        )

    def list_shortages(self) -> list[tuple[str, Mask]]:
        """What nodes have too little of, in the reference's order: the first that a node lacks is the one that counts."""
        told: dict[str, list[int]] = {}
        for at, dimension in self.missing_dimensions.items():
            told.setdefault(dimension, []).append(at)
        held = []
        for dimension, places in sorted(told.items(), key=lambda each: _order(each[0])):
            mask = np.zeros(len(self.rows), dtype=np.bool_)
            mask[places] = True
            held.append((dimension, mask))
        return [
            *held,
            ("cpu", self.cpu_after > self.cpu),
            ("memory", self.memory_after > self.memory),
            ("disk", self.disk_after > self.disk),
            ("max allocation exceeded", self.free_slots <= 0),
        ]

    def find_shortage(self, at: int) -> str:
        """The dimension in which this node has too little; empty: none."""
        return next((dimension for dimension, lacks in self.list_shortages() if lacks[at]), "")

    def _ask_for_cores(self, at: int) -> None:
        row = int(self.rows[at])
        node, held = self._draft.fleet.get_node(row), self._draft.get_exclusive_resources(row).cores
        free = [core for core in list_usable_cores(node) if core not in held]
        wanted = free[: self._grants.requested_cores]
        if len(wanted) < self._grants.requested_cores:
            self.missing_dimensions[at] = CORES_DIMENSION
        self._cpu_asked[at] += sum(get_core_mhz(node, core) for core in wanted)

    def _rule_out_holders(self, port: int) -> None:
        """A quick look that may leave a node in that has no such port free; whoever is chosen is asked exactly."""
        holders = list(self._draft.iter_rows_with_port(port))
        if not holders:
            return
        for at in np.flatnonzero(np.isin(self.rows, holders)):
            if not self._has_several_addresses(int(at)):
                why = f"network: reserved port collision {_label_of(self._grants.networks, port)}={port}"
                self.missing_dimensions.setdefault(int(at), why)

    def _has_several_addresses(self, at: int) -> bool:
        resources = self._draft.fleet.get_node(int(self.rows[at])).node_resources
        networks = (resources.node_networks if resources is not None else None) or ()
        return sum(len(network.addresses or ()) for network in networks) > 1


def _order(dimension: str) -> int:
    """Networks are looked at first, then devices, then cores."""
    return next((order for order, word in enumerate(("network", "devices")) if dimension.startswith(word)), 2)


def _label_of(networks: Sequence[NetworkResource], number: int) -> str:
    ports = (port for network in networks for port in network.reserved_ports or ())
    return next(port.label for port in ports if port.value == number)
