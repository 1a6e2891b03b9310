"""Rules of the contract that all endpoints share: parameters that exclude each other, tokens, error texts, bodies."""

import gzip
import json
import re
import zlib
from pathlib import Path

import msgspec
import pytest

from tests.builders import a_job
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import send_raw
from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.cluster.api.app import Api
from wharf.cluster.server.agent_interface import AgentInfo, NoAgentInterface
from wharf.contract.client import ClientReply
from wharf.contract.wire.endpoint_table import ENDPOINTS, Endpoint
from wharf.contract.wire.openapi import list_common_parameters

CONFLICT = b"Filter expression cannot be used with other filter parameters"
TWO_TOKENS = b"the request has two different tokens: send one token, in X-Cluster-Token or in Authorization"


SELECTS_NO_RECORDS = {
    "meta": "adds a field to each job",
    "progress": "adds a field to each run and each job with an array",
    "resources": "adds a field to each node or allocation",
    "os": "adds a field to each node",
    "use": "adds a field to each node",
    "task_states": "omits a field of each allocation",
    "include_children": "adds jobs to the list",
    "sort": "changes the order of jobs, runs or nodes",
    "choose": "picks from the result of the filter (0068)",
    "state": "picks by steps of runs, which a filter cannot read (0327)",
    "type": "names the kind of volumes, of which there is one",
}
"""The parameters of lists that may be combined with a filter, each with the reason. All others narrow the list."""


def build_path(endpoint: Endpoint) -> str:
    """Return a path of the endpoint, with the same text for each id."""
    return re.sub(r"\{[^}]*\}", "x", endpoint.path)


def list_filterable_lists() -> list[Endpoint]:
    """Return the lists that have filters in the API document."""
    return [each for each in ENDPOINTS if each.method == "GET" and "filter" in list_common_parameters(each)]


def list_narrowed_lists() -> list[tuple[str, str]]:
    """Return the path of each list with filters, with each of its parameters in the API document that narrows it."""
    return [
        (build_path(endpoint), parameter)
        for endpoint in list_filterable_lists()
        for parameter in (
            *(each.name for each in endpoint.parameters if each.name not in SELECTS_NO_RECORDS),
            *(name for name in list_common_parameters(endpoint) if name == "prefix"),
        )
    ]


def list_other_endpoints() -> list[str]:
    """Return the paths of the GET endpoints without filters."""
    return [
        build_path(endpoint)
        for endpoint in ENDPOINTS
        if endpoint.method == "GET" and endpoint not in list_filterable_lists()
    ]


async def get(server: OneServer, path: str, query: str = "", **headers: str) -> ClientReply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await send_raw(server.api, "GET", path, query=query, headers=named)


# -- lists


@pytest.mark.parametrize(("path", "parameter"), list_narrowed_lists())
@in_virtual_time
async def test_a_filter_with_a_parameter_that_narrows_the_same_list_is_refused(path: str, parameter: str) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        reply = await get(server, path, f"filter=ID==x&{parameter}=00")

        assert (reply.status, reply.body) == (400, CONFLICT)


def test_each_parameter_that_selects_no_records_exists() -> None:
    assert {each.name for endpoint in list_filterable_lists() for each in endpoint.parameters} >= set(
        SELECTS_NO_RECORDS
    )


@pytest.mark.parametrize("path", list_other_endpoints())
@in_virtual_time
async def test_a_filter_that_would_be_ignored_is_refused(path: str) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        reply = await get(server, path, "filter=ID==x")

        assert (reply.status, reply.body[:29]) == (400, b"`filter` is not supported by ")


@pytest.mark.parametrize("path", [build_path(endpoint) for endpoint in list_filterable_lists()])
@in_virtual_time
async def test_a_list_with_filters_refuses_one_that_is_malformed(path: str) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        reply = await get(server, path, "filter=((")

        assert (reply.status, b"failed to read filter expression" in reply.body) == (400, True)


@in_virtual_time
async def test_a_compatible_server_ignores_a_filter_that_a_list_does_not_support_as_nomad_does() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        compatible = Api(server.server, is_nomad_compatible=True)

        reply = await send_raw(compatible, "GET", "/v1/namespaces", query="filter=Name==x")

        assert (reply.status, [each["Name"] for each in json.loads(reply.body)]) == (200, ["default"])


def test_the_page_about_filters_names_every_parameter_that_narrows_a_list() -> None:
    named = {parameter for _, parameter in list_narrowed_lists()}
    page = Path(__file__).parents[3].joinpath("docs/filters.md").read_text()

    assert named == {"prefix", "status", "job", "node_id", "node_pool", "flow"}
    assert [name for name in (*named, "choose", "state") if f"`{name}`" not in page] == []


@in_virtual_time
async def test_a_filter_is_allowed_with_parameters_that_narrow_nothing() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        query = "filter=ID==x&namespace=*&region=global&per_page=1&next_token=default.a&reverse=true&meta=true&prefix="

        assert (await get(server, "/v1/jobs", query)).status == 200


