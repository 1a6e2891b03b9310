"""The state of a client's limits: when requests may be sent, and what responses change."""

import msgspec
import pytest

from wharf.limits.client.limit_state import (
    HOUR_NS,
    MAX_ENDPOINTS,
    MINUTE_NS,
    PERMIT_TTL_NS,
    POLL_INTERVAL_NS,
    Bucket,
    GrantedPermit,
    LimitState,
    Permit,
    RequestCost,
    RequiredWait,
    record_response,
    release_permit,
    request_permit,
)
from wharf.limits.client.policy import ClientPolicy
from wharf.limits.client.responses import SECOND_NS, LimitKind, ResponseLimits

NOW_NS = 1_800_000_000 * SECOND_NS
READ = RequestCost("GET /x", 1, is_graphql=False, is_content=False)
OTHER_READ = RequestCost("GET /y", 1, is_graphql=False, is_content=False)
WRITE = RequestCost("POST /x", 5, is_graphql=False, is_content=True)
QUERY = RequestCost("graphql", 1, is_graphql=True, is_content=False)
OK = ResponseLimits(200, None, "", None, None, None, None, None)
SECONDARY = ResponseLimits(403, LimitKind.SECONDARY, "", None, None, None, None, None)
PRIMARY = ResponseLimits(403, LimitKind.PRIMARY, "core", 60, 60, 0, NOW_NS + 100 * SECOND_NS, None)


def ask(
    state: LimitState,
    cost: RequestCost = READ,
    now_ns: int = NOW_NS,
    permit: str = "p",
    policy: ClientPolicy | None = None,
) -> RequiredWait | None:
    """Request a permit, and return the wait that is required; `None` if the permit was granted."""
    result = request_permit(state, cost, now_ns, policy or ClientPolicy(), new_permit=permit)
    if isinstance(result, GrantedPermit):
        assert result.permit == permit
        return None
    return result


def record(
    state: LimitState, response: ResponseLimits | None, now_ns: int = NOW_NS, permit: str = "p"
) -> RequiredWait | None:
    return record_response(state, READ, permit, response, now_ns, ClientPolicy())


def make_state(bucket: Bucket | None = None, *permits: Permit) -> LimitState:
    """Return a state in which the bucket `core` is that of `READ`."""
    return LimitState(
        buckets={} if bucket is None else {"core": bucket},
        resource_of={"GET /x": "core"},
        permits={f"running {number}": permit for number, permit in enumerate(permits)},
    )


# -- permits -------------------------------------------------------------------------------------------------------


def test_a_granted_permit_is_recorded_with_its_points() -> None:
    bucket = Bucket(60, 0, NOW_NS + MINUTE_NS, last_start_ns=1)
    state = make_state(bucket)

    assert (ask(state), ask(state, WRITE, permit="q"), ask(state, WRITE, permit="r")) == (None, None, None)

    second = NOW_NS // SECOND_NS
    assert state.permits == {"p": Permit("core", NOW_NS), "q": Permit("", NOW_NS), "r": Permit("", NOW_NS)}
    assert (state.points, state.content) == ({"GET /x": {second: 1}, "POST /x": {second: 10}}, {second: 2})
    assert (bucket.last_start_ns, state.touched_ns) == (NOW_NS, NOW_NS)


def test_a_wait_records_nothing_but_the_time_of_the_call() -> None:
    state = LimitState(blocked_until_ns=NOW_NS + 1)

    assert ask(state, WRITE) is not None

    assert state == LimitState(blocked_until_ns=NOW_NS + 1, touched_ns=NOW_NS)


def test_a_permit_is_released_once() -> None:
    state = make_state(None, Permit("core", NOW_NS))

    release_permit(state, "running 0")
    release_permit(state, "running 0")

    assert state.permits == {}


def test_a_permit_that_was_never_released_expires_after_ten_minutes() -> None:
    state = make_state(None, Permit("", NOW_NS - PERMIT_TTL_NS - 1), Permit("", NOW_NS - PERMIT_TTL_NS))

    ask(state)

    assert [*state.permits] == ["running 1", "p"]


@pytest.mark.parametrize(("running", "is_granted"), [(1, True), (2, False), (3, False)])
def test_only_so_many_requests_run_at_a_time(running: int, is_granted: bool) -> None:
    state = make_state(None, *[Permit("", NOW_NS, is_counted=True)] * running)

    wait = ask(state, policy=ClientPolicy(concurrent_max=2))

    assert wait == (
        None if is_granted else RequiredWait(NOW_NS + POLL_INTERVAL_NS, "2 requests are already running", False)
    )


