"""Which class of endpoint an answer counts for. There are as many classes as the table has nouns and kinds, and no more."""

from wharf.server.meter import Series
from wharf.wire.endpoints import Endpoint

BLOCKED = "blocked"
"""A read that named an index and may have waited: how long says nothing about us."""


def series_of(endpoint: Endpoint, status: int, *, is_blocking: bool) -> Series:
    kind = BLOCKED if is_blocking else endpoint.kind.value
    known = _SERIES.get((endpoint.name, kind, status // 100))
    if known is None:
        known = Series(endpoint.name.partition(".")[0], kind, f"{status // 100}xx")
        _SERIES[endpoint.name, kind, status // 100] = known
    return known


_SERIES: dict[tuple[str, str, int], Series] = {}
