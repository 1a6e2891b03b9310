"""A client that keeps to limits, against a host that has some: what it sends and when."""

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.limits.client.host import Clock, Host
from wharf.limits.client import ClientPolicy, PrimaryExceeded, SecondaryExceeded, WaitNotice, WaitTooLong
from wharf.limits.client.httpx2_transport import LimitedTransport

URL = "https://code.example/repos/o/r/issues"


def client_of(host: Host, manner: ClientPolicy | None = None, told: list[WaitNotice] | None = None) -> httpx2.Client:
    transport = LimitedTransport(
        host,
        policy=manner,
        world=host.clock,  # type: ignore[arg-type]  # as much of a world as the client asks for
        sleep=host.clock.sleep,
        on_wait=None if told is None else told.append,
    )
    return httpx2.Client(transport=transport)


def test_a_client_waits_as_long_as_it_is_told() -> None:
    host = Host(Clock())
    host.limit_for(25)

    assert 200 == client_of(host).get(URL).status_code
    assert [0.0, 26.0] == host.times_s


def test_without_a_time_it_waits_a_minute_and_longer_each_time() -> None:
    host = Host(Clock(), tells_retry_after=False)
    host.limit_for(300)

    assert 200 == client_of(host).get(URL).status_code
    assert [0.0, 60.0, 180.0, 420.0] == host.times_s


def test_it_gives_up_after_a_number_of_tries_and_says_until_when() -> None:
    host = Host(Clock(), tells_retry_after=False)
    host.limit_for(1e9)

    with pytest.raises(
        SecondaryExceeded, match="the secondary rate limit is exceeded, and still after 3 tries"
    ) as told:
        client_of(host, ClientPolicy(retries_max=2)).get(URL)

    assert 3 == host.refusals
    assert host.clock.now_ns() < told.value.until_ns


def test_a_spent_primary_limit_is_waited_out_until_its_reset() -> None:
    host = Host(Clock(), limit=3, window_s=100)
    client = client_of(host, ClientPolicy(slow_below=0))

    statuses = [client.get(URL).status_code for _ in range(4)]

    assert [200] * 4 == statuses
    assert 0 == host.refusals
    assert 100 <= host.times_s[3] <= 102


def test_a_host_whose_clock_is_off_is_not_asked_too_early() -> None:
    for skew_s in (-1_000.0, 1_000.0):
        host = Host(Clock(), limit=1, window_s=100, skew_s=skew_s)
        client = client_of(host, ClientPolicy(slow_below=0))

        client.get(URL)
        client.get(URL)

        assert 0 == host.refusals
        assert 100 <= host.times_s[1] <= 102


def test_the_last_part_of_a_limit_is_spread_over_the_time_until_the_reset() -> None:
    host = Host(Clock(), limit=100, window_s=1_000)
    client = client_of(host, ClientPolicy(slow_below=0.1))

    for _ in range(100):
        client.get(URL)

    gaps = [later - earlier for earlier, later in zip(host.times_s, host.times_s[1:], strict=False)]
    assert [0.0] * 89 == gaps[:89]
    assert all(80 < gap < 120 for gap in gaps[91:])


def test_points_of_an_endpoint_are_kept_in_any_minute() -> None:
    host = Host(Clock(), limit=10**6)
    client = client_of(host, ClientPolicy(rest_points_max=10, content_minute_max=10**6, content_hour_max=10**6))

    for _ in range(7):
        client.post(URL, json={})

    assert 2 == max(sum(start <= at < start + 60 for at in host.times_s) for start in host.times_s)


def test_endpoints_have_points_of_their_own() -> None:
    host = Host(Clock(), limit=10**6)
    client = client_of(host, ClientPolicy(rest_points_max=5))

    for name in ("one", "two", "three"):
        for _ in range(5):
            client.get(f"https://code.example/{name}")

    assert 0 == host.clock.elapsed_s


def test_the_number_of_a_thing_makes_no_endpoint_of_its_own() -> None:
    host = Host(Clock(), limit=10**6)
    client = client_of(host, ClientPolicy(rest_points_max=5))

    for number in range(6):
        client.get(f"{URL}/{number}")

    assert 60 <= host.clock.elapsed_s


def test_new_things_are_made_no_faster_than_allowed() -> None:
    host = Host(Clock(), limit=10**6)
    client = client_of(host, ClientPolicy(content_minute_max=3, content_hour_max=10))

    for _ in range(15):
        client.post(URL, json={})

    minutes = [sum(start <= at < start + 60 for at in host.times_s) for start in host.times_s]
    hours = [sum(start <= at < start + 3_600 for at in host.times_s) for start in host.times_s]
    assert (3, 10) == (max(minutes), max(hours))