@in_virtual_time
async def test_a_compatible_server_accepts_a_filter_with_a_prefix_as_nomad_does() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        for name in ("shop", "shelf"):
            await server.client.jobs.register(a_job(name))
        compatible = Api(server.server, is_nomad_compatible=True)

        jobs = await send_raw(compatible, "GET", "/v1/jobs", query="filter=ID!=shelf&prefix=sh")
        evaluations = await send_raw(compatible, "GET", "/v1/evaluations", query="filter=ID!=x&status=pending")

        assert [job["ID"] for job in json.loads(jobs.body)] == ["shop"]
        assert (evaluations.status, evaluations.body) == (400, CONFLICT)


@pytest.mark.parametrize("per_page", ["0", "-1", "-2147483648"])
@in_virtual_time
async def test_a_page_size_that_is_not_positive_is_accepted_only_by_a_compatible_server(per_page: str) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        compatible = Api(server.server, is_nomad_compatible=True)

        reply = await get(server, "/v1/jobs", f"per_page={per_page}")
        accepted = await send_raw(compatible, "GET", "/v1/jobs", query=f"per_page={per_page}")

        assert reply.status == 400
        assert reply.body.startswith(b"Expect a number from 1 for `per_page` query string parameter, given")
        assert accepted.status == 200


@in_virtual_time
async def test_metrics_for_prometheus_are_refused_with_415_by_a_compatible_server() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        server.server.agent = NoAgentInterface(AgentInfo(is_nomad_compatible=True))

        assert (await get(server, "/v1/metrics", "format=prometheus")).status == 415


@pytest.mark.parametrize("path", ["/v1/allocations", "/v1/evaluations", "/v1/deployments", "/v1/jobs/statuses"])
@in_virtual_time
async def test_a_page_token_may_have_zeros_before_its_index(path: str) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        assert (await get(server, path, f"per_page=1&next_token={'0' * 30}12.x")).status == 200


@pytest.mark.parametrize("path", ["/v1/allocations", "/v1/evaluations", "/v1/deployments", "/v1/jobs/statuses"])
@pytest.mark.parametrize("number", ["0000000000018446744073709551616", "18446744073709551616", "9" * 30, "-1"])
@in_virtual_time
async def test_a_page_token_with_an_index_out_of_range_is_refused(path: str, number: str) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        reply = await get(server, path, f"per_page=1&next_token={number}.x")

        assert (reply.status, reply.body[:27]) == (400, b"next_token is out of range:")


# -- tokens


@pytest.mark.parametrize(
    "headers",
    [
        [(b"x-cluster-token", b"a"), (b"authorization", b"Bearer b")],
        [(b"authorization", b"Bearer a"), (b"authorization", b"bearer b")],
        [(b"x-cluster-token", b"a"), (b"x-cluster-token", b"b")],
    ],
)
def test_a_request_with_two_different_tokens_is_refused(headers: list[tuple[bytes, bytes]]) -> None:
    assert ask_with_headers(headers) == (400, TWO_TOKENS)


@pytest.mark.parametrize(
    "headers",
    [
        [(b"x-cluster-token", b"a"), (b"authorization", b"Bearer\xa0b")],
        [(b"authorization", b"Bearer a"), (b"authorization", b"Bearer\xa0b")],
        [(b"authorization", b"Bearer\x85b")],
        [(b"x-cluster-token", b"a\xa0"), (b"authorization", b"Bearer a")],
        [(b"x-cluster-node-secret", b"a"), (b"x-cluster-node-secret", b"b")],
    ],
)
def test_a_request_with_credentials_that_programs_read_differently_is_refused(
    headers: list[tuple[bytes, bytes]],
) -> None:
    assert ask_with_headers(headers)[0] == 400


@pytest.mark.parametrize(
    "headers",
    [
        [(b"x-cluster-token", b"a"), (b"authorization", b"Bearer a")],
        [(b"x-cluster-token", b" "), (b"authorization", b"Bearer b")],
        [(b"x-cluster-token", b"a"), (b"authorization", b"Basic b")],
        [(b"x-cluster-token", b"a"), (b"x-nomad-token", b"b")],
    ],
)
def test_a_request_with_one_token_in_two_headers_is_served(headers: list[tuple[bytes, bytes]]) -> None:
    assert ask_with_headers(headers) == (200, b"[]")


def ask_with_headers(headers: list[tuple[bytes, bytes]]) -> tuple[int, bytes]:
    """Return status and body of a list that is requested with these raw headers."""
    replies: list[tuple[int, bytes]] = []

    @in_virtual_time
    async def read() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server()
            sent = []

            async def send(message: dict[str, object]) -> None:
                sent.append(message)

            async def receive() -> dict[str, object]:
                return {"type": "http.request", "body": b"", "more_body": False}

            scope = {"type": "http", "method": "GET", "path": "/v1/jobs", "query_string": b"", "headers": headers}
            await server.api(scope, receive, send)  # type: ignore[arg-type]  # plain dicts
            replies.append((sent[0]["status"], sent[1]["body"]))  # type: ignore[arg-type]

    read()
    return replies[0]


