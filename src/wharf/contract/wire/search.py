"""Endpoints and messages of the prefix search and the fuzzy search."""

from typing import Final

from wharf.contract.model.acl import permissions
from wharf.contract.model.record import Record
from wharf.contract.wire.endpoint import Endpoint, EndpointKind


class SearchRequest(Record):
    """A request for objects whose ID begins with a text."""

    prefix: str = ""  # The beginning of the IDs.
    context: str = ""  # Where to search, such as `jobs` or `nodes`; `all` for all tables.
    namespace: str = ""  # Used if the query names no namespace.


class FuzzySearchRequest(Record):
    """A request for objects whose name contains a text."""

    text: str = ""  # A part of the names.
    context: str = ""  # Where to search, such as `jobs` or `nodes`; `all` for all tables.
    namespace: str = ""  # Used if the query names no namespace.


class FuzzyMatch(Record):
    """An object whose name contains the searched text."""

    id: str  # The name of the object, even if it also has an ID.
    scope: tuple[str, ...] | None = None
    """The IDs of the object's parents, outermost first. The last entry is the ID of the object, if it has one besides its name."""


class SearchResponse(Record):
    """The objects whose ID begins with the searched text."""

    matches: dict[str, tuple[str, ...] | None]  # IDs by context, such as `jobs`; null if nothing matches.
    truncations: dict[str, bool]  # By context: whether there are more matches.
    index: int = 0  # Log index of the last change of a searched table.
    last_contact: int = 0  # Milliseconds since the server's last contact with the log.
    known_leader: bool = False  # Whether the cluster has a leader.
    next_token: str = ""  # Always empty; expected by Nomad's clients.


class FuzzySearchResponse(Record):
    """The objects whose name contains the searched text."""

    matches: dict[str, tuple[FuzzyMatch, ...]]  # Matches by context, such as `jobs`.
    truncations: dict[str, bool]  # By context: whether there are more matches.
    index: int = 0  # Log index of the last change of a searched table.
    last_contact: int = 0  # Milliseconds since the server's last contact with the log.
    known_leader: bool = False  # Whether the cluster has a leader.
    next_token: str = ""  # Always empty; expected by Nomad's clients.


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
