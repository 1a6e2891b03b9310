"""The OpenAPI document: valid, whole, and nothing in it that the endpoint table does not say."""

import functools
import json
import re
from typing import Any

import msgspec
from openapi_spec_validator import OpenAPIV31SpecValidator

from wharf.contract.model.acl import permissions
from wharf.contract.model.refusal import RefusalCode
from wharf.contract.wire.endpoint_table import ENDPOINT_BY_NAME, ENDPOINTS, EndpointKind
from wharf.contract.wire.errors import STATUS_BY_CODE
from wharf.contract.wire.openapi import DESCRIPTION_BY_STATUS, build_openapi_document, describe_need


@functools.cache
def document() -> Any:
    """As a reader of the JSON sees it."""
    return json.loads(msgspec.json.encode(build_openapi_document(ENDPOINTS, version="1.2.3")))


def operation(name: str) -> Any:
    row = ENDPOINT_BY_NAME[name]
    return document()["paths"][re.sub(r"\.\.\.", "", row.path)][row.method.lower()]


def names_of(name: str) -> list[str]:
    shared = document()["components"]["parameters"]
    given = [shared[one["$ref"].rpartition("/")[2]] if "$ref" in one else one for one in operation(name)["parameters"]]
    return [one["name"] for one in given]


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        inner = {found for one in value.values() for found in references(one)}
        return inner | ({value["$ref"]} if isinstance(value.get("$ref"), str) else set())
    return {found for one in value for found in references(one)} if isinstance(value, list) else set()


def test_the_document_is_valid_openapi_3_1() -> None:
    errors = [
        f"{list(error.absolute_path)}: {error.message}" for error in OpenAPIV31SpecValidator(document()).iter_errors()
    ]

    assert errors == []
    assert document()["openapi"] == "3.1.0"


def test_every_row_of_the_table_is_an_operation_and_nothing_else_is() -> None:
    told = {one["operationId"] for path in document()["paths"].values() for one in path.values()}

    assert told == {row.name for row in ENDPOINTS}


def test_every_reference_leads_somewhere() -> None:
    for reference in references(document()):
        place = document()
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]
        assert place


def test_every_row_has_a_summary_and_says_what_it_needs() -> None:
    for row in ENDPOINTS:
        told = operation(row.name)
        assert told["summary"].endswith((".", ")")), row.name
        assert told["x-needs"], row.name


def test_every_part_of_a_path_is_a_parameter() -> None:
    for row in ENDPOINTS:
        named = [one["name"] for one in operation(row.name)["parameters"] if one.get("in") == "path"]
        assert named == re.findall(r"\{([a-z_]+)", row.path), row.name


def test_reads_wait_and_lists_page_and_filter() -> None:
    common = ["namespace", "index", "wait", "stale", "prefix", "filter", "per_page", "next_token", "reverse", "region"]

    assert [name for name in names_of("job.list") if name in common] == common
    assert "index" not in names_of("status.leader")
    assert "Idempotency-Key" in names_of("job.register")
    assert "Idempotency-Key" not in names_of("job.list")


def test_no_operation_takes_a_parameter_twice() -> None:
    for row in ENDPOINTS:
        assert len(names_of(row.name)) == len(set(names_of(row.name))), row.name


def test_a_list_tells_its_filter_s_selectors() -> None:
    found = operation("job.list")["x-filter-selectors"]

    assert {"ID", "Datacenters", "Meta.<key>"} <= set(found)
    for row in ENDPOINTS:
        filters = row.list_features is not None and row.list_features.can_filter
        assert bool(operation(row.name).get("x-filter-selectors")) == filters, row.name


def test_bodies_and_replies_are_the_types_of_the_table() -> None:
    written = operation("job.register")

    assert written["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/JobRegisterRequest"
    }
    assert written["responses"]["200"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/JobRegisterResponse"
    }
    assert "JobModifyIndex" in document()["components"]["schemas"]["JobRegisterResponse"]["properties"]


def test_reads_tell_their_headers_and_pages_their_token() -> None:
    headers = operation("job.list")["responses"]["200"]["headers"]

    assert set(headers) == {"X-Cluster-Index", "X-Cluster-KnownLeader", "X-Cluster-LastContact", "X-Cluster-NextToken"}
    assert "headers" not in operation("status.leader")["responses"]["200"]


def test_every_status_of_a_refusal_has_its_meaning() -> None:
    assert set(STATUS_BY_CODE.values()) <= set(DESCRIPTION_BY_STATUS)
    codes = document()["components"]["headers"]["Error"]["schema"]["enum"]
    assert codes == [code.value for code in RefusalCode]


def test_what_is_left_out_answers_501_and_says_why() -> None:
    for row in ENDPOINTS:
        told = operation(row.name)
        answered = {int(status) for status, reply in told["responses"].items() if "$ref" not in reply}
        assert (set() if row.unsupported_reason else set(row.success_statuses)) == answered, row.name
        assert told.get("x-left-out", "") == row.unsupported_reason


def test_a_reply_with_204_has_no_body_and_health_is_told_with_either_status() -> None:
    assert operation("variable.delete")["responses"]["204"] == {
        "description": "Done.", "headers": {"X-Cluster-Index": {"$ref": "#/components/headers/Index"}},
    }  # fmt: skip
    health = operation("operator.health")["responses"]
    assert health["200"] == health["429"]


def test_only_what_needs_no_token_is_open() -> None:
    for row in ENDPOINTS:
        assert (operation(row.name).get("security") == [{}]) == (row.need == permissions.PUBLIC_ACCESS), row.name


def test_needs_are_said_in_words() -> None:
    assert describe_need(permissions.REGISTER_JOB) == "`submit-job` or `register-job` in the namespace"
    assert describe_need(permissions.READ_NODE_POOL_NODES) == "`node:read`, and `read` on the node pool"
    assert describe_need(permissions.MANAGEMENT_TOKEN) == "a management token"


def test_writes_say_that_an_unknown_outcome_is_504() -> None:
    for row in ENDPOINTS:
        if row.kind in (EndpointKind.WRITE, EndpointKind.LEADER_WRITE) and not row.unsupported_reason:
            assert {"409", "413", "504"} <= set(operation(row.name)["responses"]), row.name
