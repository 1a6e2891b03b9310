"""Endpoints and messages of the prefix search and the fuzzy search."""

from typing import Final

from wharf.contract.model.acl import permissions
from wharf.contract.model.record import Record
from wharf.contract.wire.endpoint import Endpoint, EndpointKind


class SearchRequest(Record):
    prefix: str = ""
    context: str = ""
    namespace: str = ""


class FuzzySearchRequest(Record):
    text: str = ""
    context: str = ""
    namespace: str = ""


class FuzzyMatch(Record):
    """A match and its scope: the IDs of its parents, outermost first, then its own ID if that differs from its name."""

    id: str
    scope: tuple[str, ...] | None = None


class SearchResponse(Record):
    """Matches by context; null if nothing matches."""

    matches: dict[str, tuple[str, ...] | None]
    truncations: dict[str, bool]
    index: int = 0
    last_contact: int = 0
    known_leader: bool = False
    next_token: str = ""


class FuzzySearchResponse(Record):
    """Matches by context."""

    matches: dict[str, tuple[FuzzyMatch, ...]]
    truncations: dict[str, bool]
    index: int = 0
    last_contact: int = 0
    known_leader: bool = False
    next_token: str = ""


ROWS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        name="search.prefix", method="PUT", path="/v1/search", kind=EndpointKind.LOCAL, need=permissions.ANY_TOKEN,
        summary="Find objects by a prefix of their ID.", body_type=SearchRequest, reply_type=SearchResponse,
    ),
    Endpoint(
        name="search.fuzzy", method="PUT", path="/v1/search/fuzzy", kind=EndpointKind.LOCAL, need=permissions.ANY_TOKEN,
        summary="Find objects by a part of their name.", body_type=FuzzySearchRequest, reply_type=FuzzySearchResponse,
    ),
)  # fmt: skip
