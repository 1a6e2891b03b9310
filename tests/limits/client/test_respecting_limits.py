"""The client transport against a host with limits: which requests it sends, and when."""

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.limits.client.host import Clock, Host
from wharf.limits.client import (
    ClientPolicy,
    MemoryStateStore,
    PrimaryExceeded,
    SecondaryExceeded,
    WaitNotice,
    WaitTooLong,
)
from wharf.limits.client.httpx2_transport import LimitedTransport
from wharf.limits.client.request_costs import build_account_key

URL = "https://code.example/repos/o/r/issues"


def make_client(
    host: Host, policy: ClientPolicy | None = None, notices: list[WaitNotice] | None = None
) -> httpx2.Client:
    transport = LimitedTransport(
        host,
        policy=policy,
        world=host.clock,  # type: ignore[arg-type]  # the parts of a world that the client uses
        sleep=host.clock.sleep,
        on_wait=None if notices is None else notices.append,
    )
    return httpx2.Client(transport=transport)


def test_a_client_waits_for_the_time_in_retry_after() -> None:
    host = Host(Clock())
    host.limit_for(25)

    assert 200 == make_client(host).get(URL).status_code
    assert [0.0, 26.0] == host.times_s


def test_without_retry_after_it_waits_a_minute_and_twice_as_long_each_further_time() -> None:
    host = Host(Clock(), sends_retry_after=False)
    host.limit_for(300)

    assert 200 == make_client(host).get(URL).status_code
    assert [0.0, 60.0, 180.0, 420.0] == host.times_s


def test_the_reset_of_the_primary_limit_does_not_end_the_wait_for_a_secondary_limit() -> None:
    host = Host(Clock(), limit=1, window_s=5, sends_retry_after=False)
    client = make_client(host)
    client.get(URL)
    host.limit_for(7)

    assert 200 == client.post(URL).status_code
    assert [0.0, 0.0, 60.0] == host.times_s


def test_a_secondary_limit_with_nothing_remaining_waits_until_a_reset_after_the_minute() -> None:
    host = Host(Clock(), limit=1, window_s=100, sends_retry_after=False)
    client = make_client(host)
    client.get(URL)
    host.limit_for(7)

    assert 200 == client.post(URL).status_code
    assert [0.0, 0.0, 101.0] == host.times_s


def test_it_gives_up_after_the_last_retry_and_reports_until_when_to_wait() -> None:
    host = Host(Clock(), sends_retry_after=False)
    host.limit_for(1e9)

    with pytest.raises(SecondaryExceeded, match="the secondary rate limit is exceeded: refused 3 times") as caught:
        make_client(host, ClientPolicy(retries_max=2)).get(URL)

    assert 3 == host.refusals
    assert host.clock.now_ns() < caught.value.until_ns


def test_a_client_waits_for_the_reset_of_a_used_up_primary_limit() -> None:
    host = Host(Clock(), limit=3, window_s=100)
    client = make_client(host, ClientPolicy(slow_below=0))

    statuses = [client.get(URL).status_code for _ in range(4)]

    assert [200] * 4 == statuses
    assert 0 == host.refusals
    assert 100 <= host.times_s[3] <= 102


def test_a_host_with_a_wrong_clock_gets_no_request_too_early() -> None:
    for skew_s in (-1_000.0, 1_000.0):
        host = Host(Clock(), limit=1, window_s=100, skew_s=skew_s)
        client = make_client(host, ClientPolicy(slow_below=0))

        client.get(URL)
        client.get(URL)

        assert 0 == host.refusals
        assert 100 <= host.times_s[1] <= 102


def test_the_last_tenth_of_a_limit_is_spread_until_the_reset() -> None:
    host = Host(Clock(), limit=100, window_s=1_000)
    client = make_client(host, ClientPolicy(slow_below=0.1))

    for _ in range(100):
        client.get(URL)

    gaps = [later - earlier for earlier, later in zip(host.times_s, host.times_s[1:], strict=False)]
    assert [0.0] * 89 == gaps[:89]
    assert all(80 < gap < 120 for gap in gaps[91:])