# -- error texts


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/v1/jobs", "index=" + "9" * 3_000),
        ("/v1/jobs", "filter=" + "x" * 3_000),
        ("/v1/jobs", "filter=Name+matches+`(" + "x" * 1_500 + "`"),
        ("/v1/job/shop/versions", "diffs=true&diff_tag=" + "x+" * 2_000),
        ("/v1/jobs", "meta=" + "y" * 3_000),
    ],
)
@in_virtual_time
async def test_an_error_text_repeats_at_most_200_characters_of_input(path: str, query: str) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await server.client.jobs.register(a_job())

        reply = await get(server, path, query)

        assert (reply.status // 100, len(reply.body) < 700) == (4, True)


@in_virtual_time
async def test_an_error_text_has_no_line_break_at_its_end() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        reply = await send_raw(server.api, "PUT", "/v1/jobs", body=b'{"Job": {"ID": "a b"}}')

        assert (reply.status, reply.body.splitlines()[0], reply.body[-1:] == b"\n") == (
            400,
            b"2 errors occurred:",
            False,
        )


# -- contact with the leader


@in_virtual_time
async def test_the_last_contact_is_0_on_the_leader_and_the_time_of_the_log_once_it_no_longer_leads() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        server.faults.disconnect()
        await pass_time(1.5)
        leading = await get(server, "/v1/jobs", "stale")
        await pass_time(60)
        cut_off = await get(server, "/v1/jobs", "stale")

        assert leading.headers["x-cluster-lastcontact"] == "0"
        assert int(cut_off.headers["x-cluster-lastcontact"]) >= 61_000


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/search", {"Prefix": "s", "Context": "jobs"}), ("/v1/search/fuzzy", {"Text": "shop", "Context": "all"})],
)
@in_virtual_time
async def test_the_last_contact_of_a_search_is_0_on_the_leader_and_the_time_of_the_log_elsewhere(
    path: str, body: dict[str, str]
) -> None:
    async def search(server: OneServer) -> int:
        reply = await send_raw(server.api, "PUT", path, query="stale", body=msgspec.json.encode(body))
        return int(json.loads(reply.body)["LastContact"])

    async with ACluster() as cluster:
        server = await cluster.a_server()
        server.faults.disconnect()
        await pass_time(1.5)
        leading = await search(server)
        await pass_time(60)

        assert (leading, await search(server) >= 61_000) == (0, True)


# -- compressed bodies

JOB_BODY = msgspec.json.encode({"Job": a_job()})


async def put_encoded(server: OneServer, body: bytes, encoding: str, path: str = "/v1/jobs") -> tuple[int, bytes]:
    reply = await send_raw(server.api, "PUT", path, body=body, headers={"content-encoding": encoding})
    return reply.status, reply.body


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "x-gzip"])
@in_virtual_time
async def test_a_gzip_body_is_decompressed(encoding: str) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        status, _ = await put_encoded(server, gzip.compress(JOB_BODY), encoding)

        assert (status, (await get(server, "/v1/job/shop")).status) == (200, 200)


@pytest.mark.parametrize(
    ("body", "encoding", "status", "text"),
    [
        (JOB_BODY, "br", 415, b'the content encoding "br" of the request body is not supported: use gzip or none'),
        (JOB_BODY, "gzip, gzip", 415, b'the content encoding "gzip, gzip" of the request body is not supported'),
        (JOB_BODY, "gzip", 400, b"the request body is not gzip, which its Content-Encoding promises"),
        (gzip.compress(JOB_BODY)[:-9], "gzip", 400, b"the gzip request body ends too early or has data after its end"),
        (
            gzip.compress(JOB_BODY) + b"x",
            "gzip",
            400,
            b"the gzip request body ends too early or has data after its end",
        ),
        (zlib.compress(JOB_BODY), "deflate", 415, b'the content encoding "deflate" of the request body'),
        (
            gzip.compress(bytes(40_000_000)),
            "gzip",
            413,
            b"the request's body is larger than 33554432 bytes, the limit of `api.max_body_size` on this server",
        ),
    ],
)
@in_virtual_time
async def test_a_body_that_cannot_be_decompressed_is_refused(
    body: bytes, encoding: str, status: int, text: bytes
) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        index = server.replica.index

        found, reply = await put_encoded(server, body, encoding)

        assert (found, reply[: len(text)], server.replica.index) == (status, text, index)


@in_virtual_time
async def test_a_streamed_body_with_a_content_encoding_is_refused() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        assert (await put_encoded(server, b"x", "gzip", "/v1/operator/snapshot"))[0] == 415
