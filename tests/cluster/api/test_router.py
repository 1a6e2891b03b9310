"""Routing from method and path to an endpoint."""

import sys

import pytest

from wharf.cluster.api.routing.router import Router
from wharf.contract.model.acl.permissions import PUBLIC_ACCESS
from wharf.contract.wire.endpoint_table import ENDPOINTS, Endpoint, EndpointKind

ROUTER = Router(ENDPOINTS)


def find_endpoint(path: str, method: str = "GET") -> tuple[str, dict[str, str]]:
    matches = ROUTER.find_route(path)
    endpoint = matches.methods.get(method)
    return (endpoint.name if endpoint else "", matches.path_values)


@pytest.mark.parametrize(
    ("path", "name", "values"),
    [
        ("/v1/jobs", "job.list", {}),
        ("/v1/job/web", "job.read", {"job_id": "web"}),
        ("/v1/job/a/b/c", "job.read", {"job_id": "a/b/c"}),
        ("/v1/job/a/b/summary", "job.summary", {"job_id": "a/b"}),
        ("/v1/job/nightly/periodic-123/allocations", "job.allocations", {"job_id": "nightly/periodic-123"}),
        ("/v1/job/summary", "job.read", {"job_id": "summary"}),
        ("/v1/job/a%2Fsummary", "job.read", {"job_id": "a/summary"}),
        ("/v1/job/a%20b", "job.read", {"job_id": "a b"}),
        ("/v1/job/caf%C3%A9", "job.read", {"job_id": "café"}),
        ("/v1/node/a%2Fb", "node.read", {"node_id": "a/b"}),
        ("/v1/node/n1/allocations", "node.allocations", {"node_id": "n1"}),
        ("/v1/allocation/a1", "allocation.read", {"alloc_id": "a1"}),
        ("/v1/status/leader", "status.leader", {}),
    ],
)
def test_a_path_leads_to_its_endpoint(path: str, name: str, values: dict[str, str]) -> None:
    assert find_endpoint(path) == (name, values)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/v1",
        "/v1/",
        "/v1/jobs/",
        "/v1/nobody",
        "/v1/node",
        "/v1/node/",
        "/v1/node/a/b",
        "/v1/job/",
        "/v2/jobs",
    ],
)
def test_an_unknown_path_has_no_endpoint(path: str) -> None:
    assert ROUTER.find_route(path).methods == {}


def test_post_is_an_alias_of_put_by_default() -> None:
    assert find_endpoint("/v1/jobs", "PUT")[0] == find_endpoint("/v1/jobs", "POST")[0] == "job.register"
    assert find_endpoint("/v1/node/n1/heartbeat", "POST")[0] == "node.heartbeat"


def test_an_endpoint_declared_as_post_has_no_put() -> None:
    assert (find_endpoint("/v1/node/n1/desired", "POST")[0], find_endpoint("/v1/node/n1/desired", "PUT")[0]) == (
        "node.fetch",
        "",
    )


def test_a_path_with_another_method_is_found_without_that_method() -> None:
    assert find_endpoint("/v1/jobs", "DELETE")[0] == find_endpoint("/v1/jobs", "HEAD")[0] == ""
    assert ROUTER.find_route("/v1/jobs").methods


def test_every_endpoint_is_reached_by_its_own_path() -> None:
    for endpoint in ENDPOINTS:
        path = endpoint.path.replace("...}", "}").replace("{", "x-").replace("}", "")
        assert find_endpoint(path, endpoint.method)[0] == endpoint.name


def an_endpoint(name: str, path: str, method: str = "GET") -> Endpoint:
    return Endpoint(name=name, method=method, path=path, kind=EndpointKind.READ, need=PUBLIC_ACCESS, summary="")


def test_an_endpoint_cannot_be_declared_twice() -> None:
    with pytest.raises(AssertionError, match="declared twice"):
        Router([an_endpoint("a", "/v1/x"), an_endpoint("b", "/v1/x")])


def test_one_path_position_cannot_have_two_names() -> None:
    with pytest.raises(AssertionError, match="two names"):
        Router([an_endpoint("a", "/v1/x/{id}"), an_endpoint("b", "/v1/x/{name}/y")])


def count_executed_lines(router: Router, path: str) -> int:
    """Return how many lines of the router are executed for a path: a measure of work without a clock."""

    count = 0

    def trace(_frame: object, event: str, _arg: object) -> object:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]  # a tracer may return itself
    try:
        router.find_route(path)
    finally:
        sys.settrace(before)
    return count


def test_the_cost_of_routing_does_not_grow_with_the_number_of_routes() -> None:
    item = Router([an_endpoint("x0", "/v1/thing0/{id}")])
    many = Router([an_endpoint(f"x{number}", f"/v1/thing{number}/{{id}}") for number in range(200)])

    assert count_executed_lines(many, "/v1/thing0/a") == count_executed_lines(item, "/v1/thing0/a")
    assert count_executed_lines(many, "/v1/thing199/a") == count_executed_lines(item, "/v1/thing0/a")
