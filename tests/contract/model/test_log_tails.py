"""The ends of logs as servers keep them."""

import os

from wharf.contract.model.allocations.logs import MAX_PACKED_BYTES, pack_log_tails, unpack_log_tails


def test_what_was_packed_is_read_again_without_what_says_nothing() -> None:
    packed = pack_log_tails({"web": {"stdout": b"line\n" * 400, "stderr": b""}, "side": {"stdout": b"", "stderr": b""}})

    assert {"web": {"stdout": b"line\n" * 400}} == unpack_log_tails(packed)
    assert len(packed) < 100


def test_where_nobody_said_anything_nothing_is_kept() -> None:
    assert (b"", {}) == (pack_log_tails({"web": {"stdout": b"", "stderr": b""}}), unpack_log_tails(b""))


def test_more_than_servers_take_is_not_kept() -> None:
    assert b"" == pack_log_tails({"web": {"stdout": os.urandom(2 * MAX_PACKED_BYTES), "stderr": b""}})


def test_what_cannot_be_read_says_nothing() -> None:
    assert {} == unpack_log_tails(b"not packed by us")
