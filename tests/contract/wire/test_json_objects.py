"""Streamed JSON objects, such as log frames, in chunks of any size and from hostile senders."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.attempts import limited_cpu
from wharf.contract.wire.json_objects import MAX_OBJECT_BYTES, MAX_OBJECT_TOKENS, JsonObjectSplitter

TEXTS = st.text(st.sampled_from('{}"\\ aé\n'), max_size=8)
OBJECTS = st.dictionaries(TEXTS, st.none() | TEXTS | st.dictionaries(TEXTS, TEXTS, max_size=2), max_size=3)
MAX_CPU_S = 0.5
"""Far above the CPU time of a linear scan (some milliseconds), and far below that of a quadratic one (a minute)."""


def split(data: bytes, chunk_bytes: int) -> list[bytes]:
    splitter = JsonObjectSplitter()
    return [
        encoded for at in range(0, len(data), chunk_bytes) for encoded in splitter.feed(data[at : at + chunk_bytes])
    ]


@given(st.lists(OBJECTS, max_size=5), st.integers(1, 9), st.sampled_from([b"", b"\n", b" \r\n\t"]))
def test_objects_are_split_in_chunks_of_any_size(objects: list[object], chunk_bytes: int, space: bytes) -> None:
    encoded = [msgspec.json.encode(each) for each in objects]

    assert split(space.join([*encoded, b""]), chunk_bytes) == encoded


@pytest.mark.parametrize("text", [b"denied", b"{} denied", b"[]", b"}", b"\x00"])
def test_anything_but_objects_is_an_error(text: bytes) -> None:
    with pytest.raises(ValueError, match="not a JSON object: "):
        split(text, 3)


def test_an_object_without_end_is_an_error() -> None:
    with pytest.raises(ValueError, match="more than 1,048,576 bytes"):
        split(b'{"Data":"' + b"x" * MAX_OBJECT_BYTES, 65_536)


@pytest.mark.parametrize("part", [b"{", b'""', b"{}"])
def test_an_object_of_very_many_parts_is_an_error(part: bytes) -> None:
    with pytest.raises(ValueError, match="more than 1,000 braces and strings"):
        split(b"{" + part * (MAX_OBJECT_TOKENS + 1), 65_536)


def test_a_dropped_object_does_not_affect_the_next_one() -> None:
    splitter = JsonObjectSplitter()
    assert list(splitter.feed(b'{"a":"\\')) == []

    splitter.reset()

    assert list(splitter.feed(b'{"b":1}')) == [b'{"b":1}']


@pytest.mark.parametrize("text", [b"}", b"\\}", b'\\"', b"\\\\"])
@pytest.mark.parametrize("chunk_bytes", [37, 65_536])
def test_the_scan_of_a_hostile_object_is_linear(text: bytes, chunk_bytes: int) -> None:
    data = b'{"Data":"' + text * (900_000 // len(text))

    with limited_cpu(MAX_CPU_S, "the scan"):
        split(data, chunk_bytes)
