"""Log tails that servers store after an allocation has ended."""

import os

from wharf.contract.model.allocations.logs import MAX_PACKED_BYTES, pack_log_tails, unpack_log_tails


def test_unpacking_returns_the_packed_logs_without_empty_streams() -> None:
    packed = pack_log_tails({"web": {"stdout": b"line\n" * 400, "stderr": b""}, "side": {"stdout": b"", "stderr": b""}})

    assert {"web": {"stdout": b"line\n" * 400}} == unpack_log_tails(packed)
    assert len(packed) < 100


def test_empty_logs_are_packed_to_empty_bytes() -> None:
    assert (b"", {}) == (pack_log_tails({"web": {"stdout": b"", "stderr": b""}}), unpack_log_tails(b""))


def test_logs_above_the_size_limit_are_not_stored() -> None:
    assert b"" == pack_log_tails({"web": {"stdout": os.urandom(2 * MAX_PACKED_BYTES), "stderr": b""}})


def test_damaged_bytes_are_unpacked_to_no_logs() -> None:
    assert {} == unpack_log_tails(b"not packed by us")
