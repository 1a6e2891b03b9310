"""What a store is asked, and what it answers: one call for all limits that a request meets.

These are values, so that a store may be a dict here or a server elsewhere. The store alone reads counters; what its
answer means is for `decision` to say.
"""

import msgspec

from wharf.limits.core.plans import Charge, ChargePlan
from wharf.limits.core.rule import BanRules


class StoreCall(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Check all, then charge all or none. The same id never charges twice."""

    id: str
    plan: ChargePlan
    charges: tuple[Charge, ...]
    """Those of the plan, with the ceilings that grants give."""
    ban_rules: BanRules


class TakeResult(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What the counters said. `befores` and `keys` stand in the order of the call's charges."""

    is_admitted: bool
    now_ms: int
    counts_before: tuple[int, ...]
    hit_indexes: tuple[int, ...]
    """Which charges had no room; those of shadow rules too."""
    free_at_ms: tuple[int, ...]
    """For each hit, when it has room again."""
    keys: tuple[str, ...]
    """Where each charge was counted: a key that would have been one too many is counted under a shared one."""
    bucket_count_before: int
    """The count of the bucket that headers show."""
    bucket_end_ms: int
    """Its end, after the charge."""
    banned_until_ms: int = 0
    """Above 0 while a ban holds, an enforced one or one in shadow."""
    is_repeated: bool = False
    """The same id was answered before: this is that answer."""


class CounterReading(msgspec.Struct, frozen=True, gc=False):
    """One counter, looked at and not changed."""

    used: int
    end_ms: int
