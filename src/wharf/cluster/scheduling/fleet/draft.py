"""The resource use of all nodes as one evaluation sees it: the fleet with the placements of the evaluation added.

Stops change nothing here, because an allocation uses its resources until its node reports that it has ended.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from wharf.cluster.scheduling.fleet.columns import Ints
from wharf.cluster.scheduling.fleet.fleet import Fleet
from wharf.cluster.scheduling.resources.assignment import get_core_mhz, list_usable_cores
from wharf.cluster.scheduling.resources.devices import list_instances_to_hold
from wharf.cluster.scheduling.resources.exclusive import ExclusiveResources, has_exclusive_resources, iter_ports
from wharf.contract.model.allocations.resources import AllocatedResources
from wharf.contract.model.jobs.resources import RequestedDevice
from wharf.contract.model.resource_usage import Usage, get_resources_usage


class FleetDraft:
    """A copy of the used resources of all nodes, to which one evaluation adds its placements.

    The fleet does not change.
    """

    def __init__(self, fleet: Fleet) -> None:
        rows = len(fleet)
        self.fleet = fleet
        self.cpu_used: Ints = fleet.cpu_used[:rows].copy()
        self.memory_used: Ints = fleet.memory_used[:rows].copy()
        self.disk_used: Ints = fleet.disk_used[:rows].copy()
        self.count: Ints = fleet.count[:rows].copy()  # The number of allocations in each row (node).
        self.changed_rows: list[int] = []
        """Rows in the order in which they were changed. Node selectors recompute the scores of these rows."""
        self.freed_rows: list[int] = []
        """Rows in the order in which resources were freed there. What a node selector found missing may exist again."""
        self.departure_count = 0
        """How many allocations of the job have left a node in this evaluation. Node selectors that found no node search
        again after a departure."""
        self._changed_exclusive: dict[int, ExclusiveResources] = {}
        """By row, ports, cores and devices in use, for rows where they differ from the fleet."""
        self._port_changes: Counter[tuple[int, int]] = Counter()
        """By (port, row), how many more uses of the port the draft has than the fleet."""
        if fleet.expected_placements:
            self._add_expected_placements()

    def _add_expected_placements(self) -> None:
        """Count the placements of another plan that the log commits at this moment."""
        fleet = self.fleet
        amounts = fleet.sum_placements(fleet.expected_placements.items())
        self.cpu_used[amounts.rows] += amounts.cpu
        self.memory_used[amounts.rows] += amounts.memory_mb
        self.disk_used[amounts.rows] += amounts.disk_mb
        self.count[amounts.rows] += amounts.counts
        for row in sorted(amounts.exclusive_rows):
            for allocation in fleet.expected_placements[fleet.get_node(row).id]:
                if allocation.allocated_resources is not None:
                    self._add_exclusive(row, allocation.allocated_resources)

    def add_allocation(self, row: int, resources: AllocatedResources, usage: Usage) -> None:
        """Count one allocation with these resources on the node in this row. `usage` is its CPU, memory and disk."""
        self._add(row, usage, 1)
        self._add_exclusive(row, resources)

    def add_amounts(self, rows: Ints, counts_by_row: Ints, usage: Usage) -> None:
        """Count several allocations that use only CPU, memory and disk: `counts_by_row[i]` of them in `rows[i]`.

        Each uses `usage`. No row may occur twice.
        """
        self.cpu_used[rows] += counts_by_row * usage.cpu
        self.memory_used[rows] += counts_by_row * usage.memory_mb
        self.disk_used[rows] += counts_by_row * usage.disk_mb
        self.count[rows] += counts_by_row
        self.changed_rows += rows.tolist()

    def _add_exclusive(self, row: int, resources: AllocatedResources) -> None:
        """Count the ports, cores and devices of one allocation as in use in the row, if it has any."""
        if has_exclusive_resources(resources):
            self.get_exclusive_resources(row, is_for_update=True).add_resources(resources)
            self._port_changes.update((port, row) for _address, port in iter_ports(resources))

    def reserve_capacity(self, row: int, usage: Usage, cores: int = 0, devices: Sequence[RequestedDevice] = ()) -> None:
        """Count resources of the row as used, because they are reserved for an allocation of another job.

        The row may then exceed the node's capacity, which excludes all placements on it. Of `cores` whole cores and of
        `devices`, those that are free now count as used. The MHz of all `cores` count as used.
        """
        if cores or devices:
            node, in_use = self.fleet.get_node(row), self.get_exclusive_resources(row, is_for_update=True)
            usable = list_usable_cores(node)
            usage += Usage(cpu=sum(get_core_mhz(node, core) for core in usable[:cores]))
            in_use.cores.update([core for core in usable if core not in in_use.cores][:cores])
            in_use.devices.update(list_instances_to_hold(node, devices, in_use))
        self._add(row, usage, 1)

    def remove_allocation(self, row: int, resources: AllocatedResources) -> None:
        """Stop counting an allocation with these resources in the row."""
        self.freed_rows.append(row)
        self._add(row, get_resources_usage(resources), -1)
        if has_exclusive_resources(resources):
            self.get_exclusive_resources(row, is_for_update=True).remove_resources(resources)
            self._port_changes.subtract((port, row) for _address, port in iter_ports(resources))

    def restore_allocation(self, row: int, resources: AllocatedResources) -> None:
        """Count an allocation in the row again that was removed before."""
        self.add_allocation(row, resources, get_resources_usage(resources))

    def _add(self, row: int, usage: Usage, sign: int) -> None:
        """Add the usage and one allocation to the row, or subtract both if `sign` is -1.

        Record that the row changed.
        """
        self.cpu_used[row] += sign * usage.cpu
        self.memory_used[row] += sign * usage.memory_mb
        self.disk_used[row] += sign * usage.disk_mb
        self.count[row] += sign
        self.changed_rows.append(row)

    def get_exclusive_resources(self, row: int, *, is_for_update: bool = False) -> ExclusiveResources:
        """Return the ports, cores and devices that are in use in the row.

        With `is_for_update`, return a copy that the draft may change. Otherwise the caller must not change it.
        """
        changed = self._changed_exclusive.get(row)
        if changed is None:
            fleet_resources = self.fleet.exclusive_resources.get(row)
            if not is_for_update:
                return fleet_resources if fleet_resources is not None else _NO_EXCLUSIVE
            changed = self._changed_exclusive[row] = (
                ExclusiveResources() if fleet_resources is None else fleet_resources.copy()
            )
        return changed

    def iter_rows_with_port(self, port: int) -> Iterator[int]:
        """Yield the rows where the port is in use on any address. A row may occur twice."""
        for row, count in self.fleet.port_holders.get(port, {}).items():
            if count + self._port_changes[(port, row)] > 0:
                yield row
        for (used_port, row), count in self._port_changes.items():
            if used_port == port and count > 0:
                yield row


_NO_EXCLUSIVE = ExclusiveResources()
