"""Bodies of the two searches."""

from wharf.model.record import Record


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
