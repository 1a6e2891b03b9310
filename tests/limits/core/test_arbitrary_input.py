"""Hostile input to the decision logic is accepted or rejected without an unexpected error."""

import base64
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.limits.builders import InMemoryLimiter, a_user
from wharf.limits.core.callers.addresses import find_address, parse_address, read_proxies
from wharf.limits.core.callers.carriers import MAX_CREDENTIALS, CarrierSettings, find_carried, list_credentials
from wharf.limits.core.callers.credentials import read_credential
from wharf.limits.core.callers.directory import MemoryDirectory
from wharf.limits.core.callers.recognition import UnrecognizedCredential, recognize_caller
from wharf.limits.core.large_files import UnreadableBatch, count_objects
from wharf.limits.core.resources import NO_RESOURCES
from wharf.limits.credentials.keyed_hash import KeyedHash

ADDRESS = parse_address("192.0.2.7")


@given(
    st.one_of(
        st.text(),
        st.binary().map(lambda raw: "Basic " + base64.b64encode(raw).decode()),
        st.text().map("token ".__add__),
    )
)
def test_any_credential_header_is_a_caller_or_unrecognised(header: str) -> None:
    assert ADDRESS is not None
    caller = recognize_caller(read_credential(header), ADDRESS, NO_RESOURCES, MemoryDirectory(), 0)

    assert isinstance(caller, UnrecognizedCredential) or caller.is_anonymous


@given(
    st.one_of(st.none(), st.text(), st.binary().map(lambda raw: "Basic " + base64.b64encode(raw).decode())),
    st.lists(st.tuples(st.sampled_from([b"cookie", b"x-key", b"other"]), st.binary()), max_size=4),
    st.text(alphabet="token=&%2fx"),
)
def test_any_request_has_a_limited_number_of_credentials(
    header: str | None, headers: list[tuple[bytes, bytes]], query: str
) -> None:
    settings = CarrierSettings(headers=("x-key",), cookies=("c", ""), query=("token", ""))
    found = list_credentials(header, find_carried(headers, settings), query, settings)

    assert len(found) <= MAX_CREDENTIALS
    assert all(len(KeyedHash(b"k" * 32).hash(credential.secret)) == 32 for credential in found)


@given(st.lists(st.text(alphabet='0123456789abcdef.:,;[]%"= for', max_size=40), max_size=4))
def test_any_forwarding_headers_give_an_address(lines: list[str]) -> None:
    for proxies in (
        read_proxies(trusted=["10.0.0.0/8"]),
        read_proxies(hops=3),
        read_proxies(hops=3, should_read_forwarded=True),
    ):
        assert find_address("10.0.0.1", proxies, forwarded_for=lines, forwarded=lines) is not None


@given(st.binary(max_size=200))
def test_any_batch_is_counted_or_refused(body: bytes) -> None:
    with contextlib.suppress(UnreadableBatch):
        assert count_objects(body) >= 0


@pytest.mark.parametrize("body", [b"", b"{", b'{"objects": 3}', b"[]", b"[" * 100_000])
def test_a_batch_that_cannot_be_counted_is_refused_with_the_expected_format(body: bytes) -> None:
    with pytest.raises(UnreadableBatch, match="Send JSON with a list `objects`"):
        count_objects(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"objects": [{}], "objects": []}',
        b'{"Objects": [{}]}',
        b'{"objects": [], "OBJECTS": [{}]}',
        b'{"object\xc5\xbf": [{}]}',
    ],
)
def test_a_batch_whose_objects_services_read_in_different_ways_is_refused(body: bytes) -> None:
    with pytest.raises(UnreadableBatch, match="Send one list `objects`"):
        count_objects(body)


@given(st.text(max_size=40), st.text(max_size=200))
def test_any_method_and_path_is_decided(method: str, path: str) -> None:
    limiter = InMemoryLimiter()

    assert limiter.send(a_user(), "/" + path, method=method).is_admitted


def test_ten_thousand_forwarded_entries_are_handled() -> None:
    lines = [", ".join(["10.0.0.9"] * 10_000)]

    assert str(find_address("10.0.0.1", read_proxies(trusted=["10.0.0.0/8"]), forwarded_for=lines)) == "10.0.0.9"
