"""The compiled form of the usual store call, if it was built and fits this interpreter. Everything works without it.

`usual_calls.c` charges a call only if nothing about it is unusual. Decision record 0232 says what this gains.
"""

import importlib
from collections.abc import Mapping
from typing import Any, Final, Protocol, cast

from wharf.limits.core.counting.leases import LEASE_TTL_MS, ConcurrencyLeases
from wharf.limits.core.counting.recent_results import RecentCall, RecentResults
from wharf.limits.core.counting.segmented_dict import SegmentedDict
from wharf.limits.core.counting.sliding_windows import SlidingWindow, SlidingWindows
from wharf.limits.core.counting.windows import FixedWindow, FixedWindows
from wharf.limits.core.plans import Charge, ChargePlan
from wharf.limits.core.store_calls import StoreCall, TakeResult

MODULE: Final = "wharf.limits.core.counting._usual_calls"


class UsualCalls(Protocol):
    """The functions of the compiled module."""

    def take_usual(
        self,
        tables: Mapping[str, Any],
        bans: SegmentedDict[str, Any],
        results: RecentResults,
        call: StoreCall,
        now_ms: int,
        /,
    ) -> TakeResult | None:
        """Charge a call and store its result. If anything is unusual, change nothing and return `None`."""

    def release_usual(self, tables: Mapping[str, Any], results: RecentResults, request_id: str, /) -> bool:
        """End a request without storing its result. Return whether it was running."""


def configure(module: Any) -> UsualCalls:
    """Pass the classes of the counters to the compiled module, and return it. Raises `TypeError` if they do not fit."""
    module.configure(
        (
            *(StoreCall, ChargePlan, Charge, FixedWindow, SlidingWindow, SegmentedDict),
            *(FixedWindows, SlidingWindows, ConcurrencyLeases, RecentCall, TakeResult, RecentResults),
        ),
        LEASE_TTL_MS,
    )
    return cast(UsualCalls, module)


def _load_usual_calls() -> UsualCalls | None:
    """Return the compiled functions, or `None` if they were not built or do not fit the classes of this version."""
    try:
        return configure(importlib.import_module(MODULE))
    except (ImportError, TypeError):
        return None


USUAL_CALLS: Final = _load_usual_calls()
"""The compiled functions; `None` if counters use Python only."""
