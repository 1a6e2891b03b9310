"""The endpoint table."""

import re

from tests.contract.wire import reference_endpoints
from wharf.contract.wire import unsupported
from wharf.contract.wire.endpoint_table import ENDPOINT_BY_NAME, ENDPOINTS, EndpointKind


def test_names_and_paths_of_endpoints_are_unique() -> None:
    assert len({endpoint.name for endpoint in ENDPOINTS}) == len(ENDPOINTS)
    assert len({(endpoint.method, endpoint.path) for endpoint in ENDPOINTS}) == len(ENDPOINTS)


def test_every_endpoint_is_found_by_its_name() -> None:
    assert {name: endpoint.name for name, endpoint in ENDPOINT_BY_NAME.items()} == {e.name: e.name for e in ENDPOINTS}


def test_reads_without_a_body_use_get_and_writes_do_not() -> None:
    assert {
        e.name for e in ENDPOINTS if e.kind is EndpointKind.READ and e.method != "GET" and e.body_type is None
    } == set()
    assert {
        e.name for e in ENDPOINTS if e.kind in (EndpointKind.WRITE, EndpointKind.LEADER_WRITE) and e.method == "GET"
    } == set()


def test_every_endpoint_has_a_summary_of_one_line() -> None:
    lines = {e.name: e.summary for e in ENDPOINTS}

    assert {name for name, line in lines.items() if not line.endswith(".") or "\n" in line or len(line) > 160} == set()


def test_scope_path_parameters_are_in_the_path() -> None:
    assert {
        e.name for e in ENDPOINTS if e.scope_path_parameter and f"{{{e.scope_path_parameter}" not in e.path
    } == set()


def test_own_parameters_do_not_repeat_common_ones() -> None:
    common = {"namespace", "region", "pretty"}
    read_parameters = {"index", "wait", "stale"}
    list_parameters = {"filter", "per_page", "next_token", "reverse"}

    own = {(e.name, p.name) for e in ENDPOINTS for p in e.parameters}
    assert {name for name, parameter in own if parameter in common} == set()
    assert {
        name
        for name, parameter in own
        if parameter in read_parameters and ENDPOINT_BY_NAME[name].kind is EndpointKind.READ
    } == set()
    assert {
        name
        for name, parameter in own
        if parameter in list_parameters and ENDPOINT_BY_NAME[name].list_features is not None
    } == set()


MISSING: dict[tuple[str, str], str] = {}
"""Endpoints of the reference that the table lacks, each with the reason."""

UNSUPPORTED = {
    "agent.pprof.trace": "Python has no execution trace",
    "agent.gossip_keys": "there is no gossip: members find each other in the log",
    "agent.change_gossip_keys": "there is no gossip",
    "operator.set_license": "there are no licenses",
    "operator.utilization": "there are no licenses to report for",
    "operator.vault_check": "Vault is not used",
    **{endpoint.name: endpoint.unsupported_reason for endpoint in unsupported.ROWS},
}
"""Endpoints that reply with 501, each with the reason."""


def replace_parameters(path: str) -> str:
    """Return the path with `*` and `**` in place of its parameters."""
    return re.sub(r"\{\w+\}", "*", re.sub(r"\{\w+\.\.\.\}", "**", path))


def test_every_endpoint_of_the_reference_is_in_the_table() -> None:
    table_rows = {(e.method, replace_parameters(e.path)) for e in ENDPOINTS}

    assert reference_endpoints.list_rows() - table_rows == set(MISSING)


def test_unsupported_endpoints_are_listed_with_a_reason() -> None:
    assert {e.name for e in ENDPOINTS if e.unsupported_reason} == set(UNSUPPORTED)
    assert {e.name for e in ENDPOINTS if e.unsupported_reason and len(e.unsupported_reason.split()) < 4} == set()
