"""Search for records by a prefix of the id (prefix search) or a part of the name (fuzzy search).

Reads only. A search is a generator that pauses after a limited number of records, so that its driver can serve
other requests. Results contain only what the caller may read.
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
