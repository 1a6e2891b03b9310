"""Requests that name another method than that of their request line, which some services serve instead."""

from pathlib import Path
from typing import Any

import pytest

from tests.attempts import limited_cpu
from tests.limits.builders import build_rules_text
from tests.limits.decision_services import (
    ADA,
    AsgiCaller,
    RecordedReply,
    count_used,
    make_application,
    make_decision_service,
    send_request,
)
from tests.limits.gateway.running_gateway import Reply, RunningGateway, run_scenario
from tests.limits.test_wsgi_requests import Site
from wharf.limits.core.method_overrides import find_methods
from wharf.limits.decisions import DecisionService
from wharf.limits.rules import read_rules
from wharf.limits.simulation.parallel import simulate_lines

ADA_SENDS = f"Authorization: token {ADA}"
DELETIONS = '[[rule]]\nname = "deletions"\nmatch = ["DELETE /things/{id}"]\ncounts = "points"\nceiling = 9\n'
SMALL = build_rules_text(
    DELETIONS,
    '[[rule]]\nname = "points"\ncounts = "points"\nceiling = 900',
    '[[endpoint]]\nmatch = ["DELETE /things/{id}"]\npoints = 9',
    '[[endpoint]]\nmatch = ["POST /graphql"]\ninterface = "graphql"',
)


def send(
    rules: str = SMALL,
    *headers: tuple[str, str],
    method: str = "POST",
    path: str = "/things/1",
    query: str = "",
    body: bytes = b"",
) -> tuple[RecordedReply, DecisionService]:
    service = make_decision_service(rules)
    caller = AsgiCaller(path, method=method, headers=headers, token=ADA, query=query, body=body)
    return send_request(service, caller, make_application()), service


def count(service: DecisionService) -> tuple[int, int]:
    return count_used(service, "deletions"), count_used(service, "points")


def set_override(value: str) -> str:
    return SMALL + f'\n[paths]\nmethod_override = "{value}"\n'


@pytest.mark.parametrize(
    ("method", "headers", "query", "body", "expected"),
    [
        ("POST", {}, "", "", ["POST"]),
        ("POST", {"x-http-method-override": "DELETE"}, "", "", ["DELETE", "POST"]),
        ("POST", {"x-http-method-override": " delete "}, "", "", ["DELETE", "POST"]),
        ("POST", {"x-method-override": "PUT"}, "_method=patch", "", ["PUT", "PATCH", "POST"]),
        ("POST", {}, "a=1&_method=delete", "", ["DELETE", "POST"]),
        ("POST", {}, "a=1;_method=delete", "", ["DELETE", "POST"]),
        ("POST", {}, "%5Fmethod=%44elete", "", ["DELETE", "POST"]),
        ("POST", {}, "_method=x&_method=put", "", ["PUT", "POST"]),
        ("POST", {}, "x_method=put&_methods=put&method=put", "", ["POST"]),
        ("GET", {"x-http-method": "POST"}, "", "", ["POST", "GET"]),
        ("POST", {"x-http-method": "POST"}, "_method=post", "", ["POST"]),
        ("POST", {"x-http-method": "PURGE"}, "", "", ["POST"]),
        ("POST", {"x-http-method": "DELETE, GET"}, "", "", ["DELETE", "GET", "POST"]),
        ("POST", {"x-http-method": "DELETE,x"}, "", "", ["DELETE", "POST"]),
        ("POST", {}, ".method=delete", "", ["DELETE", "POST"]),
        ("POST", {}, "+%20_method=delete", "", ["DELETE", "POST"]),
        ("POST", {}, "+method=delete&+=.method", "", ["POST"]),
        ("POST", {}, "_method%00x=delete", "", ["DELETE", "POST"]),
        ("POST", {}, "+" * 99 + "_method=delete", "", ["DELETE", "POST"]),
        ("POST", {}, "", "form", ["POST", "PUT", "PATCH", "DELETE"]),
        ("POST", {}, "_method=put", "form", ["PUT", "POST", "PATCH", "DELETE"]),
        ("GET", {}, "", "form", ["GET"]),
    ],
)
def test_all_methods_that_a_service_may_serve_are_found(
    method: str, headers: dict[str, str], query: str, body: str, expected: list[str]
) -> None:
    assert list(find_methods(method, tuple(headers.values()), query, has_form=body == "form")) == expected


