"""What must differ between the allocations of a job or a group: their hosts, or a property of those (scheduling.md 2.5)."""

from collections.abc import Iterable
from typing import Final

import numpy as np

from wharf.cluster.scheduling.constraints import is_distinct_hosts_enabled
from wharf.cluster.scheduling.fleet.columns import Ints, Mask
from wharf.cluster.scheduling.fleet.fleet import MISSING_CODE, Fleet, PropertyColumn
from wharf.contract.model.jobs.constraints import Constraint, Operand
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job

DISTINCT_HOSTS_REASON: Final = "distinct_hosts"


class PlacedSibling:
    """Where another allocation of the job stands: the row of its node, and its group."""

    __slots__ = ("group", "row")

    def __init__(self, row: int, group: str) -> None:
        self.row = row
        self.group = group


class DistinctConstraints:
    """Counts the neighbours, and says where one more would be too many. `hosts`: whether distinct hosts are looked at."""

    def __init__(self, fleet: Fleet, job: Job, group: TaskGroup, *, should_check_hosts: bool) -> None:
        own = [*(group.constraints or ()), *(c for task in group.tasks or () for c in task.constraints or ())]
        self._group = group.name
        self._hosts: list[tuple[bool, Ints]] = []
        self._properties: list[tuple[bool, _Property]] = []
        for is_of_group, constraints in ((False, job.constraints or ()), (True, own)):
            if should_check_hosts and any(map(_wants_distinct_hosts, constraints)):
                self._hosts.append((is_of_group, np.zeros(len(fleet), dtype=np.int64)))
            self._properties += [
                (is_of_group, _Property(each, fleet.get_property_column(each.l_target)))
                for each in constraints
                if each.operand == Operand.DISTINCT_PROPERTY
            ]

    def __bool__(self) -> bool:
        return bool(self._hosts or self._properties)

    def count_siblings(self, neighbours: Iterable[PlacedSibling], sign: int = 1) -> None:
        for neighbour in neighbours:
            is_sibling = neighbour.group == self._group
            for is_of_group, by_row in self._hosts:
                if is_sibling or not is_of_group:
                    by_row[neighbour.row] += sign
            for is_of_group, distinct in self._properties:
                if is_sibling or not is_of_group:
                    distinct.count(neighbour.row, sign)

    def mask_allowed(self, rows: Ints) -> Mask:
        """Which of the rows may take one more."""
        allowed: Mask = np.ones(len(rows), dtype=np.bool_)
        for _, by_row in self._hosts:
            allowed &= by_row[rows] == 0
        for _, distinct in self._properties:
            allowed &= distinct.may_take(rows)
        return allowed

    def explain_row(self, row: int) -> str:
        """Why this one may not; empty: it may."""
        if any(by_row[row] for _, by_row in self._hosts):
            return DISTINCT_HOSTS_REASON
        one = np.asarray([row])
        return next((each.reason(row) for _, each in self._properties if not each.may_take(one)[0]), "")


class _Property:
    """How many allocations each value of the property has, and may have."""

    def __init__(self, constraint: Constraint, column: PropertyColumn) -> None:
        self._constraint = constraint
        self._column = column
        self._allowed = int(constraint.r_target) if constraint.r_target.isdigit() else 1
        # The last stands for nodes that do not have the property: none of them has room.
        self._used: Ints = np.zeros(len(column.words) + 1, dtype=np.int64)
        self._used[MISSING_CODE] = self._allowed

    def count(self, row: int, sign: int) -> None:
        code = int(self._column.codes[row])
        if code != MISSING_CODE:
            self._used[code] += sign

    def may_take(self, rows: Ints) -> Mask:
        mask: Mask = self._used[self._column.codes[rows]] < self._allowed
        return mask

    def reason(self, row: int) -> str:
        code = int(self._column.codes[row])
        if code == MISSING_CODE:
            return f'missing property "{self._constraint.l_target}"'
        value = self._column.words.values[code]
        return f"distinct_property: {self._constraint.l_target}={value} used by {self._used[code]} allocs"


def _wants_distinct_hosts(constraint: Constraint) -> bool:
    return constraint.operand == Operand.DISTINCT_HOSTS and is_distinct_hosts_enabled(constraint.r_target)
