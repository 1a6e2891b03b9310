"""Rules over logged requests: the same counters as at work, on the clock of the log.

Who is logged by name counts as a user, all others by their address. CPU time and concurrency are judged only where the
log has durations; what could not be judged is listed.
"""

import heapq
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from wharf.limits.core.callers.addresses import parse_address
from wharf.limits.core.callers.caller import Caller, CallerClass, CredentialKind
from wharf.limits.core.callers.recognition import make_anonymous_caller
from wharf.limits.core.counting.counters import Counters
from wharf.limits.core.decision import build_decision
from wharf.limits.core.limiter import Limiter
from wharf.limits.core.plans import EndpointCost
from wharf.limits.core.request import RequestFacts
from wharf.limits.core.rule import CountedUnit, RuleSet
from wharf.limits.core.store_calls import StoreCall, TakeResult
from wharf.limits.simulation.access_log import LogRecord

UNITS_NEEDING_DURATION: Final = frozenset({CountedUnit.CPU_MS, CountedUnit.CONNECTIONS})
MAX_REPORTED_CALLERS: Final = 100
MAX_TIMELINE_COLUMNS: Final = 120
TIMELINE_STEPS_MS: Final = (1_000, 5_000, 15_000, 60_000, 300_000, 900_000, 3_600_000, 21_600_000, 86_400_000)
PROGRESS_INTERVAL_LINES: Final = 20_000
MAX_CACHED_CALLS: Final = 200_000


class RefusalCount(msgspec.Struct):
    """Refusals of one caller by one rule."""

    caller: str
    rule: str
    count: int = 0
    first_ms: int = 0
    last_ms: int = 0
    busiest: str = ""


class SimulationResult(msgspec.Struct):
    lines: int = 0
    unread: int = 0
    admitted: int = 0
    refused: int = 0
    begins_ms: int = 0
    ends_ms: int = 0
    rules: dict[str, int] = {}
    shadowed: dict[str, int] = {}
    """By rules in shadow, that would have refused."""
    callers: list[RefusalCount] = []
    not_judged: list[str] = []
    step_ms: int = 60_000
    timeline: list[tuple[int, int, int]] = []
    """Moment, admitted, refused."""

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


class PartialResult(msgspec.Struct):
    """What may be added up: of a second admitted and refused, of caller and rule the refusals."""

    result: SimulationResult
    buckets: dict[int, list[int]]
    refused: dict[tuple[str, str], RefusalCount]