def test_no_minute_has_more_points_of_an_endpoint_than_allowed() -> None:
    host = Host(Clock(), limit=10**6)
    client = make_client(host, ClientPolicy(rest_points_max=10, content_minute_max=10**6, content_hour_max=10**6))

    for _ in range(7):
        client.post(URL, json={})

    assert 2 == max(sum(start <= at < start + 60 for at in host.times_s) for start in host.times_s)


def test_each_endpoint_has_its_own_points() -> None:
    host = Host(Clock(), limit=10**6)
    client = make_client(host, ClientPolicy(rest_points_max=5))

    for name in ("one", "two", "three"):
        for _ in range(5):
            client.get(f"https://code.example/{name}")

    assert 0 == host.clock.elapsed_s


def test_paths_that_differ_only_in_an_id_are_one_endpoint() -> None:
    host = Host(Clock(), limit=10**6)
    client = make_client(host, ClientPolicy(rest_points_max=5))

    for number in range(6):
        client.get(f"{URL}/{number}")

    assert 60 <= host.clock.elapsed_s


def test_content_is_created_no_faster_than_allowed() -> None:
    host = Host(Clock(), limit=10**6)
    client = make_client(host, ClientPolicy(content_minute_max=3, content_hour_max=10))

    for _ in range(15):
        client.post(URL, json={})

    minutes = [sum(start <= at < start + 60 for at in host.times_s) for start in host.times_s]
    hours = [sum(start <= at < start + 3_600 for at in host.times_s) for start in host.times_s]
    assert (3, 10) == (max(minutes), max(hours))


@pytest.mark.parametrize(
    ("method", "path"),
    [("PATCH", "/repos/a/b/issues/1"), ("DELETE", "/gists/1"), ("POST", "/app/installations/1/access_tokens")],
)
def test_changes_deletions_and_new_tokens_create_no_content(method: str, path: str) -> None:
    host = Host(Clock(), limit=10**6)
    client = make_client(host, ClientPolicy(content_minute_max=1))

    for _ in range(5):
        client.request(method, f"https://code.example{path}")

    assert 0 == host.clock.elapsed_s


def test_a_graphql_query_creates_no_content() -> None:
    host = Host(Clock(), limit=10**6)
    client = make_client(host, ClientPolicy(content_minute_max=1))

    for _ in range(5):
        client.post("https://code.example/graphql", json={"query": "query { mutationCount }"})

    assert 0 == host.clock.elapsed_s


def test_a_wait_longer_than_allowed_fails_at_once_and_sends_nothing() -> None:
    host = Host(Clock(), limit=1, window_s=1_000)
    client = make_client(host, ClientPolicy(longest_wait_s=10, slow_below=0))
    client.get(URL)

    with pytest.raises(
        WaitTooLong, match=r"nothing is left of the primary rate limit of core. It would wait 100\d\.\d s"
    ):
        client.get(URL)

    assert 1 == len(host.requests)
    assert 0 == host.clock.elapsed_s


def test_on_wait_is_called_before_each_wait() -> None:
    host, notices = Host(Clock()), list[WaitNotice]()
    host.limit_for(5)

    make_client(host, notices=notices).get(URL)

    assert [(URL, "a secondary rate limit is exceeded", 6.0)] == [
        (notice.url, notice.reason, round(notice.wait_s)) for notice in notices
    ]