@pytest.mark.parametrize("part", ["%41&", "%&", "%5Fmethod&", "+", "_method=%70ut&", ";.method%00", "_method=1"])
def test_a_long_query_is_read_in_a_short_time(part: str) -> None:
    query = part * (65_536 // len(part))

    with limited_cpu(0.02, "the search"):
        find_methods("POST", (), query, has_form=False)


@pytest.mark.parametrize("name", ["x-http-method-override", "x-http-method", "x-method-override"])
def test_the_most_expensive_of_both_methods_counts(name: str) -> None:
    _, service = send(SMALL, (name, "DELETE"))

    assert count(service) == (9, 9)


def test_a_request_without_an_override_counts_by_its_method() -> None:
    _, service = send()

    assert count(service) == (0, 5)


def test_a_cheaper_method_does_not_make_a_request_cheaper() -> None:
    _, service = send(SMALL, ("x-http-method-override", "GET"))

    assert count(service) == (0, 5)


def test_a_method_in_the_query_counts() -> None:
    _, service = send(query="_method=delete")

    assert count(service) == (9, 9)


def test_an_override_of_a_read_is_counted_as_a_write() -> None:
    _, service = send(SMALL, ("x-http-method-override", "DELETE"), method="GET")

    assert count(service) == (9, 9)


def test_the_body_of_a_read_that_is_served_as_a_query_is_judged() -> None:
    headers = ("x-http-method-override", "POST")
    replies = [
        send(SMALL, *some, method="GET", path="/graphql", body=body)[0]
        for some, body in (
            ((headers,), b'{"query": "{ a { id } }"}'),
            ((headers,), b"no query"),
            ((), b"no query"),
        )
    ]

    assert [reply.status for reply in replies] == [200, 400, 200]


def test_a_service_that_ignores_overrides_is_charged_by_the_method() -> None:
    _, service = send(set_override("ignore"), ("x-http-method-override", "DELETE"), query="_method=delete")

    assert count(service) == (0, 5)


@pytest.mark.parametrize("query", ["", "_method=delete"])
def test_overrides_can_be_refused(query: str) -> None:
    headers = () if query else (("x-http-method-override", "DELETE"),)
    reply, service = send(set_override("refuse"), *headers, query=query)

    assert (reply.status, count(service)) == (400, (0, 0))
    assert reply.json()["message"] == (
        "The request is a POST that names the method DELETE: send it with the method DELETE itself."
    )


def test_a_refused_override_is_found_after_one_with_the_own_method() -> None:
    headers = (("x-http-method-override", "POST"), ("x-http-method", "DELETE"))
    replies = [send(set_override("refuse"), *some)[0] for some in (headers, headers[::-1])]

    assert [reply.status for reply in replies] == [400, 400]


def test_several_methods_in_the_request_line_are_one_unknown_method() -> None:
    counts = [count(send(method=method)[1]) for method in ("GET|HEAD", "PURGE")]

    assert counts[0] == counts[1]


def test_a_refusing_service_accepts_a_request_that_names_its_own_method() -> None:
    reply, _ = send(set_override("refuse"), ("x-http-method-override", "POST"))

    assert reply.status == 200


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("application/x-www-form-urlencoded", (9, 9)),
        ("Multipart/Form-Data; boundary=a", (9, 9)),
        (None, (9, 9)),
        ("", (9, 9)),
        ("application/x-www-form-urlencoded, text/plain", (9, 9)),
        ("application/x-www-form-urlencoded text/plain", (9, 9)),
        ("multipart/mixed; boundary=a", (9, 9)),
        ("application/json", (0, 5)),
    ],
)
def test_a_form_counts_as_every_method_that_it_may_name(content_type: str | None, expected: tuple[int, int]) -> None:
    headers = () if content_type is None else (("content-type", content_type),)

    assert count(send(set_override("forms"), *headers)[1]) == expected
    assert count(send(SMALL, *headers)[1]) == (0, 5)


