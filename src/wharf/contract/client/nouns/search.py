"""Client methods for searches."""

from typing import Unpack

from wharf.contract.client.calls import CallOptions, CallSpec
from wharf.contract.client.methods import M, MethodGroup, call_method
from wharf.contract.wire import search


class SearchMethods(MethodGroup[M]):
    """The methods of `client.search`. Each describes a call, which the client then sends."""

    @call_method("search.prefix")
    def prefix(
        self, prefix: str, *, context: str = "all", **options: Unpack[CallOptions]
    ) -> CallSpec[search.SearchResponse]:
        """Find objects whose ID begins with `prefix`. `context` selects the table, such as `jobs`."""
        return CallSpec(options, body=search.SearchRequest(prefix=prefix, context=context))

    @call_method("search.fuzzy")
    def fuzzy(
        self, text: str, *, context: str = "all", **options: Unpack[CallOptions]
    ) -> CallSpec[search.FuzzySearchResponse]:
        """Find objects whose name contains `text`. `context` selects the table, such as `jobs`."""
        return CallSpec(options, body=search.FuzzySearchRequest(text=text, context=context))
