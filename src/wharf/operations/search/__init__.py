"""Finding things by the beginning of their id, or by a part of their name.

It only reads, step by step: each step looks at a bounded number of records and leaves off, so that whoever drives it can
do something else in between. What a caller may see is asked for each namespace, pool and path.
"""

from wharf.operations.search.contexts import Context, check_context, contexts_for
from wharf.operations.search.fuzzy import FuzzyFound, find_fuzzily
from wharf.operations.search.limits import SearchLimits
from wharf.operations.search.prefix import PrefixFound, find_by_prefix

__all__ = [
    "Context",
    "FuzzyFound",
    "PrefixFound",
    "SearchLimits",
    "check_context",
    "contexts_for",
    "find_by_prefix",
    "find_fuzzily",
]
