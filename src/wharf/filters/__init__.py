"""The filter language: expressions like `Status == "running" and "dc1" in Datacenters` over records of one type.

Responsible for reading an expression, checking it against the type before any record is read, and compiling it to a
function of a record. It knows neither HTTP nor tables: who asks, and what is done with an error, is told above.
"""

from wharf.filters.catalogue import SelectorInfo, selectors
from wharf.filters.compiling import Filter, compile_filter
from wharf.filters.errors import DoesNotFit, FilterError, NotAnExpression, NotReadable
from wharf.filters.kinds import Joined, Subject
from wharf.filters.parser import parse
from wharf.filters.printer import print_tree

__all__ = [
    "DoesNotFit",
    "Filter",
    "FilterError",
    "Joined",
    "NotAnExpression",
    "NotReadable",
    "SelectorInfo",
    "Subject",
    "compile_filter",
    "parse",
    "print_tree",
    "selectors",
]
