"""How much an even spread, or one by targets, speaks for each value of a property (scheduling.md 3.3)."""

from collections.abc import Mapping

import numpy as np

from wharf.model.group import TaskGroup
from wharf.model.job import Job
from wharf.model.placement import Spread
from wharf.scheduling.columns import Floats
from wharf.scheduling.fleet import NOWHERE, Fleet, Property

MISSING = -1.0
ANY_OTHER = "*"


class SpreadCount:
    """One spread of a group: how many of its allocations are at each value, and what that is worth.

    Boosts are kept by number of the value, so that the boosts of all nodes are one look-up. The last stands for nodes
    that do not have the property: `codes` of those are -1.
    """

    def __init__(self, spread: Spread, column: Property, *, count: int, weight_share: float) -> None:
        self.column = column
        self._share = weight_share
        self._used: dict[str, int] = {}
        self._desired = _desired(spread, count)
        self._lowest = -1.0

    def count(self, row: int, sign: int = 1) -> None:
        """One more, or one less, on the node of this row."""
        code = int(self.column.codes[row])
        if code != NOWHERE:
            self.add(self.column.words.values[code], sign)

    def add(self, value: str, number: int = 1) -> None:
        self._used[value] = self._used.get(value, 0) + number
        if self._used[value] <= 0:
            del self._used[value]

    def boosts(self) -> Floats:
        values = self.column.words.values
        boosts = np.full(len(values) + 1, MISSING, dtype=np.float64)
        if self._desired is not None:
            boosts[: len(values)] = [self._toward_target(value, self._desired) for value in values]
        else:
            boosts[: len(values)] = self._even(values)
        return boosts

    def _toward_target(self, value: str, desired: Mapping[str, float]) -> float:
        if value in desired:
            wanted, used = desired[value], self._used.get(value, 0)
        elif ANY_OTHER in desired:
            wanted = desired[ANY_OTHER]
            used = sum(number for other, number in self._used.items() if other not in desired)
        else:
            return MISSING
        if wanted == 0:
            return self._lowest
        boost = (wanted - (used + 1)) / wanted * self._share
        self._lowest = min(self._lowest, boost)
        return boost

    def _even(self, values: list[str]) -> Floats:
        if not self._used:
            return np.zeros(len(values))
        least, most = min(self._used.values()), max(self._used.values())
        counts = np.zeros(len(values))
        code_of = self.column.words.code_of
        for value, number in self._used.items():
            counts[code_of[value]] = number
        boosts = (least - counts) / least
        at_least = counts == least
        boosts[at_least] = -1.0 if least == most else (most - least) / least
        return boosts


def spread_counts(job: Job, group: TaskGroup, fleet: Fleet) -> list[SpreadCount]:
    """Of the job's spreads and the group's own: each is counted for this group alone."""
    spreads = [*(job.spreads or ()), *(group.spreads or ())]
    weights = sum(spread.weight for spread in spreads)
    return [
        SpreadCount(
            spread,
            fleet.property(spread.attribute),
            count=group.count,
            weight_share=spread.weight / weights if weights else 0.0,
        )
        for spread in spreads
    ]


def _desired(spread: Spread, count: int) -> dict[str, float] | None:
    """How many shall be at each value; None: as many at each."""
    if not spread.spread_target:
        return None
    desired = {target.value: target.percent / 100 * count for target in spread.spread_target}
    told = sum(desired.values())
    if told < count and ANY_OTHER not in desired:
        desired[ANY_OTHER] = count - told
    return desired
