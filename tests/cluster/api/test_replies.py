"""What is true of every reply: encodings, pages from elsewhere, the peer's names, paths that lead nowhere."""

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from tests.builders import a_job
from tests.kit.callers import a_token
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import ask
from tests.kit.virtual_time import in_virtual_time, now_s, pass_time
from wharf.cluster.api.access_control import CallerAuthenticator
from wharf.cluster.api.app import MAX_HEADERS, MAX_PATH_BYTES, Api
from wharf.cluster.api.replies.encoding import negotiate_encoding
from wharf.cluster.api.results import ActionResult, StreamedBody
from wharf.contract.client import ClientReply


async def get(server: OneServer, path: str, query: str = "", **options: Any) -> ClientReply:
    return await ask(server.api, "GET", path, query=query, **options)


async def raw_headers(api: Api, method: str, path: str, headers: dict[str, str] | None = None) -> list[tuple[str, str]]:
    """All headers, the same name as often as it was sent."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    given = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": given}
    await api(scope, receive, send)
    return [(name.decode(), value.decode()) for name, value in sent[0]["headers"]]


# -- encodings


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip, deflate", "gzip"),
        ("deflate,gzip", "deflate"),
        ("br , gzip", "gzip"),
        ("GZIP", ""),
        ("gzip;q=1", ""),
        ("*", ""),
        ("br", ""),
        ("", ""),
    ],
)
def test_the_first_encoding_that_is_spoken_is_taken_by_its_exact_name(accepted: str, encoding: str) -> None:
    assert negotiate_encoding(accepted.encode()).decode() == encoding


@in_virtual_time
async def test_bodies_of_any_size_are_compressed_where_it_is_asked_for_errors_and_nothing_too() -> None:
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
async def test_what_asks_to_become_another_protocol_is_never_compressed() -> None:
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
        await pass_time(5.0)  # Until the leader has looked at them all.
        plain = await get(server, "/v1/jobs")
        pretty = await get(server, "/v1/jobs", "pretty")
        zipped = await get(server, "/v1/jobs", headers={"accept-encoding": "gzip"})
        again = await get(server, "/v1/jobs")

        assert [job["ID"] for job in json.loads(plain.body)] == [f"job-{number:04}" for number in range(600)]
        assert json.loads(pretty.body) == json.loads(plain.body)
        assert pretty.body.startswith(b'[\n    {\n        "ID": "job-0000"')
        assert pretty.body.endswith(b"}\n]\n")
        assert (gzip.decompress(zipped.body), again.body) == (plain.body, plain.body)


# -- streams


@in_virtual_time
async def test_a_stream_is_sent_part_by_part_as_it_is_and_ends_when_the_server_stops() -> None:
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

        server.api._action_handlers["status.leader"] = streams
        sent: list[Any] = []

        async def receive() -> Any:
            await _forever()

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"accept-encoding", b"gzip")]
        scope = {"type": "http", "method": "GET", "path": "/v1/status/leader", "query_string": b"", "headers": headers}
        await server.api(scope, receive, send)

        told = dict(sent[0]["headers"])
        assert (told[b"content-type"], told[b"digest"], b"content-encoding" in told) == (b"text/plain", b"x", False)
        assert [(m["body"], m.get("more_body", False)) for m in sent[1:]] == [(b"one", True), (b"", False)]
        assert ended == ["closed"]


async def _forever() -> Any:
    await asyncio.Event().wait()


# -- pages from elsewhere


@in_virtual_time
async def test_pages_from_elsewhere_may_ask_for_variables_and_for_nothing_of_jobs() -> None:
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
async def test_a_browser_that_asks_before_is_told_what_it_may_send() -> None:
    async with ACluster() as cluster:
        api = (await cluster.a_server()).api
        asked = {"origin": "https://example.com", "access-control-request-headers": "X-Cluster-Token"}

        may = await raw_headers(api, "OPTIONS", "/v1/var/a/b", {**asked, "access-control-request-method": "PUT"})
        may_not = await raw_headers(api, "OPTIONS", "/v1/var/a/b", {**asked, "access-control-request-method": "PATCH"})
        elsewhere = await ask(api, "OPTIONS", "/v1/jobs", headers=asked)

        assert ("access-control-allow-methods", "PUT") in may
        assert ("access-control-allow-headers", "X-Cluster-Token") in may
        assert [name for name, _ in may_not if name.startswith("access-control-allow")] == []
        assert elsewhere.status == 405


# -- the peer's names


@in_virtual_time
async def test_where_it_is_asked_for_the_peers_headers_stand_beside_ours() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        for name in ("a", "b"):
            await server.client.jobs.register(a_job(name))
        compat = Api(server.server, is_nomad_compatible=True)

        told = (await ask(compat, "GET", "/v1/jobs", query="per_page=1")).headers
        silent = (await get(server, "/v1/jobs")).headers

        for name in ("index", "knownleader", "lastcontact", "nexttoken"):
            assert told[f"x-nomad-{name}"] == told[f"x-cluster-{name}"]
        assert [name for name in silent if name.startswith("x-nomad")] == []


@in_virtual_time
async def test_where_it_is_asked_for_a_token_may_come_under_the_peers_name() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        token = (await a_token(server, management=True))["x-cluster-token"]
        gate = CallerAuthenticator(server.world, is_enabled=True)
        apis = [Api(server.server, authenticator=gate, is_nomad_compatible=compat) for compat in (True, False)]

        statuses = [(await ask(api, "GET", "/v1/jobs", headers={"x-nomad-token": token})).status for api in apis]
        ours_first = await ask(apis[0], "GET", "/v1/jobs", headers={"x-nomad-token": token, "x-cluster-token": "no"})

        assert (statuses, ours_first.status) == ([200, 403], 403)


@in_virtual_time
async def test_a_websocket_is_refused_and_not_left_waiting() -> None:
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
def test_a_path_that_is_nearly_one_is_sent_on_with_its_query(path: str, location: str) -> None:
    @in_virtual_time
    async def story() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server()

            got = await get(server, path, "a=b")
            put = await ask(server.api, "PUT", path)

            assert (got.status, got.headers["location"]) == (307, f"{location}?a=b")
            assert got.body == f'<a href="{location}">Temporary Redirect</a>.\n\n'.encode()
            assert got.headers["content-type"] == "text/html; charset=utf-8"
            assert (put.status, put.body, put.headers["location"]) == (307, b"", location)

    story()


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
        ("/v1/jobs/", 404, ""),
        ("/v1", 404, ""),
        ("/v1/", 404, ""),
        ("/v1/agent", 404, ""),
        ("/v1/operator", 404, ""),
        ("/v1/nodes/x", 404, ""),
    ],
)
def test_where_an_id_is_missing_it_is_told_and_elsewhere_there_is_nothing(path: str, status: int, text: str) -> None:
    @in_virtual_time
    async def story() -> None:
        async with ACluster() as cluster:
            reply = await get(await cluster.a_server(), path)

            assert (reply.status, reply.body.decode()) == (status, text)

    story()


@in_virtual_time
async def test_the_pages_are_a_stub_while_they_are_off() -> None:
    async with ACluster() as cluster:
        reply = await get(await cluster.a_server(), "/ui/jobs")

        assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")


@in_virtual_time
async def test_a_head_or_a_path_without_end_is_refused() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        many = await get(server, "/v1/jobs", headers={f"x-{n}": "y" for n in range(MAX_HEADERS + 1)})
        large = await get(server, "/v1/jobs", headers={"x": "y" * 1_100_000})
        path = await get(server, "/v1/job/" + "a" * MAX_PATH_BYTES)

        assert [many.status, large.status, path.status] == [431, 431, 414]
        assert many.body == b"431 Request Header Fields Too Large"


@in_virtual_time
async def test_a_region_that_nobody_knows_is_told_after_everything_that_is_wrong_otherwise() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        wrong = await get(server, "/v1/jobs", "region=nowhere&index=x")
        unknown = await get(server, "/v1/jobs", "region=nowhere")
        ours = await get(server, "/v1/jobs", "region=global")

        assert [(r.status, r.body) for r in (wrong, unknown)] == [(400, b"Invalid index"), (404, b"No path to region")]
        assert ours.status == 200


@in_virtual_time
async def test_a_body_that_does_not_come_is_given_up() -> None:
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
async def test_a_body_that_trickles_is_given_up_although_each_part_comes_in_time() -> None:
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
