"""The filter language: expressions like `Status == "running" and "dc1" in Datacenters` over records of one type.

Parses an expression, checks it against the record type before any record is read, and compiles it to a predicate.
HTTP, pages and tables are not handled here: callers decide what to do with an error.
"""

from wharf.languages.filters.compiler import Filter, compile_filter
from wharf.languages.filters.errors import (
    FilterError,
    FilterEvaluationError,
    FilterStepsExceeded,
    FilterSyntaxError,
    FilterTypeError,
)
from wharf.languages.filters.kinds import FilterSubject, JoinedField
from wharf.languages.filters.parser import parse_filter
from wharf.languages.filters.selectors import SelectorInfo, list_selectors
from wharf.languages.filters.tree import format_filter, iterate_record_selectors

__all__ = [
    "Filter",
    "FilterError",
    "FilterEvaluationError",
    "FilterStepsExceeded",
    "FilterSubject",
    "FilterSyntaxError",
    "FilterTypeError",
    "JoinedField",
    "SelectorInfo",
    "compile_filter",
    "format_filter",
    "iterate_record_selectors",
    "list_selectors",
    "parse_filter",
]
