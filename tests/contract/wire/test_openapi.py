"""The OpenAPI document is valid, and complete with respect to the endpoint table."""

import functools
import json
import re
from typing import Any

import msgspec

from wharf.contract.model.acl import permissions
from wharf.contract.model.refusal import RefusalCode
from wharf.contract.wire.endpoint_table import ENDPOINT_BY_NAME, ENDPOINTS, EndpointKind
from wharf.contract.wire.errors import STATUS_BY_CODE
from wharf.contract.wire.openapi import DESCRIPTION_BY_STATUS, build_openapi_document, describe_permission


@functools.cache
def document() -> Any:
    """Return the document as JSON parsers read it."""
    return json.loads(msgspec.json.encode(build_openapi_document(ENDPOINTS, version="1.2.3")))


def operation(name: str) -> Any:
    endpoint = ENDPOINT_BY_NAME[name]
    return document()["paths"][re.sub(r"\.\.\.", "", endpoint.path)][endpoint.method.lower()]


def list_parameter_names(name: str) -> list[str]:
    shared = document()["components"]["parameters"]
    parameters = [
        shared[item["$ref"].rpartition("/")[2]] if "$ref" in item else item for item in operation(name)["parameters"]
    ]
    return [item["name"] for item in parameters]


def list_references(value: Any) -> set[str]:
    if isinstance(value, dict):
        inner = {found for item in value.values() for found in list_references(item)}
        return inner | ({value["$ref"]} if isinstance(value.get("$ref"), str) else set())
    return {found for item in value for found in list_references(item)} if isinstance(value, list) else set()


def test_the_document_is_valid_openapi_3_1() -> None:
    # Imported here: each process of `make test` loads this module, and one of them runs it.
    from openapi_spec_validator import OpenAPIV31SpecValidator

    errors = [
        f"{list(error.absolute_path)}: {error.message}" for error in OpenAPIV31SpecValidator(document()).iter_errors()
    ]

    assert errors == []
    assert document()["openapi"] == "3.1.0"


def test_operations_are_exactly_the_endpoints_of_the_table() -> None:
    described_operation = {item["operationId"] for path in document()["paths"].values() for item in path.values()}

    assert described_operation == {endpoint.name for endpoint in ENDPOINTS}


def test_every_reference_can_be_resolved() -> None:
    for reference in list_references(document()):
        value = document()
        for part in reference.removeprefix("#/").split("/"):
            value = value[part]
        assert value


def test_every_operation_has_a_summary_and_a_permission() -> None:
    for endpoint in ENDPOINTS:
        described_operation = operation(endpoint.name)
        assert described_operation["summary"].endswith((".", ")")), endpoint.name
        assert described_operation["x-needs"], endpoint.name


def test_every_path_segment_in_braces_is_a_parameter() -> None:
    for endpoint in ENDPOINTS:
        path_parameters = [item["name"] for item in operation(endpoint.name)["parameters"] if item.get("in") == "path"]
        assert path_parameters == re.findall(r"\{([a-z_]+)", endpoint.path), endpoint.name


def test_reads_have_wait_parameters_and_lists_have_list_parameters() -> None:
    common = ["namespace", "index", "wait", "stale", "prefix", "filter", "per_page", "next_token", "reverse", "region"]

    assert [name for name in list_parameter_names("job.list") if name in common] == common
    assert "index" not in list_parameter_names("status.leader")
    assert "Idempotency-Key" in list_parameter_names("job.register")
    assert "Idempotency-Key" not in list_parameter_names("job.list")


def test_no_operation_has_a_parameter_twice() -> None:
    for endpoint in ENDPOINTS:
        assert len(list_parameter_names(endpoint.name)) == len(set(list_parameter_names(endpoint.name))), endpoint.name


def test_a_list_names_its_filter_selectors() -> None:
    found = operation("job.list")["x-filter-selectors"]

    assert {"ID", "Datacenters", "Meta.<key>"} <= set(found)
    for endpoint in ENDPOINTS:
        filters = endpoint.list_features is not None and endpoint.list_features.can_filter
        assert bool(operation(endpoint.name).get("x-filter-selectors")) == filters, endpoint.name


def test_bodies_and_replies_have_the_types_of_the_table() -> None:
    written = operation("job.register")

    assert written["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/JobRegisterRequest"
    }
    assert written["responses"]["200"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/JobRegisterResponse"
    }
    assert "JobModifyIndex" in document()["components"]["schemas"]["JobRegisterResponse"]["properties"]


def test_reads_document_their_headers() -> None:
    headers = operation("job.list")["responses"]["200"]["headers"]

    assert set(headers) == {"X-Cluster-Index", "X-Cluster-KnownLeader", "X-Cluster-LastContact", "X-Cluster-NextToken"}
    assert "headers" not in operation("status.leader")["responses"]["200"]


def test_every_error_status_has_a_description() -> None:
    assert set(STATUS_BY_CODE.values()) <= set(DESCRIPTION_BY_STATUS)
    codes = document()["components"]["headers"]["Error"]["schema"]["enum"]
    assert codes == [code.value for code in RefusalCode]


def test_unsupported_operations_reply_with_501_and_a_reason() -> None:
    for endpoint in ENDPOINTS:
        described_operation = operation(endpoint.name)
        success_statuses = {
            int(status) for status, reply in described_operation["responses"].items() if "$ref" not in reply
        }
        assert (set() if endpoint.unsupported_reason else set(endpoint.success_statuses)) == success_statuses, (
            endpoint.name
        )
        assert described_operation.get("x-left-out", "") == endpoint.unsupported_reason


def test_a_204_reply_has_no_body_and_health_has_the_same_body_with_either_status() -> None:
    assert operation("variable.delete")["responses"]["204"] == {
        "description": "Done.", "headers": {"X-Cluster-Index": {"$ref": "#/components/headers/Index"}},
    }  # fmt: skip
    health = operation("operator.health")["responses"]
    assert health["200"] == health["429"]


def test_only_public_endpoints_need_no_token() -> None:
    for endpoint in ENDPOINTS:
        assert (operation(endpoint.name).get("security") == [{}]) == (endpoint.need == permissions.PUBLIC_ACCESS), (
            endpoint.name
        )


def test_permissions_are_described_in_words() -> None:
    assert describe_permission(permissions.REGISTER_JOB) == "`submit-job` or `register-job` in the namespace"
    assert describe_permission(permissions.READ_NODE_POOL_NODES) == "`node:read`, and `read` on the node pool"
    assert describe_permission(permissions.MANAGEMENT_TOKEN) == "a management token"


def test_writes_document_status_504() -> None:
    for endpoint in ENDPOINTS:
        if endpoint.kind in (EndpointKind.WRITE, EndpointKind.LEADER_WRITE) and not endpoint.unsupported_reason:
            assert {"409", "413", "504"} <= set(operation(endpoint.name)["responses"]), endpoint.name


def test_every_operation_documents_the_refusal_of_a_limit() -> None:
    assert [each.name for each in ENDPOINTS if "429" not in operation(each.name)["responses"]] == []
