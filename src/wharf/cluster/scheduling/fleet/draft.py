"""What the nodes would hold if the plan so far were carried out: the fleet with the plan's own changes on top.

What is to be stopped goes on holding its place until its node says that it has ended, so stops change nothing here.
"""

from collections import Counter
from collections.abc import Iterator

from wharf.cluster.scheduling.fleet.columns import Ints
from wharf.cluster.scheduling.fleet.fleet import Fleet
from wharf.cluster.scheduling.resources.exclusive import ExclusiveResources, has_exclusive_resources, iter_ports
from wharf.cluster.scheduling.resources.usage import Usage, get_resources_usage
from wharf.contract.model.allocations.resources import AllocatedResources


class FleetDraft:
    """One evaluation's view. `given_back` and `take` change it; the fleet itself stays as it is."""

    def __init__(self, fleet: Fleet) -> None:
        rows = len(fleet)
        self.fleet = fleet
        self.cpu_used: Ints = fleet.cpu_used[:rows].copy()
        self.memory_used: Ints = fleet.memory_used[:rows].copy()
        self.disk_used: Ints = fleet.disk_used[:rows].copy()
        self.count: Ints = fleet.count[:rows].copy()
        self.changed_rows: list[int] = []
        """Rows in the order in which they were changed, so that whoever looked before can look again."""
        self._holdings: dict[int, ExclusiveResources] = {}
        self._ports_taken: Counter[tuple[int, int]] = Counter()
        if fleet.expected_placements:
            self._expect()

    def _expect(self) -> None:
        """What is on its way stands here already."""
        fleet = self.fleet
        asked = fleet.sum_placements(fleet.expected_placements.items())
        self.cpu_used[asked.rows] += asked.cpu
        self.memory_used[asked.rows] += asked.memory_mb
        self.disk_used[asked.rows] += asked.disk_mb
        self.count[asked.rows] += asked.counts
        for row in sorted(asked.exclusive_rows):
            for allocation in fleet.expected_placements[fleet.get_node(row).id]:
                if allocation.allocated_resources is not None:
                    self._hold(row, allocation.allocated_resources)

    def add_allocation(self, row: int, resources: AllocatedResources, usage: Usage) -> None:
        self._add(row, usage, 1)
        self._hold(row, resources)

    def add_amounts(self, rows: Ints, numbers: Ints, usage: Usage) -> None:
        """On each of the rows so many that take these amounts each, and nothing that is held one by one."""
        self.cpu_used[rows] += numbers * usage.cpu
        self.memory_used[rows] += numbers * usage.memory_mb
        self.disk_used[rows] += numbers * usage.disk_mb
        self.count[rows] += numbers
        self.changed_rows += rows.tolist()

    def _hold(self, row: int, resources: AllocatedResources) -> None:
        if has_exclusive_resources(resources):
            self.get_exclusive_resources(row, is_for_update=True).add_resources(resources)
            self._ports_taken.update((port, row) for _address, port in iter_ports(resources))

    def reserve_capacity(self, row: int, usage: Usage) -> None:
        """Room that is for somebody else. The node may come to hold more than it has: then there is room for nobody."""
        self._add(row, usage, 1)

    def remove_allocation(self, row: int, resources: AllocatedResources) -> None:
        self._add(row, get_resources_usage(resources), -1)
        if has_exclusive_resources(resources):
            self.get_exclusive_resources(row, is_for_update=True).remove_resources(resources)
            self._ports_taken.subtract((port, row) for _address, port in iter_ports(resources))

    def restore_allocation(self, row: int, resources: AllocatedResources) -> None:
        """Undo `give_back`."""
        self.add_allocation(row, resources, get_resources_usage(resources))

    def _add(self, row: int, usage: Usage, sign: int) -> None:
        self.cpu_used[row] += sign * usage.cpu
        self.memory_used[row] += sign * usage.memory_mb
        self.disk_used[row] += sign * usage.disk_mb
        self.count[row] += sign
        self.changed_rows.append(row)

    def get_exclusive_resources(self, row: int, *, is_for_update: bool = False) -> ExclusiveResources:
        held = self._holdings.get(row)
        if held is None:
            standing = self.fleet.exclusive_resources.get(row)
            if not is_for_update:
                return standing if standing is not None else _NOTHING
            held = self._holdings[row] = ExclusiveResources() if standing is None else standing.copy()
        return held

    def iter_rows_with_port(self, port: int) -> Iterator[int]:
        """Where the port is held on some address."""
        for row, number in self.fleet.port_holders.get(port, {}).items():
            if number + self._ports_taken[(port, row)] > 0:
                yield row
        for (taken, row), number in self._ports_taken.items():
            if taken == port and number > 0:
                yield row


_NOTHING = ExclusiveResources()
