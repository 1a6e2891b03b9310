"""Prefix search: find records by the first characters of their id."""

from collections.abc import Generator, Iterable
from typing import Any, Final

import msgspec

from wharf.cluster.access import Rights
from wharf.cluster.operations.search.contexts import SEARCH_TARGETS, SearchContext, make_visibility_filter
from wharf.cluster.operations.search.limits import SearchLimits
from wharf.cluster.operations.search.table_scan import iterate_by_key, list_key_prefixes
from wharf.cluster.state import Replica

MAX_RESULTS: Final = 20
"""Number of ids returned for each context, as in Nomad."""
UUID_CHARACTERS: Final = frozenset("0123456789abcdef-")
"""A text with other characters cannot be the prefix of a UUID."""


class PrefixSearchResult(msgspec.Struct, frozen=True):
    """The result of a prefix search, by kind of record (context)."""

    matches: dict[str, tuple[str, ...] | None]
    """The matching ids. `None`: no id matches. Absent: the text cannot be the prefix of a UUID."""
    truncations: dict[str, bool]  # Whether the ids of a context are incomplete.


def search_by_prefix(
    replica: Replica,
    contexts: Iterable[SearchContext],
    prefix: str,
    rights: Rights,
    *,
    namespace: str,
    limits: SearchLimits,
) -> Generator[None, None, PrefixSearchResult]:
    """Find the first `MAX_RESULTS` ids that start with this prefix, for each of these kinds of records.

    The generator yields after each batch of records, so that its driver can serve other requests, and returns the
    result at the end.
    """
    matches: dict[str, tuple[str, ...] | None] = {}
    truncations: dict[str, bool] = {}
    for context in contexts:
        target = SEARCH_TARGETS[context]
        # UUIDs are lower case; other ids and names are case-sensitive.
        normalized_prefix = prefix.lower() if target.has_uuid else prefix
        truncations[context] = False
        if target.has_uuid and not UUID_CHARACTERS.issuperset(normalized_prefix):
            continue
        ids, truncations[context] = yield from _search_ids(
            replica, context, normalized_prefix, rights, namespace, limits
        )
        matches[context] = tuple(ids) or None
    return PrefixSearchResult(matches, truncations)


def _search_ids(
    replica: Replica, context: SearchContext, prefix: str, rights: Rights, namespace: str, limits: SearchLimits
) -> Generator[None, None, tuple[list[str], bool]]:
    """Search the ids of one kind of record, and yield after each batch.

    Return the first matching ids that the caller may see, and whether there may be more.
    """
    table = SEARCH_TARGETS[context].table
    ids: list[str] = []
    if table is None:
        return ids, False
    is_visible = make_visibility_filter(rights, context, namespace)
    examined = 0
    for key_prefix in list_key_prefixes(replica, table, namespace, prefix):
        for records in iterate_by_key(replica, table, key_prefix):
            for record in records:
                if examined == limits.max_examined_records:
                    return ids, True
                examined += 1
                if is_visible(record):
                    if len(ids) == MAX_RESULTS:
                        return ids, True
                    ids.append(_get_id(record, table.key_attributes))
            yield
    return ids, False


def _get_id(record: Any, key_attributes: tuple[str, ...]) -> str:
    """Return the id of a record: the value of the last of its table's key attributes."""
    record_id: str = getattr(record, key_attributes[-1])
    return record_id
