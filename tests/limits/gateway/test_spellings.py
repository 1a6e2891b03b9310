"""Spellings of requests that services read differently: the gateway forwards what it judges, or refuses the request."""

import json
from pathlib import Path

import pytest

from tests.limits.decision_services import ADA, count_used
from tests.limits.gateway.running_gateway import Reply, RunningGateway, run_scenario

ADA_SENDS = f"Authorization: token {ADA}"
CONNECTIONS = "{ a(first: 100) { b(first: 100) { id } c(first: 100) { id } d(first: 100) { id } } }"
CONNECTIONS_COST = 3
BATCH = "/acme/site.git/info/lfs/objects/batch"
LARGE_BATCH = json.dumps({"operation": "download", "objects": [{"oid": "0" * 64, "size": 1}] * 101}).encode()


def send(
    folder: Path, target: str, *headers: str, method: str = "GET", body: bytes | None = None, rules: str = ""
) -> tuple[Reply, list[str], dict[str, int]]:
    """Send a request. Return its reply, the request lines that the service received, and what was charged by bucket."""

    async def scenario(running: RunningGateway) -> tuple[Reply, list[str], dict[str, int]]:
        reply = await running.request(target, ADA_SENDS, *headers, method=method, body=body)
        buckets = ("core", "search", "code_search", "graphql", "lfs")
        used = {name: count_used(running.decision_service, name) for name in buckets}
        lines = [request.line.removesuffix(" HTTP/1.1") for request in running.service.requests]
        return reply, lines, {name: count for name, count in used.items() if count}

    return run_scenario(folder, scenario, rules=rules)


@pytest.mark.parametrize(
    "target",
    [
        "/repos/o/r/contents/a/../../../../../rate_limit",
        "/repos/o/r/contents/a/%2e%2E/.%2e/%2E./../../rate_limit",
        "/repos%2F..%2Frate_limit",
        "/repos/..;/rate_limit",
        "/repos/%252e%252e/rate_limit",
        "//rate_limit",
        "/repos/..\\rate_limit",
        "/rate_limit%00",
        "/%c0%ae%c0%ae/rate_limit",
        "http://service.example//rate_limit",
        "http://service.example/a/../rate_limit",
    ],
)
def test_a_path_that_services_read_differently_is_refused(tmp_path: Path, target: str) -> None:
    reply, forwarded, used = send(tmp_path, target)

    assert (reply.status, forwarded, used) == (400, [], {})
    assert reply.json()["message"].startswith("The path contains")


@pytest.mark.parametrize(
    "target", ["/rate_limit/", "/RATE_LIMIT", "/rate_limit.json", "/rate_limit;a", "/rate_limit%2F", "/rate_limit%3Fa"]
)
def test_another_spelling_of_a_free_path_is_charged_and_forwarded(tmp_path: Path, target: str) -> None:
    reply, forwarded, used = send(tmp_path, target)

    assert (reply.body, forwarded) == (b"hello", [f"GET {target}"])
    assert used["core"] == 1


@pytest.mark.parametrize(
    "target", ["/rate_limit", "/%72ate%5flimit", "http://service.example/rate_limit", "/rate_limit?a"]
)
def test_the_status_page_is_free(tmp_path: Path, target: str) -> None:
    reply, forwarded, used = send(tmp_path, target)

    assert (list(reply.json()), forwarded, used.get("core")) == (["resources", "rate"], [], None)


