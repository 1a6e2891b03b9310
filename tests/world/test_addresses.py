"""Addresses as users write them: loopback in every spelling, and host and port."""

import pytest

from wharf.world.addresses import is_loopback, split_host_and_port


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True), ("localhost", True),
     ("10.0.0.1", False), ("::ffff:10.0.0.1", False), ("fe80::1%eth0", False), ("nonsense", False), ("", False),
     ("::1%lo", True), ("127.0.0.1%lo", False), ("0.0.0.0", False), ("::", False), ("127.0.0.1.example", False), ("localhost.example", False)],
)  # fmt: skip
def test_a_loopback_address_is_recognized_in_every_spelling(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:6379", ("::1", 6_379)), ("host:0", ("host", 0)),
     ("host:65535", ("host", 65_535)), ("host:65536", None), ("host", None), (":80", None), ("host:", None),
     ("host:x", None), ("host:-1", None), ("host:٣", None), ("host:" + "9" * 5_000, None)],
)  # fmt: skip
def test_a_host_and_a_port_are_split_only_if_both_are_valid(text: str, expected: tuple[str, int] | None) -> None:
    assert split_host_and_port(text) == expected
