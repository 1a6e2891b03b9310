"""The WSGI middleware: what it reads of a request, and how it passes bodies and replies on."""

import io
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.limits.decision_services import ADA, DIRECTORY, AdvancingWorld, RecordedReply, count_slots, count_used
from tests.waiting import wait_until
from wharf.limits.decisions.service import MAX_BODY_BYTES
from wharf.limits.rate_limiter import RateLimiter, load_settings
from wharf.limits.wsgi import Environ, LimitsMiddleware, StartResponse
from wharf.world import RealWorld, World

RULES = """
[[rule]]
name = "core"
ceiling = 90
[[endpoint]]
match = ["* /files/objects/batch"]
interface = "large_files"
"""


class Body:
    """The body of a reply, which records that it was closed."""

    def __init__(self, *parts: bytes) -> None:
        self.parts = parts
        self.is_closed = False

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.parts)

    def close(self) -> None:
        self.is_closed = True


class Site:
    """An application behind the middleware. The limiter is the same for all tests of a folder."""

    def __init__(self, folder: Path, *, has_pages: bool = True, world: World | None = None, rules: str = RULES) -> None:
        (folder / "people.toml").write_text(DIRECTORY)
        (folder / "rules.toml").write_text(rules)
        (folder / "limits.toml").write_text(
            'rules = "rules.toml"\ndirectory = "people.toml"\ndata_folder = "data"\n[addresses]\nhops = 1\n'
        )
        self.limiter = RateLimiter(load_settings(folder / "limits.toml"), world or RealWorld())
        self.service = self.limiter.decision_service
        self.cpu_s = 5.0
        self.headers: list[tuple[str, str]] = []
        self.status = "200 OK"
        self.body: Iterable[bytes] = [b"hello"]
        self.received: list[bytes] = []
        self.read_sizes: list[int] = [-1]
        self.before_reply: Callable[[], object] = lambda: None
        self.middleware = LimitsMiddleware(
            self._serve, lambda: self.limiter, has_pages=has_pages, read_cpu_s=lambda: self.cpu_s
        )

    def _serve(self, environ: Environ, start: StartResponse) -> Iterable[bytes]:
        self.received += [environ["wsgi.input"].read(size) for size in self.read_sizes]
        self.cpu_s += 0.125
        self.before_reply()
        start(self.status, self.headers)
        return self.body

    def request(self, path: str = "/x", *, method: str = "GET", body: bytes = b"", **variables: Any) -> RecordedReply:
        reply = RecordedReply()
        environ: dict[str, Any] = {
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "REMOTE_ADDR": "192.0.2.7",
            "HTTP_AUTHORIZATION": f"token {ADA}",
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": io.BytesIO(body),
            **variables,
        }
        environ = {name: value for name, value in environ.items() if value is not None}

        def start(status: str, headers: list[tuple[str, str]], *_: object) -> Any:
            reply.status, reply.headers = int(status[:3]), dict(headers)

        parts: Any = self.middleware(environ, start)
        reply.body = b"".join(parts)
        if hasattr(parts, "close"):
            parts.close()
            parts.close()
        return reply

    def last_path(self) -> tuple[str, str, str]:
        """Return method, path and address of the last logged decision."""
        entry = next(self.service.decision_log.list_recent())
        return entry.method, entry.path, entry.caller.address


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    yield site
    site.middleware.close()


