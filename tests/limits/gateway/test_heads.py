"""Heads of requests and replies: what the gateway reads from them, forwards, drops and refuses."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wharf.limits.decisions.headers import ReplyMarks
from wharf.limits.gateway.heads import (
    CHUNKED,
    UNTIL_CLOSE,
    BadHead,
    HeadReader,
    ReplyHead,
    RequestHead,
    drop_limit_headers,
    read_reply_head,
    read_request_head,
)


def read_request(
    *headers: str, line: str = "GET /x HTTP/1.1", host: str | None = "a", max_headers: int = 100
) -> RequestHead:
    """Return the head of a request with these headers after `Host`. Bytes after its end must make no difference."""
    lines = [line, *([] if host is None else [f"Host: {host}"]), *headers]
    data = "".join(f"{text}\r\n" for text in [*lines, ""]).encode("latin-1")
    return read_request_head(data + b"X-Later: 1\r\n\r\n", len(data), max_headers=max_headers)


def read_reply(*headers: str, line: str = "HTTP/1.1 200 OK", is_head: bool = False) -> ReplyHead:
    """Return the head of a reply with these headers. Bytes after its end must make no difference."""
    data = "".join(f"{text}\r\n" for text in [line, *headers, ""]).encode("latin-1")
    return read_reply_head(data + b"X-Later: 1\r\n\r\n", len(data), is_head=is_head)


# -- heads with known header lines ---------------------------------------------------------------------------------

REQUEST_LINES = (
    *(
        "GET /x HTTP/1.1",
        "GET /y?z=1 HTTP/1.1",
        "POST /x HTTP/1.1",
        "HEAD / HTTP/1.1",
        "GET /x HTTP/1.0",
        "get /x HTTP/1.1",
    ),
    *(
        "CONNECT a:1 HTTP/1.1",
        "CONNECT /a HTTP/1.1",
        "GET http://b/x HTTP/1.1",
        "GET /x#y HTTP/1.1",
        "OPTIONS * HTTP/1.1",
    ),
    *("GET x HTTP/1.1", "PURGE /x HTTP/1.1", "Get /x HTTP/1.1", "GET /" + "x" * 9_000 + " HTTP/1.1", "nothing"),
)
HEADER_LINES = (
    *("Host: a", "Host: b", "Accept: */*", "X-Forwarded-For: 192.0.2.1", "Forwarded: for=x", "X-Real-Ip: 192.0.2.1"),
    *(
        "Authorization: Bearer one",
        "Authorization: Bearer two",
        "If-None-Match: x",
        "Origin: http://c",
        "Connection: close",
    ),
    *("Connection: Upgrade", "Upgrade: websocket", "Expect: 100-continue", "Content-Length: 0", "Content-Length: 3"),
    *("Transfer-Encoding: chunked", "X-Wharf-Cpu-Ms: 3", "X_Forwarded_For: 1", "bad line", "Connection: accept"),
    *("X-Forwarded-Proto: https", "X-Long: " + "x" * 3_000, "X-HTTP-Method-Override: PUT"),
)


def _read(read: Callable[[bytes, int], RequestHead], data: bytes) -> RequestHead | tuple[str, int]:
    try:
        return read(data + b"X-Later: 1\r\n\r\n", len(data))
    except BadHead as error:
        return str(error), error.status


requests = st.tuples(st.sampled_from(REQUEST_LINES), st.lists(st.sampled_from(HEADER_LINES), max_size=5))


@given(heads=st.lists(requests, min_size=1, max_size=8))
def test_a_head_means_the_same_if_its_header_lines_are_known(heads: list[tuple[str, list[str]]]) -> None:
    reader = HeadReader(4)
    read_all = []
    # Each set of header lines is sent with each request line, so that most of them are known.
    for _, headers in heads:
        for line, _ in heads:
            data = "".join(f"{text}\r\n" for text in (line, "Host: a", *headers, "")).encode()
            expected = _read(lambda data, end: read_request_head(data, end, max_headers=4), data)
            read_all.append((expected, _read(reader.read, data), _read(reader.read, data)))

    assert [first for first, _, _ in read_all] == [second for _, second, _ in read_all]
    assert [first for first, _, _ in read_all] == [third for _, _, third in read_all]


# -- requests ------------------------------------------------------------------------------------------------------


def test_a_plain_request_has_method_target_host_and_its_lines() -> None:
    head = read_request("X-One: 1", "Accept:*/*", line="PATCH /a/b?c=d HTTP/1.1", host="site.example:81")

    assert head == RequestHead(
        b"PATCH",
        b"/a/b?c=d",
        False,
        [b"X-One: 1\r\n", b"Accept:*/*\r\n", b"Host: site.example:81\r\n"],
        host=b"site.example:81",
    )


@pytest.mark.parametrize(("line", "is_http_10"), [("GET / HTTP/1.0", True), ("GET / HTTP/1.1", False)])
def test_the_version_of_a_request_is_1_0_or_1_1(line: str, is_http_10: bool) -> None:
    assert read_request(line=line).is_http_10 is is_http_10


@pytest.mark.parametrize(
    ("headers", "field", "value"),
    [
        ((), "length", 0),
        (("Content-Length: 12",), "length", 12),
        (("content-LENGTH:\t 7 \t",), "length", 7),
        (("Content-Length: 0",), "length", 0),
        (("Transfer-Encoding: Chunked",), "length", CHUNKED),
        ((), "authorization", None),
        (("Authorization: Bearer x ",), "authorization", b"Bearer x"),
        (("Authorization: Bearer x", "authorization: Bearer x"), "authorization", b"twice"),
        ((), "is_conditional", False),
        (("If-None-Match: x",), "is_conditional", True),
        (("If-Modified-Since: x",), "is_conditional", True),
        (("If-Match: x",), "is_conditional", False),
        ((), "has_origin", False),
        (("Origin: https://other.example",), "has_origin", True),
        ((), "has_close", False),
        (("Connection: close",), "has_close", True),
        (("Connection: keep-alive",), "has_close", False),
        (("Connection: keep-alive", "Connection: x, \tCLOSE ,y"), "has_close", True),
        (("Connection: closed",), "has_close", False),
        ((), "has_expect_continue", False),
        (("Expect: 100-Continue",), "has_expect_continue", True),
        (("Connection: Upgrade", "Upgrade: WebSocket"), "is_websocket", True),
        (("Upgrade: websocket", "Connection: keep-alive, upgrade"), "is_websocket", True),
        (("Connection: Upgrade",), "is_websocket", False),
        (("Upgrade: websocket",), "is_websocket", False),
        (("Connection: Upgrade", "Upgrade: h2c"), "is_websocket", False),
        (("Connection: close", "Upgrade: websocket"), "is_websocket", False),
        ((), "forwarded_for", []),
        (("X-Forwarded-For: a, b ", "x-forwarded-for: c"), "forwarded_for", [b"a, b", b"c"]),
        ((), "forwarded", []),
        (("Forwarded: for=a", "Forwarded: for=b"), "forwarded", [b"for=a", b"for=b"]),
    ],
)
def test_special_headers_of_a_request_set_its_fields(headers: tuple[str, ...], field: str, value: object) -> None:
    assert getattr(read_request(*headers), field) == value


def test_only_a_get_request_becomes_a_websocket() -> None:
    assert not read_request("Connection: upgrade", "Upgrade: websocket", line="POST /x HTTP/1.1").is_websocket


def test_an_http_1_0_request_waits_for_no_100_continue() -> None:
    assert not read_request("Expect: 100-continue", line="POST /x HTTP/1.0").has_expect_continue


@pytest.mark.parametrize(
    ("headers", "forwarded"),
    [
        (("Authorization: a", "authorization: b"), ["Authorization: a", "authorization: b"]),
        (("If-None-Match: a", "If-Modified-Since: b"), ["If-None-Match: a", "If-Modified-Since: b"]),
        (("Origin: a",), ["Origin: a"]),
        (("Content-Length: 3",), []),
        (("Transfer-Encoding: chunked",), []),
        (("Connection: close", "Keep-Alive: 5", "Proxy-Connection: x", "TE: x", "Trailer: x"), []),
        (("Upgrade: websocket", "Proxy-Authorization: x", "Expect: 100-continue"), []),
        (("X-Forwarded-For: a", "X-Forwarded-Proto: http", "Forwarded: for=a"), []),
        (("X-Real-IP: a", "True-Client-IP: b", "CF-Connecting-IP: c"), []),
        (("X-Original-URL: /x", "X-Rewrite-Url: /x", "X-Original-URI: /x"), []),
        (("X_Real_IPs: a", "x_wharf: b", "api_key: c"), ["X_Real_IPs: a", "x_wharf: b", "api_key: c"]),
        (("X-Wharf-Content: 1", "x-wharf-cpu-ms: 3", "X-WHARF-: 4"), []),
        (("X-Wharf: 1", "X-Wharfs-Name: 2"), ["X-Wharf: 1", "X-Wharfs-Name: 2"]),
        (("Connection: X-One, x-two", "X-One: 1", "X-TWO: 2", "X-Three: 3"), ["X-Three: 3"]),
        (("Connection: close, keep-alive, upgrade, , host", "X-One: 1"), ["X-One: 1"]),
        (("Connection: authorization, cookie", "Authorization: a", "Cookie: b"), ["Authorization: a", "Cookie: b"]),
        (("Connection: if-none-match, origin", "If-None-Match: a", "Origin: b"), ["If-None-Match: a", "Origin: b"]),
    ],
)
def test_a_request_is_forwarded_without_headers_for_the_gateway(headers: tuple[str, ...], forwarded: list[str]) -> None:
    lines = sorted(line.decode() for line in read_request(*headers).lines)

    assert lines == sorted(f"{text}\r\n" for text in ["Host: a", *forwarded])


@pytest.mark.parametrize(
    ("target", "host", "path"),
    [
        ("http://b.example/y?z", b"b.example", b"/y?z"),
        ("HTTPS://b.example:8443", b"b.example:8443", b"/"),
        ("http://b.example?z", b"b.example", b"/?z"),
    ],
)
def test_an_absolute_target_sets_host_and_path(target: str, host: bytes, path: bytes) -> None:
    head = read_request("X-One: 1", "Hosted: 1", line=f"GET {target} HTTP/1.1", host="other")

    assert (head.host, head.target) == (host, path)
    assert head.lines == [b"X-One: 1\r\n", b"Hosted: 1\r\n", b"Host: %s\r\n" % host]


def test_options_may_ask_about_the_whole_server() -> None:
    assert read_request(line="OPTIONS * HTTP/1.1").target == b"*"


def test_an_http_1_0_request_needs_no_host() -> None:
    assert read_request(line="GET / HTTP/1.0", host=None).host is None


@pytest.mark.parametrize(
    ("headers", "line", "status", "message"),
    [
        (("Host: a",), "GET / HTTP/1.1", 400, "two Host"),
        (("Content-Length: 3", "Content-Length: 3"), "PUT / HTTP/1.1", 400, "two Content-Length"),
        (("Content-Length: 3x",), "PUT / HTTP/1.1", 400, "not a number"),
        (("Content-Length:",), "PUT / HTTP/1.1", 400, "not a number"),
        (("Content-Length: " + "1" * 19,), "PUT / HTTP/1.1", 400, "not a number"),
        (("Transfer-Encoding: gzip",), "PUT / HTTP/1.1", 400, "Transfer-Encoding is not supported"),
        (("Transfer-Encoding: chunked",) * 2, "PUT / HTTP/1.1", 400, "Transfer-Encoding is not supported"),
        (("Content-Length: 0", "Transfer-Encoding: chunked"), "PUT / HTTP/1.1", 400, "both"),
        (("Transfer-Encoding: chunked", "Content-Length: 0"), "PUT / HTTP/1.1", 400, "both"),
        (("Transfer-Encoding: chunked",), "PUT / HTTP/1.0", 400, "HTTP/1.0 has no Transfer-Encoding"),
        (("Expect: 200-ok",), "PUT / HTTP/1.1", 417, "expectation"),
        ((), "CONNECT a:1 HTTP/1.1", 405, "CONNECT"),
        ((), "GET x HTTP/1.1", 400, "not a path"),
        ((), "GET * HTTP/1.1", 400, "not a path"),
        ((), "OPTIONS *x HTTP/1.1", 400, "not a path"),
        ((), "GET ftp://a/x HTTP/1.1", 400, "not a path"),
        ((), "GET http://user@a/x HTTP/1.1", 400, "not a path"),
        ((), "GET /x#y HTTP/1.1", 400, "fragment"),
        ((), "GET http://a/x#y HTTP/1.1", 400, "fragment"),
        ((), "GET /" + "x" * 8_192 + " HTTP/1.1", 414, "8193 bytes"),
        ((), "GET /x HTTP/2.0", 400, "version of HTTP"),
        ((), "GET /x HTTP/1.2", 400, "not an HTTP request"),
        ((), "GET /x", 400, "not an HTTP request"),
        ((), "GET /?q=\xfc HTTP/1.1", 400, "has a byte that is not ASCII: send such characters percent-encoded"),
        ((), "\x16\x03\x01\x02\xfc", 400, "not an HTTP request"),
        (("X-A: HTTP/2.0",), "hello", 400, "not an HTTP request"),
        (("X_Forwarded_For: 1",), "GET / HTTP/1.1", 400, '"X_Forwarded_For" .* "x-forwarded-for"'),
        (("Content_Length: 1",), "GET / HTTP/1.1", 400, '"Content_Length"'),
        (("X_Original_URL: /x",), "GET / HTTP/1.1", 400, '"X_Original_URL"'),
        ((), "get / HTTP/1.1", 400, "upper case"),
        ((), "Connect a:1 HTTP/1.1", 400, "upper case"),
        (("x-Real_ip: 1",), "GET / HTTP/1.1", 400, '"x-Real_ip"'),
        (("X~Wharf_" + "n" * 500 + ": 1",), "GET / HTTP/1.1", 400, r'"X~Wharf_n{56}" .* "x-wharf-n{56}"'),
        (("X A: 1",), "GET / HTTP/1.1", 400, "header is malformed"),
        ((": 1",), "GET / HTTP/1.1", 400, "header is malformed"),
    ],
)
def test_an_ambiguous_head_is_refused(headers: tuple[str, ...], line: str, status: int, message: str) -> None:
    with pytest.raises(BadHead, match=message) as caught:
        read_request(*headers, line=line)

    assert caught.value.status == status


@pytest.mark.parametrize("host", ["a b", "a/b", "a@b", 'a"'])
def test_a_host_that_is_not_a_name_is_refused(host: str) -> None:
    with pytest.raises(BadHead, match="not the name of a host"):
        read_request(host=host)


def test_a_request_without_host_is_refused() -> None:
    with pytest.raises(BadHead, match="no Host"):
        read_request(host=None)


def test_the_longest_target_and_the_most_headers_are_accepted() -> None:
    target = "/" + "x" * 8_191

    assert read_request("X: 1", "X: 2", line=f"GET {target} HTTP/1.1", max_headers=3).target == target.encode()


def test_one_header_more_than_allowed_is_refused() -> None:
    with pytest.raises(BadHead, match="3 headers: at most 2") as caught:
        read_request("X: 1", "X: 2", max_headers=2)

    assert caught.value.status == 431


def test_the_longest_content_length_is_accepted() -> None:
    assert read_request("Content-Length: " + "1" * 18).length == int("1" * 18)


# -- replies -------------------------------------------------------------------------------------------------------


def test_a_plain_reply_is_forwarded_as_it_is() -> None:
    head = read_reply("Content-Length: 5", "X-One: \xe9", line="HTTP/1.1 201 Made it")

    assert head == ReplyHead(201, b"HTTP/1.1 201 Made it\r\n", [b"Content-Length: 5\r\n", b"X-One: \xe9\r\n"], 5, True)


@pytest.mark.parametrize(
    ("line", "status_line"),
    [
        ("HTTP/1.0 404 Not Found", b"HTTP/1.1 404 Not Found\r\n"),
        ("HTTP/1.1 404 ", b"HTTP/1.1 404 \r\n"),
        ("HTTP/1.1 404", b"HTTP/1.1 404 \r\n"),
    ],
)
def test_the_caller_gets_a_status_line_of_http_1_1(line: str, status_line: bytes) -> None:
    head = read_reply(line=line)

    assert (head.status, head.status_line) == (404, status_line)


@pytest.mark.parametrize(
    ("headers", "line", "is_head", "length"),
    [
        (("Content-Length: 5",), "HTTP/1.1 200 OK", False, 5),
        (("Content-Length: 5", "content-length:\t5 "), "HTTP/1.1 200 OK", False, 5),
        (("Content-Length: 0",), "HTTP/1.1 200 OK", False, 0),
        (("Transfer-Encoding: \tCHUNKED",), "HTTP/1.1 200 OK", False, CHUNKED),
        ((), "HTTP/1.1 200 OK", False, UNTIL_CLOSE),
        (("Content-Length: 5",), "HTTP/1.1 200 OK", True, 0),
        ((), "HTTP/1.1 200 OK", True, 0),
        (("Content-Length: 5",), "HTTP/1.1 204 x", False, 0),
        (("Content-Length: 5",), "HTTP/1.1 304 x", False, 0),
        (("Content-Length: 5",), "HTTP/1.1 100 x", False, 0),
        (("Content-Length: 5",), "HTTP/1.1 199 x", False, 0),
        (("Content-Length: 5",), "HTTP/1.1 205 x", False, 5),
    ],
)
def test_the_length_of_a_reply_depends_on_status_method_and_headers(
    headers: tuple[str, ...], line: str, is_head: bool, length: int
) -> None:
    assert read_reply(*headers, line=line, is_head=is_head).length == length


@pytest.mark.parametrize(
    ("headers", "line", "is_reusable"),
    [
        (("Content-Length: 5",), "HTTP/1.1 200 OK", True),
        (("Content-Length: 5",), "HTTP/1.0 200 OK", False),
        (("Content-Length: 5", "Connection: Close"), "HTTP/1.1 200 OK", False),
        (("Content-Length: 5", "Connection: x,\tclose"), "HTTP/1.1 200 OK", False),
        (("Content-Length: 5", "Connection: keep-alive, close"), "HTTP/1.1 200 OK", False),
        (("Content-Length: 5", "Connection: Keep-Alive"), "HTTP/1.0 200 OK", True),
        (("Content-Length: 5", "Connection: x"), "HTTP/1.0 200 OK", False),
        (("Content-Length: 5", "Connection: x"), "HTTP/1.1 200 OK", True),
        (("Transfer-Encoding: chunked",), "HTTP/1.1 200 OK", True),
        ((), "HTTP/1.1 200 OK", False),
        (("Connection: keep-alive",), "HTTP/1.1 200 OK", False),
        ((), "HTTP/1.1 204 No Content", True),
    ],
)
def test_a_connection_is_reused_if_the_reply_ends_and_allows_it(
    headers: tuple[str, ...], line: str, is_reusable: bool
) -> None:
    assert read_reply(*headers, line=line).is_reusable is is_reusable


@pytest.mark.parametrize(
    ("headers", "forwarded"),
    [
        (("Content-Length: 5", "Content-Length: 5"), ["Content-Length: 5"]),
        (("Transfer-Encoding: chunked", "Keep-Alive: x", "TE: x", "Trailer: x", "Upgrade: x"), []),
        (("Connection: X-One", "x-one: 1", "X-Two: 2"), ["X-Two: 2"]),
        (("X-Wharf-Content: 1", "X-WHARF-Other: 1", "X-Wharf: 1"), ["X-Wharf: 1"]),
        (("X-RateLimit-Limit: 1", "RateLimit: 2", "RateLimit-Policy: 3"),) * 2,
        (("Date: x", "Set-Cookie: a", "Set-Cookie: b"),) * 2,
    ],
)
def test_a_reply_is_forwarded_without_headers_for_the_gateway(
    headers: tuple[str, ...], forwarded: tuple[str, ...]
) -> None:
    assert read_reply(*headers).lines == [f"{text}\r\n".encode() for text in forwarded]


@pytest.mark.parametrize(
    ("header", "field"),
    [
        ("X-RateLimit-Limit: 5", "has_limits"),
        ("x-ratelimit: 5", "has_limits"),
        ("RateLimit: x", "has_limits"),
        ("ratelimit-policy: x", "has_limits"),
        ("DATE: x", "has_date"),
        ("Upgrade: websocket", "has_upgrade"),
    ],
)
def test_a_header_of_the_reply_sets_only_its_field(header: str, field: str) -> None:
    fields = ("has_limits", "has_date", "has_upgrade")
    head = read_reply(header)

    assert [name for name in fields if getattr(head, name)] == [field]


@pytest.mark.parametrize("header", ["RateLimit-Other: 1", "X-Rate-Limit: 1", "Dated: 1", "X-Upgrade: 1"])
def test_a_header_with_a_similar_name_sets_no_field(header: str) -> None:
    head = read_reply(header)

    assert (head.has_limits, head.has_date, head.has_upgrade) == (False, False, False)


def test_marks_of_the_service_are_read_together() -> None:
    head = read_reply("X-Wharf-Cpu-Ms: \t12 ", "x-wharf-content: 1", "X-Wharf-Unknown: 1")

    assert head.marks == ReplyMarks(measured_ms=12, is_content=True)


@pytest.mark.parametrize(
    ("headers", "line", "message"),
    [
        ((), "HTTP/2 200 OK", "does not begin with a status line"),
        ((), "HTTP/1.1 600 OK", "does not begin with a status line"),
        ((), "HTTP/1.1 20 OK", "does not begin with a status line"),
        (("X A: 1",), "HTTP/1.1 200 OK", "headers is malformed"),
        (("X-A: \0",), "HTTP/1.1 200 OK", "headers is malformed"),
        (("Content-Length: x",), "HTTP/1.1 200 OK", "Content-Length"),
        (("Content-Length: 5", "Content-Length: 6"), "HTTP/1.1 200 OK", "Content-Length"),
        (("Content-Length: 0", "Content-Length: 6"), "HTTP/1.1 200 OK", "Content-Length"),
        (("Transfer-Encoding: gzip",), "HTTP/1.1 200 OK", "Transfer-Encoding"),
        (("Transfer-Encoding: chunked",) * 2, "HTTP/1.1 200 OK", "Transfer-Encoding"),
        (("Content-Length: 5", "Transfer-Encoding: chunked"), "HTTP/1.1 200 OK", "both"),
        (("Content-Length: 0", "Transfer-Encoding: chunked"), "HTTP/1.1 200 OK", "both"),
    ],
)
def test_an_ambiguous_reply_is_refused(headers: tuple[str, ...], line: str, message: str) -> None:
    with pytest.raises(BadHead, match=message):
        read_reply(*headers, line=line)


def test_only_limit_headers_are_dropped() -> None:
    kept = [b"X-Rate-Limit: 1\r\n", b"RateLimits: 1\r\n", b"RateLimit-Other: 1\r\n", b"X-Other: ratelimit:\r\n"]
    dropped = [b"X-RateLimit-Limit: 1\r\n", b"x-ratelimit: 1\r\n", b"RateLimit: 1\r\n", b"ratelimit-POLICY: 1\r\n"]

    assert drop_limit_headers([kept[0], dropped[0], dropped[1], *kept[1:], dropped[2], dropped[3]]) == kept
