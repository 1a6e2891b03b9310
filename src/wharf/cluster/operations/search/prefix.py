"""Search by the beginning of an id."""

from collections.abc import Generator, Iterable
from typing import Any, Final

import msgspec

from wharf.cluster.access import Rights
from wharf.cluster.operations.search.contexts import SEARCH_TARGETS, SearchContext, make_visibility_filter
from wharf.cluster.operations.search.limits import SearchLimits
from wharf.cluster.operations.search.table_scan import iterate_by_key, list_key_prefixes
from wharf.cluster.state import Replica

MAX_RESULTS: Final = 20
UUID_CHARACTERS: Final = frozenset("0123456789abcdef-")


class PrefixSearchResult(msgspec.Struct, frozen=True):
    """By context. None: nothing begins so. Absent: nothing can, since it is no beginning of a UUID."""

    matches: dict[str, tuple[str, ...] | None]
    truncations: dict[str, bool]


def search_by_prefix(
    replica: Replica,
    contexts: Iterable[SearchContext],
    prefix: str,
    rights: Rights,
    *,
    namespace: str,
    limits: SearchLimits,
) -> Generator[None, None, PrefixSearchResult]:
    """The first ids of each context, in order. Give it time to others whenever it yields."""
    matches: dict[str, tuple[str, ...] | None] = {}
    truncations: dict[str, bool] = {}
    for context in contexts:
        searched = SEARCH_TARGETS[context]
        # Other kinds' ids and names tell capitals apart.
        wanted = prefix.lower() if searched.has_uuid else prefix
        truncations[context] = False
        if searched.has_uuid and not UUID_CHARACTERS.issuperset(wanted):
            continue
        ids, truncations[context] = yield from _ids(replica, context, wanted, rights, namespace, limits)
        matches[context] = tuple(ids) or None
    return PrefixSearchResult(matches, truncations)


def _ids(
    replica: Replica, context: SearchContext, prefix: str, rights: Rights, namespace: str, limits: SearchLimits
) -> Generator[None, None, tuple[list[str], bool]]:
    table = SEARCH_TARGETS[context].table
    ids: list[str] = []
    if table is None:
        return ids, False
    is_seen = make_visibility_filter(rights, context, namespace)
    examined = 0
    for beginning in list_key_prefixes(replica, table, namespace, prefix):
        for some in iterate_by_key(replica, table, beginning):
            for record in some:
                if examined == limits.max_examined_records:
                    return ids, True
                examined += 1
                if is_seen(record):
                    if len(ids) == MAX_RESULTS:
                        return ids, True
                    ids.append(_id_of(record, table.key_attributes))
            yield
    return ids, False


def _id_of(record: Any, key: tuple[str, ...]) -> str:
    found: str = getattr(record, key[-1])
    return found
