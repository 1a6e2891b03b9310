"""The endpoint table."""

import re

from tests.contract.wire import reference_endpoints
from wharf.contract.wire import unsupported
from wharf.contract.wire.endpoint_table import ENDPOINT_BY_NAME, ENDPOINTS, EndpointKind


def test_no_two_endpoints_have_one_name_or_one_place() -> None:
    assert len({endpoint.name for endpoint in ENDPOINTS}) == len(ENDPOINTS)
    assert len({(endpoint.method, endpoint.path) for endpoint in ENDPOINTS}) == len(ENDPOINTS)


def test_every_endpoint_is_found_by_its_name() -> None:
    assert {name: endpoint.name for name, endpoint in ENDPOINT_BY_NAME.items()} == {e.name: e.name for e in ENDPOINTS}


def test_what_reads_without_a_body_is_a_get_and_what_writes_is_none() -> None:
    assert {
        e.name for e in ENDPOINTS if e.kind is EndpointKind.READ and e.method != "GET" and e.body_type is None
    } == set()
    assert {
        e.name for e in ENDPOINTS if e.kind in (EndpointKind.WRITE, EndpointKind.LEADER_WRITE) and e.method == "GET"
    } == set()


def test_every_row_says_in_one_line_what_it_is_for() -> None:
    lines = {e.name: e.summary for e in ENDPOINTS}

    assert {name for name, line in lines.items() if not line.endswith(".") or "\n" in line or len(line) > 160} == set()


def test_parts_of_a_path_that_tell_what_a_need_is_about_are_there() -> None:
    assert {
        e.name for e in ENDPOINTS if e.scope_path_parameter and f"{{{e.scope_path_parameter}" not in e.path
    } == set()


def test_no_parameter_of_an_endpoint_is_one_that_all_have() -> None:
    common = {"namespace", "region", "pretty"}
    of_reads = {"index", "wait", "stale"}
    of_lists = {"filter", "per_page", "next_token", "reverse"}

    own = {(e.name, p.name) for e in ENDPOINTS for p in e.parameters}
    assert {name for name, parameter in own if parameter in common} == set()
    assert {
        name for name, parameter in own if parameter in of_reads and ENDPOINT_BY_NAME[name].kind is EndpointKind.READ
    } == set()
    assert {
        name for name, parameter in own if parameter in of_lists and ENDPOINT_BY_NAME[name].list_features is not None
    } == set()


MISSING: dict[tuple[str, str], str] = {}
"""Rows of the reference that are not in the table, each with the reason. An empty list is the aim."""

LEFT_OUT = {
    "agent.pprof.trace": "Python has no such trace",
    "agent.set_schedulers_config": "how many schedulers run is no setting of one agent here",
    "agent.gossip_keys": "there is no gossip: members find each other in the log",
    "agent.change_gossip_keys": "the same",
    "operator.set_license": "there are no licences",
    "operator.utilization": "there are no licences to report for",
    "operator.vault_check": "Vault is left out",
    **{row.name: row.unsupported_reason for row in unsupported.ROWS},
}
"""Rows that answer 501, each with the reason."""


def shape(path: str) -> str:
    """The path with its names as the reference's rows are written here."""
    return re.sub(r"\{\w+\}", "*", re.sub(r"\{\w+\.\.\.\}", "**", path))


def test_every_row_of_the_reference_is_in_the_table() -> None:
    ours = {(e.method, shape(e.path)) for e in ENDPOINTS}

    assert reference_endpoints.rows() - ours == set(MISSING)


def test_what_is_left_out_is_named_with_its_reason() -> None:
    assert {e.name for e in ENDPOINTS if e.unsupported_reason} == set(LEFT_OUT)
    assert {e.name for e in ENDPOINTS if e.unsupported_reason and len(e.unsupported_reason.split()) < 4} == set()
