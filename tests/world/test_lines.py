"""Lines of streamed bytes, in chunks of any size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.attempts import limited_cpu
from wharf.world.lines import LineSplitter, LineTooLong

MAX_CPU_S = 1.0
"""Far above the CPU time of a linear scan, and far below that of a quadratic one (minutes)."""


@given(st.lists(st.binary(max_size=6).filter(lambda data: b"\n" not in data), min_size=1), st.integers(1, 9))
def test_lines_are_split_in_chunks_of_any_size(lines: list[bytes], chunk_bytes: int) -> None:
    data, splitter = b"\n".join(lines), LineSplitter(100)

    found = [line for at in range(0, len(data), chunk_bytes) for line in splitter.feed(data[at : at + chunk_bytes])]

    assert [*found, splitter.take_rest()] == lines
    assert splitter.take_rest() == b""


def test_a_line_above_the_limit_is_rejected() -> None:
    splitter = LineSplitter(100)
    splitter.feed(b"x" * 100)

    with pytest.raises(LineTooLong, match="a line has more than 100 bytes"):
        splitter.feed(b"x")


def test_a_line_of_very_many_chunks_is_scanned_once() -> None:
    splitter = LineSplitter(10_000_000)

    with limited_cpu(MAX_CPU_S, "the scan"):
        for _ in range(200_000):
            splitter.feed(b"x" * 40)
        lines = splitter.feed(b"\n")

    assert lines == [b"x" * 8_000_000]
