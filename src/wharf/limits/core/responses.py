"""What the caller is told: headers on every reply, and status and body of a refusal.

The words that existing clients look for are kept exactly: messages of a primary limit begin `API rate limit exceeded`,
those of a secondary one `You have exceeded a secondary rate limit`, and no other refusal holds either.

The body of the status endpoint: every bucket of a caller, idle ones as full, nothing opened by looking.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.decision import LimitDecision, Verdict, is_concurrency_limit, is_unlimited
from wharf.limits.core.plans import Charge
from wharf.limits.core.rule import Algorithm, CountedUnit, Interface, RuleSet
from wharf.limits.core.store_calls import CounterReading

Headers = tuple[tuple[str, str], ...]

REST_STATUS: Final = 403
LARGE_FILES_STATUS: Final = 429
GRAPHQL_PRIMARY_STATUS: Final = 200
JSON_TYPE: Final = "application/json; charset=utf-8"
LARGE_FILES_JSON_TYPE: Final = "application/vnd.git-lfs+json"

PRIMARY_ANCHOR: Final = "#about-primary-rate-limits"
SECONDARY_ANCHOR: Final = "#about-secondary-rate-limits"


class RefusalResponse(msgspec.Struct, frozen=True):
    status: int
    headers: Headers
    body: bytes


def build_headers(decision: LimitDecision, rules: RuleSet) -> Headers:
    """What every reply carries, admitted or not."""
    told = tuple(_told_limits(decision, rules))
    headers = [
        *_ratelimit(decision.bucket_charge, decision.limit, decision.used, decision.reset_s),
        ("ratelimit-policy", ", ".join(policy for policy, _ in told)),
        ("ratelimit", ", ".join(left for _, left in told if left)),
    ]
    if (retry_after_s := decision.retry_after_s) is not None:
        headers.append(("retry-after", str(retry_after_s)))
    return tuple(headers)


def build_bucket_headers(charge: Charge, reading: CounterReading, now_ms: int) -> Headers:
    """What a reply carries that was decided without a caller: the bucket as it is, nothing charged."""
    used = min(charge.ceiling, reading.used)
    policy, left = _fields(charge, used, reading.end_ms, now_ms)
    return (
        *_ratelimit(charge, charge.ceiling, used, -(-reading.end_ms // 1_000)),
        ("ratelimit-policy", policy),
        ("ratelimit", left),
    )


def _ratelimit(charge: Charge, limit: int, used: int, reset_s: int) -> Headers:
    return (
        ("x-ratelimit-limit", str(limit)),
        ("x-ratelimit-remaining", str(limit - used)),
        ("x-ratelimit-used", str(used)),
        ("x-ratelimit-reset", str(reset_s)),
        ("x-ratelimit-resource", charge.rule.resource or ""),
    )


def _told_limits(decision: LimitDecision, rules: RuleSet) -> Iterator[tuple[str, str]]:
    """The standard fields: the primary bucket always, secondary limits only when they may be told."""
    now_ms = decision.result.now_ms
    yield _fields(decision.bucket_charge, decision.used, decision.result.bucket_end_ms, now_ms)
    free = dict(zip(decision.result.hit_indexes, decision.result.free_at_ms, strict=True))
    for index, (charge, before) in enumerate(zip(decision.charges, decision.result.counts_before, strict=False)):
        is_answering = decision.refusing_index == index
        if charge is decision.bucket_charge or charge.rule.hidden or not (is_answering or rules.disclose_secondary):
            continue
        used = min(charge.ceiling, before + charge.cost * decision.is_admitted)
        end_ms = free.get(index, now_ms + charge.rule.window_ms)
        policy, left = _fields(charge, charge.ceiling if is_answering else used, end_ms, now_ms)
        yield policy, "" if should_hide_remaining(charge, decision, rules) else left


def should_hide_remaining(charge: Charge, decision: LimitDecision, rules: RuleSet) -> bool:
    """Whether what is left would tell a hidden cost."""
    if charge.rule.counts is not CountedUnit.POINTS:
        return False
    if charge.rule.per_endpoint:
        return decision.plan.is_cost_hidden
    return any(endpoint.hidden for endpoint in rules.endpoints)


def _fields(charge: Charge, used: int, end_ms: int, now_ms: int) -> tuple[str, str]:
    """One limit as the standard fields tell it: its policy, and what is left for how long."""
    name = f'"{charge.name}"'
    left_s = max(0, -(-(end_ms - now_ms) // 1_000))
    if is_concurrency_limit(charge):
        return f'{name};q={charge.ceiling};qu="concurrent-requests"', f"{name};r={charge.ceiling - used}"
    unit = "" if charge.rule.counts is CountedUnit.REQUESTS else f';qu="{charge.rule.counts.value}"'
    window_s = max(1, charge.rule.window_ms // 1_000)
    return f"{name};q={charge.ceiling}{unit};w={window_s}", f"{name};r={charge.ceiling - used};t={left_s}"


def build_refusal(decision: LimitDecision, caller: Caller, rules: RuleSet) -> RefusalResponse:
    """Status, headers and body of a refusal. Not for decisions that admit."""
    assert not decision.is_admitted, decision.request_id
    status = _status(decision)
    is_large_files = decision.plan.interface is Interface.LARGE_FILES
    content_type = LARGE_FILES_JSON_TYPE if is_large_files else JSON_TYPE
    headers = (*build_headers(decision, rules), ("content-type", content_type), ("cache-control", "no-cache"))
    return RefusalResponse(status, headers, msgspec.json.encode(_body(decision, caller, rules, status)))


def _status(decision: LimitDecision) -> int:
    match decision.verdict:
        case Verdict.TOO_MANY_OBJECTS:
            return 413
        case Verdict.TOO_COMPLEX:
            return 400
        case Verdict.NEVER:
            return REST_STATUS
        case _:
            pass
    if decision.refusing_charge is not None and decision.refusing_charge.rule.status is not None:
        return decision.refusing_charge.rule.status
    match decision.plan.interface:
        case Interface.LARGE_FILES:
            return LARGE_FILES_STATUS
        case Interface.GRAPHQL if decision.verdict is Verdict.PRIMARY:
            return GRAPHQL_PRIMARY_STATUS
        case _:
            return REST_STATUS


def _body(decision: LimitDecision, caller: Caller, rules: RuleSet, status: int) -> dict[str, Any]:
    message = _message(decision, caller)
    cause = _cause(decision)
    if status == GRAPHQL_PRIMARY_STATUS:
        # Existing clients look for this type in a reply with status 200, and for nothing else.
        return {"errors": [{"type": "RATE_LIMITED", "message": message, "extensions": cause}]}
    is_secondary = decision.verdict in (Verdict.SECONDARY, Verdict.BANNED)
    place = SECONDARY_ANCHOR if is_secondary else PRIMARY_ANCHOR
    body: dict[str, Any] = {"message": message, "documentation_url": rules.documentation + place}
    if decision.plan.interface is Interface.LARGE_FILES:
        return {**body, "request_id": decision.request_id, **cause}
    return {**body, "status": str(status), **cause}


def _message(decision: LimitDecision, caller: Caller) -> str:
    unit = "second" if decision.retry_after_s == 1 else "seconds"
    wait = f"Wait {decision.retry_after_s} {unit} before you try again. Request ID {decision.request_id}."
    match decision.verdict:
        case Verdict.PRIMARY:
            more = " Requests with a credential have a higher limit." if caller.is_anonymous else ""
            return f"API rate limit exceeded for {caller.display_name}.{more} {wait}"
        case Verdict.NEVER:
            return _never(decision, caller)
        case Verdict.BANNED:
            return (
                "You have exceeded a secondary rate limit: requests went on while they were limited, "
                f"and so they are refused for a while. {wait}"
            )
        case Verdict.SECONDARY:
            return f"{_secondary(decision)} {wait}"
        case _:
            return f"{decision.problem} Request ID {decision.request_id}."


def _secondary(decision: LimitDecision) -> str:
    told = decision.refusing_charge
    counts = None if told is None or told.rule.hidden else told.rule.counts
    if counts is CountedUnit.FAILED_LOGINS:
        return "Maximum number of login attempts exceeded."
    if counts is CountedUnit.CONTENT:
        return "You have exceeded a secondary rate limit and have been temporarily blocked from content creation."
    return "You have exceeded a secondary rate limit."


def _never(decision: LimitDecision, caller: Caller) -> str:
    told = decision.refusing_charge
    assert told is not None, decision.request_id
    if told.ceiling == 0:
        help_them = "Send a credential." if caller.is_anonymous else "Ask whoever runs this service."
        return f"This may not be asked for here, however long you wait. {help_them} Request ID {decision.request_id}."
    sizes = "" if told.rule.hidden else f": it costs {told.required}, and at most {told.ceiling} can be used at once"
    return f"This request can never pass{sizes}. Ask for less at once. Request ID {decision.request_id}."


def _cause(decision: LimitDecision) -> dict[str, Any]:
    """The cause for machines: beside the members that clients know, and stable."""
    cause: dict[str, Any] = {"cause": decision.verdict.value}
    told = decision.refusing_charge
    if told is None or told.rule.hidden:
        return cause
    cause["limit"] = {
        "name": told.name,
        "scope": list(told.rule.scope),
        "counts": told.rule.counts.value,
        "allowed": told.ceiling,
    }
    if told.rule.algorithm is not Algorithm.LEASES and not is_unlimited(told):
        cause["limit"]["window_seconds"] = told.rule.window_ms // 1_000
    if decision.retry_after_s is not None:
        cause["limit"]["resets_in_seconds"] = decision.retry_after_s
    # Others of the same kind; a secondary limit is named in its own refusal only.
    same_kind = [
        decision.charges[index]
        for index in decision.result.hit_indexes
        if decision.charges[index].is_enforced and decision.charges[index].rule.is_primary is told.rule.is_primary
    ]
    cause["violated"] = [charge.name for charge in same_kind if not charge.rule.hidden]
    return cause


def build_status_body(
    rules: RuleSet,
    primaries: Sequence[tuple[Charge, CounterReading]],
    secondaries: Sequence[tuple[Charge, CounterReading]] = (),
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
                is_fed_by_hidden = hides_points and charge.rule.counts is CountedUnit.POINTS
                resources.setdefault(charge.name, _bucket(charge, reading, hides_remaining=is_fed_by_hidden))
    return msgspec.json.encode({"resources": resources, "rate": rest})


def _bucket(charge: Charge, reading: CounterReading, *, hides_remaining: bool = False) -> dict[str, Any]:
    used = min(charge.ceiling, reading.used)
    bucket: dict[str, Any] = {"limit": charge.ceiling}
    if not hides_remaining:
        bucket |= {"used": used, "remaining": charge.ceiling - used}
    if charge.rule.algorithm is not Algorithm.LEASES:
        bucket["reset"] = -(-reading.end_ms // 1_000)
    return bucket
