"""What is known about the limits of one credential at one host: what is left, what was spent, and which waits apply.

Pure functions: the time is passed in. The state is small plain data, because state stores share it between processes.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from wharf.limits.client.policy import ClientPolicy
from wharf.limits.client.responses import SECOND_NS, LimitKind, ResponseLimits

MINUTE_NS: Final = 60 * SECOND_NS
HOUR_NS: Final = 3_600 * SECOND_NS
MAX_BACKOFF_NS: Final = HOUR_NS
"""The longest wait to which repeated refusals can lengthen a wait."""
PERMIT_TTL_NS: Final = 10 * MINUTE_NS
"""A permit that was not released expires after this time, so that a crashed process cannot block others forever."""
POLL_INTERVAL_NS: Final = SECOND_NS // 20
"""How soon to check again if the wait ends with another request and not at a known time."""
MAX_ENDPOINTS: Final = 500
"""Endpoints whose bucket is remembered; limits memory."""
CLOCK_TOLERANCE_NS: Final = 2 * SECOND_NS
"""Resets that differ by less than this are the same reset, because hosts round them to seconds."""


class RequestCost(NamedTuple):
    """How much a request counts against the limits, and for which endpoint."""

    endpoint: str
    """Method and path without ids, such as `GET /users/{name}`."""
    points: int
    """Points that secondary limits charge."""
    is_graphql: bool
    is_content: bool
    """Whether the request creates content."""


class GrantedPermit(NamedTuple):
    """The answer to a permit request: the HTTP request may be sent. It counts as concurrent until the permit is released."""

    permit: str
    """The id of the permit."""


class RequiredWait(NamedTuple):
    """The answer to a permit request: wait until a time, and then request a permit again."""

    until_ns: int
    """By the clock of this machine."""
    reason: str
    is_limit: bool
    """Whether a limit ends at this time. Otherwise the wait ends with another request."""


class Bucket(msgspec.Struct):
    """A primary limit, as the host last reported it."""

    limit: int
    used: int
    reset_ns: int
    """When its window ends, by the clock of this machine."""
    last_start_ns: int = 0
    """When the last request was sent."""
    blocked_until_ns: int = 0
    """Until when this limit refuses requests; 0 if it has not refused any."""


class Permit(msgspec.Struct):
    """The permit of a request that was sent and has not ended."""

    resource: str
    """The bucket that it counts against, if known."""
    start_ns: int
    """When the permit was granted."""
    is_counted: bool = False
    """Whether `used` of the bucket includes this request: its response has arrived, but its body is still being read."""


class LimitState(msgspec.Struct):
    """The limits of one credential at one host."""

    buckets: dict[str, Bucket] = {}
    """By the name of the resource; empty for a host that does not name it."""
    resource_of: dict[str, str] = {}
    """The bucket of each endpoint, known after its first response."""
    points: dict[str, dict[int, int]] = {}
    """The points of the last minute, by endpoint and by the second in which they were spent."""
    content: dict[int, int] = {}
    """The content-creating requests of the last hour, by second."""
    permits: dict[str, Permit] = {}
    """The running requests, by the ids of their permits."""
    next_permit: int = 0
    """Not used; part of the stored format."""
    blocked_until_ns: int = 0
    """Until when a secondary limit refuses all requests; 0 if it has not refused any."""
    refusals: int = 0
    """Consecutive refusals. Unless it is 0, only one request at a time tests whether the limit is over."""
    refused_ns: int = 0
    """When the last refusal arrived."""
    touched_ns: int = 0
    """When a permit was last requested. State stores delete states that were not used for a while."""


def request_permit(
    state: LimitState, cost: RequestCost, now_ns: int, policy: ClientPolicy, *, new_permit: str
) -> GrantedPermit | RequiredWait:
    """Grant a permit with the id `new_permit` and charge the request, or return the wait that is required first.

    The state is changed in place.
    """
    if now_ns < state.touched_ns - CLOCK_TOLERANCE_NS:
        _adjust_to_clock_step(state, now_ns)
    state.touched_ns = now_ns
    _delete_expired(state, now_ns)
    wait = _find_wait(state, cost, now_ns, policy)
    if wait is not None:
        return wait
    resource = state.resource_of.get(cost.endpoint, "")
    state.permits[new_permit] = Permit(resource, now_ns)
    second = now_ns // SECOND_NS
    points = state.points.setdefault(cost.endpoint, {})
    points[second] = points.get(second, 0) + cost.points
    if cost.is_content:
        state.content[second] = state.content.get(second, 0) + 1
    if resource in state.buckets:
        state.buckets[resource].last_start_ns = now_ns
    return GrantedPermit(new_permit)


def record_response(
    state: LimitState,
    cost: RequestCost,
    permit: str,
    response: ResponseLimits | None,
    now_ns: int,
    policy: ClientPolicy,
) -> RequiredWait | None:
    """Record in the state what a response reports about limits; `None` means that there was no response.

    If a limit refused the request, release its permit and return the wait before a retry. Otherwise return `None`; the
    permit must be released after the body was read. Without a response it is released at once.
    """
    held_permit = state.permits.get(permit)
    if response is None or response.exceeded_kind is not None:
        release_permit(state, permit)
    if response is None:
        return None
    if response.resource:
        state.resource_of[cost.endpoint] = response.resource
    _update_bucket(state, response)
    if held_permit is not None:
        held_permit.is_counted = True
    if response.exceeded_kind is None:
        # A response to a request that was sent before the refusal does not show that the limit is over.
        if held_permit is not None and held_permit.start_ns > state.refused_ns:
            state.refusals = 0
        return None
    state.refusals += 1
    state.refused_ns = now_ns
    wait = _compute_wait(state, response, now_ns, policy)
    bucket = state.buckets.get(response.resource)
    if response.exceeded_kind is LimitKind.PRIMARY and bucket is not None:
        bucket.blocked_until_ns = max(bucket.blocked_until_ns, wait.until_ns)
    else:
        state.blocked_until_ns = max(state.blocked_until_ns, wait.until_ns)
    return wait


def release_permit(state: LimitState, permit: str) -> None:
    """Delete a permit, because its request has ended. A second call does nothing."""
    state.permits.pop(permit, None)


def _compute_wait(state: LimitState, response: ResponseLimits, now_ns: int, policy: ClientPolicy) -> RequiredWait:
    """Return how long to wait before a refused request is sent again.

    It is the time in `retry-after`; else, if nothing remains, the time until the reset; else a minute. The wait doubles
    with each further refusal.
    """
    if response.retry_after_ns is not None:
        until_ns = now_ns + max(response.retry_after_ns, SECOND_NS)
    else:
        until_ns = now_ns + int(policy.unknown_wait_s * SECOND_NS)
        if response.remaining == 0 and response.reset_ns is not None:
            is_primary = response.exceeded_kind is LimitKind.PRIMARY
            # The reset is that of the primary limit. A secondary limit can last longer than that.
            until_ns = max(response.reset_ns, now_ns + SECOND_NS if is_primary else until_ns)
    if state.refusals > 1:
        wait_ns = until_ns - now_ns
        until_ns = now_ns + min(wait_ns << min(state.refusals - 1, 20), max(MAX_BACKOFF_NS, wait_ns))
    limit_kind = response.exceeded_kind or LimitKind.SECONDARY
    name = f" of {response.resource}" if limit_kind is LimitKind.PRIMARY and response.resource else ""
    return RequiredWait(until_ns, f"the {limit_kind.value} rate limit{name} is exceeded", True)


def _update_bucket(state: LimitState, response: ResponseLimits) -> None:
    """Update the bucket that a response reports, if it reports one. A response of an earlier window is ignored."""
    if response.limit is None or response.used is None or response.reset_ns is None:
        return
    used = response.limit if response.exceeded_kind is LimitKind.PRIMARY else response.used
    bucket = state.buckets.get(response.resource)
    if bucket is None or response.reset_ns > bucket.reset_ns + CLOCK_TOLERANCE_NS:
        state.buckets[response.resource] = Bucket(
            response.limit,
            used,
            response.reset_ns,
            bucket.last_start_ns if bucket else 0,
            bucket.blocked_until_ns if bucket else 0,
        )
    elif response.reset_ns >= bucket.reset_ns - CLOCK_TOLERANCE_NS:
        # Responses can arrive in another order than they were sent; within a window, the highest count is the newest.
        bucket.used = max(bucket.used, used)
        bucket.limit = response.limit


def _find_wait(state: LimitState, cost: RequestCost, now_ns: int, policy: ClientPolicy) -> RequiredWait | None:
    """Return the first wait that applies to a request; `None` if it may be sent now."""
    if state.blocked_until_ns > now_ns:
        return RequiredWait(state.blocked_until_ns, "a secondary rate limit is exceeded", True)
    resource = state.resource_of.get(cost.endpoint, "")
    bucket = state.buckets.get(resource)
    if bucket is not None:
        if bucket.blocked_until_ns > now_ns:
            return RequiredWait(
                bucket.blocked_until_ns, f"the primary rate limit of {resource or 'the host'} is exceeded", True
            )
        wait = _find_bucket_wait(state, resource, bucket, now_ns, policy)
        if wait is not None:
            return wait
    if state.refusals and any(
        permit.start_ns > state.refused_ns and not permit.is_counted for permit in state.permits.values()
    ):
        return RequiredWait(now_ns + POLL_INTERVAL_NS, "another request tests whether the limit is over", False)
    if len(state.permits) >= policy.concurrent_max:
        return RequiredWait(now_ns + POLL_INTERVAL_NS, f"{policy.concurrent_max} requests are already running", False)
    return _find_points_wait(state, cost, now_ns, policy) or (
        _find_content_wait(state, now_ns, policy) if cost.is_content else None
    )


def _find_bucket_wait(
    state: LimitState, resource: str, bucket: Bucket, now_ns: int, policy: ClientPolicy
) -> RequiredWait | None:
    """Return the wait that a primary limit requires; `None` if the request may be sent now.

    Requests without a response yet are subtracted from what the host reported as left. When less than `slow_below` is
    left, requests are spread until the reset.
    """
    if now_ns >= bucket.reset_ns:
        return None
    unanswered = sum(permit.resource == resource and not permit.is_counted for permit in state.permits.values())
    left = bucket.limit - bucket.used - unanswered
    if left <= 0:
        if unanswered and bucket.used < bucket.limit:
            return RequiredWait(now_ns + POLL_INTERVAL_NS, "running requests may use the rest of the limit", False)
        return RequiredWait(
            bucket.reset_ns, f"nothing is left of the primary rate limit of {resource or 'the host'}", True
        )
    if left >= bucket.limit * policy.slow_below:
        return None
    spread_ns = bucket.last_start_ns + (bucket.reset_ns - now_ns) // (left + 1)
    if spread_ns <= now_ns:
        return None
    return RequiredWait(
        spread_ns,
        f"only {left} of {bucket.limit} requests are left of {resource or 'the limit'}: they are spread until its reset",
        True,
    )


def _find_points_wait(state: LimitState, cost: RequestCost, now_ns: int, policy: ClientPolicy) -> RequiredWait | None:
    """Return the wait that the maximum of points per minute and endpoint requires; `None` if it requires none."""
    max_points = policy.graphql_points_max if cost.is_graphql else policy.rest_points_max
    points = state.points.get(cost.endpoint, {})
    return _find_window_wait(
        points, cost.points, max_points, 60, now_ns, f"at most {max_points} points per minute for {cost.endpoint}"
    )


def _find_content_wait(state: LimitState, now_ns: int, policy: ClientPolicy) -> RequiredWait | None:
    """Return the wait that the limits on content-creating requests require; `None` if they require none."""
    per_minute, per_hour = policy.content_minute_max, policy.content_hour_max
    return _find_window_wait(
        state.content, 1, per_minute, 60, now_ns, f"at most {per_minute} content-creating requests per minute"
    ) or _find_window_wait(
        state.content, 1, per_hour, 3_600, now_ns, f"at most {per_hour} content-creating requests per hour"
    )


def _find_window_wait(
    spent: dict[int, int], cost: int, ceiling: int, window_s: int, now_ns: int, reason: str
) -> RequiredWait | None:
    """Return the wait until `cost` fits into a sliding window; `None` if it fits now.

    `spent` has the amounts that this client has spent, by second. A second counts until its last moment has left the
    window. So the sum is never below the sum that the service behind the URL has counted for this client.
    """
    first_second = now_ns // SECOND_NS - window_s
    amounts = sorted((second, amount) for second, amount in spent.items() if second >= first_second)
    excess = sum(amount for _, amount in amounts) + cost - ceiling
    if excess <= 0:
        return None
    for second, amount in amounts:
        excess -= amount
        if excess <= 0:
            return RequiredWait((second + window_s + 1) * SECOND_NS, reason, True)
    return RequiredWait(now_ns + window_s * SECOND_NS, reason, True)


def _adjust_to_clock_step(state: LimitState, now_ns: int) -> None:
    """Move all times in the future back, after the clock of this machine was set back since the last request.

    Otherwise a wait would last until the clock shows the former time again.
    """
    step_ns = state.touched_ns - now_ns

    def move(time_ns: int) -> int:
        """Return the time by the clock as it is now."""
        return time_ns - step_ns if time_ns > now_ns else time_ns

    for bucket in state.buckets.values():
        bucket.reset_ns = move(bucket.reset_ns)
        bucket.last_start_ns = move(bucket.last_start_ns)
        bucket.blocked_until_ns = move(bucket.blocked_until_ns)
    for permit in state.permits.values():
        permit.start_ns = move(permit.start_ns)
    state.blocked_until_ns = move(state.blocked_until_ns)
    state.refused_ns = move(state.refused_ns)
    state.points = {endpoint: _move_amounts(amounts, move) for endpoint, amounts in state.points.items()}
    state.content = _move_amounts(state.content, move)


def _move_amounts(amounts: dict[int, int], move: Callable[[int], int]) -> dict[int, int]:
    """Return amounts by second, with moved seconds."""
    moved: dict[int, int] = {}
    for second, amount in amounts.items():
        new_second = move(second * SECOND_NS) // SECOND_NS
        moved[new_second] = moved.get(new_second, 0) + amount
    return moved


def _delete_expired(state: LimitState, now_ns: int) -> None:
    """Delete points, content and permits that are too old to count, and the oldest endpoints beyond `MAX_ENDPOINTS`."""
    minute_ago, hour_ago = now_ns // SECOND_NS - 60, now_ns // SECOND_NS - 3_600
    for endpoint, points in [*state.points.items()]:
        for second in [second for second in points if second < minute_ago]:
            del points[second]
        if not points:
            del state.points[endpoint]
    for second in [second for second in state.content if second < hour_ago]:
        del state.content[second]
    for permit_id in [key for key, permit in state.permits.items() if permit.start_ns < now_ns - PERMIT_TTL_NS]:
        del state.permits[permit_id]
    while len(state.resource_of) > MAX_ENDPOINTS:
        del state.resource_of[next(iter(state.resource_of))]