def test_one_of_two_content_types_makes_a_form() -> None:
    headers = (("content-type", "application/x-www-form-urlencoded"), ("content-type", "application/json"))

    counts = [count(send(set_override("forms"), *some)[1]) for some in (headers, headers[::-1])]

    assert counts == [(9, 9), (9, 9)]


def test_the_counter_of_an_endpoint_is_that_of_the_method_that_is_served() -> None:
    per_endpoint = '[[rule]]\nname = "each"\ncounts = "points"\nper_endpoint = true\nceiling = 90'
    _, service = send(SMALL + "\n" + per_endpoint, ("x-http-method-override", "DELETE"))

    service.activity.add_admissions_to_rows(service.now_ms())
    assert [row.endpoint for row in service.activity.list_rows()] == ["DELETE /things/{id}"]


@pytest.mark.parametrize("path", ["/things/1", "/odd/thing"])
def test_a_named_method_gives_no_further_counter_of_an_endpoint(path: str) -> None:
    service = make_decision_service(
        build_rules_text(
            '[[rule]]\nname = "each"\ncounts = "requests"\nper_endpoint = true\nceiling = 3',
            '[[endpoint]]\nmatch = ["DELETE,PUT,POST /things/{id}"]\npoints = 1',
        )
    )
    statuses = []
    for method, override in (("POST", ""), ("POST", "PUT"), ("POST", "DELETE"), ("POST", "PATCH"), ("PUT", "")):
        headers = [("x-http-method-override", override)] if override else []
        caller = AsgiCaller(path, method=method, headers=headers, token=ADA)
        statuses.append(send_request(service, caller, make_application()).status)

    assert statuses == [200, 200, 200, 403, 200]


def count_on_gateway(folder: Path, rules: str, *headers: str, method: str = "POST", target: str = "/things/1") -> Any:
    async def scenario(running: RunningGateway) -> tuple[Reply, tuple[int, int], list[str]]:
        reply = await running.request(target, ADA_SENDS, *headers, method=method, body=b"a=1")
        forwarded = [request.headers.get("x-http-method-override", "") for request in running.service.requests]
        return reply, count(running.decision_service), forwarded

    return run_scenario(folder, scenario, rules=rules)


def test_the_gateway_counts_overrides_and_forwards_them(tmp_path: Path) -> None:
    reply, counts, forwarded = count_on_gateway(tmp_path, SMALL, "X-HTTP-Method-Override: DELETE")

    assert (reply.status, counts, forwarded) == (200, (9, 9), ["DELETE"])


def test_the_gateway_forwards_an_override_that_connection_names(tmp_path: Path) -> None:
    _, counts, forwarded = count_on_gateway(
        tmp_path, SMALL, "X-HTTP-Method-Override: DELETE", "Connection: x-http-method-override"
    )

    assert (counts, forwarded) == ((9, 9), ["DELETE"])


@pytest.mark.parametrize(
    "header", ["X_HTTP_Method_Override: DELETE", "Content_Type: application/x-www-form-urlencoded"]
)
def test_the_gateway_refuses_a_name_that_services_take_for_a_judged_one(tmp_path: Path, header: str) -> None:
    reply, counts, _ = count_on_gateway(tmp_path, set_override("forms"), "Content-Type: a/b", header)

    assert (reply.status, counts) == (400, (0, 0))


def test_the_gateway_counts_forms(tmp_path: Path) -> None:
    _, counts, _ = count_on_gateway(tmp_path, set_override("forms"), "Content-Type: application/x-www-form-urlencoded")

    assert counts == (9, 9)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"HTTP_X_HTTP_METHOD_OVERRIDE": "DELETE"}, (9, 9)),
        ({"QUERY_STRING": "_method=delete"}, (9, 9)),
        ({"CONTENT_TYPE": "application/x-www-form-urlencoded"}, (9, 9)),
        ({"CONTENT_TYPE": "application/json"}, (0, 5)),
    ],
)
def test_the_middleware_for_wsgi_counts_overrides(
    tmp_path: Path, variables: dict[str, Any], expected: tuple[int, int]
) -> None:
    site = Site(tmp_path, rules=set_override("forms"))
    site.request("/things/1", method="POST", **variables)
    counts = count(site.service)
    site.middleware.close()

    assert counts == expected


