"""How often each plan was met, and what came of it: for metrics, for `top`, and for the activity of organizations.

A request costs one step in one dict. All that is told is folded out of these now and then. Every kind of entry is bounded.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.decision import LimitDecision, Verdict
from wharf.limits.core.plans import ChargePlan

MAX_LAST_CALLERS: Final = 20_000
MAX_ROWS: Final = 200_000
RETENTION_MINUTES: Final = 31 * 24 * 60
NEAR_LIMIT_PERCENT: Final = 80
MINUTE_MS: Final = 60_000
UNREADABLE_VERDICTS: Final = frozenset({Verdict.TOO_MANY_OBJECTS, Verdict.TOO_COMPLEX})
"""No limit refused these: they were asked in a way that is not answered."""


class _Met(msgspec.Struct, eq=False):
    caller: Caller
    admitted: int = 0


class ActivityRow(msgspec.Struct, gc=False):
    """Requests of one caller at one endpoint in one minute."""

    minute: int
    caller: Caller
    endpoint: str
    total: int = 0
    primary: int = 0
    """Refused by a primary limit."""
    secondary: int = 0
    """Refused by a secondary limit or a ban."""
    last_ms: int = 0
    last_limited_ms: int = 0


class RuleCounts(msgspec.Struct):
    """What the metrics tell of a rule."""

    within: int = 0
    refused: int = 0
    shadowed: int = 0
    """Would have been refused, and was not."""


class ActivityCounts:
    def __init__(self) -> None:
        self.admitted = 0
        self.near_limit = 0
        """Admitted requests whose primary bucket is used to 80 per cent and more."""
        self.verdicts: dict[Verdict, int] = dict.fromkeys(Verdict, 0)
        self.unauthorized = 0
        self.rules: dict[str, RuleCounts] = {}
        self.last_callers: dict[str, Caller] = {}
        """The last caller of each owner, for operators who name one."""
        self._met: dict[ChargePlan, _Met] = {}
        self._rows: dict[tuple[int, Caller, str], ActivityRow] = {}
        self.dropped_rows = 0

    def record_admission(self, decision: LimitDecision, caller: Caller) -> None:
        self.admitted += 1
        plan = decision.plan
        met = self._met.get(plan)
        if met is None:
            met = self._met[plan] = _Met(caller)
        met.admitted += 1
        taken = decision.result
        shown = plan.bucket_charge if plan.is_free else decision.charges[0]
        if taken.bucket_count_before * 100 >= shown.ceiling * NEAR_LIMIT_PERCENT:
            self.near_limit += 1
        if taken.hit_indexes:
            for name in decision.list_hit_rules(is_enforced=False):
                self._rule(name).shadowed += 1

    def record_machine(self, rules: Iterable[str]) -> None:
        """A node agent or a server: counted, and nothing else."""
        self.admitted += 1
        for name in rules:
            self._rule(name).within += 1

    def record_refusal(self, decision: LimitDecision, caller: Caller, now_ms: int) -> None:
        self.verdicts[decision.verdict] += 1
        for name in decision.list_hit_rules(is_enforced=True):
            self._rule(name).refused += 1
        row = self._row(now_ms // MINUTE_MS, caller, decision.plan.endpoint)
        row.total += 1
        row.last_ms = now_ms
        if decision.verdict not in UNREADABLE_VERDICTS:
            row.last_limited_ms = now_ms
            if decision.refusing_charge is not None and decision.refusing_charge.rule.is_primary:
                row.primary += 1
            else:
                row.secondary += 1
        self._note_caller(caller)

    def _rule(self, name: str) -> RuleCounts:
        return self.rules.setdefault(name, RuleCounts())

    def _note_caller(self, caller: Caller) -> None:
        self.last_callers.pop(caller.owner, None)
        if len(self.last_callers) >= MAX_LAST_CALLERS:
            del self.last_callers[next(iter(self.last_callers))]
        self.last_callers[caller.owner] = caller

    def _row(self, minute: int, caller: Caller, endpoint: str) -> ActivityRow:
        key = (minute, caller, endpoint)
        row = self._rows.get(key)
        if row is None:
            if len(self._rows) >= MAX_ROWS:
                self.dropped_rows += 1
                del self._rows[next(iter(self._rows))]  # The oldest minute is what is missed least.
            row = self._rows[key] = ActivityRow(minute, caller, endpoint)
        return row

    def fold_counts(self, now_ms: int) -> None:
        """Book what was met since the last time, under the minute that is now."""
        met, self._met = self._met, {}
        minute = now_ms // MINUTE_MS
        for plan, of in met.items():
            self._note_caller(of.caller)
            row = self._row(minute, of.caller, plan.endpoint)
            row.total += of.admitted
            row.last_ms = now_ms
            for charge in plan.charges:
                self._rule(charge.name).within += of.admitted
        oldest = minute - RETENTION_MINUTES
        while self._rows and next(iter(self._rows))[0] < oldest:
            del self._rows[next(iter(self._rows))]

    def list_rows(self, *, since_ms: int = 0, until_ms: int | None = None) -> Iterator[ActivityRow]:
        first = since_ms // MINUTE_MS
        last = None if until_ms is None else until_ms // MINUTE_MS
        for row in self._rows.values():
            if row.minute >= first and (last is None or row.minute <= last):
                yield row
