"""How one credential stands with one host: what is left, what was spent, who must wait and until when.

Pure: it takes the moment and gives back what may happen. Whoever shares a credential shares its standing (ledgers), so
it is plain data, and small.
"""

from typing import Final, NamedTuple

import msgspec

from wharf.limits.client.policy import ClientPolicy
from wharf.limits.client.responses import SECOND_NS, LimitKind, ResponseLimits

MINUTE_NS: Final = 60 * SECOND_NS
HOUR_NS: Final = 3_600 * SECOND_NS
MAX_BACKOFF_NS: Final = HOUR_NS
# A process that died in the middle of a request does not take its place with it for ever.
PERMIT_TTL_NS: Final = 10 * MINUTE_NS
# How soon to look again when only the end of somebody else's request makes room.
POLL_INTERVAL_NS: Final = SECOND_NS // 20
MAX_ENDPOINTS: Final = 500


class RequestCost(NamedTuple):
    """A request, as far as limits see it."""

    endpoint: str
    points: int
    is_graphql: bool
    is_content: bool


class GrantedPermit(NamedTuple):
    permit: str


class RequiredWait(NamedTuple):
    until_ns: int
    reason: str
    # What makes it wait ends by itself at that moment; or one looks again then.
    is_limit: bool


class Bucket(msgspec.Struct):
    """A primary limit, as the host last told it."""

    limit: int
    used: int
    reset_ns: int
    last_start_ns: int = 0
    blocked_until_ns: int = 0


class Permit(msgspec.Struct):
    resource: str
    start_ns: int
    # Counted in `used` by now: its answer told so. Only its body is still on the way.
    is_counted: bool = False


class LimitState(msgspec.Struct):
    buckets: dict[str, Bucket] = {}
    # Which bucket an endpoint counts against, once an answer told.
    resource_of: dict[str, str] = {}
    # Points by endpoint and by the second they were spent in, of the last minute.
    points: dict[str, dict[int, int]] = {}
    # Requests that make content, by second, of the last hour.
    content: dict[int, int] = {}
    permits: dict[str, Permit] = {}
    next_permit: int = 0
    blocked_until_ns: int = 0
    # Refusals in a row. While there are any, one request at a time goes to see whether it is over.
    refusals: int = 0
    refused_ns: int = 0
    touched_ns: int = 0
    """When somebody asked last. What nobody asks for is forgotten by whoever keeps standings."""


def request_permit(
    standing: LimitState, call: RequestCost, now_ns: int, manner: ClientPolicy, *, new_permit: str
) -> GrantedPermit | RequiredWait:
    """Notes the call when it may go."""
    standing.touched_ns = now_ns
    _forget_old(standing, now_ns)
    wait = _first_wait(standing, call, now_ns, manner)
    if wait is not None:
        return wait
    resource = standing.resource_of.get(call.endpoint, "")
    standing.permits[new_permit] = Permit(resource, now_ns)
    second = now_ns // SECOND_NS
    spent = standing.points.setdefault(call.endpoint, {})
    spent[second] = spent.get(second, 0) + call.points
    if call.is_content:
        standing.content[second] = standing.content.get(second, 0) + 1
    if resource in standing.buckets:
        standing.buckets[resource].last_start_ns = now_ns
    return GrantedPermit(new_permit)


def record_response(
    standing: LimitState,
    call: RequestCost,
    permit: str,
    answer: ResponseLimits | None,
    now_ns: int,
    manner: ClientPolicy,
) -> RequiredWait | None:
    """What the answer says; None in its place if there was none. Gives back the wait before another try, if limited.

    A good answer keeps its place among those that run at once until its body is read (`release`)."""
    held = standing.permits.get(permit)
    if answer is None or answer.exceeded_kind is not None:
        release_permit(standing, permit)
    if answer is None:
        return None
    if answer.resource:
        standing.resource_of[call.endpoint] = answer.resource
    _learn(standing, answer)
    if held is not None:
        held.is_counted = True
    if answer.exceeded_kind is None:
        # What went out before the refusal says nothing about whether that is over.
        if held is not None and held.start_ns > standing.refused_ns:
            standing.refusals = 0
        return None
    standing.refusals += 1
    standing.refused_ns = now_ns
    wait = _wait_of(standing, answer, now_ns, manner)
    bucket = standing.buckets.get(answer.resource)
    if answer.exceeded_kind is LimitKind.PRIMARY and bucket is not None:
        bucket.blocked_until_ns = max(bucket.blocked_until_ns, wait.until_ns)
    else:
        standing.blocked_until_ns = max(standing.blocked_until_ns, wait.until_ns)
    return wait


def release_permit(standing: LimitState, permit: str) -> None:
    standing.permits.pop(permit, None)


def _wait_of(standing: LimitState, answer: ResponseLimits, now_ns: int, manner: ClientPolicy) -> RequiredWait:
    """In the order that hosts ask for: what they say to wait; else until the reset of a spent limit; else a minute, and
    longer each time."""
    if answer.retry_after_ns is not None:
        until_ns = now_ns + max(answer.retry_after_ns, SECOND_NS)
    elif answer.remaining == 0 and answer.reset_ns is not None:
        until_ns = max(answer.reset_ns, now_ns + SECOND_NS)
    else:
        until_ns = now_ns + int(manner.unknown_wait_s * SECOND_NS)
    if standing.refusals > 1:
        longer_ns = min((until_ns - now_ns) << min(standing.refusals - 1, 20), max(MAX_BACKOFF_NS, until_ns - now_ns))
        until_ns = now_ns + longer_ns
    kind = answer.exceeded_kind or LimitKind.SECONDARY
    name = f" of {answer.resource}" if kind is LimitKind.PRIMARY and answer.resource else ""
    return RequiredWait(until_ns, f"the {kind.value} rate limit{name} is exceeded", True)


