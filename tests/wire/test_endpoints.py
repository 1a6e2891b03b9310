"""The endpoint table."""

from wharf.api.handlers import READS
from wharf.wire.endpoints import BY_NAME, ENDPOINTS, Kind


def test_no_two_endpoints_have_one_name_or_one_place() -> None:
    assert len({endpoint.name for endpoint in ENDPOINTS}) == len(ENDPOINTS)
    assert len({(endpoint.method, endpoint.path) for endpoint in ENDPOINTS}) == len(ENDPOINTS)


def test_every_endpoint_is_found_by_its_name() -> None:
    assert {name: endpoint.name for name, endpoint in BY_NAME.items()} == {e.name: e.name for e in ENDPOINTS}


def test_what_reads_is_a_get_and_what_writes_is_none() -> None:
    assert {e.name for e in ENDPOINTS if e.kind is Kind.READ and e.method != "GET"} == set()
    assert {e.name for e in ENDPOINTS if e.kind in (Kind.WRITE, Kind.ASK) and e.method == "GET"} == set()


def test_exactly_the_reading_endpoints_have_a_reading_handler() -> None:
    assert set(READS) == {endpoint.name for endpoint in ENDPOINTS if endpoint.kind is Kind.READ}
