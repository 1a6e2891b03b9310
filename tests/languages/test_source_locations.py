"""Line and column of an offset."""

from hypothesis import given
from hypothesis import strategies as st

from wharf.languages.source_locations import LineIndex, SourceLocation, find_location


def test_lines_and_columns_are_counted_from_one() -> None:
    assert [find_location("ab\n\nc", offset) for offset in range(6)] == [(1, 1), (1, 2), (1, 3), (2, 1), (3, 1), (3, 2)]


@given(st.lists(st.sampled_from(["a", "é", "\n", "\r\n"])).map("".join))
def test_an_index_finds_the_same_locations_as_a_search(text: str) -> None:
    index = LineIndex(text)
    for offset in range(len(text) + 1):
        assert index.get_location(offset) == find_location(text, offset)
        assert find_location(text, offset) == SourceLocation(
            len(text[:offset].split("\n")), len(text[:offset].split("\n")[-1]) + 1
        )
