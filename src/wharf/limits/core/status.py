"""The body of the status endpoint: every bucket of a caller, idle ones as full, nothing opened by looking."""

from collections.abc import Sequence
from typing import Any

import msgspec

from wharf.limits.core.call import Reading
from wharf.limits.core.plan import Charge
from wharf.limits.core.rule import Algorithm, Counts, RuleSet


def status_body(
    rules: RuleSet, primaries: Sequence[tuple[Charge, Reading]], secondaries: Sequence[tuple[Charge, Reading]] = ()
) -> bytes:
    """`primaries` begin with those that come first in the rules; `rate` repeats the bucket of the rest, for old clients."""
    resources: dict[str, dict[str, Any]] = {}
    rest: dict[str, Any] | None = None
    for charge, reading in primaries:
        shown = _bucket(charge, reading)
        resources.setdefault(charge.rule.resource or "", shown)
        if rest is None and not charge.rule.match:
            rest = shown
    if rules.disclose_secondary:
        hides_points = any(endpoint.hidden for endpoint in rules.endpoints)
        for charge, reading in secondaries:
            if not charge.rule.hidden:
                is_fed_by_hidden = hides_points and charge.rule.counts is Counts.POINTS
                resources.setdefault(charge.name, _bucket(charge, reading, hides_remaining=is_fed_by_hidden))
    return msgspec.json.encode({"resources": resources, "rate": rest})


def _bucket(charge: Charge, reading: Reading, *, hides_remaining: bool = False) -> dict[str, Any]:
    used = min(charge.ceiling, reading.used)
    bucket: dict[str, Any] = {"limit": charge.ceiling}
    if not hides_remaining:
        bucket |= {"used": used, "remaining": charge.ceiling - used}
    if charge.rule.algorithm is not Algorithm.LEASES:
        bucket["reset"] = -(-reading.end_ms // 1_000)
    return bucket
