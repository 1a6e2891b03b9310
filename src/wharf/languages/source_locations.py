"""Positions in a text that a user wrote, as errors report them."""

import re
from bisect import bisect_right
from typing import NamedTuple


class SourceLocation(NamedTuple):
    """Line and column, both counted from 1."""

    line: int
    column: int


def find_location(text: str, offset: int) -> SourceLocation:
    """Return the location of an offset. For many offsets of one text, use `LineIndex`."""
    return SourceLocation(text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset))


class LineIndex:
    """The starts of all lines of one text. It finds the location of an offset without scanning the text again."""

    __slots__ = ("_line_starts",)

    def __init__(self, text: str) -> None:
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def get_location(self, offset: int) -> SourceLocation:
        line = bisect_right(self._line_starts, offset)
        return SourceLocation(line, offset - self._line_starts[line - 1] + 1)
