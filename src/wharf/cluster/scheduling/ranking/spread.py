"""Spread boosts: what a node's score gains or loses by the node's value of a spread attribute (scheduling.md 3.3).

A spread distributes allocations over the values of a node attribute, evenly or by target shares.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from wharf.cluster.scheduling.fleet.columns import Codes, Floats, Ints, Mask
from wharf.cluster.scheduling.fleet.fleet import MISSING_CODE, Fleet, PropertyColumn
from wharf.contract.model.jobs.constraints import Spread
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job

MISSING_VALUE_BOOST: Final = -1.0
"""The boost of nodes without the attribute, and of values that no target names."""
OTHER_VALUES: Final = "*"
"""The target that stands for all values without a target of their own."""
MAX_INT16: Final = np.iinfo(np.int16).max
"""Limits the class codes that are sorted as 16-bit numbers, which numpy sorts faster."""


class SpreadCount:
    """One spread of a group: how many allocations each attribute value has, and the boost of each value.

    The boost is what the spread adds to the scores of nodes with this value. Counts and boosts are arrays by the code
    of the value, so one lookup gives the boosts of all nodes: `boosts[codes]`. Nodes without the attribute have the
    code -1, which selects the last boost. One more allocation usually changes only the boost of its own value. If it
    changes others too, all boosts are recomputed when they are read next.
    """

    def __init__(self, spread: Spread, column: PropertyColumn, *, count: int, weight_share: float) -> None:
        """`count` is the group's number of allocations.

        `weight_share` is the weight as a share of all spread weights.
        """
        self.column = column
        """The code of the attribute's value by fleet row."""
        values = column.values.values
        self._counts: Ints = np.zeros(len(values), dtype=np.int64)
        self._boosts: Floats | None = None
        """The boosts by value code. `None`: several of them may have changed, so all must be recomputed."""
        self._formula = (
            _TargetSpread(spread, values, count=count, share=weight_share) if spread.spread_target else _EvenSpread()
        )

    def count_allocation(self, row: int, sign: int = 1) -> None:
        """Count one more, or with `sign=-1` one fewer, allocation on the node in this fleet row.

        Also update the boost of the node's value (what the spread adds to the scores of nodes with this value), or mark
        all boosts for recomputation. Nodes without the attribute are not counted.
        """
        code = int(self.column.codes[row])
        if code == MISSING_CODE:
            return
        before = int(self._counts[code])
        after = max(0, before + sign)
        self._counts[code] = after
        boost = self._formula.compute_new_boost(code, before, after)
        if boost is None:
            self._boosts = None
        elif self._boosts is not None:
            self._boosts[code] = boost

    def compute_boosts(self) -> Floats:
        """Return by value code the boost: what the spread adds to the scores of nodes with this value.

        The last entry is for nodes without the attribute. The boosts are recomputed if necessary. Later calls may
        change the array, so callers that keep it must copy it.
        """
        if self._boosts is None or self._formula.changes_on_compute:
            self._boosts = np.append(self._formula.compute_all_boosts(self._counts), MISSING_VALUE_BOOST)
        return self._boosts


class _EvenSpread:
    """The boosts of an even spread, which aims at the same number of allocations for each value that has any.

    Values with fewer allocations get higher boosts.
    """

    changes_on_compute = False
    """Boosts change only with the counts."""

    def __init__(self) -> None:
        self._value_counts: dict[int, int] = {}
        """By number of allocations, how many values have it. Values without allocations are left out.

        Example: `{2: 3}` means that three values have two allocations each.
        """

    def compute_new_boost(self, _code: int, before: int, after: int) -> float | None:
        """Record that a value's number of allocations changes from `before` to `after`, and return its new boost.

        The boost is what the spread adds to the scores of nodes with this value. `None`: the lowest or highest number
        over all values changed, so the boosts of other values changed too.
        """
        value_counts = self._value_counts
        old_extremes = (min(value_counts), max(value_counts)) if value_counts else None
        for count, sign in ((before, -1), (after, 1)):
            if count:
                value_counts[count] = value_counts.get(count, 0) + sign
                if not value_counts[count]:
                    del value_counts[count]
        if not value_counts or old_extremes != (min(value_counts), max(value_counts)):
            return None
        lowest, highest = old_extremes
        if after != lowest:
            return (lowest - after) / lowest
        return -1.0 if lowest == highest else (highest - lowest) / lowest

    def compute_all_boosts(self, used: Ints) -> Floats:
        """Return the boosts of all values: what the spread adds to the scores of nodes with each value.

        `used` and the result are by value code. `used` holds the number of allocations of each value. `lowest` and
        `highest` are the extremes over the values that have allocations. A value without allocations gets 1. A value
        with the lowest number gets `(highest - lowest) / lowest`, or -1 if `highest` equals `lowest`. Others get less
        than 0. If there are no allocations, all boosts are 0.
        """
        if not self._value_counts:
            return np.zeros(len(used))
        lowest, highest = min(self._value_counts), max(self._value_counts)
        boosts: Floats = (lowest - used) / lowest
        boosts[used == lowest] = -1.0 if lowest == highest else (highest - lowest) / lowest
        return boosts


