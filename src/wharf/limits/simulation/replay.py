"""Applies rules to logged requests, with the counters of a limiter and the clock of the log.

A request with a user name counts for that user, any other for its address. Limits on CPU time and concurrency need
durations in the log; the result lists what was assumed and what was not simulated.
"""

import heapq
import re
from collections.abc import Iterable
from enum import Enum
from typing import Any, Final

import msgspec

from wharf.limits.core.caches import BoundedCache
from wharf.limits.core.callers.addresses import parse_address
from wharf.limits.core.callers.caller import Caller, CallerClass, CredentialKind
from wharf.limits.core.callers.credentials import hash_secret
from wharf.limits.core.callers.recognition import make_anonymous_caller
from wharf.limits.core.counting.counters import Counters
from wharf.limits.core.decision import build_decision
from wharf.limits.core.graphql import QueryCostCalculator, QueryTooComplex
from wharf.limits.core.limiter import Limiter
from wharf.limits.core.method_overrides import find_methods, join_methods, may_name_method
from wharf.limits.core.paths import BadPath, normalize_raw_path
from wharf.limits.core.plans import EndpointCost
from wharf.limits.core.request import RequestFacts
from wharf.limits.core.rule import ConnectionClass, CountedUnit, Interface, MethodOverride, RuleSet
from wharf.limits.core.rulebook import MAX_CACHED_PATHS
from wharf.limits.core.store_calls import StoreCall, TakeResult
from wharf.limits.decisions.cpu_meter import MIN_SLICE_MS
from wharf.limits.simulation.access_log import CREDENTIAL_PREFIX, LogRecord

UNITS_NEEDING_DURATION: Final = frozenset({CountedUnit.CPU_MS, CountedUnit.CONNECTIONS})
MAX_REPORTED_CALLERS: Final = 100
"""Limits the length of a result."""
MAX_TIMELINE_COLUMNS: Final = 120
TIMELINE_STEPS_MS: Final = (1_000, 5_000, 15_000, 60_000, 300_000, 900_000, 3_600_000, 21_600_000, 86_400_000)
"""The first step with which the whole log fits into the columns is used."""
PROGRESS_INTERVAL_LINES: Final = 20_000
MAX_CPU_MS: Final = 1_000 * MIN_SLICE_MS
"""More CPU time of one request is not charged: 83 minutes use up every limit. Protects the simulation from wrong durations."""
SWITCHING_PROTOCOLS: Final = 101
_TOKEN_NAME: Final = re.compile(r"(?:gh[posu]_|github_pat_|gl[a-z]{1,6}-).{16,}|[0-9a-f]{32,}")
"""User names that are tokens: clients can send a token in place of the name."""
_CREDENTIAL_KEY: Final = re.compile(rf"{CREDENTIAL_PREFIX}[0-9a-f]{{32}}")
MAX_CACHED_CALLS: Final = 200_000
"""Limits the memory for store calls; the oldest entries of a full cache are removed."""


class CpuSource(Enum):
    """What counts as the CPU time of a logged request. The texts are for the result, for one request."""

    FIRST_BYTE = ": the time to the first byte of the reply, as the gateway counts it"
    UPSTREAM = ": the time of the service with its whole reply, which is too much for long replies"
    DURATION = (
        ": its whole duration, which is too much for long replies and slow callers; log the time to the first byte, such as "
        "$upstream_header_time of nginx"
    )
    WEBSOCKET = " that opened a websocket: none"


def find_cpu_source(record: LogRecord) -> CpuSource:
    """Return what counts as the CPU time of a request: the time that is closest to what the gateway counts."""
    if record.first_byte_ms is not None:
        return CpuSource.FIRST_BYTE
    if record.status == SWITCHING_PROTOCOLS:
        return CpuSource.WEBSOCKET  # Its duration is that of the whole websocket.
    return CpuSource.DURATION if record.upstream_ms is None else CpuSource.UPSTREAM