@pytest.fixture
def site(shared_site: Site) -> Site:
    shared_site.headers, shared_site.status, shared_site.body = [], "200 OK", [b"hello"]
    shared_site.received, shared_site.read_sizes = [], [-1]
    return shared_site


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ("GET", "/x", "address:192.0.2.7")),
        ({"SCRIPT_NAME": "/app"}, ("GET", "/app/x", "address:192.0.2.7")),
        ({"PATH_INFO": ""}, ("GET", "/", "address:192.0.2.7")),
        ({"PATH_INFO": None}, ("GET", "/", "address:192.0.2.7")),
        ({"PATH_INFO": "/\xc3\xa9 ?"}, ("GET", "/%C3%A9%20%3F", "address:192.0.2.7")),
        ({"PATH_INFO": "/\xff"}, ("GET", "/%FF", "address:192.0.2.7")),
        ({"REQUEST_METHOD": "get"}, ("GET", "/x", "address:192.0.2.7")),
        ({"REMOTE_ADDR": None}, ("GET", "/x", "address:127.0.0.1")),
        ({"REMOTE_ADDR": ""}, ("GET", "/x", "address:127.0.0.1")),
        ({"HTTP_X_FORWARDED_FOR": "203.0.113.9"}, ("GET", "/x", "address:203.0.113.9")),
        ({"HTTP_FORWARDED": "for=203.0.113.9"}, ("GET", "/x", "address:192.0.2.7")),
        ({"REQUEST_METHOD": "PUT"}, ("PUT", "/x", "address:192.0.2.7")),
    ],
)
def test_a_request_is_read_from_its_environ(
    site: Site, variables: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    site.request(**variables)

    assert site.last_path() == expected


def test_credentials_in_the_query_are_refused(site: Site) -> None:
    assert site.request(QUERY_STRING="access_token=x").status == 401


@pytest.mark.parametrize(
    ("variables", "change"),
    [
        ({"HTTP_IF_NONE_MATCH": "x"}, 0),
        ({"HTTP_IF_MODIFIED_SINCE": "x"}, 0),
        ({}, 1),
        ({"HTTP_AUTHORIZATION": None, "HTTP_IF_NONE_MATCH": "x"}, 0),
    ],
)
def test_an_unchanged_reply_to_a_conditional_request_is_refunded(
    site: Site, variables: dict[str, Any], change: int
) -> None:
    site.status = "304 Not Modified"
    before = count_used(site.service, "core")
    site.request(**variables)

    assert count_used(site.service, "core") - before == change


@pytest.mark.parametrize(("status", "change"), [("499 X", 1), ("500 X", 0), ("503 X", 0)])
def test_faults_are_refunded(site: Site, status: str, change: int) -> None:
    site.status = status
    before = count_used(site.service, "core")
    site.request()

    assert count_used(site.service, "core") - before == change


def test_marks_of_the_application_are_charged_and_removed(site: Site) -> None:
    site.headers = [("X-Wharf-Cpu-Ms", "2000"), ("x-wharf-content", "1"), ("X-RateLimit-Limit", "7"), ("etag", "\xe9")]
    before = (count_used(site.service, "cpu"), count_used(site.service, "content"))
    reply = site.request()
    wait_until(lambda: not count_slots(site.service), what="the request ends")

    assert (count_used(site.service, "cpu") - before[0]) // 1_000 == 2
    assert count_used(site.service, "content") - before[1] == 1
    assert (reply.headers["etag"], reply.headers["x-ratelimit-limit"]) == ("\xe9", "90")
    assert [name for name in reply.headers if name.lower().startswith("x-wharf")] == []


def test_the_body_of_the_application_is_closed_and_the_request_ends(site: Site) -> None:
    site.body = body = Body(b"a", b"b")
    reply = site.request()

    wait_until(lambda: not count_slots(site.service), what="the request ends")
    assert (reply.body, body.is_closed) == (b"ab", True)


@pytest.mark.parametrize(("origin", "is_exposed"), [(None, False), ("https://a.example", True)])
@pytest.mark.parametrize("path", ["/x", "/meta"])
def test_limit_headers_are_exposed_to_other_origins(
    site: Site, path: str, origin: str | None, is_exposed: bool
) -> None:
    assert ("access-control-expose-headers" in site.request(path, HTTP_ORIGIN=origin).headers) is is_exposed


def test_a_page_of_the_limiter_has_no_body_for_head(site: Site) -> None:
    replies = [site.request("/meta", method=method) for method in ("GET", "HEAD")]

    assert [bool(reply.body) for reply in replies] == [True, False]
    assert replies[1].headers["content-length"] == str(len(replies[0].body))
    assert site.received == []


def test_a_page_of_the_limiter_ends_its_request(site: Site) -> None:
    site.request("/meta")

    assert (count_slots(site.service), site.service.running_requests) == (0, {})


def test_the_application_can_serve_the_pages_of_the_limiter_itself(tmp_path: Path) -> None:
    site = Site(tmp_path, has_pages=False)

    assert site.request("/meta").body == b"hello"
    site.middleware.close()
    site.middleware.close()


QUERY = b'{"query": "{ a }"}'


@pytest.mark.parametrize(
    ("path", "body", "length"),
    [
        ("/graphql", QUERY, None),
        ("/graphql", QUERY + b"x", str(len(QUERY))),
        ("/graphql", QUERY, "0" * 10 + str(len(QUERY))),
        ("/files/objects/batch", b'{"objects": [' + b"{}, " * 50 + b"{}]}", None),
    ],
)
@pytest.mark.parametrize("sizes", [[-1], [1, 3, -1], [10**6]])
def test_the_application_reads_the_whole_body_again(
    site: Site, path: str, body: bytes, length: str | None, sizes: list[int]
) -> None:
    site.read_sizes = sizes
    variables = {} if length is None else {"CONTENT_LENGTH": length}

    assert site.request(path, method="POST", body=body, **variables).status == 200
    assert b"".join(site.received) == (body if length is None else body[: int(length)])


@pytest.mark.parametrize("length", [None, "", "x", "²", "-5", "0" * 20])
def test_a_body_without_a_valid_length_is_empty(site: Site, length: str | None) -> None:
    reply = site.request("/graphql", method="POST", body=QUERY, CONTENT_LENGTH=length)

    assert (reply.status, reply.json()["cause"]) == (400, "too_complex")


@pytest.mark.parametrize(("size", "status"), [(MAX_BODY_BYTES, 200), (MAX_BODY_BYTES + 1, 400)])
def test_a_query_of_more_than_a_mebibyte_is_refused(site: Site, size: int, status: int) -> None:
    body = QUERY + b" " * (size - len(QUERY))

    assert site.request("/graphql", method="POST", body=body).status == status


def test_a_body_that_the_decision_does_not_need_is_not_read_before(site: Site) -> None:
    site.request("/x", method="POST", body=b"hello")

    assert site.received == [b"hello"]


@pytest.mark.parametrize("path", ["/a/../rate_limit", "//rate_limit", "/rate_limit\n", "/\xc0\xae\xc0\xae/x"])
def test_a_path_that_applications_read_differently_is_refused(site: Site, path: str) -> None:
    reply = site.request(path)

    assert (reply.status, site.received, reply.json()["status"]) == (400, [], "400")
    assert reply.headers["content-length"] == str(len(reply.body))


@pytest.mark.parametrize(
    "variables", [{"CONTENT_TYPE": "application/json; charset=utf-7"}, {"HTTP_CONTENT_ENCODING": "br"}]
)
@pytest.mark.parametrize(("path", "body"), [("/files/objects/batch", b'{"objects": []}'), ("/graphql", QUERY)])
def test_a_body_that_applications_may_decode_to_another_one_is_refused(
    site: Site, path: str, body: bytes, variables: dict[str, str]
) -> None:
    reply = site.request(path, method="POST", body=body, **variables)

    assert (reply.status, site.received) == (400, [])
    assert reply.json()["message"].startswith("The headers of the request say")


@pytest.mark.parametrize("path", ["/files/objects/batch/", "/Files/Objects/Batch", "/files/objects/batch.json"])
def test_a_batch_is_read_in_every_spelling(site: Site, path: str) -> None:
    reply = site.request(path, method="POST", body=b"no batch")

    assert (reply.status, site.received) == (400, [])
    assert "The batch cannot be read" in reply.json()["message"]


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    ("variables", "status"),
    [
        ({}, 200),
        ({"CONTENT_LENGTH": None}, 200),
        ({"CONTENT_LENGTH": "x"}, 400),
        ({"CONTENT_LENGTH": None, "HTTP_TRANSFER_ENCODING": "chunked"}, 411),
        ({"QUERY_STRING": "query=%7Ba%7D&query=%7Bb%7D"}, 400),
    ],
)
def test_a_query_in_the_url_needs_no_body(site: Site, method: str, variables: dict[str, Any], status: int) -> None:
    reply = site.request("/graphql", method=method, **{"QUERY_STRING": "query=%7Ba%7D", **variables})

    assert reply.status == status


