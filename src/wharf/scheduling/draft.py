"""What the nodes would hold if the plan so far were carried out: the fleet with the plan's own changes on top.

What is to be stopped goes on holding its place until its node says that it has ended, so stops change nothing here.
"""

from collections import Counter
from collections.abc import Iterator

from wharf.model.allocated_resources import AllocatedResources
from wharf.scheduling.columns import Ints
from wharf.scheduling.fleet import Fleet
from wharf.scheduling.holdings import Holdings, holds_anything, ports_in
from wharf.scheduling.usage import Usage, usage_of_resources


class Draft:
    """One evaluation's view. `given_back` and `take` change it; the fleet itself stays as it is."""

    def __init__(self, fleet: Fleet) -> None:
        rows = len(fleet)
        self.fleet = fleet
        self.cpu_used: Ints = fleet.cpu_used[:rows].copy()
        self.memory_used: Ints = fleet.memory_used[:rows].copy()
        self.disk_used: Ints = fleet.disk_used[:rows].copy()
        self.count: Ints = fleet.count[:rows].copy()
        self.touched: list[int] = []
        """Rows in the order in which they were changed, so that whoever looked before can look again."""
        self._holdings: dict[int, Holdings] = {}
        self._ports_taken: Counter[tuple[int, int]] = Counter()
        if fleet.expected:
            self._expect()

    def _expect(self) -> None:
        """What is on its way stands here already."""
        fleet = self.fleet
        asked = fleet.amounts(fleet.expected.items())
        self.cpu_used[asked.rows] += asked.cpu
        self.memory_used[asked.rows] += asked.memory_mb
        self.disk_used[asked.rows] += asked.disk_mb
        self.count[asked.rows] += asked.number
        for row in sorted(asked.holding):
            for allocation in fleet.expected[fleet.node(row).id]:
                if allocation.allocated_resources is not None:
                    self._hold(row, allocation.allocated_resources)

    def take(self, row: int, resources: AllocatedResources, usage: Usage) -> None:
        self._add(row, usage, 1)
        self._hold(row, resources)

    def take_amounts(self, rows: Ints, numbers: Ints, usage: Usage) -> None:
        """On each of the rows so many that take these amounts each, and nothing that is held one by one."""
        self.cpu_used[rows] += numbers * usage.cpu
        self.memory_used[rows] += numbers * usage.memory_mb
        self.disk_used[rows] += numbers * usage.disk_mb
        self.count[rows] += numbers
        self.touched += rows.tolist()

    def _hold(self, row: int, resources: AllocatedResources) -> None:
        if holds_anything(resources):
            self.holdings_of(row, to_change=True).take(resources)
            self._ports_taken.update((port, row) for _address, port in ports_in(resources))

    def keep(self, row: int, usage: Usage) -> None:
        """Room that is for somebody else. The node may come to hold more than it has: then there is room for nobody."""
        self._add(row, usage, 1)

    def give_back(self, row: int, resources: AllocatedResources) -> None:
        self._add(row, usage_of_resources(resources), -1)
        if holds_anything(resources):
            self.holdings_of(row, to_change=True).give_back(resources)
            self._ports_taken.subtract((port, row) for _address, port in ports_in(resources))

    def hold_again(self, row: int, resources: AllocatedResources) -> None:
        """Undo `give_back`."""
        self.take(row, resources, usage_of_resources(resources))

    def _add(self, row: int, usage: Usage, sign: int) -> None:
        self.cpu_used[row] += sign * usage.cpu
        self.memory_used[row] += sign * usage.memory_mb
        self.disk_used[row] += sign * usage.disk_mb
        self.count[row] += sign
        self.touched.append(row)

    def holdings_of(self, row: int, *, to_change: bool = False) -> Holdings:
        held = self._holdings.get(row)
        if held is None:
            standing = self.fleet.holdings.get(row)
            if not to_change:
                return standing if standing is not None else _NOTHING
            held = self._holdings[row] = Holdings() if standing is None else standing.copy()
        return held

    def rows_holding_port(self, port: int) -> Iterator[int]:
        """Where the port is held on some address."""
        for row, number in self.fleet.holders_of_port.get(port, {}).items():
            if number + self._ports_taken[(port, row)] > 0:
                yield row
        for (taken, row), number in self._ports_taken.items():
            if taken == port and number > 0:
                yield row


_NOTHING = Holdings()
