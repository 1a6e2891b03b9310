"""The constraints `distinct_hosts` and `distinct_property` within a job or group (scheduling.md 2.5)."""

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from wharf.cluster.scheduling.constraints import is_distinct_hosts_enabled, list_group_constraints
from wharf.cluster.scheduling.fleet.columns import Ints, Mask
from wharf.cluster.scheduling.fleet.fleet import MISSING_CODE, Fleet, PropertyColumn
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.jobs.constraints import Constraint, Operand
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job

DISTINCT_HOSTS_REASON: Final = "distinct_hosts"


class PlacedSibling:
    """An allocation of the same job that has a node: the fleet row of the node, and its group."""

    __slots__ = ("group", "row")

    def __init__(self, row: int, group: str) -> None:
        self.row = row
        self.group = group


def list_placed_siblings(allocations: Iterable[Allocation], row_by_node_id: Mapping[str, int]) -> list[PlacedSibling]:
    """Return the active allocations of a job on known nodes as placed siblings."""
    return [
        PlacedSibling(row_by_node_id[allocation.node_id], allocation.task_group)
        for allocation in allocations
        if not allocation.is_terminal and allocation.node_id in row_by_node_id
    ]


class DistinctConstraints:
    """Counts placed siblings and finds the nodes where one more would violate a distinct constraint."""

    def __init__(self, fleet: Fleet, job: Job, group: TaskGroup, *, should_check_hosts: bool) -> None:
        own = list_group_constraints(group)
        self._group = group.name
        self._hosts: list[tuple[bool, Ints]] = []
        self._properties: list[tuple[bool, _DistinctProperty]] = []
        for is_of_group, constraints in ((False, job.constraints or ()), (True, own)):
            if should_check_hosts and any(map(_is_distinct_hosts, constraints)):
                self._hosts.append((is_of_group, np.zeros(len(fleet), dtype=np.int64)))
            self._properties += [
                (is_of_group, _DistinctProperty(constraint, fleet.get_property_column(constraint.l_target)))
                for constraint in constraints
                if constraint.operand == Operand.DISTINCT_PROPERTY
            ]

    def __bool__(self) -> bool:
        return bool(self._hosts or self._properties)

    def count_siblings(self, siblings: Iterable[PlacedSibling], sign: int = 1) -> None:
        """Count these siblings, or with `sign=-1` remove them from the counts."""
        for sibling in siblings:
            is_same_group = sibling.group == self._group
            for is_of_group, counts_by_row in self._hosts:
                if is_same_group or not is_of_group:
                    counts_by_row[sibling.row] += sign
            for is_of_group, distinct in self._properties:
                if is_same_group or not is_of_group:
                    distinct.count(sibling.row, sign)

    def mask_allowed(self, rows: Ints) -> Mask:
        """Return which of the rows may take one more allocation."""
        allowed: Mask = np.ones(len(rows), dtype=np.bool_)
        for _, counts_by_row in self._hosts:
            allowed &= counts_by_row[rows] == 0
        for _, distinct in self._properties:
            allowed &= distinct.mask_allowed(rows)
        return allowed

    def explain_row(self, row: int) -> str:
        """Return the constraint that excludes this row, or an empty text."""
        if any(counts_by_row[row] for _, counts_by_row in self._hosts):
            return DISTINCT_HOSTS_REASON
        single_row = np.asarray([row])
        return next(
            (
                constraint.explain_row(row)
                for _, constraint in self._properties
                if not constraint.mask_allowed(single_row)[0]
            ),
            "",
        )


class _DistinctProperty:
    """One `distinct_property` constraint: how many allocations each value has, and how many it may have."""

    def __init__(self, constraint: Constraint, column: PropertyColumn) -> None:
        self._constraint = constraint
        self._column = column
        self._limit = int(constraint.r_target) if constraint.r_target.isdigit() else 1
        # The last entry stands for nodes without the property, which may never take an allocation.
        self._counts: Ints = np.zeros(len(column.values) + 1, dtype=np.int64)
        self._counts[MISSING_CODE] = self._limit

    def count(self, row: int, sign: int) -> None:
        """Count one more, or with `sign=-1` one fewer, allocation for the property value of the node in this row."""
        code = int(self._column.codes[row])
        if code != MISSING_CODE:
            self._counts[code] += sign

    def mask_allowed(self, rows: Ints) -> Mask:
        """Return which of the rows may take one more allocation."""
        mask: Mask = self._counts[self._column.codes[rows]] < self._limit
        return mask

    def explain_row(self, row: int) -> str:
        """Return why the row may not take one more allocation."""
        code = int(self._column.codes[row])
        if code == MISSING_CODE:
            return f'missing property "{self._constraint.l_target}"'
        value = self._column.values.values[code]
        return f"distinct_property: {self._constraint.l_target}={value} used by {self._counts[code]} allocs"


def _is_distinct_hosts(constraint: Constraint) -> bool:
    return constraint.operand == Operand.DISTINCT_HOSTS and is_distinct_hosts_enabled(constraint.r_target)