class _TargetSpread:
    """The boosts of a spread with target shares: the further a value is below its target, the higher its boost.

    The target `*` stands for all values without a target of their own. They share its allocations.
    """

    def __init__(self, spread: Spread, values: Sequence[str], *, count: int, share: float) -> None:
        """`count` is the group's number of allocations, `share` the weight as a share of all spread weights."""
        desired = {target.value: target.percent / 100 * count for target in spread.spread_target or ()}
        assigned = sum(desired.values())
        if assigned < count and OTHER_VALUES not in desired:
            desired[OTHER_VALUES] = count - assigned
        # By value code: whether the value has a target of its own, and how many allocations it should have.
        self._weight_share = share
        self._is_named: Mask = np.asarray([value in desired for value in values], dtype=np.bool_)
        other_share = desired.get(OTHER_VALUES)
        self._has_desired_count: Mask = self._is_named | (other_share is not None)
        self._desired_counts: Floats = np.asarray(
            [desired.get(value, 0.0 if other_share is None else other_share) for value in values], dtype=np.float64
        )
        self._has_positive_target: Mask = self._has_desired_count & (self._desired_counts != 0)
        self._has_zero_target: Mask = self._has_desired_count & (self._desired_counts == 0)
        self._lowest = -1.0
        """The lowest boost that was ever computed."""
        self.changes_on_compute = bool(self._has_zero_target.any())
        """Whether `compute_all_boosts` may return other boosts for equal counts.

        Values with a target of 0 get the lowest boost so far, which may fall with every call.
        """

    def compute_new_boost(self, code: int, _before: int, after: int) -> float | None:
        """Return the boost of the value with this code, which now has `after` allocations.

        The boost is what the spread adds to the scores of nodes with this value. `None`: all boosts must be recomputed,
        because the value shares the target `*` with others, or its target is 0.
        """
        if not self._is_named[code]:
            return None if self._has_desired_count[code] else MISSING_VALUE_BOOST
        desired = float(self._desired_counts[code])
        return None if desired == 0 else (desired - (after + 1)) / desired * self._weight_share

    def compute_all_boosts(self, used: Ints) -> Floats:
        """Return the boosts of all values: what the spread adds to the scores of nodes with each value.

        `used` and the result are by value code. `used` holds the number of allocations of each value. Values with a
        target of 0 get the lowest boost that was computed so far; it is stored for the next call.
        """
        used = np.where(self._is_named, used, used[~self._is_named].sum())
        boosts: Floats = np.full(len(used), MISSING_VALUE_BOOST)
        has_target, desired = self._has_positive_target, self._desired_counts
        boosts[has_target] = (desired[has_target] - (used[has_target] + 1)) / desired[has_target] * self._weight_share
        if self.changes_on_compute:
            # `lowest[i]` is the lowest boost before value i: the running minimum of earlier calls and earlier values.
            lowest = np.minimum.accumulate(np.append(self._lowest, np.where(has_target, boosts, np.inf)))
            boosts[self._has_zero_target] = lowest[:-1][self._has_zero_target]
            self._lowest = float(lowest[-1])
        return boosts


class SpreadClasses:
    """Divides candidates into spread classes: candidates with the same value of each spread attribute.

    All candidates of a class have the same boost, so it is computed once for each class instead of once for each node.
    """

    def __init__(self, spreads: Sequence[SpreadCount], codes: Sequence[Codes]) -> None:
        """Find the classes. `codes` holds one column for each spread: the value code by candidate position.

        With one spread, the value code is the class code. With several, the value codes of a candidate are combined
        into one number, like digits, and each different number is a class.
        """
        self._spreads = spreads
        self._members_by_class: list[Ints] | None = None
        if len(spreads) == 1:
            class_count = len(spreads[0].column.values) + 1
            # For each spread, the value code by class code.
            self._class_value_codes: list[Codes] = [np.arange(class_count, dtype=np.int32)]
            # The class code by candidate position. The modulo makes the last class of the code -1 (no value).
            self.class_codes: Ints = codes[0].astype(np.int64) % class_count
        else:
            combined: Ints = np.zeros(len(codes[0]), dtype=np.int64)
            for spread, column in zip(spreads, codes, strict=True):
                combined = combined * (len(spread.column.values) + 1) + (column + 1)
            _, first_positions, self.class_codes = np.unique(combined, return_index=True, return_inverse=True)
            self._class_value_codes = [column[first_positions] for column in codes]

    def list_members(self, class_code: int) -> Ints:
        """Return the positions of the candidates in the class with this code.

        The first call computes the members of all classes with one sort: sorted by class code, the positions of each
        class are neighbors, and the array is split between the classes.
        """
        if self._members_by_class is None:
            class_count = len(self._class_value_codes[0])
            # numpy uses a radix sort for 16-bit numbers, which is faster.
            codes = self.class_codes.astype(np.int16) if class_count <= MAX_INT16 else self.class_codes
            order = np.argsort(codes, kind="stable")
            self._members_by_class = np.split(
                order, np.cumsum(np.bincount(self.class_codes, minlength=class_count))[:-1]
            )
        return self._members_by_class[class_code]

    def compute_boosts(self) -> Floats:
        """Return for each class, by class code, the sum of the boosts of all spreads."""
        boost: Floats = np.zeros(len(self._class_value_codes[0]))
        for spread, codes in zip(self._spreads, self._class_value_codes, strict=True):
            boost += spread.compute_boosts()[codes]
        return boost


def build_spread_counts(job: Job, group: TaskGroup, fleet: Fleet) -> list[SpreadCount]:
    """Return a `SpreadCount` for each spread of the job and of the group, without any allocation counted yet.

    The spreads of the job, too, count only allocations of this group.
    """
    spreads = [*(job.spreads or ()), *(group.spreads or ())]
    weights = sum(spread.weight for spread in spreads)
    return [
        SpreadCount(
            spread,
            fleet.get_property_column(spread.attribute),
            count=group.parallel_count,
            weight_share=spread.weight / weights if weights else 0.0,
        )
        for spread in spreads
    ]