class Replay:
    def __init__(self, rules: RuleSet, *, has_durations: bool) -> None:
        self._has_durations = has_durations
        judged = rules
        if not has_durations:
            kept = tuple(rule for rule in rules.rules if rule.counts not in UNITS_NEEDING_DURATION)
            judged = msgspec.structs.replace(rules, rules=kept)
        self._rules = rules
        self._limiter = Limiter(judged)
        self._counters = Counters(judged.rules, max_keys=judged.keys_most)
        self._callers: dict[tuple[str, str], Caller] = {}
        self._addresses: dict[str, Caller] = {}
        self._calls: dict[tuple[str, EndpointCost], StoreCall] = {}
        self._running: list[tuple[int, str, StoreCall]] = []
        self._number = 0
        self._now_ms = 0
        self._buckets: dict[int, list[int]] = {}
        self._bucket = [0, 0]
        """Admitted and refused in the second that is now."""
        self._refused: dict[tuple[str, str], RefusalCount] = {}
        self.result = SimulationResult()

    def advance_clock(self, now_ms: int) -> None:
        """A line of that moment was read, whoever's it is."""
        if now_ms > self._now_ms:
            self._now_ms = now_ms
            self._bucket = self._buckets.setdefault(now_ms // 1_000, [0, 0])

    @property
    def partial_result(self) -> "PartialResult":
        """What came of it so far, to be added to what came of other callers."""
        return PartialResult(self.result, self._buckets, self._refused)

    def merge_part(self, other: "PartialResult") -> None:
        """What came of callers that were judged elsewhere. No caller may be in both."""
        ours, theirs = self.result, other.result
        ours.lines += theirs.lines
        ours.unread += theirs.unread
        ours.admitted += theirs.admitted
        ours.refused += theirs.refused
        for own, told in ((ours.rules, theirs.rules), (ours.shadowed, theirs.shadowed)):
            for rule, count in told.items():
                own[rule] = own.get(rule, 0) + count
        for second, counts in other.buckets.items():
            bucket = self._buckets.setdefault(second, [0, 0])
            bucket[0] += counts[0]
            bucket[1] += counts[1]
        self._refused |= other.refused

    def replay_record(self, record: LogRecord) -> None:
        outcome, counters = self.result, self._counters
        outcome.lines += 1
        # Lines that come late count at the moment that was reached: time in here never steps back.
        if record.at_ms > self._now_ms:
            self.advance_clock(record.at_ms)
        now_ms = self._now_ms
        if self._running:
            self._end_those_over(now_ms)
        bucket = self._bucket
        key = (record.user, record.address)
        caller = self._callers.get(key) or self._caller(key)
        endpoint = self._limiter.rulebook.get_endpoint(record.method, record.path)
        call = self._calls.get((caller.owner, endpoint)) or self._call(record, caller, endpoint)
        taken = self._take_timed(call, record.duration_ms) if self._has_durations else counters.take_once(call, now_ms)
        plan = call.plan
        if taken.is_admitted:
            outcome.admitted += 1
            bucket[0] += 1
            if taken.hit_indexes:
                for index in taken.hit_indexes:
                    rule = plan.charges[index].name
                    outcome.shadowed[rule] = outcome.shadowed.get(rule, 0) + 1
            return
        outcome.refused += 1
        bucket[1] += 1
        decision = build_decision(call.id, plan, plan.charges, taken)
        self._note(
            caller,
            decision.refusing_charge.name if decision.refusing_charge is not None else "ban",
            plan.endpoint,
            now_ms,
        )

    def _take_timed(self, like: StoreCall, duration_ms: int | None) -> TakeResult:
        """A request that holds its slots for as long as it took."""
        self._number += 1
        call = StoreCall(str(self._number), like.plan, like.charges, like.ban_rules)
        taken = self._counters.take(call, self._now_ms)
        if not taken.is_admitted:
            return taken
        if duration_ms is None:
            self._counters.release(call.id, self._now_ms)
        else:
            heapq.heappush(self._running, (self._now_ms + duration_ms, call.id, call))
        return taken

    def _call(self, logged: LogRecord, caller: Caller, endpoint: EndpointCost) -> StoreCall:
        """Most endpoints are counted by owner alone: of the addresses of one user the first one's call is that of all."""
        plan = self._limiter.rulebook.get_plan(RequestFacts("", logged.method, logged.path, caller))
        call = StoreCall("", plan, plan.charges, self._rules.ban)
        if not any("address" in charge.rule.scope for charge in plan.charges):
            if len(self._calls) >= MAX_CACHED_CALLS:
                self._calls.clear()
            self._calls[caller.owner, endpoint] = call
        return call

    def _note(self, caller: Caller, rule: str, endpoint: str, now_ms: int) -> None:
        rules = self.result.rules
        rules[rule] = rules.get(rule, 0) + 1
        refused = self._refused.get((caller.owner, rule))
        if refused is None:
            refused = self._refused[caller.owner, rule] = RefusalCount(caller.owner, rule, 0, now_ms, now_ms, endpoint)
        refused.count += 1
        refused.last_ms = now_ms

    def _end_those_over(self, now_ms: int) -> None:
        running, counters = self._running, self._counters
        while running and running[0][0] <= now_ms:
            ended_ms, name, call = heapq.heappop(running)
            begun_ms = counters.get_start_ms(name) or ended_ms
            counters.release(name, ended_ms)
            if call.plan.meter_charges and ended_ms > begun_ms:
                counters.add_usage(call.plan.meter_charges, ended_ms - begun_ms, ended_ms)

    def _caller(self, key: tuple[str, str]) -> Caller:
        user, text = key
        nobody = self._addresses.get(text)
        if nobody is None:
            address = parse_address(text) or parse_address("0.0.0.0")
            assert address is not None
            nobody = self._addresses[text] = make_anonymous_caller(address)
        if user:
            caller = Caller(
                kind=CredentialKind.PERSONAL_TOKEN,
                caller_class=CallerClass.USER,
                owner=f"user:{user.replace(' ', '_')}",
                address=nobody.address,
                display_name=f"user {user}",
                user=f"user:{user.replace(' ', '_')}",
                token=f"token:of_{user.replace(' ', '_')}",
            )
        else:
            caller = nobody
        self._callers[key] = caller
        return caller

    def finish(self) -> SimulationResult:
        outcome = self.result
        seconds = sorted(self._buckets)
        if seconds:
            outcome.begins_ms, outcome.ends_ms = seconds[0] * 1_000, seconds[-1] * 1_000
            span_ms = outcome.ends_ms - outcome.begins_ms + 1_000
            outcome.step_ms = next(
                (step for step in TIMELINE_STEPS_MS if span_ms // step <= MAX_TIMELINE_COLUMNS),
                span_ms // MAX_TIMELINE_COLUMNS,
            )
            columns: dict[int, list[int]] = {}
            for second in seconds:
                column = columns.setdefault(second * 1_000 // outcome.step_ms * outcome.step_ms, [0, 0])
                column[0] += self._buckets[second][0]
                column[1] += self._buckets[second][1]
            outcome.timeline = [(at_ms, counts[0], counts[1]) for at_ms, counts in columns.items()]
        outcome.callers = sorted(self._refused.values(), key=lambda refused: (-refused.count, refused.caller))
        del outcome.callers[MAX_REPORTED_CALLERS:]
        outcome.not_judged = list(self._not_judged())
        return outcome

    def _not_judged(self) -> Iterable[str]:
        if not self._has_durations:
            names = [rule.name for rule in self._rules.rules if rule.counts in UNITS_NEEDING_DURATION]
            yield f"rules about CPU time and concurrency, as the log has no durations: {', '.join(names)}"
        yield "bodies: each GraphQL query counts as the smallest, and a large-file batch as one of few objects"
        yield "kinds of credential: who is logged by name counts as a user, all others by address"
        if self.result.unread:
            yield f"{self.result.unread} lines that are not in a known form"
