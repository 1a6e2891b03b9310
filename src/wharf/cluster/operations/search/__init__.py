"""Finding things by the beginning of their id, or by a part of their name.

It only reads, step by step: each step looks at a bounded number of records and leaves off, so that whoever drives it can
do something else in between. What a caller may see is asked for each namespace, pool and path.
"""

from wharf.cluster.operations.search.contexts import SearchContext, check_search_context, list_allowed_contexts
from wharf.cluster.operations.search.fuzzy import FuzzySearchResult, search_fuzzy
from wharf.cluster.operations.search.limits import SearchLimits
from wharf.cluster.operations.search.prefix import PrefixSearchResult, search_by_prefix

__all__ = [
    "FuzzySearchResult",
    "PrefixSearchResult",
    "SearchContext",
    "SearchLimits",
    "check_search_context",
    "list_allowed_contexts",
    "search_by_prefix",
    "search_fuzzy",
]
