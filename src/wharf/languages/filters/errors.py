"""The errors of filters, and functions that build them.

    FilterError
    ├── FilterSyntaxError       the text does not follow the grammar
    ├── FilterTypeError         the expression does not fit the record type; raised before any record is read
    └── FilterEvaluationError   a record lacks a value that the filter reads, such as an index out of range
        └── FilterStepsExceeded     the filter takes too many steps for a record

The caller can fix all three by changing the filter. `text` is the whole message. It starts with the location if the
expression itself is wrong.
"""

from wharf.languages.source_locations import find_location


class FilterError(Exception):
    """A filter that cannot be used. `offset` counts characters from 0, `line` and `column` count from 1."""

    def __init__(self, text: str, *, offset: int, line: int, column: int) -> None:
        super().__init__(text)
        self.text = text
        self.offset = offset
        self.line = line
        self.column = column


class FilterSyntaxError(FilterError):
    """The text does not follow the grammar of filters."""


class FilterTypeError(FilterError):
    """The expression does not fit the type of the filtered records."""


class FilterEvaluationError(FilterError):
    """The expression could not be evaluated for a record."""


class FilterStepsExceeded(FilterEvaluationError):
    """The expression takes more steps for a record than permitted."""


def make_syntax_error(source: str, offset: int, reason: str) -> FilterSyntaxError:
    """Return the error for an expression that does not follow the grammar.

    Its text starts with the location of `offset` in `source`.
    """
    line, column = find_location(source, offset)
    return FilterSyntaxError(f"{line}:{column} ({offset}): {reason}", offset=offset, line=line, column=column)


def make_type_error(source: str, offset: int, reason: str) -> FilterTypeError:
    """Return the error for an expression that does not fit the record type.

    Its text starts with the location of `offset` in `source`.
    """
    line, column = find_location(source, offset)
    return FilterTypeError(f"{line}:{column} ({offset}): {reason}", offset=offset, line=line, column=column)


def make_evaluation_error(
    source: str, offset: int, reason: str, *, has_location: bool = False
) -> FilterEvaluationError:
    """Return an evaluation error for the part of the expression at `offset`.

    The reason describes the record, so the text starts without a location. `has_location` puts one in front, for
    errors that can only be fixed in the expression.
    """
    line, column = find_location(source, offset)
    prefix = f"{line}:{column} ({offset}): " if has_location else ""
    return FilterEvaluationError(f"{prefix}{reason}", offset=offset, line=line, column=column)


def make_step_limit_error(source: str, offset: int, reason: str) -> FilterStepsExceeded:
    """Return the error for a part of the expression at `offset` that takes too many steps for a record."""
    line, column = find_location(source, offset)
    return FilterStepsExceeded(reason, offset=offset, line=line, column=column)
