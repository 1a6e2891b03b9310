"""Endpoints that find things by a part of their name."""

from typing import Final

from wharf.model import need
from wharf.wire.endpoints.endpoint import Endpoint, Kind
from wharf.wire.search_shapes import FuzzySearchRequest, FuzzySearchResponse, SearchRequest, SearchResponse

ROWS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        name="search.prefix", method="PUT", path="/v1/search", kind=Kind.LOCAL, need=need.ANY_TOKEN,
        summary="Find things by the beginning of their id.", body=SearchRequest, returns=SearchResponse,
    ),
    Endpoint(
        name="search.fuzzy", method="PUT", path="/v1/search/fuzzy", kind=Kind.LOCAL, need=need.ANY_TOKEN,
        summary="Find things by a part of their name.", body=FuzzySearchRequest, returns=FuzzySearchResponse,
    ),
)  # fmt: skip
