"""What is said against a filter.

    FilterError
    ├── NotAnExpression   the text does not follow the grammar
    ├── DoesNotFit        it does, but not the type that is filtered; told before any record is read
    └── NotReadable       a record does not hold what the filter leads to: an index out of range, a null in the middle

All three are the caller's to mend. `text` is the whole sentence, with its place in front where the text itself is wrong.
"""

import difflib
from collections.abc import Iterable
from typing import Final

# Looking for a similar name costs the square of the length, so nothing is likened to a very long one.
MAX_SUGGESTION_CHARS: Final = 80
MIN_NAME_SIMILARITY: Final = 0.7


class FilterError(Exception):
    """`offset` counts characters from 0, `line` and `column` from 1."""

    def __init__(self, text: str, *, offset: int, line: int, column: int) -> None:
        super().__init__(text)
        self.text = text
        self.offset = offset
        self.line = line
        self.column = column


class FilterSyntaxError(FilterError):
    pass


class FilterTypeError(FilterError):
    pass


class FilterEvaluationError(FilterError):
    pass


def find_line_and_column(source: str, offset: int) -> tuple[int, int]:
    before = source[:offset]
    return before.count("\n") + 1, offset - before.rfind("\n")


def make_syntax_error(source: str, offset: int, reason: str) -> FilterSyntaxError:
    line, column = find_line_and_column(source, offset)
    return FilterSyntaxError(f"{line}:{column} ({offset}): {reason}", offset=offset, line=line, column=column)


def make_type_error(source: str, offset: int, reason: str) -> FilterTypeError:
    line, column = find_line_and_column(source, offset)
    return FilterTypeError(f"{line}:{column} ({offset}): {reason}", offset=offset, line=line, column=column)


def make_evaluation_error(
    source: str, offset: int, reason: str, *, has_location: bool = False
) -> FilterEvaluationError:
    """The text is right and a record is not as it expects: the sentence speaks of the record, without a place, unless
    it is the text that has to be mended (`is_placed`).
    """
    line, column = find_line_and_column(source, offset)
    place = f"{line}:{column} ({offset}): " if has_location else ""
    return FilterEvaluationError(f"{place}{reason}", offset=offset, line=line, column=column)


def find_nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The name that was probably meant."""
    if len(name) > MAX_SUGGESTION_CHARS:
        return None
    names = sorted(known)
    by_lower = {other.lower(): other for other in names}
    if name.lower() in by_lower:
        return by_lower[name.lower()]
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=MIN_NAME_SIMILARITY)
    return by_lower[close[0]] if close else None
