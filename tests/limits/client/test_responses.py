"""What a client reads about limits from one response."""

import msgspec
import pytest

from wharf.limits.client.responses import SECOND_NS, LimitKind, ResponseLimits, needs_body, read_response_limits

NOW_S = 1_800_000_000
NOW_NS = NOW_S * SECOND_NS + 5
DATE = "Fri, 15 Jan 2027 08:00:00 GMT"  # NOW_S


def read(
    status: int = 200, headers: dict[str, str] | None = None, body: bytes = b"", *, is_graphql: bool = False
) -> ResponseLimits:
    return read_response_limits(status, headers or {}, body, NOW_NS, is_graphql=is_graphql)


def encode_message(message: str = "", documentation_url: str = "") -> bytes:
    return msgspec.json.encode({"message": message, "documentation_url": documentation_url})


def test_a_response_without_headers_reports_nothing() -> None:
    assert read(204) == ResponseLimits(204, None, "", None, None, None, None, None)


def test_all_headers_are_read() -> None:
    headers = {
        "x-ratelimit-limit": "60",
        "x-ratelimit-used": "7",
        "x-ratelimit-remaining": "50",
        "x-ratelimit-reset": "1800000100",
        "x-ratelimit-resource": "core",
        "retry-after": "30",
    }

    assert read(200, headers) == ResponseLimits(200, None, "core", 60, 7, 50, 1_800_000_100 * SECOND_NS, 30 * SECOND_NS)


@pytest.mark.parametrize(
    ("limit", "remaining", "used"),
    [("60", "50", 10), ("60", "60", 0), ("60", "70", 0), (None, "50", None), ("60", None, None), (None, None, None)],
)
def test_used_is_computed_if_the_host_does_not_report_it(
    limit: str | None, remaining: str | None, used: int | None
) -> None:
    headers = {"x-ratelimit-limit": limit, "x-ratelimit-remaining": remaining}

    assert read(200, {name: value for name, value in headers.items() if value is not None}).used == used


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), (" 7 ", 7), ("9" * 18, int("9" * 18)), ("9" * 19, None), ("-1", None), ("1.5", None), ("²", None)],
)
def test_a_header_that_is_not_a_number_reports_nothing(text: str, number: int | None) -> None:
    assert read(200, {"x-ratelimit-limit": text}).limit == number


def test_a_long_name_of_a_resource_is_cut() -> None:
    assert read(200, {"x-ratelimit-resource": "r" * 101}).resource == "r" * 100


@pytest.mark.parametrize(
    ("reset_s", "date", "reset_ns"),
    [
        (NOW_S + 100, "", (NOW_S + 100) * SECOND_NS),
        (NOW_S + 100, "no date", (NOW_S + 100) * SECOND_NS),
        # A second is added because the host cuts its date to seconds.
        (NOW_S + 100, DATE, NOW_NS + 101 * SECOND_NS),
        (NOW_S + 100, "Fri, 15 Jan 2027 08:00:40 GMT", NOW_NS + 61 * SECOND_NS),
        (1 << 40, "", (1 << 40) * SECOND_NS),
        ((1 << 40) + 1, "", None),
    ],
)
def test_a_reset_is_converted_to_the_clock_of_this_machine(reset_s: int, date: str, reset_ns: int | None) -> None:
    headers = {"x-ratelimit-reset": str(reset_s)} | ({"date": date} if date else {})

    assert read(200, headers).reset_ns == reset_ns


@pytest.mark.parametrize(
    ("text", "date", "seconds"),
    [
        ("0", "", 0),
        (" 30 ", "", 30),
        ("9" * 9, "", int("9" * 9)),
        ("9" * 10, "", None),
        ("-5", "", None),
        ("soon", "", None),
        ("", "", None),
        # One more second, because both times are cut to seconds.
        ("Fri, 15 Jan 2027 08:01:00 GMT", DATE, 61),
        ("Fri, 15 Jan 2027 07:59:00 GMT", DATE, 1),
        ("Fri, 15 Jan 2027 08:01:00", DATE, 61),
    ],
)
def test_retry_after_holds_seconds_or_a_date(text: str, date: str, seconds: int | None) -> None:
    retry_after_ns = read(429, {"retry-after": text, "date": date}).retry_after_ns

    assert retry_after_ns == (None if seconds is None else seconds * SECOND_NS)


