"""The constraints `distinct_hosts` and `distinct_property` within a job or group (scheduling.md 2.5).

`distinct_hosts` allows one allocation on each node. `distinct_property` limits the allocations on all nodes that have
the same value of an attribute together. Siblings are allocations of the same job.
"""

from collections.abc import Collection, Iterable, Mapping
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
"""The reason that metrics show for nodes that `distinct_hosts` excludes."""


class PlacedSibling:
    """An allocation of the evaluated job that has a node: the node's row in the fleet, and the name of its group."""

    __slots__ = ("group", "row")

    def __init__(self, row: int, group: str) -> None:
        self.row = row
        self.group = group


def list_placed_siblings(allocations: Iterable[Allocation], row_by_node_id: Mapping[str, int]) -> list[PlacedSibling]:
    """Return a `PlacedSibling` for each of the allocations that has not ended or stopped and whose node is known.

    `row_by_node_id` maps the ids of known nodes to their rows in the fleet.
    """
    return [
        PlacedSibling(row_by_node_id[allocation.node_id], allocation.task_group)
        for allocation in allocations
        if not allocation.is_terminal and allocation.node_id in row_by_node_id
    ]


class SiblingIndex:
    """The allocations of the evaluated job that have a node, by id, and by group in the order in which they were added."""

    def __init__(self) -> None:
        self._by_id: dict[str, PlacedSibling] = {}
        self._by_group: dict[str, dict[str, PlacedSibling]] = {}

    def add(self, allocation_id: str, sibling: PlacedSibling) -> None:
        """Add the allocation with this id, or replace its entry."""
        self._by_id[allocation_id] = sibling
        self._by_group.setdefault(sibling.group, {})[allocation_id] = sibling

    def remove(self, allocation_id: str) -> PlacedSibling | None:
        """Remove the allocation with this id and return its entry; `None` if it has none."""
        sibling = self._by_id.pop(allocation_id, None)
        if sibling is not None:
            self._by_group[sibling.group].pop(allocation_id, None)
        return sibling

    def list_all(self) -> Collection[PlacedSibling]:
        """Return the siblings of all groups."""
        return self._by_id.values()

    def list_group(self, group: str) -> Collection[PlacedSibling]:
        """Return the siblings of this group."""
        return self._by_group.get(group, {}).values()


def has_job_wide_constraints(job: Job) -> bool:
    """Return whether the job itself has a distinct constraint. It counts the allocations of all groups."""
    return any(
        _is_distinct_hosts(constraint) or constraint.operand == Operand.DISTINCT_PROPERTY
        for constraint in job.constraints or ()
    )


class DistinctConstraints:
    """Counts a job's allocations that have a node, and finds nodes where one more would violate a distinct constraint.

    The constraints are `distinct_hosts` and `distinct_property` of the job and of one group. Those of the job count all
    its allocations, those of the group only the group's own.
    """

    def __init__(self, fleet: Fleet, job: Job, group: TaskGroup, *, should_check_hosts: bool) -> None:
        group_constraints = list_group_constraints(group)
        self._group = group.name
        # For each constraint, whether it belongs to the group (else to the job), and its counts.
        self._hosts: list[tuple[bool, Ints]] = []
        self._properties: list[tuple[bool, _DistinctProperty]] = []
        for is_of_group, constraints in ((False, job.constraints or ()), (True, group_constraints)):
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
        """Add these allocations to the counts of the constraints that apply to them; with `sign=-1` subtract them."""
        for sibling in siblings:
            is_same_group = sibling.group == self._group
            for is_of_group, counts_by_row in self._hosts:
                if is_same_group or not is_of_group:
                    counts_by_row[sibling.row] += sign
            for is_of_group, distinct in self._properties:
                if is_same_group or not is_of_group:
                    distinct.count(sibling.row, sign)

    def mask_allowed(self, rows: Ints) -> Mask:
        """Return a mask of `rows` (fleet rows): which nodes may take one more allocation under all constraints."""
        allowed: Mask = np.ones(len(rows), dtype=np.bool_)
        for _, counts_by_row in self._hosts:
            allowed &= counts_by_row[rows] == 0
        for _, distinct in self._properties:
            allowed &= distinct.mask_allowed(rows)
        return allowed

    def explain_row(self, row: int) -> str:
        """Return the reason text of the constraint that excludes the node in this fleet row, or an empty text."""
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
    """One `distinct_property` constraint: it limits how many allocations each value of a node property may have.

    The property is the left side of the constraint, such as `${meta.rack}`. The right side is the limit, by
    default 1.
    """

    def __init__(self, constraint: Constraint, column: PropertyColumn) -> None:
        self._constraint = constraint
        self._column = column
        self._limit = int(constraint.r_target) if constraint.r_target.isdigit() else 1
        # Allocations by value code. The last entry, which the code -1 selects, is for nodes without the property. It
        # equals the limit, so they may never take an allocation.
        self._counts: Ints = np.zeros(len(column.values) + 1, dtype=np.int64)
        self._counts[MISSING_CODE] = self._limit

    def count(self, row: int, sign: int) -> None:
        """Count one more, or with `sign=-1` one fewer, allocation for the property value of the node in this row."""
        code = int(self._column.codes[row])
        if code != MISSING_CODE:
            self._counts[code] += sign

    def mask_allowed(self, rows: Ints) -> Mask:
        """Return a mask of `rows` (fleet rows): which nodes have a property value below the limit."""
        mask: Mask = self._counts[self._column.codes[rows]] < self._limit
        return mask

    def explain_row(self, row: int) -> str:
        """Return why the node in this fleet row may not take one more allocation: no property, or the limit is reached.

        Called only for nodes that may not.
        """
        code = int(self._column.codes[row])
        if code == MISSING_CODE:
            return f'missing property "{self._constraint.l_target}"'
        value = self._column.values.values[code]
        return f"distinct_property: {self._constraint.l_target}={value} used by {self._counts[code]} allocs"


def _is_distinct_hosts(constraint: Constraint) -> bool:
    """Return whether this is a `distinct_hosts` constraint that is not disabled by its right side."""
    return constraint.operand == Operand.DISTINCT_HOSTS and is_distinct_hosts_enabled(constraint.r_target)