def test_created_content_is_charged_at_the_endpoint_of_the_request() -> None:
    rules = SMALL + '\n[[rule]]\nname = "content"\ncounts = "content"\nceiling = 9\n'
    service = make_decision_service(rules)
    headers = [("x-http-method-override", "PUT")]
    application = make_application(headers=[(b"x-wharf-content", b"1")])
    for _ in range(2):
        send_request(service, AsgiCaller("/odd/1", method="POST", headers=headers, token=ADA), application)

    assert count_used(service, "content") == 2


MARKED = SMALL + '\n[[rule]]\nname = "content"\ncounts = "content"\nceiling = 2\n'


def send_marked(service: DecisionService, method: str, path: str, override: str, *, route: str = "") -> int:
    """Send a request that the service marks, and return the status of the reply."""
    headers = [("x-http-method-override", override)] if override else []
    application = make_application(headers=[(b"x-wharf-content", route.encode() or b"1")])
    return send_request(service, AsgiCaller(path, method=method, headers=headers, token=ADA), application).status


@pytest.mark.parametrize("route", ["", "/pages/{page}"])
def test_a_request_that_names_another_method_has_the_action_of_earlier_ones(route: str) -> None:
    service = make_decision_service(MARKED)
    statuses = [send_marked(service, "POST", "/pages/1", override, route=route) for override in ("", "", "PUT", "")]

    assert statuses == [200, 200, 403, 403]


@pytest.mark.parametrize(("path", "route"), [("/odd/1", "/odd/{thing}"), ("/things/1", "")])
def test_a_mark_does_not_count_for_a_method_that_the_caller_only_names(path: str, route: str) -> None:
    rules = MARKED + '[[endpoint]]\nmatch = ["GET,POST /things/{id}"]\npoints = 1\n'
    service = make_decision_service(rules)
    statuses = [send_marked(service, "POST", path, "GET", route=route) for _ in range(3)]

    reply = send_request(service, AsgiCaller(path, token=ADA), make_application())

    assert (statuses, reply.status) == ([200, 200, 403], 200)


def test_a_simulation_counts_a_method_in_a_logged_query() -> None:
    rules = build_rules_text('[[rule]]\nname = "deletions"\nmatch = ["DELETE /a"]\ncounts = "points"\nceiling = 9')
    line = b'192.0.2.7 - ada [21/Nov/2026:12:00:00 +0000] "POST /a?_method=delete HTTP/1.1" 200 1\n'

    assert simulate_lines([line] * 3, read_rules(rules)).rules == {"deletions": 2}
    ignoring = read_rules(rules + '\n[paths]\nmethod_override = "ignore"\n')
    assert simulate_lines([line] * 3, ignoring).rules == {}


@pytest.mark.parametrize(
    ("setting", "content_type", "is_counted"),
    [
        ("bodies", "application/json", True),
        ("bodies", "application/vnd.api+json; charset=utf-8", True),
        ("bodies", "application/x-www-form-urlencoded", True),
        ("bodies", "text/plain", False),
        ("forms", "application/json", False),
        ("both", "application/json", False),
    ],
)
def test_json_bodies_count_as_all_methods_only_if_the_service_reads_methods_in_them(
    tmp_path: Path, setting: str, content_type: str, is_counted: bool
) -> None:
    by_middleware = count(send(set_override(setting), ("content-type", content_type))[1])
    _, by_gateway, _ = count_on_gateway(tmp_path, set_override(setting), f"Content-Type: {content_type}")

    assert {by_middleware, by_gateway} == {(9, 9) if is_counted else (0, 5)}