def test_a_date_in_retry_after_is_compared_with_the_own_clock_if_the_host_sends_no_date() -> None:
    headers = {"retry-after": "Fri, 15 Jan 2027 08:01:00 GMT"}

    assert read(429, headers).retry_after_ns == 61 * SECOND_NS - 5


PRIMARY, SECONDARY = LimitKind.PRIMARY, LimitKind.SECONDARY


@pytest.mark.parametrize(
    ("status", "headers", "body", "kind"),
    [
        (200, {"x-ratelimit-remaining": "0", "retry-after": "1"}, b"", None),
        (401, {"x-ratelimit-remaining": "0", "retry-after": "1"}, encode_message("secondary rate limit"), None),
        (403, {}, b"", None),
        (403, {"x-ratelimit-remaining": "1"}, encode_message("Forbidden"), None),
        (403, {"x-ratelimit-remaining": "0"}, b"", PRIMARY),
        (403, {}, encode_message("API Rate Limit Exceeded for you"), PRIMARY),
        (403, {"retry-after": "1"}, b"", SECONDARY),
        (403, {"retry-after": "soon"}, b"", None),
        (403, {"x-ratelimit-remaining": "0"}, encode_message("a Secondary Rate limit"), SECONDARY),
        (403, {"x-ratelimit-remaining": "0"}, encode_message("", "https://x/#secondary-rate-limits"), SECONDARY),
        (403, {}, encode_message("", "https://x/#secondary-rate-limits/more"), None),
        (429, {}, b"", SECONDARY),
        (429, {"x-ratelimit-remaining": "0"}, b"", PRIMARY),
        (429, {}, b"{" * 100_000, SECONDARY),
        (429, {}, b'{"message": 3}', SECONDARY),
        (429, {}, encode_message("rate limit exceeded"), PRIMARY),
    ],
)
def test_status_headers_and_body_show_which_limit_refused_a_request(
    status: int, headers: dict[str, str], body: bytes, kind: LimitKind | None
) -> None:
    assert read(status, headers, body).exceeded_kind is kind


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (200, b'{"errors": [{"type": "OTHER"}, {"type": "RATE_LIMITED"}]}', PRIMARY),
        (200, b'{"errors": [{"type": "OTHER"}]}', None),
        (200, b'{"errors": []}', None),
        (403, b'{"errors": [{"type": "RATE_LIMITED"}]}', None),
        (429, b"", SECONDARY),
    ],
)
def test_graphql_reports_its_primary_limit_with_status_200(status: int, body: bytes, kind: LimitKind | None) -> None:
    assert read(status, {}, body, is_graphql=True).exceeded_kind is kind


def test_the_errors_of_a_response_that_is_not_graphql_are_ignored() -> None:
    assert read(200, {}, b'{"errors": [{"type": "RATE_LIMITED"}]}').exceeded_kind is None


def test_only_the_beginning_of_a_large_body_is_parsed() -> None:
    padding = b" " * (1 << 20)

    assert read(403, {}, encode_message("rate limit exceeded") + padding).exceeded_kind is PRIMARY
    assert read(403, {}, padding + encode_message("rate limit exceeded")).exceeded_kind is None


@pytest.mark.parametrize(
    ("status", "is_graphql", "expected"),
    [(200, False, False), (200, True, True), (403, False, True), (403, True, True), (429, False, True), (500, True, False)],
)  # fmt: skip
def test_the_body_is_needed_for_refusals_and_graphql(status: int, is_graphql: bool, expected: bool) -> None:
    assert needs_body(status, is_graphql=is_graphql) is expected