@pytest.mark.parametrize(
    ("method", "path"),
    [("PATCH", "/repos/a/b/issues/1"), ("DELETE", "/gists/1"), ("POST", "/app/installations/1/access_tokens")],
)
def test_what_changes_or_takes_away_is_no_new_thing(method: str, path: str) -> None:
    host = Host(Clock(), limit=10**6)
    client = client_of(host, ClientPolicy(content_minute_max=1))

    for _ in range(5):
        client.request(method, f"https://code.example{path}")

    assert 0 == host.clock.elapsed_s


def test_a_reading_query_is_no_new_thing() -> None:
    host = Host(Clock(), limit=10**6)
    client = client_of(host, ClientPolicy(content_minute_max=1))

    for _ in range(5):
        client.post("https://code.example/graphql", json={"query": "query { mutationCount }"})

    assert 0 == host.clock.elapsed_s


def test_a_wait_longer_than_allowed_fails_at_once_and_sends_nothing() -> None:
    host = Host(Clock(), limit=1, window_s=1_000)
    client = client_of(host, ClientPolicy(longest_wait_s=10, slow_below=0))
    client.get(URL)

    with pytest.raises(
        WaitTooLong, match=r"nothing is left of the primary rate limit of core: it would wait 100\d\.\d s"
    ):
        client.get(URL)

    assert 1 == len(host.requests)
    assert 0 == host.clock.elapsed_s


def test_each_wait_is_told() -> None:
    host, told = Host(Clock()), list[WaitNotice]()
    host.limit_for(5)

    client_of(host, told=told).get(URL)

    assert [(URL, "a secondary rate limit is exceeded", 6.0)] == [
        (one.url, one.reason, round(one.wait_s)) for one in told
    ]


def test_a_refusal_of_rights_is_the_callers() -> None:
    def refuse(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(403, json={"message": "Resource not accessible"}, headers={"x-ratelimit-remaining": "7"})

    transport = LimitedTransport(httpx2.MockTransport(refuse), sleep=lambda _: pytest.fail("it waits"))

    assert 403 == httpx2.Client(transport=transport).get(URL).status_code


def test_a_graphql_answer_that_hides_its_limit_in_a_200_is_waited_out() -> None:
    clock, answers = Clock(), iter(["RATE_LIMITED", ""])

    def answer(_: httpx2.Request) -> httpx2.Response:
        kind = next(answers)
        headers = {
            "x-ratelimit-remaining": "0",
            "x-ratelimit-limit": "9",
            "x-ratelimit-reset": str(clock.now_ns() // 10**9 + 50),
        }
        return httpx2.Response(200, json={"errors": [{"type": kind}]} if kind else {"data": {}}, headers=headers)

    transport = LimitedTransport(httpx2.MockTransport(answer), world=clock, sleep=clock.sleep)  # type: ignore[arg-type]
    given = httpx2.Client(transport=transport).post("https://code.example/graphql", json={"query": "{ x }"})

    assert {"data": {}} == given.json()
    assert 50 <= clock.elapsed_s <= 52


def test_a_primary_limit_that_others_spend_ends_in_an_error_of_its_own() -> None:
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


def test_a_body_that_streams_is_not_sent_twice() -> None:
    host = Host(Clock())
    host.limit_for(30)

    answer = client_of(host).post(URL, content=iter([b"once"]))

    assert (403, 1) == (answer.status_code, len(host.requests))


def test_what_has_not_changed_is_asked_for_with_its_tag_and_costs_nothing() -> None:
    host = Host(Clock(), etag='"v1"')
    client = client_of(host)

    first, second = client.get(URL), client.get(URL)

    assert (first.content, 200, 200) == (second.content, first.status_code, second.status_code)
    assert '"v1"' == host.requests[1].headers["if-none-match"]
    assert "1" == second.headers["x-from-cache"]
    assert 1 == host.used


def test_what_was_kept_for_one_credential_is_not_shown_to_another() -> None:
    host = Host(Clock(), etag='"v1"')
    client = client_of(host)

    client.get(URL, headers={"authorization": "Bearer one"})
    client.get(URL, headers={"authorization": "Bearer two"})

    assert [False, False] == ["if-none-match" in request.headers for request in host.requests]


@given(
    limit=st.integers(1, 30),
    window_s=st.integers(5, 200),
    skew_s=st.sampled_from([-500.0, 0.0, 0.4, 500.0]),
    tells=st.booleans(),
    steps=st.lists(st.tuples(st.sampled_from(["get", "post", "limit", "wait"]), st.floats(0, 90)), max_size=60),
)
def test_a_client_never_asks_again_while_it_is_limited(
    limit: int, window_s: int, skew_s: float, tells: bool, steps: list[tuple[str, float]]
) -> None:
    host = Host(Clock(), limit=limit, window_s=window_s, skew_s=skew_s, tells_retry_after=tells)
    client = client_of(host)

    for what, number in steps:
        match what:
            case "limit":
                # Without a time to wait, a client can only guess: then it is over within the minute it waits.
                host.limit_for(number if tells else min(number, 59))
            case "wait":
                host.clock.sleep(number)
            case _:
                client.request(what, URL)

    assert 0 == host.asked_while_limited
