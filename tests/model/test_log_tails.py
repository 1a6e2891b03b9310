"""The ends of logs as servers keep them."""

import os

from wharf.model.log_tails import PACKED_MAX_BYTES, pack, unpack


def test_what_was_packed_is_read_again_without_what_says_nothing() -> None:
    packed = pack({"web": {"stdout": b"line\n" * 400, "stderr": b""}, "side": {"stdout": b"", "stderr": b""}})

    assert {"web": {"stdout": b"line\n" * 400}} == unpack(packed)
    assert len(packed) < 100


def test_where_nobody_said_anything_nothing_is_kept() -> None:
    assert (b"", {}) == (pack({"web": {"stdout": b"", "stderr": b""}}), unpack(b""))


def test_more_than_servers_take_is_not_kept() -> None:
    assert b"" == pack({"web": {"stdout": os.urandom(2 * PACKED_MAX_BYTES), "stderr": b""}})


def test_what_cannot_be_read_says_nothing() -> None:
    assert {} == unpack(b"not packed by us")
