"""What a caller sees of a decision: the headers of every reply, the status and body of refusals, and the status page.

Clients search messages for fixed texts. Messages of a primary limit begin with `API rate limit exceeded`, those of a
secondary limit with `You have exceeded a secondary rate limit`, and no other refusal contains either text.
"""

import datetime
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.counting.bans import OperatorBan
from wharf.limits.core.decision import LimitDecision, Verdict, is_concurrency_limit, is_unlimited
from wharf.limits.core.plans import Charge
from wharf.limits.core.rule import DESCRIPTOR_STATUS, Algorithm, CountedUnit, Interface, RuleSet
from wharf.limits.core.store_calls import CounterReading

Headers = tuple[tuple[str, str], ...]

DEFAULT_REFUSAL_STATUS: Final = 403
"""The HTTP status of a refusal, unless the rule or the interface has another one."""
LARGE_FILES_REFUSAL_STATUS: Final = 429
GRAPHQL_PRIMARY_REFUSAL_STATUS: Final = 200
"""The status if a primary limit refuses a GraphQL request. GraphQL clients read errors from a reply with status 200."""
JSON_TYPE: Final = "application/json; charset=utf-8"
LARGE_FILES_JSON_TYPE: Final = "application/vnd.git-lfs+json"

PRIMARY_ANCHOR: Final = "#about-primary-rate-limits"
SECONDARY_ANCHOR: Final = "#about-secondary-rate-limits"


class RefusalResponse(msgspec.Struct, frozen=True):
    """The complete reply to a refused request."""

    status: int
    headers: Headers
    body: bytes


def build_headers(decision: LimitDecision, rules: RuleSet) -> Headers:
    """Return the rate limit headers of a reply to an admitted or refused request: `x-ratelimit-*`, `ratelimit` and others.

    Limits in shadow mode are left out: a client that reads that nothing remains would wait, although nothing is refused.
    """
    limit_values = tuple(_iter_ratelimit_values(decision, rules))
    headers: list[tuple[str, str]] = []
    if decision.bucket_charge.is_enforced:
        headers += _build_x_ratelimit_headers(decision.bucket_charge, decision.limit, decision.used, decision.reset_s)
    if limit_values:
        headers.append(("ratelimit-policy", ", ".join(policy for policy, _ in limit_values)))
        headers.append(("ratelimit", ", ".join(remaining for _, remaining in limit_values if remaining)))
    if (retry_after_s := decision.retry_after_s) is not None:
        headers.append(("retry-after", str(retry_after_s)))
    return tuple(headers)


