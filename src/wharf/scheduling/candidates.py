"""The nodes that could run a group, as columns: what each would hold with one more allocation, and what it lacks for that.

It knows amounts, and what is held one by one where that can be told beforehand. How good a node is it does not know.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from wharf.model.network import NetworkResource
from wharf.scheduling.columns import Ints, Mask
from wharf.scheduling.draft import Draft
from wharf.scheduling.granting import Grants, core_mhz, usable_cores
from wharf.scheduling.ports import static_ports
from wharf.scheduling.usage import Usage

UNBOUNDED: Final = np.iinfo(np.int64).max
CORES: Final = "cores"


class Candidates:
    """`rows` are of the fleet, in the order in which equals are taken; every other column goes by place in it."""

    def __init__(self, draft: Draft, rows: Ints, grants: Grants, demand: Usage) -> None:
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
        self.lacking: dict[int, str] = {}
        """By place: what the node has not got, of what only it could tell."""
        if grants.cores_asked:
            for at in range(len(rows)):
                self._ask_for_cores(at)
        # In place where that is possible: to clear the memory of new columns is half of what a small job's columns cost.
        self.cpu_with, self.memory_with, self.disk_with = (
            used[rows] for used in (draft.cpu_used, draft.memory_used, draft.disk_used)
        )
        self.cpu_with += self._cpu_asked
        self.memory_with += demand.memory_mb
        self.disk_with += demand.disk_mb
        self.count_room: Ints = np.full(len(rows), UNBOUNDED, dtype=np.int64)
        if self.count_most.any():
            self.count_room = np.where(self.count_most > 0, self.count_most - draft.count[rows], UNBOUNDED)
        self.has_room: Mask = self.cpu_with <= self.cpu
        self.has_room &= self.memory_with <= self.memory
        self.has_room &= self.disk_with <= self.disk
        self.has_room &= self.count_room > 0
        for port in static_ports(grants.networks):
            self._rule_out_holders(port)

    def __len__(self) -> int:
        return len(self.rows)

    def at(self, row: int | None) -> int | None:
        """The place of a row of the fleet; None: it is no candidate."""
        if row is None or row >= len(self._place_of_row):
            return None
        place = int(self._place_of_row[row])
        return place if place >= 0 else None

    def look_again(self, at: int) -> None:
        """What stands on the node has changed."""
        row, demand, draft = int(self.rows[at]), self._demand, self._draft
        if self._grants.cores_asked:
            self._cpu_asked[at] = demand.cpu
            self._ask_for_cores(at)
        self.cpu_with[at] = draft.cpu_used[row] + self._cpu_asked[at]
        self.memory_with[at] = draft.memory_used[row] + demand.memory_mb
        self.disk_with[at] = draft.disk_used[row] + demand.disk_mb
        if self.count_most[at] > 0:
            self.count_room[at] = self.count_most[at] - draft.count[row]
        self.has_room[at] = (
            self.cpu_with[at] <= self.cpu[at]
            and self.memory_with[at] <= self.memory[at]
            and self.disk_with[at] <= self.disk[at]
            and self.count_room[at] > 0
        )

    def look_again_at(self, places: Ints) -> None:
        """The same of many at once, where amounts alone were asked for."""
        rows, demand, draft = self.rows[places], self._demand, self._draft
        self.cpu_with[places] = draft.cpu_used[rows] + self._cpu_asked[places]
        self.memory_with[places] = draft.memory_used[rows] + demand.memory_mb
        self.disk_with[places] = draft.disk_used[rows] + demand.disk_mb
        most = self.count_most[places]
        self.count_room[places] = np.where(most > 0, most - draft.count[rows], UNBOUNDED)
        self.has_room[places] = (
            (self.cpu_with[places] <= self.cpu[places])
            & (self.memory_with[places] <= self.memory[places])
            & (self.disk_with[places] <= self.disk[places])
            & (self.count_room[places] > 0)
        )

    def exhausted(self) -> list[tuple[str, Mask]]:
        """What nodes have too little of, in the reference's order: the first that a node lacks is the one that counts."""
        told: dict[str, list[int]] = {}
        for at, dimension in self.lacking.items():
            told.setdefault(dimension, []).append(at)
        held = []
        for dimension, places in sorted(told.items(), key=lambda each: _order(each[0])):
            mask = np.zeros(len(self.rows), dtype=np.bool_)
            mask[places] = True
            held.append((dimension, mask))
        return [
            *held,
            ("cpu", self.cpu_with > self.cpu),
            ("memory", self.memory_with > self.memory),
            ("disk", self.disk_with > self.disk),
            ("max allocation exceeded", self.count_room <= 0),
        ]

    def lack(self, at: int) -> str:
        """The dimension in which this node has too little; empty: none."""
        return next((dimension for dimension, lacks in self.exhausted() if lacks[at]), "")

    def _ask_for_cores(self, at: int) -> None:
        row = int(self.rows[at])
        node, held = self._draft.fleet.node(row), self._draft.holdings_of(row).cores
        free = [core for core in usable_cores(node) if core not in held]
        wanted = free[: self._grants.cores_asked]
        if len(wanted) < self._grants.cores_asked:
            self.lacking[at] = CORES
        self._cpu_asked[at] += sum(core_mhz(node, core) for core in wanted)

    def _rule_out_holders(self, port: int) -> None:
        """A quick look that may leave a node in that has no such port free; whoever is chosen is asked exactly."""
        holders = list(self._draft.rows_holding_port(port))
        if not holders:
            return
        for at in np.flatnonzero(np.isin(self.rows, holders)):
            if not self._has_several_addresses(int(at)):
                why = f"network: reserved port collision {_label_of(self._grants.networks, port)}={port}"
                self.lacking.setdefault(int(at), why)

    def _has_several_addresses(self, at: int) -> bool:
        resources = self._draft.fleet.node(int(self.rows[at])).node_resources
        networks = (resources.node_networks if resources is not None else None) or ()
        return sum(len(network.addresses or ()) for network in networks) > 1


def _order(dimension: str) -> int:
    """Networks are looked at first, then devices, then cores."""
    return next((order for order, word in enumerate(("network", "devices")) if dimension.startswith(word)), 2)


def _label_of(networks: Sequence[NetworkResource], number: int) -> str:
    ports = (port for network in networks for port in network.reserved_ports or ())
    return next(port.label for port in ports if port.value == number)
