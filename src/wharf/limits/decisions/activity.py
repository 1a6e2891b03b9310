"""Activity: how many requests each caller sent, admitted and refused, for metrics, `top` and insights of organizations.

An admission only increments one counter of its charge plan, which is fast. `add_admissions_to_rows` adds these counters
to the activity rows and to the counts of the rules once a second. All tables are limited in size, and no step works
through a whole table.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.counting.segmented_dict import SegmentedDict
from wharf.limits.core.decision import LimitDecision, Verdict
from wharf.limits.core.plans import ChargePlan
from wharf.limits.core.rule import MINUTE_MS

MAX_LAST_CALLERS: Final = 20_000
"""Owners whose last caller is stored; limits memory."""
MAX_ROWS: Final = 200_000
"""Rows of all minutes together; limits memory."""
MAX_PENDING_PLANS: Final = 200
"""Charge plans whose admissions wait for the next second. With more, admissions of further plans are added to the rows at
once. Limits the step that adds all of them to 2.5 ms.
"""
MAX_EXPIRED_ROWS_PER_CALL: Final = 1_000
"""Expired rows that are deleted in one step, which takes less than a millisecond."""
REFUSAL_MINUTES: Final = 60
"""How far back the refusals of each rule are counted by minute."""
RETENTION_MINUTES: Final = 31 * 24 * 60
NEAR_LIMIT_PERCENT: Final = 80
UNREADABLE_VERDICTS: Final = frozenset({Verdict.TOO_MANY_OBJECTS, Verdict.TOO_COMPLEX})
"""No limit refused these requests: their body is too large or too complex to evaluate."""


class _PlanAdmissions(msgspec.Struct, eq=False):
    """The number of admitted requests with one charge plan that are not yet in the activity rows."""

    caller: Caller
    admitted: int = 0
    """Admitted requests since the last call of `add_admissions_to_rows`."""


class ActivityRow(msgspec.Struct, gc=False):
    """The number of requests of one caller at one endpoint, about one resource, in one minute."""

    minute: int
    """The minute since the Unix epoch."""
    caller: Caller
    endpoint: str
    total: int = 0
    """All requests, admitted and refused."""
    primary: int = 0
    """Refused by a primary limit."""
    secondary: int = 0
    """Refused by a secondary limit or a ban."""
    last_ms: int = 0
    """When the last request was counted."""
    last_limited_ms: int = 0
    """When a limit last refused a request; 0 if none did."""
    resource: str = ""
    """The resource that the requests are about, such as `acme/site` or `acme`; empty if no organization owns it."""
    bucket: str = ""
    """The primary bucket that the requests count against, such as `core`."""
    shadowed: int = 0
    """Admitted, but refused if no limit and no ban were in shadow mode."""


class RuleCounts(msgspec.Struct):
    """Requests that one rule counted. The field names are label values of the metrics."""

    within: int = 0
    """Admitted requests."""
    refused: int = 0
    shadowed: int = 0
    """Requests that exceeded the ceiling but were admitted, because the rule is in shadow mode."""


class ActivityCounts:
    """The number of admitted and refused requests in this process: in total, by rule, and in activity rows by caller."""

    def __init__(self) -> None:
        self.admitted = 0
        self.near_limit = 0
        """Admitted requests after which at least 80 percent of the primary bucket was used."""
        self.verdicts: dict[Verdict, int] = dict.fromkeys(Verdict, 0)
        self.unauthorized = 0
        self.rules: dict[str, RuleCounts] = {}
        self.last_callers: dict[str, Caller] = {}
        """The last caller of each owner, so that operators can look up a caller by its owner."""
        self._refusals_by_minute: dict[int, Counter[str]] = {}
        """The refused requests of each rule in the last minutes, oldest minute first."""
        self._plan_counts: dict[tuple[ChargePlan, str], _PlanAdmissions] = {}
        """By charge plan and resource."""
        self._rows_by_minute: dict[int, SegmentedDict[tuple[Caller, str, str], ActivityRow]] = {}
        """The rows of each minute by caller, endpoint and resource, oldest minute first."""
        self._row_count = 0
        self.dropped_rows = 0

    def record_admission(self, decision: LimitDecision, caller: Caller, resource: str = "") -> None:
        """Count an admitted request, and the rules in shadow mode whose ceiling it exceeded.

        `resource` is the organization's resource that the request is about, such as `acme/site`; empty without one.
        The activity row is updated later, by `add_admissions_to_rows`.
        """
        self.admitted += 1
        plan = decision.plan
        key = (plan, resource)
        plan_count = self._plan_counts.get(key)
        result = decision.result
        if plan_count is None:
            if len(self._plan_counts) < MAX_PENDING_PLANS:
                self._plan_counts[key] = _PlanAdmissions(caller, 1)
            else:
                self._add_admissions(plan, resource, caller, 1, result.now_ms)
        else:
            plan_count.admitted += 1
        bucket = plan.bucket_charge if plan.is_free else decision.charges[0]
        if result.bucket_count_before * 100 >= bucket.ceiling * NEAR_LIMIT_PERCENT:
            self.near_limit += 1
        if result.hit_indexes:
            for name in decision.list_hit_rules(is_enforced=False):
                self._get_rule_counts(name).shadowed += 1
        if decision.is_shadow_refusal:
            self._get_row(result.now_ms // MINUTE_MS, caller, plan, resource).shadowed += 1

    def record_machine(self, rules: Iterable[str]) -> None:
        """Count a request of a node agent or a server under these rules. It has no decision and no row."""
        self.admitted += 1
        for name in rules:
            self._get_rule_counts(name).within += 1

    def record_refusal(self, decision: LimitDecision, caller: Caller, now_ms: int, resource: str = "") -> None:
        """Count a refused request by verdict, by the rules that refused it, and in the activity row of its caller.

        `resource` is as for `record_admission`.
        """
        self.verdicts[decision.verdict] += 1
        hit_rules = decision.list_hit_rules(is_enforced=True)
        for name in hit_rules:
            self._get_rule_counts(name).refused += 1
        self._get_minute_refusals(now_ms).update(hit_rules)
        row = self._get_row(now_ms // MINUTE_MS, caller, decision.plan, resource)
        row.total += 1
        row.last_ms = now_ms
        if decision.verdict not in UNREADABLE_VERDICTS:
            row.last_limited_ms = now_ms
            if decision.refusing_charge is not None and decision.refusing_charge.rule.is_primary:
                row.primary += 1
            else:
                row.secondary += 1
        self._remember_last_caller(caller)

    def _get_minute_refusals(self, now_ms: int) -> Counter[str]:
        """Return the refused requests of each rule in this minute. Minutes that are too old are deleted."""
        minute = now_ms // MINUTE_MS
        refusals = self._refusals_by_minute.get(minute)
        if refusals is None:
            refusals = self._refusals_by_minute[minute] = Counter()
            for old in [each for each in self._refusals_by_minute if each <= minute - REFUSAL_MINUTES]:
                del self._refusals_by_minute[old]
        return refusals

    def sum_refusals(self, now_ms: int) -> Counter[str]:
        """Return how many requests each rule refused in the last `REFUSAL_MINUTES` minutes."""
        first = now_ms // MINUTE_MS - REFUSAL_MINUTES + 1
        total: Counter[str] = Counter()
        for minute, refusals in self._refusals_by_minute.items():
            if minute >= first:
                total.update(refusals)
        return total

    def _get_rule_counts(self, name: str) -> RuleCounts:
        counts = self.rules.get(name)
        if counts is None:
            counts = self.rules[name] = RuleCounts()
        return counts

    def _remember_last_caller(self, caller: Caller) -> None:
        """Store the last caller of an owner; the owner that was stored longest ago is evicted first."""
        self.last_callers.pop(caller.owner, None)
        if len(self.last_callers) >= MAX_LAST_CALLERS:
            del self.last_callers[next(iter(self.last_callers))]
        self.last_callers[caller.owner] = caller

    def _get_row(self, minute: int, caller: Caller, plan: ChargePlan, resource: str) -> ActivityRow:
        """Return the row of a caller, an endpoint, a resource and a minute; add it if it does not exist."""
        rows = self._rows_by_minute.get(minute)
        key = (caller, plan.endpoint, resource)
        row = None if rows is None else rows.get(key)
        if row is None:
            if self._row_count >= MAX_ROWS:
                self.dropped_rows += 1
                self._remove_oldest_row()
            row = ActivityRow(minute, caller, plan.endpoint, resource=resource, bucket=plan.resource)
            # The removal of a row may have removed its whole minute.
            self._rows_by_minute.setdefault(minute, SegmentedDict()).add_new(key, row)
            self._row_count += 1
        return row

    def _remove_oldest_row(self) -> None:
        """Remove one of the rows of the oldest minute."""
        minute, rows = next(iter(self._rows_by_minute.items()))
        rows.remove_any()
        self._row_count -= 1
        if not rows:
            del self._rows_by_minute[minute]

    def add_admissions_to_rows(self, now_ms: int) -> None:
        """Add the admissions since the last call to the rows of the current minute and to the rules' counts.

        Rows older than the retention time are deleted, some with each call.
        """
        plan_counts, self._plan_counts = self._plan_counts, {}
        for (plan, resource), plan_count in plan_counts.items():
            self._add_admissions(plan, resource, plan_count.caller, plan_count.admitted, now_ms)
        oldest_minute = now_ms // MINUTE_MS - RETENTION_MINUTES
        remaining_count = MAX_EXPIRED_ROWS_PER_CALL
        while remaining_count and (minute := next(iter(self._rows_by_minute), oldest_minute)) < oldest_minute:
            rows = self._rows_by_minute[minute]
            removed_count = min(remaining_count, len(rows))
            for _ in range(removed_count):
                rows.remove_any()
            self._row_count -= removed_count
            remaining_count -= removed_count
            if not rows:
                del self._rows_by_minute[minute]

    def _add_admissions(self, plan: ChargePlan, resource: str, caller: Caller, count: int, now_ms: int) -> None:
        """Add admissions with one charge plan and resource to the row of their caller and to the counts of its rules."""
        self._remember_last_caller(caller)
        row = self._get_row(now_ms // MINUTE_MS, caller, plan, resource)
        row.total += count
        row.last_ms = now_ms
        for charge in plan.charges:
            self._get_rule_counts(charge.name).within += count

    def iter_newest_rows(self, *, since_ms: int) -> Iterator[ActivityRow]:
        """Yield the rows since a time, which is rounded down to a minute, of the newest minute first."""
        first = since_ms // MINUTE_MS
        for minute in reversed(self._rows_by_minute):
            if minute < first:
                return
            yield from self._rows_by_minute[minute].iterate_values()

    def list_rows(self, *, since_ms: int = 0, until_ms: int | None = None) -> Iterator[ActivityRow]:
        """Yield the rows of a time range, oldest first. Both ends are rounded down to a minute and included."""
        first = since_ms // MINUTE_MS
        last = None if until_ms is None else until_ms // MINUTE_MS
        for minute, rows in self._rows_by_minute.items():
            if minute >= first and (last is None or minute <= last):
                yield from rows.iterate_values()
