"""How much an even spread, or one by targets, speaks for each value of a property (scheduling.md 3.3)."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from wharf.cluster.scheduling.fleet.columns import Codes, Floats, Ints, Mask
from wharf.cluster.scheduling.fleet.fleet import MISSING_CODE, Fleet, PropertyColumn
from wharf.contract.model.jobs.constraints import Spread
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job

MISSING_VALUE_BOOST: Final = -1.0
OTHER_VALUES: Final = "*"
MAX_INT16: Final = np.iinfo(np.int16).max


class SpreadCount:
    """One spread of a group: how many of its allocations are at each value, and what that is worth.

    Both are kept by number of the value, so that the boosts of all nodes are one look-up. The last stands for nodes
    that do not have the property: `codes` of those are -1. One allocation more moves the boost of its own value, and
    seldom those of others: these are worked out anew only then.
    """

    def __init__(self, spread: Spread, column: PropertyColumn, *, count: int, weight_share: float) -> None:
        self.column = column
        values = column.words.values
        self._used: Ints = np.zeros(len(values), dtype=np.int64)
        self._boosts: Floats | None = None
        """As they were answered last; None: most of them have moved."""
        self._worth = _ToTargets(spread, values, count=count, share=weight_share) if spread.spread_target else _Even()

    def count_allocation(self, row: int, sign: int = 1) -> None:
        """One more, or one less, on the node of this row."""
        code = int(self.column.codes[row])
        if code == MISSING_CODE:
            return
        before = int(self._used[code])
        after = max(0, before + sign)
        self._used[code] = after
        boost = self._worth.moved(code, before, after)
        if boost is None:
            self._boosts = None
        elif self._boosts is not None:
            self._boosts[code] = boost

    def compute_boosts(self) -> Floats:
        """By number of the value. Whoever keeps them copies them."""
        if self._boosts is None or self._worth.is_moving:
            self._boosts = np.append(self._worth.of_all(self._used), MISSING_VALUE_BOOST)
        return self._boosts


class _Even:
    """As many at each value, of those that have any."""

    is_moving = False

    def __init__(self) -> None:
        self._tally: dict[int, int] = {}
        """How many values have so many; those that have none are not counted."""

    def moved(self, _code: int, before: int, after: int) -> float | None:
        """The boost of this value from now on; None: those of others moved too."""
        tally = self._tally
        was = (min(tally), max(tally)) if tally else None
        for number, sign in ((before, -1), (after, 1)):
            if number:
                tally[number] = tally.get(number, 0) + sign
                if not tally[number]:
                    del tally[number]
        if not tally or was != (min(tally), max(tally)):
            return None
        least, most = was
        if after != least:
            return (least - after) / least
        return -1.0 if least == most else (most - least) / least

    def of_all(self, used: Ints) -> Floats:
        if not self._tally:
            return np.zeros(len(used))
        least, most = min(self._tally), max(self._tally)
        boosts: Floats = (least - used) / least
        boosts[used == least] = -1.0 if least == most else (most - least) / least
        return boosts


class _ToTargets:
    """Shares of the group that are told value by value; `*` stands for all that are not told."""

    def __init__(self, spread: Spread, values: Sequence[str], *, count: int, share: float) -> None:
        desired = {target.value: target.percent / 100 * count for target in spread.spread_target or ()}
        told = sum(desired.values())
        if told < count and OTHER_VALUES not in desired:
            desired[OTHER_VALUES] = count - told
        self._share = share
        self._is_named: Mask = np.asarray([value in desired for value in values], dtype=np.bool_)
        others = desired.get(OTHER_VALUES)
        self._is_wanted: Mask = self._is_named | (others is not None)
        self._wanted: Floats = np.asarray(
            [desired.get(value, 0.0 if others is None else others) for value in values], dtype=np.float64
        )
        self._is_asked: Mask = self._is_wanted & (self._wanted != 0)
        self._is_unwished: Mask = self._is_wanted & (self._wanted == 0)
        self._lowest = -1.0
        self.is_moving = bool(self._is_unwished.any())
        """What none is wished of is worth as little as anything was so far: that may be less each time it is asked for."""

    def moved(self, code: int, _before: int, after: int) -> float | None:
        """The boost of this value from now on; None: those of others moved too."""
        if not self._is_named[code]:
            return None if self._is_wanted[code] else MISSING_VALUE_BOOST
        wanted = float(self._wanted[code])
        return None if wanted == 0 else (wanted - (after + 1)) / wanted * self._share

    def of_all(self, used: Ints) -> Floats:
        used = np.where(self._is_named, used, used[~self._is_named].sum())
        boosts: Floats = np.full(len(used), MISSING_VALUE_BOOST)
        asked, wanted = self._is_asked, self._wanted
        boosts[asked] = (wanted[asked] - (used[asked] + 1)) / wanted[asked] * self._share
        if self.is_moving:
            # Value by value, in their order: each is compared with those before it.
            lowest = np.minimum.accumulate(np.append(self._lowest, np.where(asked, boosts, np.inf)))
            boosts[self._is_unwished] = lowest[:-1][self._is_unwished]
            self._lowest = float(lowest[-1])
        return boosts


class SpreadClasses:
    """Nodes that have the same value of each spread: a boost is worked out once for all of them. `of`: by place among the
    candidates, the number of its kind.
    """

    def __init__(self, spreads: Sequence[SpreadCount], codes: Sequence[Codes]) -> None:
        """`codes`: of each spread, by place among the candidates."""
        self._spreads = spreads
        self._by_kind: list[Ints] | None = None
        if len(spreads) == 1:
            kinds = len(spreads[0].column.words) + 1
            self._codes: list[Codes] = [np.arange(kinds, dtype=np.int32)]
            self.class_codes: Ints = codes[0].astype(np.int64) % kinds
        else:
            key: Ints = np.zeros(len(codes[0]), dtype=np.int64)
            for spread, each in zip(spreads, codes, strict=True):
                key = key * (len(spread.column.words) + 1) + (each + 1)
            _, first, self.class_codes = np.unique(key, return_index=True, return_inverse=True)
            self._codes = [each[first] for each in codes]

    def list_members(self, kind: int) -> Ints:
        """The places of its nodes."""
        if self._by_kind is None:
            kinds = len(self._codes[0])
            # Of short numbers numpy sorts by their digits: in one round, and for all kinds at once.
            of = self.class_codes.astype(np.int16) if kinds <= MAX_INT16 else self.class_codes
            order = np.argsort(of, kind="stable")
            self._by_kind = np.split(order, np.cumsum(np.bincount(self.class_codes, minlength=kinds))[:-1])
        return self._by_kind[kind]

    def compute_boosts(self) -> Floats:
        """By number of the kind."""
        boost: Floats = np.zeros(len(self._codes[0]))
        for spread, codes in zip(self._spreads, self._codes, strict=True):
            boost += spread.compute_boosts()[codes]
        return boost


def build_spread_counts(job: Job, group: TaskGroup, fleet: Fleet) -> list[SpreadCount]:
    """Of the job's spreads and the group's own: each is counted for this group alone."""
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
