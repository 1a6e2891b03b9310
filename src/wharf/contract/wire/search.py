"""Bodies of the two searches.

Endpoints that find things by a part of their name.
"""

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
    """What was found, and where: its parents from outside in, and itself last where its name is not its id."""

    id: str
    scope: tuple[str, ...] | None = None


class SearchResponse(Record):
    """By context; null where nothing begins so."""

    matches: dict[str, tuple[str, ...] | None]
    truncations: dict[str, bool]
    index: int = 0
    last_contact: int = 0
    known_leader: bool = False
    next_token: str = ""


class FuzzySearchResponse(Record):
    matches: dict[str, tuple[FuzzyMatch, ...]]
    truncations: dict[str, bool]
    index: int = 0
    last_contact: int = 0
    known_leader: bool = False
    next_token: str = ""


ROWS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        name="search.prefix", method="PUT", path="/v1/search", kind=EndpointKind.LOCAL, need=permissions.ANY_TOKEN,
        summary="Find things by the beginning of their id.", body_type=SearchRequest, reply_type=SearchResponse,
    ),
    Endpoint(
        name="search.fuzzy", method="PUT", path="/v1/search/fuzzy", kind=EndpointKind.LOCAL, need=permissions.ANY_TOKEN,
        summary="Find things by a part of their name.", body_type=FuzzySearchRequest, reply_type=FuzzySearchResponse,
    ),
)  # fmt: skip