# -- waits ---------------------------------------------------------------------------------------------------------


def test_waits_keep_their_length_after_the_clock_was_set_back() -> None:
    year_ns = 365 * 24 * HOUR_NS
    state = make_state(Bucket(60, 60, NOW_NS + year_ns + 90 * SECOND_NS), Permit("core", NOW_NS + year_ns))
    state.blocked_until_ns, state.touched_ns = NOW_NS + year_ns + MINUTE_NS, NOW_NS + year_ns
    state.points, state.content = {"GET /x": {(NOW_NS + year_ns) // SECOND_NS: 5}}, {(NOW_NS + year_ns) // SECOND_NS: 1}

    assert ask(state) == RequiredWait(NOW_NS + MINUTE_NS, "a secondary rate limit is exceeded", True)

    assert (state.buckets["core"].reset_ns, state.permits["running 0"].start_ns) == (NOW_NS + 90 * SECOND_NS, NOW_NS)
    assert (state.points, state.content) == ({"GET /x": {NOW_NS // SECOND_NS: 5}}, {NOW_NS // SECOND_NS: 1})


def test_a_secondary_limit_blocks_every_endpoint_until_it_ends() -> None:
    state = LimitState(blocked_until_ns=NOW_NS + 1)

    assert ask(state, OTHER_READ) == RequiredWait(NOW_NS + 1, "a secondary rate limit is exceeded", True)
    assert ask(state, OTHER_READ, NOW_NS + 1) is None


def test_a_primary_limit_blocks_only_its_own_endpoints() -> None:
    state = make_state(Bucket(60, 0, NOW_NS + MINUTE_NS, blocked_until_ns=NOW_NS + 1))

    assert ask(state) == RequiredWait(NOW_NS + 1, "the primary rate limit of core is exceeded", True)
    assert ask(state, OTHER_READ) is None
    assert ask(state, READ, NOW_NS + 1, permit="q") is None


def test_the_limit_of_a_host_without_names_blocks_all_its_endpoints() -> None:
    state = LimitState(buckets={"": Bucket(60, 60, NOW_NS + 1, blocked_until_ns=0)})

    assert ask(state) == RequiredWait(NOW_NS + 1, "nothing is left of the primary rate limit of the host", True)
    state.buckets[""].blocked_until_ns = NOW_NS + 2
    assert ask(state) == RequiredWait(NOW_NS + 2, "the primary rate limit of the host is exceeded", True)


def test_nothing_is_sent_until_the_reset_of_a_used_up_limit() -> None:
    state = make_state(Bucket(60, 60, NOW_NS + 1))

    assert ask(state) == RequiredWait(NOW_NS + 1, "nothing is left of the primary rate limit of core", True)
    assert ask(state, READ, NOW_NS + 1) is None


@pytest.mark.parametrize(
    ("used", "permits", "reason"),
    [
        (58, [Permit("core", NOW_NS)], None),
        (58, [Permit("core", NOW_NS)] * 2, "running requests may use the rest of the limit"),
        (58, [Permit("other", NOW_NS)] * 2, None),
        (58, [Permit("core", NOW_NS, is_counted=True)] * 2, None),
        (60, [Permit("core", NOW_NS)], "nothing is left of the primary rate limit of core"),
        (60, [], "nothing is left of the primary rate limit of core"),
    ],
)
def test_requests_without_a_response_use_up_the_limit_too(used: int, permits: list[Permit], reason: str | None) -> None:
    state = make_state(Bucket(60, used, NOW_NS + MINUTE_NS), *permits)

    wait = ask(state, policy=ClientPolicy(slow_below=0))

    assert (None if wait is None else wait.reason) == reason
    if wait is not None:
        is_limit = reason != "running requests may use the rest of the limit"
        assert wait[::2] == (NOW_NS + (MINUTE_NS if is_limit else POLL_INTERVAL_NS), is_limit)


@pytest.mark.parametrize(
    ("used", "started_ago_s", "wait_s"),
    [(49, 0, None), (50, 0, None), (51, 0, 10), (51, 4, 6), (51, 10, None), (51, 11, None), (59, 0, 50)],
)
def test_the_rest_of_a_limit_is_spread_until_the_reset(used: int, started_ago_s: int, wait_s: int | None) -> None:
    # 100 seconds until the reset; requests are spread when less than 10 are left.
    last_start_ns = NOW_NS - started_ago_s * SECOND_NS
    state = make_state(Bucket(60, used, NOW_NS + 100 * SECOND_NS, last_start_ns=last_start_ns))

    wait = ask(state, policy=ClientPolicy(slow_below=1 / 6))

    if wait_s is None:
        assert wait is None
    else:
        reason = f"only {60 - used} of 60 requests are left of core: they are spread until its reset"
        assert wait == RequiredWait(NOW_NS + wait_s * SECOND_NS, reason, True)


def test_after_the_reset_a_used_up_limit_is_ignored() -> None:
    state = make_state(Bucket(60, 60, NOW_NS, last_start_ns=NOW_NS))

    assert ask(state) is None


@pytest.mark.parametrize(
    ("permit", "is_granted"),
    [
        (Permit("", NOW_NS - 1), True),
        (Permit("", NOW_NS), True),
        (Permit("", NOW_NS + 1), False),
        (Permit("", NOW_NS + 1, is_counted=True), True),
    ],
)
def test_after_a_refusal_only_one_request_tests_whether_the_limit_is_over(permit: Permit, is_granted: bool) -> None:
    state = make_state(None, permit)
    state.refusals, state.refused_ns = 1, NOW_NS

    wait = ask(state, OTHER_READ)

    reason = "another request tests whether the limit is over"
    assert wait == (None if is_granted else RequiredWait(NOW_NS + POLL_INTERVAL_NS, reason, False))


def test_without_a_refusal_no_request_tests_a_limit() -> None:
    assert ask(make_state(None, Permit("", NOW_NS + 1))) is None


# -- points and content --------------------------------------------------------------------------------------------


def test_points_fit_until_the_maximum_is_reached() -> None:
    state, policy = LimitState(), ClientPolicy(rest_points_max=5)

    waits = [ask(state, permit=str(number), policy=policy) for number in range(6)]

    # The second in which the points were spent has left the window after 61 seconds.
    until_ns = NOW_NS + 61 * SECOND_NS
    assert waits == [*[None] * 5, RequiredWait(until_ns, "at most 5 points per minute for GET /x", True)]
    assert ask(state, READ, until_ns - 1, policy=policy) is not None
    assert ask(state, READ, until_ns, policy=policy) is None


def test_a_request_waits_for_as_many_seconds_to_leave_the_window_as_it_needs() -> None:
    second, policy = NOW_NS // SECOND_NS, ClientPolicy(rest_points_max=10)
    write = RequestCost("PUT /x", 5, is_graphql=False, is_content=False)
    state = LimitState(points={"PUT /x": {second - 10: 4, second - 30: 2, second - 20: 4}})

    wait = ask(state, write, policy=policy)

    # 10 points are spent: those of the oldest two seconds must leave.
    assert wait == RequiredWait((second - 20 + 61) * SECOND_NS, "at most 10 points per minute for PUT /x", True)


def test_a_request_that_never_fits_waits_for_a_whole_window() -> None:
    assert ask(
        LimitState(),
        RequestCost("GET /x", 9, is_graphql=False, is_content=False),
        policy=ClientPolicy(rest_points_max=5),
    ) == RequiredWait(NOW_NS + MINUTE_NS, "at most 5 points per minute for GET /x", True)


def test_graphql_has_points_of_its_own() -> None:
    policy = ClientPolicy(rest_points_max=5, graphql_points_max=6)
    state = LimitState(points={"graphql": {NOW_NS // SECOND_NS: 5}})

    waits = [ask(state, QUERY, permit=str(number), policy=policy) for number in range(2)]

    assert waits == [
        None,
        RequiredWait(NOW_NS + 61 * SECOND_NS, "at most 6 points per minute for graphql", True),
    ]


@pytest.mark.parametrize(
    ("seconds_ago", "minute_max", "hour_max", "wait_s", "period"),
    [
        (0, 2, 9, 61, "minute"),
        (60, 2, 9, 1, "minute"),
        (61, 2, 9, None, ""),
        (61, 2, 2, 3_540, "hour"),
        (3_600, 2, 2, 1, "hour"),
        (3_601, 2, 2, None, ""),
    ],
)
def test_requests_that_create_content_are_limited_per_minute_and_hour(
    seconds_ago: int, minute_max: int, hour_max: int, wait_s: int | None, period: str
) -> None:
    state = LimitState(content={NOW_NS // SECOND_NS - seconds_ago: 2})
    policy = ClientPolicy(content_minute_max=minute_max, content_hour_max=hour_max)

    wait = ask(state, WRITE, policy=policy)

    reason = f"at most 2 content-creating requests per {period}"
    assert wait == (None if wait_s is None else RequiredWait(NOW_NS + wait_s * SECOND_NS, reason, True))
    assert ask(state, READ, policy=policy) is None


def test_old_points_content_and_endpoints_are_deleted() -> None:
    second = NOW_NS // SECOND_NS
    state = LimitState(
        points={"old": {second - 61: 1}, "new": {second - 61: 1, second - 60: 2}},
        content={second - 3_601: 1, second - 3_600: 1},
        resource_of={f"GET /{number}": "core" for number in range(MAX_ENDPOINTS + 2)},
    )

    ask(state, QUERY)

    assert state.points == {"new": {second - 60: 2}, "graphql": {second: 1}}
    assert state.content == {second - 3_600: 1}
    assert [*state.resource_of][:1] == ["GET /2"]
    assert len(state.resource_of) == MAX_ENDPOINTS


# -- responses -----------------------------------------------------------------------------------------------------


def test_a_response_is_counted_until_its_permit_is_released() -> None:
    state = make_state()
    ask(state)

    assert record(state, OK) is None

    assert state.permits == {"p": Permit("core", NOW_NS, is_counted=True)}


def test_a_request_without_a_response_releases_its_permit() -> None:
    state = make_state()
    ask(state)
    before = msgspec.structs.replace(state, permits={})

    assert record(state, None) is None

    assert state == before


def test_a_refused_request_releases_its_permit() -> None:
    state = make_state()
    ask(state)

    record(state, SECONDARY)

    assert state.permits == {}


@pytest.mark.parametrize(("resource", "expected"), [("search", "search"), ("", "core")])
def test_a_response_that_names_its_bucket_moves_the_endpoint_to_it(resource: str, expected: str) -> None:
    state = make_state()

    record(state, OK._replace(resource=resource))

    assert state.resource_of == {"GET /x": expected}


def test_only_a_request_sent_after_the_refusal_shows_that_the_limit_is_over() -> None:
    state = make_state(None, Permit("", NOW_NS), Permit("", NOW_NS + 1))
    state.refusals, state.refused_ns = 2, NOW_NS

    record(state, OK, permit="unknown")
    record(state, OK, permit="running 0")
    assert state.refusals == 2
    record(state, OK, permit="running 1")
    assert state.refusals == 0


def test_a_refusal_is_counted_with_its_time() -> None:
    state = LimitState(refusals=1)

    record(state, SECONDARY, NOW_NS + 7)

    assert (state.refusals, state.refused_ns) == (2, NOW_NS + 7)


@pytest.mark.parametrize(
    ("response", "wait_s", "reason"),
    [
        (SECONDARY, 60, "the secondary rate limit is exceeded"),
        (SECONDARY._replace(retry_after_ns=30 * SECOND_NS), 30, "the secondary rate limit is exceeded"),
        (SECONDARY._replace(retry_after_ns=0), 1, "the secondary rate limit is exceeded"),
        (SECONDARY._replace(resource="core"), 60, "the secondary rate limit is exceeded"),
        (SECONDARY._replace(remaining=0, reset_ns=NOW_NS + 90 * SECOND_NS), 90, "the secondary rate limit is exceeded"),
        (SECONDARY._replace(remaining=0, reset_ns=NOW_NS + 30 * SECOND_NS), 60, "the secondary rate limit is exceeded"),
        (SECONDARY._replace(remaining=1, reset_ns=NOW_NS + 90 * SECOND_NS), 60, "the secondary rate limit is exceeded"),
        (SECONDARY._replace(remaining=0), 60, "the secondary rate limit is exceeded"),
        (PRIMARY, 100, "the primary rate limit of core is exceeded"),
        (PRIMARY._replace(resource=""), 100, "the primary rate limit is exceeded"),
        (PRIMARY._replace(reset_ns=NOW_NS - 5), 1, "the primary rate limit of core is exceeded"),
        (PRIMARY._replace(remaining=None), 60, "the primary rate limit of core is exceeded"),
        (PRIMARY._replace(retry_after_ns=5 * SECOND_NS), 5, "the primary rate limit of core is exceeded"),
    ],
)
def test_the_first_refusal_says_how_long_to_wait(response: ResponseLimits, wait_s: int, reason: str) -> None:
    assert record(LimitState(), response) == RequiredWait(NOW_NS + wait_s * SECOND_NS, reason, True)


@pytest.mark.parametrize(
    ("refusals", "retry_after_s", "wait_s"),
    [(0, 30, 30), (1, 30, 60), (2, 30, 120), (6, 30, 1_920), (7, 30, 3_600), (50, 1, 3_600), (3, 7_200, 7_200)],
)
def test_each_further_refusal_doubles_the_wait_up_to_an_hour(refusals: int, retry_after_s: int, wait_s: int) -> None:
    wait = record(LimitState(refusals=refusals), SECONDARY._replace(retry_after_ns=retry_after_s * SECOND_NS))

    assert wait is not None
    assert wait.until_ns == NOW_NS + wait_s * SECOND_NS


def test_a_primary_refusal_blocks_its_bucket_and_a_secondary_one_everything() -> None:
    state = LimitState()

    record(state, PRIMARY)
    assert (state.buckets["core"].blocked_until_ns, state.blocked_until_ns) == (NOW_NS + 100 * SECOND_NS, 0)
    state.refusals = 0
    record(state, SECONDARY._replace(resource="core"))
    assert (state.buckets["core"].blocked_until_ns, state.blocked_until_ns) == (
        NOW_NS + 100 * SECOND_NS,
        NOW_NS + MINUTE_NS,
    )


def test_a_primary_refusal_without_a_bucket_blocks_everything() -> None:
    state = LimitState()

    record(state, PRIMARY._replace(limit=None))

    assert (state.buckets, state.blocked_until_ns) == ({}, NOW_NS + 100 * SECOND_NS)


def test_a_later_refusal_never_shortens_a_block() -> None:
    bucket = Bucket(60, 0, NOW_NS + HOUR_NS, blocked_until_ns=NOW_NS + HOUR_NS)
    state = LimitState(buckets={"core": bucket}, blocked_until_ns=NOW_NS + HOUR_NS)

    record(state, PRIMARY._replace(reset_ns=NOW_NS + HOUR_NS, retry_after_ns=SECOND_NS))
    record(state, SECONDARY)

    assert (bucket.blocked_until_ns, state.blocked_until_ns) == (NOW_NS + HOUR_NS, NOW_NS + HOUR_NS)


REPORT = ResponseLimits(200, None, "core", 60, 10, 50, NOW_NS + MINUTE_NS, None)


@pytest.mark.parametrize(
    ("reset_offset_s", "used", "expected_used"),
    [(0, 20, 20), (0, 5, 10), (2, 20, 20), (2, 5, 10), (-2, 20, 20), (-2, 5, 10), (-3, 20, 10), (3, 5, 5), (3, 20, 20)],
)
def test_a_bucket_keeps_the_highest_count_of_its_newest_window(
    reset_offset_s: int, used: int, expected_used: int
) -> None:
    state = make_state(Bucket(50, 10, NOW_NS + MINUTE_NS, last_start_ns=3, blocked_until_ns=4))

    record(state, REPORT._replace(used=used, reset_ns=NOW_NS + MINUTE_NS + reset_offset_s * SECOND_NS))

    limit = 50 if reset_offset_s == -3 else 60
    reset_ns = NOW_NS + MINUTE_NS + (3 * SECOND_NS if reset_offset_s == 3 else 0)
    assert state.buckets == {"core": Bucket(limit, expected_used, reset_ns, last_start_ns=3, blocked_until_ns=4)}


def test_the_first_report_creates_a_bucket() -> None:
    state = LimitState()

    record(state, REPORT)

    assert state.buckets == {"core": Bucket(60, 10, NOW_NS + MINUTE_NS)}


def test_a_primary_refusal_means_that_the_whole_limit_is_used() -> None:
    state = LimitState()

    record(state, REPORT._replace(status=403, exceeded_kind=LimitKind.PRIMARY))

    assert state.buckets["core"].used == 60


@pytest.mark.parametrize("field", ["limit", "used", "reset_ns"])
def test_an_incomplete_report_changes_no_bucket(field: str) -> None:
    state = LimitState()

    record(state, REPORT._replace(**{field: None}))  # type: ignore[arg-type]  # one of the optional fields

    assert state.buckets == {}
