"""The call to a store for one request, and its result: one call checks every limit that the request meets.

These are plain values, so a store can be a dict in this process or a remote server. Only the store reads counters;
`decision` interprets the result.
"""

import msgspec

from wharf.limits.core.plans import Charge, ChargePlan
from wharf.limits.core.rule import BanRules


class StoreCall(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A call to a store for one request: check all charges, then apply all of them or none.

    The same id is never charged twice.
    """

    id: str
    """The id of the request."""
    plan: ChargePlan
    charges: tuple[Charge, ...]
    """The charges of the charge plan, with the ceilings that grants raise."""
    ban_rules: BanRules


class TakeResult(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The result of a store call: whether the request was admitted, and the counts that the store found.

    `counts_before` and `keys` are in the order of the call's charges.
    """

    is_admitted: bool
    now_ms: int
    """The time of the store, in Unix milliseconds."""
    counts_before: tuple[int, ...]
    """The count of each charge's counter before this request."""
    hit_indexes: tuple[int, ...]
    """Indexes of the charges that exceed their ceiling, including charges of shadow rules."""
    free_at_ms: tuple[int, ...]
    """For each of these charges, when it would fit, in Unix milliseconds."""
    keys: tuple[str, ...]
    """The key under which each charge was counted, if an overflow key was used; else empty."""
    bucket_count_before: int
    """The count of the bucket that the headers report, before this request."""
    bucket_end_ms: int
    """When the window of that bucket ends, after the charge."""
    banned_until_ms: int = 0
    """When the current ban ends; 0 without a ban. Set for bans in shadow mode too."""
    is_repeated: bool = False
    """Whether this is the stored result of an earlier call with the same id."""
    fallback_processes: int = 0
    """The number of processes that shared the limits, if this process decided without the store; else 0."""


class CounterReading(msgspec.Struct, frozen=True, gc=False):
    """The value of one counter, read without a charge."""

    used: int
    end_ms: int
    """When its window ends; for an idle counter, when a window that opened now would end."""