def test_a_403_about_missing_permissions_is_returned_at_once() -> None:
    def refuse(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(403, json={"message": "Resource not accessible"}, headers={"x-ratelimit-remaining": "7"})

    transport = LimitedTransport(httpx2.MockTransport(refuse), sleep=lambda _: pytest.fail("the client waits"))

    assert 403 == httpx2.Client(transport=transport).get(URL).status_code


def test_a_client_waits_for_a_graphql_limit_that_is_reported_with_status_200() -> None:
    clock, error_types = Clock(), iter(["RATE_LIMITED", ""])

    def reply(_: httpx2.Request) -> httpx2.Response:
        error_type = next(error_types)
        headers = {
            "x-ratelimit-remaining": "0",
            "x-ratelimit-limit": "9",
            "x-ratelimit-reset": str(clock.now_ns() // 10**9 + 50),
        }
        return httpx2.Response(
            200, json={"errors": [{"type": error_type}]} if error_type else {"data": {}}, headers=headers
        )

    transport = LimitedTransport(httpx2.MockTransport(reply), world=clock, sleep=clock.sleep)  # type: ignore[arg-type]
    response = httpx2.Client(transport=transport).post("https://code.example/graphql", json={"query": "{ x }"})

    assert {"data": {}} == response.json()
    assert 50 <= clock.elapsed_s <= 52


def test_a_primary_limit_that_other_clients_use_up_raises_primary_exceeded() -> None:
    def refuse(_: httpx2.Request) -> httpx2.Response:
        headers = {"x-ratelimit-remaining": "0", "retry-after": "1"}
        return httpx2.Response(429, json={"message": "API rate limit exceeded"}, headers=headers)

    clock = Clock()
    transport = LimitedTransport(
        httpx2.MockTransport(refuse),
        policy=ClientPolicy(retries_max=1),
        world=clock,  # type: ignore[arg-type]
        sleep=clock.sleep,
    )

    with pytest.raises(PrimaryExceeded):
        httpx2.Client(transport=transport).get(URL)


def test_a_streamed_body_is_not_sent_twice() -> None:
    host = Host(Clock())
    host.limit_for(30)

    response = make_client(host).post(URL, content=iter([b"once"]))

    assert (403, 1) == (response.status_code, len(host.requests))


def test_a_repeated_request_for_an_unchanged_resource_is_conditional_and_costs_nothing() -> None:
    host = Host(Clock(), etag='"v1"')
    client = make_client(host)

    first, second = client.get(URL), client.get(URL)

    assert (first.content, 200, 200) == (second.content, first.status_code, second.status_code)
    assert '"v1"' == host.requests[1].headers["if-none-match"]
    assert "1" == second.headers["x-from-cache"]
    assert 1 == host.used


def test_a_response_cached_for_one_credential_is_not_used_for_another() -> None:
    host = Host(Clock(), etag='"v1"')
    client = make_client(host)

    client.get(URL, headers={"authorization": "Bearer one"})
    client.get(URL, headers={"authorization": "Bearer two"})

    assert [False, False] == ["if-none-match" in request.headers for request in host.requests]


@given(
    limit=st.integers(1, 30),
    window_s=st.integers(5, 200),
    skew_s=st.sampled_from([-500.0, 0.0, 0.4, 500.0]),
    sends_retry_after=st.booleans(),
    steps=st.lists(st.tuples(st.sampled_from(["get", "post", "limit", "wait"]), st.floats(0, 90)), max_size=60),
)
def test_a_client_sends_nothing_while_a_refusal_is_in_force(
    limit: int, window_s: int, skew_s: float, sends_retry_after: bool, steps: list[tuple[str, float]]
) -> None:
    host = Host(Clock(), limit=limit, window_s=window_s, skew_s=skew_s, sends_retry_after=sends_retry_after)
    client = make_client(host)

    for action, seconds in steps:
        match action:
            case "limit":
                # Without `retry-after`, a client waits a minute. No client could know that the limit lasts longer.
                host.limit_for(seconds if sends_retry_after else min(seconds, 59))
            case "wait":
                host.clock.sleep(seconds)
            case _:
                client.request(action, URL)

    assert 0 == host.requests_while_limited


def test_a_permit_is_held_until_the_body_of_its_response_is_closed() -> None:
    host, state_store = Host(Clock()), MemoryStateStore()
    transport = LimitedTransport(
        host,
        state_store=state_store,
        world=host.clock,  # type: ignore[arg-type]  # the parts of a world that the client uses
        sleep=host.clock.sleep,
    )

    def count_permits() -> int:
        return state_store.update(build_account_key(URL, ""), lambda state: len(state.permits))

    with httpx2.Client(transport=transport) as client, client.stream("GET", URL) as response:
        permits = [count_permits()]
        response.read()
        response.close()
        permits.append(count_permits())

    assert [*permits, count_permits()] == [1, 0, 0]