def _learn(standing: LimitState, answer: ResponseLimits) -> None:
    if answer.limit is None or answer.used is None or answer.reset_ns is None:
        return
    used = answer.limit if answer.exceeded_kind is LimitKind.PRIMARY else answer.used
    bucket = standing.buckets.get(answer.resource)
    if bucket is None or answer.reset_ns > bucket.reset_ns + 2 * SECOND_NS:
        blocked_ns = bucket.blocked_until_ns if bucket else 0
        last_ns = bucket.last_start_ns if bucket else 0
        standing.buckets[answer.resource] = Bucket(answer.limit, used, answer.reset_ns, last_ns, blocked_ns)
    elif answer.reset_ns >= bucket.reset_ns - 2 * SECOND_NS:
        # Answers overtake each other; within a window only the largest count is the newest.
        bucket.used = max(bucket.used, used)
        bucket.limit = answer.limit


def _first_wait(standing: LimitState, call: RequestCost, now_ns: int, manner: ClientPolicy) -> RequiredWait | None:
    if standing.blocked_until_ns > now_ns:
        return RequiredWait(standing.blocked_until_ns, "a secondary rate limit is exceeded", True)
    resource = standing.resource_of.get(call.endpoint, "")
    bucket = standing.buckets.get(resource)
    if bucket is not None:
        if bucket.blocked_until_ns > now_ns:
            return RequiredWait(
                bucket.blocked_until_ns, f"the primary rate limit of {resource or 'the host'} is exceeded", True
            )
        wait = _bucket_wait(standing, resource, bucket, now_ns, manner)
        if wait is not None:
            return wait
    if standing.refusals and any(
        permit.start_ns > standing.refused_ns and not permit.is_counted for permit in standing.permits.values()
    ):
        return RequiredWait(now_ns + POLL_INTERVAL_NS, "another request looks whether the limit is over", False)
    if len(standing.permits) >= manner.concurrent_max:
        return RequiredWait(now_ns + POLL_INTERVAL_NS, f"{manner.concurrent_max} requests run at once", False)
    return _points_wait(standing, call, now_ns, manner) or (
        _content_wait(standing, now_ns, manner) if call.is_content else None
    )


def _bucket_wait(
    standing: LimitState, resource: str, bucket: Bucket, now_ns: int, manner: ClientPolicy
) -> RequiredWait | None:
    """What is left is what the host told less what is on its way there; its last part is spread until the reset."""
    if now_ns >= bucket.reset_ns:
        return None
    on_the_way = sum(permit.resource == resource and not permit.is_counted for permit in standing.permits.values())
    left = bucket.limit - bucket.used - on_the_way
    if left <= 0:
        if on_the_way and bucket.used < bucket.limit:
            return RequiredWait(now_ns + POLL_INTERVAL_NS, "what is left of the limit is on its way", False)
        return RequiredWait(
            bucket.reset_ns, f"nothing is left of the primary rate limit of {resource or 'the host'}", True
        )
    if left >= bucket.limit * manner.slow_below:
        return None
    spaced_ns = bucket.last_start_ns + (bucket.reset_ns - now_ns) // (left + 1)
    if spaced_ns <= now_ns:
        return None
    return RequiredWait(
        spaced_ns,
        f"{left} of {bucket.limit} requests are left of {resource or 'the limit'}: spread until it begins anew",
        True,
    )


def _points_wait(standing: LimitState, call: RequestCost, now_ns: int, manner: ClientPolicy) -> RequiredWait | None:
    most = manner.graphql_points_max if call.is_graphql else manner.rest_points_max
    spent = standing.points.get(call.endpoint, {})
    return _window_wait(spent, call.points, most, 60, now_ns, f"{most} points a minute for {call.endpoint}")


def _content_wait(standing: LimitState, now_ns: int, manner: ClientPolicy) -> RequiredWait | None:
    made, each = standing.content, manner
    return _window_wait(
        made, 1, each.content_minute_max, 60, now_ns, f"{each.content_minute_max} new things a minute"
    ) or _window_wait(made, 1, each.content_hour_max, 3_600, now_ns, f"{each.content_hour_max} new things an hour")


def _window_wait(
    spent: dict[int, int], cost: int, most: int, window_s: int, now_ns: int, why: str
) -> RequiredWait | None:
    """A sliding window of seconds: in no stretch of that length is more spent. A second counts until its last moment
    is out of the window, so the count is never below the host's."""
    first = now_ns // SECOND_NS - window_s
    inside = sorted((second, points) for second, points in spent.items() if second >= first)
    over = sum(points for _, points in inside) + cost - most
    if over <= 0:
        return None
    for second, points in inside:
        over -= points
        if over <= 0:
            return RequiredWait((second + window_s + 1) * SECOND_NS, f"at most {why}", True)
    return RequiredWait(now_ns + window_s * SECOND_NS, f"at most {why}", True)


def _forget_old(standing: LimitState, now_ns: int) -> None:
    minute, hour = now_ns // SECOND_NS - 60, now_ns // SECOND_NS - 3_600
    for endpoint, spent in [*standing.points.items()]:
        for second in [second for second in spent if second < minute]:
            del spent[second]
        if not spent:
            del standing.points[endpoint]
    for second in [second for second in standing.content if second < hour]:
        del standing.content[second]
    for name in [name for name, permit in standing.permits.items() if permit.start_ns < now_ns - PERMIT_TTL_NS]:
        del standing.permits[name]
    while len(standing.resource_of) > MAX_ENDPOINTS:
        del standing.resource_of[next(iter(standing.resource_of))]