def count_cpu_ms(record: LogRecord) -> int:
    """Return the CPU time of a request, as an estimate of what the gateway counts."""
    match find_cpu_source(record):
        case CpuSource.FIRST_BYTE:
            return record.first_byte_ms or 0
        case CpuSource.UPSTREAM:
            return record.upstream_ms or 0
        case CpuSource.DURATION:
            return record.duration_ms or 0
        case CpuSource.WEBSOCKET:
            return 0


class _RunningRequest(msgspec.Struct, frozen=True, order=True):
    """A running request in the heap, ordered by when something happens to it: a part of its work is charged, or it ends."""

    at_ms: int
    number: int
    end_ms: int
    left_ms: int
    """The work that is not charged yet."""


class RefusalCount(msgspec.Struct):
    """The refusals of one caller by one rule."""

    caller: str
    """The owner of the counter, such as `user:ada`."""
    rule: str
    """The name of the rule; `ban` for refusals during a ban."""
    count: int = 0
    first_ms: int = 0
    last_ms: int = 0
    busiest: str = ""
    """The endpoint of the first refusal."""


class SimulationResult(msgspec.Struct):
    """What the rules would have done with the logged requests."""

    lines: int = 0
    """Requests that were read."""
    unread: int = 0
    """Lines in an unknown format."""
    admitted: int = 0
    refused: int = 0
    unacceptable: int = 0
    """Requests with a path or a GraphQL query that the limiter refuses whatever the counters are; not in `refused`."""
    by_address: int = 0
    """Requests without a user name and without a mark of their credential, which count by their address."""
    begins_ms: int = 0
    """The first and the last second of the log, in Unix milliseconds."""
    ends_ms: int = 0
    rules: dict[str, int] = {}
    """Refusals by rule."""
    shadowed: dict[str, int] = {}
    """Requests that rules in shadow mode would have refused, by rule."""
    callers: list[RefusalCount] = []
    """The callers with most refusals first."""
    assumptions: list[str] = []
    """What was assumed about the requests, because the log does not have it."""
    not_judged: list[str] = []
    """What was not simulated."""
    cpu_sources: dict[CpuSource, int] = {}
    """The number of requests by what counted as their CPU time."""
    step_ms: int = 60_000
    """The length of a step of the timeline."""
    timeline: list[tuple[int, int, int]] = []
    """For each step, its start in Unix milliseconds and the numbers of admitted and refused requests."""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values for JSON."""
        values: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(self, cpu_sources={}))
        del values["cpu_sources"]
        return values


class PartialResult(msgspec.Struct):
    """The result of a simulation for some of the callers."""

    result: SimulationResult
    seconds: dict[int, list[int]]
    """Admitted and refused requests by second."""
    refusals: dict[tuple[str, str], RefusalCount]
    """By caller and rule."""


class Replay:
    """A running simulation: the counters of a limiter, the clock of the log, and the result so far."""

    def __init__(self, rules: RuleSet, *, has_durations: bool) -> None:
        """`has_durations` is set if the log has durations; otherwise rules that need them are left out."""
        self.result = SimulationResult()
        self._rules = rules
        self._has_durations = has_durations
        applied_rules = rules
        if not has_durations:
            applied_rules = msgspec.structs.replace(
                rules, rules=tuple(rule for rule in rules.rules if rule.counts not in UNITS_NEEDING_DURATION)
            )
        self._limiter = Limiter(applied_rules)
        self._counters = Counters(applied_rules.rules, max_keys=applied_rules.keys_most)
        self._callers: dict[tuple[str, str], Caller] = {}
        self._address_callers: dict[str, Caller] = {}
        self._calls: BoundedCache[tuple[str, EndpointCost], StoreCall] = BoundedCache(MAX_CACHED_CALLS)
        self._paths: BoundedCache[str, str] = BoundedCache(MAX_CACHED_PATHS)
        """The normal form of each logged path."""
        self._query_costs = QueryCostCalculator(rules.graphql)
        self._counts_named_methods = rules.paths.method_override in (MethodOverride.BOTH, MethodOverride.FORMS)
        self._running: list[_RunningRequest] = []
        """A heap of running requests."""
        self._running_calls: dict[int, StoreCall] = {}
        """Their calls by number."""
        self._last_id = 0
        self._now_ms = 0
        self._seconds: dict[int, list[int]] = {}
        self._current_second = [0, 0]
        """The admitted and refused requests of the current second."""
        self._refusals: dict[tuple[str, str], RefusalCount] = {}

    def advance_clock(self, now_ms: int) -> None:
        """Set the clock to the time of a line, unless that is earlier than the current time."""
        if now_ms > self._now_ms:
            self._now_ms = now_ms
            self._current_second = self._seconds.setdefault(now_ms // 1_000, [0, 0])

    @property
    def partial_result(self) -> PartialResult:
        """The result so far, which another process can add to its own."""
        return PartialResult(self.result, self._seconds, self._refusals)

    def merge_part(self, part: PartialResult) -> None:
        """Add the result for other callers. No caller may be in both."""
        total, added = self.result, part.result
        total.lines += added.lines
        total.unread += added.unread
        total.admitted += added.admitted
        total.refused += added.refused
        total.unacceptable += added.unacceptable
        total.by_address += added.by_address
        for total_counts, added_counts in ((total.rules, added.rules), (total.shadowed, added.shadowed)):
            for rule, count in added_counts.items():
                total_counts[rule] = total_counts.get(rule, 0) + count
        for source, count in added.cpu_sources.items():
            total.cpu_sources[source] = total.cpu_sources.get(source, 0) + count
        for second, (admitted, refused) in part.seconds.items():
            counts = self._seconds.setdefault(second, [0, 0])
            counts[0] += admitted
            counts[1] += refused
        self._refusals |= part.refusals

    def replay_record(self, record: LogRecord) -> None:
        """Admit or refuse a logged request by the rules, and count the decision.

        A line that is out of order counts at the current time.
        """
        result, counters = self.result, self._counters
        result.lines += 1
        if record.at_ms > self._now_ms:
            self.advance_clock(record.at_ms)
        now_ms = self._now_ms
        if self._running:
            self._end_requests(now_ms)
        if not record.user:
            result.by_address += 1
        second = self._current_second
        key = (record.user, record.address)
        caller = self._callers.get(key) or self._make_caller(key)
        path = self._paths.get(record.path) or self._normalize_path(record.path)
        if not path:
            result.unacceptable += 1
            return
        method = record.method
        if record.query and self._counts_named_methods and may_name_method(record.query):
            method = join_methods(find_methods(method, (), record.query, has_form=False))
        endpoint = self._limiter.rulebook.get_endpoint(method, path)
        if record.query and endpoint.interface is Interface.GRAPHQL:
            try:
                query = self._query_costs.compute_request_cost(None, record.query)
            except QueryTooComplex:
                result.unacceptable += 1
                return
            call = self._make_call(RequestFacts("", method, path, caller, query), None)
        elif record.status == SWITCHING_PROTOCOLS:
            request = RequestFacts("", method, path, caller, connection=ConnectionClass.WEBSOCKET)
            call = self._make_call(request, None)
        else:
            call = self._calls.get((caller.owner, endpoint)) or self._make_call(
                RequestFacts("", method, path, caller), endpoint
            )
        take_result = (
            self._take_with_duration(call, record) if self._has_durations else counters.take_once(call, now_ms)
        )
        plan = call.plan
        if take_result.is_admitted:
            result.admitted += 1
            second[0] += 1
            if take_result.hit_indexes:
                for index in take_result.hit_indexes:
                    rule = plan.charges[index].name
                    result.shadowed[rule] = result.shadowed.get(rule, 0) + 1
            return
        result.refused += 1
        second[1] += 1
        decision = build_decision(call.id, plan, plan.charges, take_result)
        rule = decision.refusing_charge.name if decision.refusing_charge is not None else "ban"
        self._count_refusal(caller, rule, plan.endpoint, now_ms)

    def _take_with_duration(self, cached_call: StoreCall, record: LogRecord) -> TakeResult:
        """Check and charge a request, and return the result. If admitted, it holds its concurrency slots for its duration.

        Without a duration, the slots are released at once.
        """
        self._last_id += 1
        call = StoreCall(str(self._last_id), cached_call.plan, cached_call.charges, cached_call.ban_rules)
        take_result = self._counters.take(call, self._now_ms)
        if not take_result.is_admitted:
            return take_result
        if record.duration_ms is None:
            self._counters.release(call.id, self._now_ms)
            return take_result
        cpu_ms = 0
        if call.plan.meter_charges and not call.plan.is_waiting:
            source = find_cpu_source(record)
            sources = self.result.cpu_sources
            sources[source] = sources.get(source, 0) + 1
            cpu_ms = count_cpu_ms(record)
        end_ms = self._now_ms + record.duration_ms
        at_ms = min(end_ms, self._now_ms + MIN_SLICE_MS) if cpu_ms >= MIN_SLICE_MS else end_ms
        self._running_calls[self._last_id] = call
        heapq.heappush(self._running, _RunningRequest(at_ms, self._last_id, end_ms, min(cpu_ms, MAX_CPU_MS)))
        return take_result

    def _normalize_path(self, path: str) -> str:
        """Return a logged path as the gateway judges it, and cache it; empty if the gateway refuses requests with it."""
        try:
            normal_path = normalize_raw_path(path.encode("utf-8", "replace"), self._rules.paths)
        except BadPath:
            return ""
        return self._paths.store(path, normal_path)

    def _make_call(self, request: RequestFacts, endpoint: EndpointCost | None) -> StoreCall:
        """Return the store call for a request, and cache it for its endpoint unless a limit depends on the address.

        Most limits depend only on the owner, so one call serves all addresses of a user.
        """
        plan = self._limiter.rulebook.get_plan(request)
        call = StoreCall("", plan, plan.charges, self._rules.ban)
        if endpoint is not None and not any("address" in charge.rule.scope for charge in plan.charges):
            self._calls.store((request.caller.owner, endpoint), call)
        return call

    def _count_refusal(self, caller: Caller, rule: str, endpoint: str, now_ms: int) -> None:
        """Count a refusal by rule, and by caller and rule."""
        rules = self.result.rules
        rules[rule] = rules.get(rule, 0) + 1
        count = self._refusals.get((caller.owner, rule))
        if count is None:
            count = self._refusals[caller.owner, rule] = RefusalCount(caller.owner, rule, 0, now_ms, now_ms, endpoint)
        count.count += 1
        count.last_ms = now_ms

    def _end_requests(self, now_ms: int) -> None:
        """Charge the CPU time of running requests in the parts in which the gateway does, and end those whose duration is over."""
        running, counters = self._running, self._counters
        while running and running[0].at_ms <= now_ms:
            entry = running[0]
            meters = self._running_calls[entry.number].plan.meter_charges
            if entry.at_ms < entry.end_ms:
                counters.add_usage(meters, MIN_SLICE_MS, entry.at_ms)
                left_ms = entry.left_ms - MIN_SLICE_MS
                at_ms = min(entry.end_ms, entry.at_ms + MIN_SLICE_MS) if left_ms >= MIN_SLICE_MS else entry.end_ms
                heapq.heapreplace(running, _RunningRequest(at_ms, entry.number, entry.end_ms, left_ms))
                continue
            heapq.heappop(running)
            call = self._running_calls.pop(entry.number)
            counters.release(call.id, entry.end_ms)
            if entry.left_ms:
                counters.add_usage(meters, entry.left_ms, entry.end_ms)

    def _make_caller(self, key: tuple[str, str]) -> Caller:
        """Return the caller with this user name and address, and cache it. Without a user name, it is the address."""
        user, address_text = key
        address_caller = self._address_callers.get(address_text)
        if address_caller is None:
            address = parse_address(address_text) or parse_address("0.0.0.0")
            assert address is not None
            address_caller = self._address_callers[address_text] = make_anonymous_caller(address)
        caller = address_caller
        if user.startswith(CREDENTIAL_PREFIX) or _TOKEN_NAME.fullmatch(user):
            is_key = _CREDENTIAL_KEY.fullmatch(user) is not None
            secret_hash = user.removeprefix(CREDENTIAL_PREFIX) if is_key else hash_secret(user)[:32]
            caller = msgspec.structs.replace(
                address_caller,
                kind=CredentialKind.OPAQUE,
                caller_class=CallerClass.USER,
                owner=f"{CREDENTIAL_PREFIX}{secret_hash}",
                display_name=f"credential {secret_hash[:8]}",
                token=f"token:{secret_hash[:16]}",
            )
        elif user:
            name = user.replace(" ", "_")
            caller = Caller(
                kind=CredentialKind.PERSONAL_TOKEN,
                caller_class=CallerClass.USER,
                owner=f"user:{name}",
                address=address_caller.address,
                display_name=f"user {user}",
                user=f"user:{name}",
                token=f"token:of_{name}",
            )
        self._callers[key] = caller
        return caller

    def finish(self) -> SimulationResult:
        """Complete the result with its time range, its timeline and the callers with most refusals, and return it."""
        result = self.result
        seconds = sorted(self._seconds)
        if seconds:
            result.begins_ms, result.ends_ms = seconds[0] * 1_000, seconds[-1] * 1_000
            duration_ms = result.ends_ms - result.begins_ms + 1_000
            result.step_ms = next(
                (step_ms for step_ms in TIMELINE_STEPS_MS if duration_ms // step_ms <= MAX_TIMELINE_COLUMNS),
                duration_ms // MAX_TIMELINE_COLUMNS,
            )
            columns: dict[int, list[int]] = {}
            for second in seconds:
                column = columns.setdefault(second * 1_000 // result.step_ms * result.step_ms, [0, 0])
                column[0] += self._seconds[second][0]
                column[1] += self._seconds[second][1]
            result.timeline = [(start_ms, counts[0], counts[1]) for start_ms, counts in columns.items()]
        result.callers = sorted(self._refusals.values(), key=lambda count: (-count.count, count.caller))
        del result.callers[MAX_REPORTED_CALLERS:]
        result.assumptions = [
            f"CPU time of {count} request{'' if count == 1 else 's'}{source.value}"
            for source in CpuSource
            if (count := result.cpu_sources.get(source, 0))
        ]
        result.not_judged = list(self._describe_gaps())
        return result

    def _describe_gaps(self) -> Iterable[str]:
        """Yield a line for each thing that was not simulated."""
        if not self._has_durations:
            names = [rule.name for rule in self._rules.rules if rule.counts in UNITS_NEEDING_DURATION]
            yield f"rules about CPU time and concurrency, because the log has no durations: {', '.join(names)}"
        yield (
            "bodies: each GraphQL query in a body counts as the smallest one, and each large-file batch as one with few objects"
        )
        yield ("kinds of credentials: a request with a user name counts for that user, any other for its address")
        if self.result.by_address:
            yield (
                f"tokens: {self.result.by_address:,} of {self.result.lines:,} requests have neither a user name nor a "
                "credential_mark in the log, so they count by address, also if they had a token"
            )
        if self.result.unacceptable:
            yield f"{self.result.unacceptable} requests with a path or a query that is refused whatever the counters are"
        if self.result.unread:
            yield f"{self.result.unread} lines in an unknown format"
