"""Properties of all replies: encodings, cross-origin headers, Nomad header names, unrouted paths."""

import asyncio
import gzip
import json
import logging
import zlib
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from tests.builders import a_job
from tests.kit.callers import a_token
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import send_raw
from tests.kit.virtual_time import in_virtual_time, now_s, pass_time
from wharf.cluster.api.access_control import CallerAuthenticator
from wharf.cluster.api.app import MAX_HEADERS, MAX_PATH_BYTES, Api
from wharf.cluster.api.replies.encoding import BODY_CHUNK_BYTES, ReplyBody, StreamCompressor, negotiate_encoding
from wharf.cluster.api.replies.sender import HttpReply, ReplyContext, ReplySender
from wharf.cluster.api.results import ActionResult, StreamedBody
from wharf.cluster.server.loop_slots import LoopSlots
from wharf.contract.client import ClientReply
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.world import SimulatedWorld


async def get(server: OneServer, path: str, query: str = "", **options: Any) -> ClientReply:
    return await send_raw(server.api, "GET", path, query=query, **options)


async def raw_headers(api: Api, method: str, path: str, headers: dict[str, str] | None = None) -> list[tuple[str, str]]:
    """Return all headers, repeated names included."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    submitted = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": submitted}
    await api(scope, receive, send)
    return [(name.decode(), value.decode()) for name, value in sent[0]["headers"]]


# -- encodings


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip, deflate", "gzip"),
        ("deflate,gzip", "gzip"),
        ("br , gzip", "gzip"),
        ("GZIP", "gzip"),
        ("X-Gzip", "gzip"),
        ("gzip;q=1", "gzip"),
        ("gzip;q=1.000", "gzip"),
        ("gzip ; Q=0.001", "gzip"),
        ("deflate;q=1, gzip;q=0.1", "gzip"),
        ("gzip;q=0", ""),
        ("gzip;q=0.000", ""),
        ("gzip;q=0, *", "deflate"),
        ("gzip;q=0, deflate", "deflate"),
        ("*", "gzip"),
        ("*;q=0.5", "gzip"),
        ("*;q=0", ""),
        ("*;q=0, gzip", "gzip"),
        ("identity, gzip", "gzip"),
        ("gzip;q=x", ""),
        ("gzip;q=2", ""),
        ("gzip;level=1", ""),
        (",, gzip,", "gzip"),
        ("br", ""),
        ("", ""),
        ("gzip," * 300, ""),
    ],
)
def test_gzip_is_chosen_whenever_it_is_acceptable(accepted: str, encoding: str) -> None:
    assert negotiate_encoding(accepted.encode()).decode() == encoding


@in_virtual_time
async def test_bodies_of_any_size_errors_and_empty_bodies_are_compressed_on_request() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        for path in ("/v1/jobs", "/v1/job/nobody", "/v1/nowhere", "/v1/status/leader"):
            plain = await get(server, path)
            zipped = await get(server, path, headers={"accept-encoding": "gzip"})
            deflated = await get(server, path, headers={"accept-encoding": "deflate"})

            assert gzip.decompress(zipped.body) == plain.body
            assert zlib.decompress(deflated.body) == plain.body
            assert [r.headers.get("content-encoding") for r in (plain, zipped, deflated)] == [None, "gzip", "deflate"]
            assert int(zipped.headers["content-length"]) == len(zipped.body)


@in_virtual_time
async def test_a_reply_without_content_has_no_byte_after_its_head() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await send_raw(server.api, "PUT", "/v1/var/app", body=b'{"Items": {"colour": "blue"}}')

        reply = await send_raw(server.api, "DELETE", "/v1/var/app", headers={"accept-encoding": "gzip"})

        assert (reply.status, reply.body) == (204, b"")
        assert not {"content-encoding", "content-length"} & set(reply.headers)


@in_virtual_time
async def test_upgrade_requests_are_never_compressed() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        reply = await get(server, "/v1/jobs", headers={"accept-encoding": "gzip", "upgrade": "websocket"})

        assert (reply.body, "content-encoding" in reply.headers) == (b"[]", False)


@in_virtual_time
async def test_every_reply_varies_by_encoding() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        replies = [
            await get(server, path) for path in ("/v1/jobs", "/v1/nowhere", "/v1/job/nobody", "/v1/status/peers")
        ]

        assert [reply.headers["vary"] for reply in replies] == ["Accept-Encoding"] * 4


@in_virtual_time
async def test_a_long_list_is_the_same_pretty_compressed_and_in_slices() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        for number in range(600):
            await server.client.jobs.register(a_job(f"job-{number:04}"))
        await pass_time(5.0)  # Wait until the leader has evaluated all jobs.
        plain = await get(server, "/v1/jobs")
        pretty = await get(server, "/v1/jobs", "pretty")
        zipped = await get(server, "/v1/jobs", headers={"accept-encoding": "gzip"})
        repeated = await get(server, "/v1/jobs")

        assert [job["ID"] for job in json.loads(plain.body)] == [f"job-{number:04}" for number in range(600)]
        assert json.loads(pretty.body) == json.loads(plain.body)
        assert pretty.body.startswith(b'[\n    {\n        "ID": "job-0000"')
        assert pretty.body.endswith(b"}\n]\n")
        assert (gzip.decompress(zipped.body), repeated.body) == (plain.body, plain.body)


# -- streams


@in_virtual_time
async def test_a_stream_is_sent_part_by_part_and_ends_when_the_server_stops() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        ended: list[str] = []

        async def parts() -> AsyncGenerator[bytes, None]:
            try:
                yield b"one"
                server.api.close()
                await server.world.start_task(_forever(), name="forever")
            finally:
                ended.append("closed")

        async def streams(_request: object) -> ActionResult:
            return ActionResult(StreamedBody(parts(), "text/plain", headers=[(b"digest", b"x")]))

        server.api.actions.handlers["status.leader"] = streams
        sent: list[Any] = []

        async def receive() -> Any:
            await _forever()

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"accept-encoding", b"gzip")]
        scope = {"type": "http", "method": "GET", "path": "/v1/status/leader", "query_string": b"", "headers": headers}
        await server.api(scope, receive, send)

        result = dict(sent[0]["headers"])
        assert (result[b"content-type"], result[b"digest"], b"content-encoding" in result) == (
            b"text/plain",
            b"x",
            False,
        )
        assert [(m["body"], m.get("more_body", False)) for m in sent[1:]] == [(b"one", True), (b"", False)]
        assert ended == ["closed"]


async def _forever() -> Any:
    await asyncio.Event().wait()


@in_virtual_time
async def test_a_compressed_stream_ends_properly_when_the_server_stops() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        async def parts() -> AsyncGenerator[bytes, None]:
            yield b"one"
            yield b""
            yield b"two"
            server.api.close()
            await server.world.start_task(_forever(), name="forever")

        async def streams(_request: object) -> ActionResult:
            return ActionResult(StreamedBody(parts(), "text/plain", can_compress=True))

        server.api.actions.handlers["status.leader"] = streams

        reply = await get(server, "/v1/status/leader", headers={"Accept-Encoding": "deflate"})

        assert reply.headers["content-encoding"] == "deflate"
        assert zlib.decompress(reply.body) == b"onetwo"


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate"])
def test_each_part_of_a_compressed_stream_is_readable_at_once(encoding: bytes) -> None:
    compressor = StreamCompressor(encoding)
    reader = zlib.decompressobj(zlib.MAX_WBITS + 32)  # Recognizes both headers.
    parts = [b"line\n" * count for count in range(1, 40)]

    assert reader.decompress(compressor.begin()) == b""
    assert [reader.decompress(compressor.compress(part)) for part in parts] == parts
    assert compressor.compress(b"") == b""
    assert (reader.decompress(compressor.end()), reader.eof) == (b"", True)


def test_repeated_lines_of_a_stream_take_little_space() -> None:
    compressor = StreamCompressor(b"gzip")
    compressor.compress(b"2026-11-23T07:00:00Z level=info request served status=200\n")

    assert len(compressor.compress(b"2026-11-23T07:00:01Z level=info request served status=200\n")) < 25


# -- cross-origin requests


@in_virtual_time
async def test_cross_origin_requests_are_allowed_for_variables_and_not_for_jobs() -> None:
    async with ACluster() as cluster:
        api = (await cluster.a_server()).api
        origin = {"origin": "https://example.com"}

        variables = await raw_headers(api, "GET", "/v1/vars", origin)
        jobs = await raw_headers(api, "GET", "/v1/jobs", origin)

        assert ("access-control-allow-origin", "*") in variables
        assert ("access-control-allow-credentials", "true") in variables
        assert [value for name, value in variables if name == "vary"] == ["Accept-Encoding", "Origin"]
        assert [name for name, _ in jobs if name.startswith("access-control")] == []


@in_virtual_time
async def test_a_preflight_request_returns_the_allowed_method_and_headers() -> None:
    async with ACluster() as cluster:
        api = (await cluster.a_server()).api
        requests = {"origin": "https://example.com", "access-control-request-headers": "X-Cluster-Token"}

        allowed = await raw_headers(api, "OPTIONS", "/v1/var/a/b", {**requests, "access-control-request-method": "PUT"})
        disallowed = await raw_headers(
            api, "OPTIONS", "/v1/var/a/b", {**requests, "access-control-request-method": "PATCH"}
        )
        other_reply = await send_raw(api, "OPTIONS", "/v1/jobs", headers=requests)

        assert ("access-control-allow-methods", "PUT") in allowed
        assert ("access-control-allow-headers", "X-Cluster-Token") in allowed
        assert [name for name, _ in disallowed if name.startswith("access-control-allow")] == []
        assert other_reply.status == 405


# -- Nomad header names


@in_virtual_time
async def test_with_compatibility_replies_also_have_nomads_headers() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        for name in ("a", "b"):
            await server.client.jobs.register(a_job(name))
        compat = Api(server.server, is_nomad_compatible=True)

        result = (await send_raw(compat, "GET", "/v1/jobs", query="per_page=1")).headers
        silent = (await get(server, "/v1/jobs")).headers

        for name in ("index", "knownleader", "lastcontact", "nexttoken"):
            assert result[f"x-nomad-{name}"] == result[f"x-cluster-{name}"]
        assert [name for name in silent if name.startswith("x-nomad")] == []


@in_virtual_time
async def test_with_compatibility_a_token_may_be_sent_in_nomads_header() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        token = (await a_token(server, management=True))["x-cluster-token"]
        gate = CallerAuthenticator(server.world, is_enabled=True)
        apis = [Api(server.server, authenticator=gate, is_nomad_compatible=compat) for compat in (True, False)]

        statuses = [(await send_raw(api, "GET", "/v1/jobs", headers={"x-nomad-token": token})).status for api in apis]
        both = await send_raw(apis[0], "GET", "/v1/jobs", headers={"x-nomad-token": token, "x-cluster-token": "no"})

        assert (statuses, both.status) == ([200, 403], 400)


@in_virtual_time
async def test_a_websocket_handshake_is_rejected_at_once() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "websocket.connect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await server.api({"type": "websocket", "path": "/v1/jobs", "query_string": b"", "headers": []}, receive, send)

        assert [message["type"] for message in sent] == ["websocket.close"]


# -- paths


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/", "/ui/"),
        ("/v1/job", "/v1/job/"),
        ("/v1/node", "/v1/node/"),
        ("/v1//jobs", "/v1/jobs"),
        ("/v1/job/../jobs", "/v1/jobs"),
        ("//v1/jobs", "/v1/jobs"),
        ("/v1/./jobs", "/v1/jobs"),
    ],
)
def test_a_path_that_needs_cleaning_is_redirected_with_its_query(path: str, location: str) -> None:
    @in_virtual_time
    async def run() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server()

            received_texts = await get(server, path, "a=b")
            reply = await send_raw(server.api, "PUT", path)

            assert (received_texts.status, received_texts.headers["location"]) == (307, f"{location}?a=b")
            assert received_texts.body == f'<a href="{location}">Temporary Redirect</a>.\n\n'.encode()
            assert received_texts.headers["content-type"] == "text/html; charset=utf-8"
            assert (reply.status, reply.body, reply.headers["location"]) == (307, b"", location)

    run()


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/v1/job/", 404, "job not found"),
        ("/v1/node/", 400, "missing node ID"),
        ("/v1/deployment/", 400, "missing deployment ID"),
        ("/v1/allocation/", 400, "alloc lookup failed: index error: UUID must be 36 characters"),
        ("/v1/namespace/", 400, "Missing Namespace Name"),
        ("/v1/acl/token/", 400, "Missing Token Accessor"),
        ("/v1/acl/policy/", 400, "Missing Policy Name"),
        ("/v1/var/", 400, "missing variable path"),
        ("/v1/service/", 400, "missing service name"),
        ("/v1/jobs/", 404, "no API endpoint at /v1/jobs/; /v1/docs lists the endpoints"),
        ("/v1", 404, "no API endpoint at /v1; /v1/docs lists the endpoints"),
        ("/v1/", 404, "no API endpoint at /v1/; /v1/docs lists the endpoints"),
        ("/v1/agent", 404, "no API endpoint at /v1/agent; /v1/docs lists the endpoints"),
        ("/v1/operator", 404, "no API endpoint at /v1/operator; /v1/docs lists the endpoints"),
        ("/v1/nodes/x", 404, "no API endpoint at /v1/nodes/x; /v1/docs lists the endpoints"),
    ],
)
def test_a_missing_id_is_refused_and_other_unknown_paths_are_404s(path: str, status: int, text: str) -> None:
    @in_virtual_time
    async def run() -> None:
        async with ACluster() as cluster:
            reply = await get(await cluster.a_server(), path)

            assert (reply.status, reply.body.decode()) == (status, text)

    run()


@in_virtual_time
async def test_the_web_pages_are_a_placeholder() -> None:
    async with ACluster() as cluster:
        reply = await get(await cluster.a_server(), "/ui/jobs")

        assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")


@in_virtual_time
async def test_too_many_headers_or_a_too_long_path_are_refused() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        many = await get(server, "/v1/jobs", headers={f"x-{n}": "y" for n in range(MAX_HEADERS + 1)})
        large = await get(server, "/v1/jobs", headers={"x": "y" * 1_100_000})
        path = await get(server, "/v1/job/" + "a" * MAX_PATH_BYTES)

        assert [many.status, large.status, path.status] == [431, 431, 414]
        assert many.body == b"431 Request Header Fields Too Large"


@in_virtual_time
async def test_an_unknown_region_is_reported_after_all_other_errors() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        invalid = await get(server, "/v1/jobs", "region=nowhere&index=x")
        unknown = await get(server, "/v1/jobs", "region=nowhere")
        own_header = await get(server, "/v1/jobs", "region=global")

        assert [(r.status, r.body) for r in (invalid, unknown)] == [
            (400, b"Invalid index"),
            (404, b"No path to region"),
        ]
        assert own_header.status == 200


@in_virtual_time
async def test_a_body_that_does_not_arrive_times_out() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        sent: list[Any] = []
        parts = [{"type": "http.request", "body": b"{", "more_body": True}]

        async def receive() -> Any:
            return parts.pop() if parts else await _forever()

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "PUT", "path": "/v1/jobs", "query_string": b"", "headers": []}
        await server.api(scope, receive, send)

        assert sent[0]["status"] == 408


@in_virtual_time
async def test_a_body_that_arrives_too_slowly_times_out_even_if_each_part_is_in_time() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        sent: list[Any] = []
        began_s = now_s()

        async def receive() -> Any:
            await pass_time(10)
            return {"type": "http.request", "body": b"{", "more_body": True}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "PUT", "path": "/v1/jobs", "query_string": b"", "headers": []}
        await server.api(scope, receive, send)

        assert sent[0]["status"] == 408
        assert now_s() - began_s < 60


# -- lost connections


class LostConnection:
    """A connection that breaks at the first part of a body. As in asyncio, that is known after an iteration of the event loop."""

    def __init__(self) -> None:
        self.is_lost = asyncio.Event()
        self.part_count = 0
        """The parts that were written before the loss was known."""

    async def receive(self) -> Any:
        await self.is_lost.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.body" and not self.is_lost.is_set():
            self.part_count += 1
            asyncio.get_running_loop().call_soon(self.is_lost.set)


async def ready_parts() -> AsyncGenerator[bytes]:
    for _ in range(20):
        yield b"part"


@pytest.mark.parametrize(
    "make_body",
    [
        pytest.param(lambda: ReplyBody([b"x" * BODY_CHUNK_BYTES * 20]), id="one large chunk"),
        pytest.param(lambda: ReplyBody([b"x"] * 20), id="many chunks"),
        pytest.param(lambda: StreamedBody(ready_parts()), id="a stream whose parts are ready"),
    ],
)
@in_virtual_time
async def test_a_lost_connection_is_noticed_between_the_parts_of_a_reply(make_body: Any) -> None:
    connection = LostConnection()
    sender = ReplySender(SimulatedWorld(1, now_s), LoopSlots(), extra_headers={}, is_nomad_compatible=False)
    context = ReplyContext({}, is_cors_allowed=False, receive=connection.receive, send=connection.send)

    await sender.send(HttpReply(200, [], make_body()), context)

    assert connection.is_lost.is_set()
    assert connection.part_count == 1


@in_virtual_time
async def test_a_stream_that_is_refused_after_its_first_part_is_cut_off_and_logs_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return await asyncio.get_running_loop().create_future()

    async def iterate_parts() -> AsyncGenerator[bytes, None]:
        yield b"first"
        raise Refusal(RefusalCode.UNAVAILABLE, "the node is gone")

    sender = ReplySender(SimulatedWorld(1, now_s), LoopSlots(), extra_headers={}, is_nomad_compatible=False)
    reply = HttpReply(200, [], StreamedBody(iterate_parts()))
    with caplog.at_level(logging.INFO):
        await sender.send(reply, ReplyContext({}, False, receive, send))

    bodies = [(each["body"], each["more_body"]) for each in sent if each["type"] == "http.response.body"]
    assert bodies == [(b"first", True)]  # Without an end, so the server closes the connection.
    assert caplog.records == []