def build_bucket_headers(charge: Charge, reading: CounterReading, now_ms: int) -> Headers:
    """Return the rate limit headers for a reply without a decision: the bucket as it was read, with nothing charged.

    None are returned for a bucket in shadow mode.
    """
    if not charge.is_enforced:
        return ()
    used = min(charge.ceiling, reading.used)
    policy, remaining = format_ratelimit_values(charge, used, reading.end_ms, now_ms)
    return (
        *_build_x_ratelimit_headers(charge, charge.ceiling, used, -(-reading.end_ms // 1_000)),
        ("ratelimit-policy", policy),
        ("ratelimit", remaining),
    )


def _build_x_ratelimit_headers(charge: Charge, limit: int, used: int, reset_s: int) -> Headers:
    """Return the five `x-ratelimit-*` headers of a bucket. `reset_s` is in Unix seconds."""
    return (
        ("x-ratelimit-limit", str(limit)),
        ("x-ratelimit-remaining", str(limit - used)),
        ("x-ratelimit-used", str(used)),
        ("x-ratelimit-reset", str(reset_s)),
        ("x-ratelimit-resource", charge.rule.resource or ""),
    )


def _iter_ratelimit_values(decision: LimitDecision, rules: RuleSet) -> Iterator[tuple[str, str]]:
    """Yield for each limit its value in the header `RateLimit-Policy` and its value in `RateLimit`.

    The primary bucket comes first. A secondary limit follows only if it is not hidden, and if it refused the request or
    the rules disclose secondary limits. Limits in shadow mode are left out. The second value is empty if it must stay
    secret.
    """
    now_ms = decision.result.now_ms
    if decision.bucket_charge.is_enforced:
        yield format_ratelimit_values(decision.bucket_charge, decision.used, decision.result.bucket_end_ms, now_ms)
    free_at_ms = dict(zip(decision.result.hit_indexes, decision.result.free_at_ms, strict=True))
    for index, (charge, before) in enumerate(zip(decision.charges, decision.result.counts_before, strict=False)):
        is_refusing = decision.refusing_index == index
        if charge is decision.bucket_charge or charge.rule.hidden or not charge.is_enforced:
            continue
        if not (is_refusing or rules.disclose_secondary):
            continue
        used = min(charge.ceiling, before + charge.cost * decision.is_admitted)
        end_ms = free_at_ms.get(index, now_ms + charge.rule.window_ms)
        policy, remaining = format_ratelimit_values(charge, charge.ceiling if is_refusing else used, end_ms, now_ms)
        yield policy, "" if should_hide_remaining(charge, decision, rules) else remaining


def should_hide_remaining(charge: Charge, decision: LimitDecision, rules: RuleSet) -> bool:
    """Return whether the remaining points of a limit would disclose the cost of an endpoint that is hidden."""
    if charge.rule.counts is not CountedUnit.POINTS:
        return False
    if charge.rule.per_endpoint:
        return decision.plan.is_cost_hidden
    return any(endpoint.hidden for endpoint in rules.endpoints)


def format_ratelimit_values(charge: Charge, used: int, end_ms: int, now_ms: int) -> tuple[str, str]:
    """Return the values of one limit in the headers `RateLimit-Policy` and `RateLimit`.

    Example: `"core";q=5000;w=3600` (quota and window in seconds) and `"core";r=4999;t=1800` (remaining, and the seconds
    until `end_ms`).
    """
    name = f'"{charge.name}"'
    left_s = max(0, -(-(end_ms - now_ms) // 1_000))
    if is_concurrency_limit(charge):
        return f'{name};q={charge.ceiling};qu="concurrent-requests"', f"{name};r={charge.ceiling - used}"
    unit = "" if charge.rule.counts is CountedUnit.REQUESTS else f';qu="{charge.rule.counts.value}"'
    window_s = max(1, charge.rule.window_ms // 1_000)
    return f"{name};q={charge.ceiling}{unit};w={window_s}", f"{name};r={charge.ceiling - used};t={left_s}"


def build_refusal(decision: LimitDecision, caller: Caller, rules: RuleSet) -> RefusalResponse:
    """Return the status, headers and body of the reply to a refused request. The decision must be a refusal."""
    assert not decision.is_admitted, decision.request_id
    status = _choose_status(decision)
    is_large_files = decision.plan.interface is Interface.LARGE_FILES
    content_type = LARGE_FILES_JSON_TYPE if is_large_files else JSON_TYPE
    headers = (*build_headers(decision, rules), ("content-type", content_type), ("cache-control", "no-cache"))
    return RefusalResponse(status, headers, msgspec.json.encode(_build_body(decision, caller, rules, status)))


def build_descriptor_body(decision: LimitDecision, rules: RuleSet) -> bytes:
    """Return the JSON body of a refusal by a limit on descriptors, which the proxy sends to the caller."""
    if decision.retry_after_s is None:
        message = "Rate limit exceeded: no request of this size is admitted, so waiting does not help."
    else:
        unit = "second" if decision.retry_after_s == 1 else "seconds"
        message = f"Rate limit exceeded. Wait {decision.retry_after_s} {unit} before you try again."
    cause = _build_cause(decision)
    cause.get("limit", {}).pop("scope", None)  # The proxy chose what is counted together.
    return msgspec.json.encode(
        {
            "message": f"{message} Request ID {decision.request_id}.",
            "documentation_url": rules.documentation,
            "status": str(DESCRIPTOR_STATUS),
            **cause,
        }
    )


def _choose_status(decision: LimitDecision) -> int:
    """Return the HTTP status of a refusal: by its verdict, else as the rule sets it, else the default of the interface."""
    match decision.verdict:
        case Verdict.TOO_MANY_OBJECTS:
            return 413
        case Verdict.TOO_COMPLEX:
            return 400
        case Verdict.EXCEEDS_CEILING:
            return DEFAULT_REFUSAL_STATUS
        case _:
            pass
    if decision.refusing_charge is not None and decision.refusing_charge.rule.status is not None:
        return decision.refusing_charge.rule.status
    match decision.plan.interface:
        case Interface.LARGE_FILES:
            return LARGE_FILES_REFUSAL_STATUS
        case Interface.GRAPHQL if decision.verdict is Verdict.PRIMARY:
            return GRAPHQL_PRIMARY_REFUSAL_STATUS
        case _:
            return DEFAULT_REFUSAL_STATUS


def _build_body(decision: LimitDecision, caller: Caller, rules: RuleSet, status: int) -> dict[str, Any]:
    """Return the JSON body of a refusal, in the format of the endpoint's interface."""
    message = _format_message(decision, caller)
    cause = _build_cause(decision)
    if status == GRAPHQL_PRIMARY_REFUSAL_STATUS:
        # Existing clients check only this type in a reply with status 200.
        return {"errors": [{"type": "RATE_LIMITED", "message": message, "extensions": cause}]}
    is_secondary = decision.verdict in (Verdict.SECONDARY, Verdict.BANNED)
    anchor = SECONDARY_ANCHOR if is_secondary else PRIMARY_ANCHOR
    body: dict[str, Any] = {"message": message, "documentation_url": rules.documentation + anchor}
    if decision.plan.interface is Interface.LARGE_FILES:
        return {**body, "request_id": decision.request_id, **cause}
    return {**body, "status": str(status), **cause}


def _format_message(decision: LimitDecision, caller: Caller) -> str:
    """Return the message of a refusal for the caller, with how long to wait if waiting helps."""
    unit = "second" if decision.retry_after_s == 1 else "seconds"
    wait = f"Wait {decision.retry_after_s} {unit} before you try again. Request ID {decision.request_id}."
    match decision.verdict:
        case Verdict.PRIMARY:
            hint = " Requests with an accepted credential have a higher limit." if caller.is_anonymous else ""
            return f"API rate limit exceeded for {caller.display_name}.{hint} {wait}"
        case Verdict.EXCEEDS_CEILING:
            return _format_exceeds_ceiling_message(decision, caller)
        case Verdict.BANNED:
            if decision.operator_ban is not None:
                return f"{_format_operator_ban(decision.operator_ban)} {wait}"
            return (
                "You have exceeded a secondary rate limit: you continued to send requests while you were limited, so all "
                f"requests are refused for some time. {wait}"
            )
        case Verdict.SECONDARY:
            return f"{_format_secondary_message(decision)} {wait}"
        case _:
            return f"{decision.problem} Request ID {decision.request_id}."


def _format_operator_ban(ban: OperatorBan) -> str:
    """Return the sentences that say that an operator has banned the caller, until when, and why if the operator says so."""
    end = datetime.datetime.fromtimestamp(ban.until_ms // 1_000, tz=datetime.UTC)
    message = f" {ban.message.rstrip('.')}." if ban.message else ""
    return f"An operator has blocked you until {end:%Y-%m-%d %H:%M:%S} UTC.{message}"


def _format_secondary_message(decision: LimitDecision) -> str:
    """Return the sentence that names what the secondary limit counts; without a name if the limit is hidden."""
    charge = decision.refusing_charge
    counts = None if charge is None or charge.rule.hidden else charge.rule.counts
    if counts is CountedUnit.FAILED_LOGINS:
        return "Maximum number of login attempts exceeded."
    if counts is CountedUnit.CONTENT:
        return "You have exceeded a secondary rate limit and have been temporarily blocked from content creation."
    return "You have exceeded a secondary rate limit."


def _format_exceeds_ceiling_message(decision: LimitDecision, caller: Caller) -> str:
    """Return the message for a request that costs more than the whole ceiling, so that waiting does not help."""
    charge = decision.refusing_charge
    assert charge is not None, decision.request_id
    if charge.ceiling == 0:
        advice = "Send a credential." if caller.is_anonymous else "Contact the operator of this service."
        return f"Requests of this kind are not allowed here; waiting does not help. {advice} Request ID {decision.request_id}."
    sizes = "" if charge.rule.hidden else f": it costs {charge.required}, and the limit is {charge.ceiling}"
    return f"This request is too large to be admitted{sizes}. Request less at a time. Request ID {decision.request_id}."


def _build_cause(decision: LimitDecision) -> dict[str, Any]:
    """Return the members `cause`, `limit` and `violated` of a refusal's body, which programs can read.

    Hidden limits are not named.
    """
    cause: dict[str, Any] = {"cause": decision.verdict.value}
    refusing = decision.refusing_charge
    if refusing is None or refusing.rule.hidden:
        return cause
    cause["limit"] = {
        "name": refusing.name,
        "scope": list(refusing.rule.scope),
        "counts": refusing.rule.counts.value,
        "allowed": refusing.ceiling,
    }
    if refusing.rule.algorithm is not Algorithm.LEASES and not is_unlimited(refusing):
        cause["limit"]["window_seconds"] = refusing.rule.window_ms // 1_000
    if decision.retry_after_s is not None:
        cause["limit"]["resets_in_seconds"] = decision.retry_after_s
    # All limits of the same kind that were hit. A secondary limit is named only in a refusal of its own.
    hit_charges = [
        decision.charges[index]
        for index in decision.result.hit_indexes
        if decision.charges[index].is_enforced and decision.charges[index].rule.is_primary is refusing.rule.is_primary
    ]
    cause["violated"] = [charge.name for charge in hit_charges if not charge.rule.hidden]
    return cause


def build_status_body(
    rules: RuleSet,
    primaries: Sequence[tuple[Charge, CounterReading]],
    secondaries: Sequence[tuple[Charge, CounterReading]] = (),
) -> bytes:
    """Return the JSON body of the rate limit status page: the limit, used and remaining number of each bucket.

    `primaries` are in the order of the rules. `rate` repeats the core bucket, for old clients.
    """
    resources: dict[str, dict[str, Any]] = {}
    core_bucket: dict[str, Any] | None = None
    for charge, reading in primaries:
        bucket = _build_bucket(charge, reading)
        resources.setdefault(charge.rule.resource or "", bucket)
        if core_bucket is None and not charge.rule.match:
            core_bucket = bucket
    if rules.disclose_secondary:
        hides_points = any(endpoint.hidden for endpoint in rules.endpoints)
        for charge, reading in secondaries:
            if not charge.rule.hidden:
                hides_remaining = hides_points and charge.rule.counts is CountedUnit.POINTS
                resources.setdefault(charge.name, _build_bucket(charge, reading, hides_remaining=hides_remaining))
    return msgspec.json.encode({"resources": resources, "rate": core_bucket})


def _build_bucket(charge: Charge, reading: CounterReading, *, hides_remaining: bool = False) -> dict[str, Any]:
    """Return one bucket of the rate limit status page. `hides_remaining` omits the used and remaining numbers."""
    used = min(charge.ceiling, reading.used)
    bucket: dict[str, Any] = {"limit": charge.ceiling}
    if not hides_remaining:
        bucket |= {"used": used, "remaining": charge.ceiling - used}
    if charge.rule.algorithm is not Algorithm.LEASES:
        bucket["reset"] = -(-reading.end_ms // 1_000)
    return bucket
