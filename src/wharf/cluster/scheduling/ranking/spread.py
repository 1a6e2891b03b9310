"""Spread boosts: how much each value of a node attribute is favored, evenly or by targets (scheduling.md 3.3)."""

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
"""The largest class code that fits in 16 bits, which numpy sorts faster."""


class SpreadCount:
    """One spread of a group: allocations per attribute value and the boost of each value.

    Both are indexed by the code of the value, so that the boosts of all nodes are one lookup. The last entry stands for
    nodes without the attribute, whose code is -1. One more allocation usually changes only the boost of its own value.
    If it changes other boosts too, all of them are computed again.
    """

    def __init__(self, spread: Spread, column: PropertyColumn, *, count: int, weight_share: float) -> None:
        self.column = column
        values = column.values.values
        self._counts: Ints = np.zeros(len(values), dtype=np.int64)
        self._boosts: Floats | None = None
        """The last computed boosts. `None`: several of them have changed, so all are computed again."""
        self._formula = (
            _TargetSpread(spread, values, count=count, share=weight_share) if spread.spread_target else _EvenSpread()
        )

    def count_allocation(self, row: int, sign: int = 1) -> None:
        """Count one more, or with `sign=-1` one fewer, allocation on the node in this row."""
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
        """Return the boosts by value code. Callers that keep the array must copy it."""
        if self._boosts is None or self._formula.changes_on_compute:
            self._boosts = np.append(self._formula.compute_all_boosts(self._counts), MISSING_VALUE_BOOST)
        return self._boosts


class _EvenSpread:
    """An even spread: the same number of allocations for each value that has any."""

    changes_on_compute = False

    def __init__(self) -> None:
        self._value_counts: dict[int, int] = {}
        """How many values have a given number of allocations. Values without allocations are not counted."""

    def compute_new_boost(self, _code: int, before: int, after: int) -> float | None:
        """Return the new boost of the value, or `None` if boosts of other values changed too."""
        value_counts = self._value_counts
        bounds_before = (min(value_counts), max(value_counts)) if value_counts else None
        for count, sign in ((before, -1), (after, 1)):
            if count:
                value_counts[count] = value_counts.get(count, 0) + sign
                if not value_counts[count]:
                    del value_counts[count]
        if not value_counts or bounds_before != (min(value_counts), max(value_counts)):
            return None
        lowest, highest = bounds_before
        if after != lowest:
            return (lowest - after) / lowest
        return -1.0 if lowest == highest else (highest - lowest) / lowest

    def compute_all_boosts(self, used: Ints) -> Floats:
        """Return the boosts of all values. `used` is the number of allocations by value code."""
        if not self._value_counts:
            return np.zeros(len(used))
        lowest, highest = min(self._value_counts), max(self._value_counts)
        boosts: Floats = (lowest - used) / lowest
        boosts[used == lowest] = -1.0 if lowest == highest else (highest - lowest) / lowest
        return boosts


class _TargetSpread:
    """A spread with a target share for each value. The value `*` stands for all values without a target."""

    def __init__(self, spread: Spread, values: Sequence[str], *, count: int, share: float) -> None:
        desired = {target.value: target.percent / 100 * count for target in spread.spread_target or ()}
        assigned = sum(desired.values())
        if assigned < count and OTHER_VALUES not in desired:
            desired[OTHER_VALUES] = count - assigned
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
        self.changes_on_compute = bool(self._has_zero_target.any())
        """Values with a target of zero get the lowest boost so far, which may fall with every computation."""

    def compute_new_boost(self, code: int, _before: int, after: int) -> float | None:
        """Return the new boost of the value, or `None` if boosts of other values changed too."""
        if not self._is_named[code]:
            return None if self._has_desired_count[code] else MISSING_VALUE_BOOST
        desired = float(self._desired_counts[code])
        return None if desired == 0 else (desired - (after + 1)) / desired * self._weight_share

    def compute_all_boosts(self, used: Ints) -> Floats:
        """Return the boosts of all values."""
        used = np.where(self._is_named, used, used[~self._is_named].sum())
        boosts: Floats = np.full(len(used), MISSING_VALUE_BOOST)
        has_target, desired = self._has_positive_target, self._desired_counts
        boosts[has_target] = (desired[has_target] - (used[has_target] + 1)) / desired[has_target] * self._weight_share
        if self.changes_on_compute:
            # In the order of the values: each is compared with those before it.
            lowest = np.minimum.accumulate(np.append(self._lowest, np.where(has_target, boosts, np.inf)))
            boosts[self._has_zero_target] = lowest[:-1][self._has_zero_target]
            self._lowest = float(lowest[-1])
        return boosts


class SpreadClasses:
    """Groups candidates that have the same value of each spread, so that a boost is computed once per group.

    `class_codes` maps candidate positions to the number of the group.
    """

    def __init__(self, spreads: Sequence[SpreadCount], codes: Sequence[Codes]) -> None:
        """Group the candidates. `codes` holds the value codes of each spread, by candidate position."""
        self._spreads = spreads
        self._members_by_class: list[Ints] | None = None
        if len(spreads) == 1:
            class_count = len(spreads[0].column.values) + 1
            self._class_value_codes: list[Codes] = [np.arange(class_count, dtype=np.int32)]
            self.class_codes: Ints = codes[0].astype(np.int64) % class_count
        else:
            key: Ints = np.zeros(len(codes[0]), dtype=np.int64)
            for spread, column in zip(spreads, codes, strict=True):
                key = key * (len(spread.column.values) + 1) + (column + 1)
            _, first, self.class_codes = np.unique(key, return_index=True, return_inverse=True)
            self._class_value_codes = [column[first] for column in codes]

    def list_members(self, class_code: int) -> Ints:
        """Return the candidate positions of the class."""
        if self._members_by_class is None:
            class_count = len(self._class_value_codes[0])
            # numpy radix-sorts 16-bit numbers, which groups all classes in one pass.
            codes = self.class_codes.astype(np.int16) if class_count <= MAX_INT16 else self.class_codes
            order = np.argsort(codes, kind="stable")
            self._members_by_class = np.split(
                order, np.cumsum(np.bincount(self.class_codes, minlength=class_count))[:-1]
            )
        return self._members_by_class[class_code]

    def compute_boosts(self) -> Floats:
        """Return the boosts by class code."""
        boost: Floats = np.zeros(len(self._class_value_codes[0]))
        for spread, codes in zip(self._spreads, self._class_value_codes, strict=True):
            boost += spread.compute_boosts()[codes]
        return boost


def build_spread_counts(job: Job, group: TaskGroup, fleet: Fleet) -> list[SpreadCount]:
    """Return the counts for the spreads of the job and of the group. Each counts only this group."""
    spreads = [*(job.spreads or ()), *(group.spreads or ())]
    weights = sum(spread.weight for spread in spreads)
    return [
        SpreadCount(
            spread,
            fleet.get_property_column(spread.attribute),
            count=group.count,
            weight_share=spread.weight / weights if weights else 0.0,
        )
        for spread in spreads
    ]