class PartialInput(io.BytesIO):
    """The input of a server that ends at the end of the body, and returns few bytes at a time."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(7 if size is None or size < 0 else min(size, 7))


@pytest.mark.parametrize(
    ("path", "body"),
    [("/graphql", QUERY), ("/files/objects/batch", b'{"objects": [{}, {}, {}]}'), ("/graphql", QUERY + b" " * 99)],
)
def test_a_chunked_body_is_read_for_the_decision_and_again_by_the_application(
    site: Site, path: str, body: bytes
) -> None:
    chunked: dict[str, Any] = {
        "CONTENT_LENGTH": None,
        "HTTP_TRANSFER_ENCODING": "chunked",
        "wsgi.input_terminated": True,
    }

    reply = site.request(path, method="POST", **{**chunked, "wsgi.input": PartialInput(body)})

    assert (reply.status, b"".join(site.received)) == (200, body)


def test_a_chunked_query_of_more_than_a_mebibyte_is_refused(site: Site) -> None:
    body = QUERY + b" " * MAX_BODY_BYTES
    variables: dict[str, Any] = {"CONTENT_LENGTH": None, "wsgi.input_terminated": True, "wsgi.input": io.BytesIO(body)}

    assert site.request("/graphql", method="POST", **variables).status == 400


@pytest.mark.parametrize(("path", "status"), [("/graphql", 411), ("/x", 200)])
def test_a_chunked_body_whose_end_the_server_does_not_report_is_refused_if_the_decision_needs_it(
    site: Site, path: str, status: int
) -> None:
    reply = site.request(path, method="POST", body=QUERY, CONTENT_LENGTH=None, HTTP_TRANSFER_ENCODING="chunked")

    assert reply.status == status


def test_the_time_of_a_reply_that_streams_is_not_measured_as_work(site: Site) -> None:
    measured: list[tuple[float, float]] = []

    def stream() -> Iterator[bytes]:
        (admitted,) = site.service.running_requests.values()
        now_s = site.service.world.monotonic_s()
        measured.append((admitted.compute_work_ms(now_s), admitted.compute_work_ms(now_s + 600)))
        yield b"hello"

    site.body = stream()
    site.request()

    ((at_once, after_ten_minutes),) = measured
    assert after_ten_minutes == at_once


@pytest.mark.parametrize(("headers", "expected"), [([("X-Wharf-Cpu-Ms", "40")], 40), ([], 125)])
def test_the_cpu_time_replaces_what_was_charged_while_the_application_ran(
    tmp_path: Path, headers: list[tuple[str, str]], expected: int
) -> None:
    world = AdvancingWorld()
    site = Site(tmp_path, world=world)
    site.headers = headers
    charged: list[int] = []

    def run_long() -> None:
        for _ in range(3):
            world.advance(8)
            site.middleware._run(site.service.run_maintenance(should_renew=True))
        charged.append(count_used(site.service, "cpu"))

    site.before_reply = run_long
    site.request()
    wait_until(lambda: not count_slots(site.service), what="the request ends")
    site.middleware.close()

    assert (charged, count_used(site.service, "cpu")) == ([24_000], expected)