@pytest.mark.parametrize(
    ("target", "forwarded"),
    [
        ("/%73earch/c%6fde?q=%61", "/search/code?q=%61"),
        ("/Search/Code", "/Search/Code"),
        ("/search/code.json?q", "/search/code.json?q"),
        ("/search%2fcode", "/search%2Fcode"),
        ("/search/code/", "/search/code/"),
        ("HTTP://service.example/search/code?", "/search/code?"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_no_spelling_of_a_request_avoids_its_bucket(tmp_path: Path, method: str, target: str, forwarded: str) -> None:
    _, lines, used = send(tmp_path, target, method=method)

    assert (lines, used) == ([f"{method} {forwarded}"], {"code_search": 1})


def test_segments_are_removed_from_what_is_forwarded_if_the_rules_say_so(tmp_path: Path) -> None:
    rules = '[paths]\ndot_segments = "remove"\nempty_segments = "remove"\n'

    _, lines, used = send(tmp_path, "//a/../search//./code?q=../x", rules=rules)

    assert (lines, used) == (["GET /search/code?q=../x"], {"code_search": 1})


@pytest.mark.parametrize("method", ["get", "Post", "dELETE"])
def test_a_known_method_in_lower_case_is_refused(tmp_path: Path, method: str) -> None:
    reply, forwarded, _ = send(tmp_path, "/x", method=method)

    assert (reply.status, forwarded) == (400, [])
    assert "upper case" in reply.json()["message"]


@pytest.mark.parametrize(
    "target", [BATCH, BATCH.replace("h", "%68"), BATCH + "/", BATCH + ".json", BATCH.upper(), BATCH + ";a"]
)
def test_the_objects_of_a_batch_are_counted_in_every_spelling(tmp_path: Path, target: str) -> None:
    reply, forwarded, _ = send(tmp_path, target, method="POST", body=LARGE_BATCH)

    assert (reply.status, forwarded) == (413, [])


def test_a_batch_with_two_slashes_at_its_end_is_refused(tmp_path: Path) -> None:
    reply, forwarded, _ = send(tmp_path, BATCH + "//", method="POST", body=LARGE_BATCH)

    assert (reply.status, forwarded) == (400, [])


def escape(query: str) -> str:
    return query.replace(" ", "%20").replace("{", "%7B").replace("}", "%7D")


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
@pytest.mark.parametrize("target", ["/graphql?query=", "/GraphQL/?x=1&%71uery=", "/graphql?variables=%7B%7D&query="])
def test_a_graphql_query_in_the_url_costs_as_much_as_in_a_body(tmp_path: Path, method: str, target: str) -> None:
    _, forwarded, used = send(tmp_path, target + escape(CONNECTIONS), method=method)

    assert (len(forwarded), used["graphql"]) == (1, CONNECTIONS_COST)


def test_a_graphql_query_in_the_body_of_a_get_is_counted(tmp_path: Path) -> None:
    _, forwarded, used = send(tmp_path, "/graphql", body=json.dumps({"query": CONNECTIONS}).encode())

    assert (forwarded, used["graphql"]) == (["GET /graphql"], CONNECTIONS_COST)


def test_a_request_about_the_whole_service_has_no_path(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> list[str]:
        running.gateway.environment._base_path = b"/base"
        await running.request("*", ADA_SENDS, method="OPTIONS")
        await running.request("/x", ADA_SENDS, method="OPTIONS")
        return [request.line for request in running.service.requests]

    assert run_scenario(tmp_path, scenario) == ["OPTIONS * HTTP/1.1", "OPTIONS /base/x HTTP/1.1"]


UTF_7_QUERY = b'{"query": "{ id }+ACIALAAi-query+ACIAOgAi-{ a(first: 100) { b(first: 100) { id } } }"}'
"""A small query in UTF-8, and a larger one in UTF-7, in which `+ACI-` is a quotation mark."""
UTF_7_BATCH = (
    b'{"objects": [{"oid": "0+ACIAfQAs-'
    + b"+AHs-+ACI-oid+ACI-:+ACI-0+ACIAfQAs-" * 100
    + b'+AHs-+ACI-oid+ACI-:+ACI-1"}]}'
)
"""A batch of one object in UTF-8, and of 102 objects in UTF-7."""


@pytest.mark.parametrize(("target", "body"), [("/graphql", UTF_7_QUERY), (BATCH, UTF_7_BATCH)])
@pytest.mark.parametrize("header", ["Content-Type: application/json; charset=utf-7", "Content-Encoding: br"])
@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_body_that_services_decode_to_other_content_is_refused(
    tmp_path: Path, target: str, body: bytes, header: str, method: str
) -> None:
    reply, forwarded, used = send(tmp_path, target, header, method=method, body=body)

    assert (reply.status, forwarded, used) == (400, [], {})
    assert reply.json()["message"].startswith(
        "The headers of the request say that its body is compressed, or not in UTF-8."
    )


def test_the_bodies_of_the_test_above_have_other_content_in_utf_7() -> None:
    query, batch = (json.loads(body.decode("utf-7")) for body in (UTF_7_QUERY, UTF_7_BATCH))

    assert (query, len(batch["objects"])) == ({"query": "{ a(first: 100) { b(first: 100) { id } } }"}, 102)
    assert len(json.loads(UTF_7_BATCH)["objects"]) == 1


@pytest.mark.parametrize("header", ["Content-Type: application/json; charset=utf-7", "Content-Encoding: gzip"])
def test_a_coded_body_that_costs_nothing_is_forwarded(tmp_path: Path, header: str) -> None:
    reply, forwarded, used = send(tmp_path, "/repos/o/r/issues", header, method="POST", body=b"{}")

    assert (reply.status, forwarded, used) == (200, ["POST /repos/o/r/issues"], {"core": 1})
