"""Client methods for searches."""

from typing import Unpack

from wharf.contract.client.calls import CallOptions, CallSpec
from wharf.contract.client.methods import M, MethodGroup, call_method
from wharf.contract.wire import search


class SearchMethods(MethodGroup[M]):
    """Methods of `client.search`."""

    @call_method("search.prefix")
    def prefix(
        self, prefix: str, *, context: str = "all", **options: Unpack[CallOptions]
    ) -> CallSpec[search.SearchResponse]:
        """Find objects by a prefix of their ID."""
        return CallSpec(options, body=search.SearchRequest(prefix=prefix, context=context))

    @call_method("search.fuzzy")
    def fuzzy(
        self, text: str, *, context: str = "all", **options: Unpack[CallOptions]
    ) -> CallSpec[search.FuzzySearchResponse]:
        """Find objects by a part of their name."""
        return CallSpec(options, body=search.FuzzySearchRequest(text=text, context=context))
