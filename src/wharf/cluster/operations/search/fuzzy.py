"""Fuzzy search: find names that contain a text, ignoring case."""

import heapq
from collections.abc import Generator, Iterable
from typing import Final

import msgspec

from wharf.cluster.access import Rights
from wharf.cluster.operations.search.contexts import (
    SEARCH_TARGETS,
    SearchContext,
    make_visibility_filter,
)
from wharf.cluster.operations.search.limits import SearchLimits
from wharf.cluster.operations.search.names import NAME_READERS, RESULT_CONTEXTS
from wharf.cluster.operations.search.prefix import search_by_prefix
from wharf.cluster.operations.search.table_scan import iterate_by_creation, iterate_by_key
from wharf.cluster.state import ListOrder, Replica
from wharf.contract.model.log import KEY_SEPARATOR
from wharf.contract.model.namespaces import ALL_NAMESPACES

BUFFERED_RESULTS_RATIO: Final = 2
"""Limits memory: this many times the requested matches are buffered before the worst are dropped."""


class NameMatch(msgspec.Struct, frozen=True):
    """A name that contains the searched text."""

    id: str  # The name or id.
    scope: tuple[str, ...] = ()
    """Its parents from outer to inner, such as namespace and job, then its id if that differs from the name."""


class FuzzySearchResult(msgspec.Struct, frozen=True):
    """The result of a fuzzy search, by kind of record (context)."""

    matches: dict[str, tuple[NameMatch, ...]]  # Best first. A context without a match is absent.
    truncations: dict[str, bool]  # Whether the matches of a context are incomplete.


def search_fuzzy(
    replica: Replica,
    contexts: Iterable[SearchContext],
    text: str,
    rights: Rights,
    *,
    namespace: str,
    limits: SearchLimits,
) -> Generator[None, None, FuzzySearchResult]:
    """Find names that contain the text, ignoring case; names in which it starts earlier come first.

    Kinds of records without names are searched by id prefix. The generator yields after each batch of records, so that
    its driver can serve other requests, and returns the result at the end.
    """
    matches: dict[str, tuple[NameMatch, ...]] = {}
    truncations: dict[str, bool] = {}
    for context in contexts:
        if context in NAME_READERS:
            best_matches = yield from _search_names(replica, context, text.lower(), rights, namespace, limits)
            matches |= {
                result_context: each.list_matches() for result_context, each in best_matches.items() if each.found
            }
            truncations |= {result_context: each.is_truncated for result_context, each in best_matches.items()}
            continue
        prefix_result = yield from search_by_prefix(
            replica, (context,), text, rights, namespace=namespace, limits=limits
        )
        truncations[context] = prefix_result.truncations[context]
        ids = prefix_result.matches.get(context)
        if ids or SEARCH_TARGETS[context].has_uuid:
            matches[context] = tuple(NameMatch(each) for each in ids or ())
    return FuzzySearchResult(matches, truncations)


class _BestMatches:
    """The best matches of one kind of record so far, ordered by the position of the text in the name, then by name."""

    def __init__(self, max_results: int) -> None:
        self.found: list[tuple[int, str, tuple[str, ...]]] = []  # Matches as (position of the text, name, scope).
        self.is_truncated = False  # Matches are missing, because there were too many.
        self._max_results = max_results

    def add(self, position: int, name: str, scope: tuple[str, ...]) -> None:
        """Add a match: the text is at this position in the name. If the buffer is full, keep only the best matches."""
        self.found.append((position, name, scope))
        if len(self.found) > BUFFERED_RESULTS_RATIO * self._max_results:
            self._drop_worst()

    def _drop_worst(self) -> None:
        """Keep only the best `max_results` matches, and record whether any were dropped."""
        self.is_truncated = self.is_truncated or len(self.found) > self._max_results
        self.found = heapq.nsmallest(self._max_results, self.found)

    def list_matches(self) -> tuple[NameMatch, ...]:
        """Return the best matches, best first."""
        self._drop_worst()
        return tuple(NameMatch(name, scope) for _, name, scope in self.found)


def _search_names(
    replica: Replica, context: SearchContext, text: str, rights: Rights, namespace: str, limits: SearchLimits
) -> Generator[None, None, dict[str, _BestMatches]]:
    """Search the names of all records of one kind that the caller may see.

    Yield after each batch of records. Return the best matches by kind of result: a search of jobs also finds groups and
    tasks, for example.
    """
    table = SEARCH_TARGETS[context].table
    best_matches = {
        result_context: _BestMatches(limits.max_results) for result_context in RESULT_CONTEXTS.get(context, (context,))
    }
    assert table is not None, f"{context} has names and no table"
    is_visible, get_names = make_visibility_filter(rights, context, namespace), NAME_READERS[context]
    has_namespace = len(table.key_attributes) > 1
    key_prefix = namespace + KEY_SEPARATOR if has_namespace and namespace != ALL_NAMESPACES else ""
    examined = 0
    batches = (
        iterate_by_key(replica, table, key_prefix)
        if table.order is ListOrder.KEY
        else iterate_by_creation(replica, table)
    )
    for records in batches:
        for record in records:
            if examined == limits.max_examined_records:
                for each in best_matches.values():
                    each.is_truncated = True
                return best_matches
            examined += 1
            if not is_visible(record):
                continue
            for result_context, name, scope in get_names(record):
                position = name.lower().find(text)
                if position >= 0:
                    best_matches[result_context].add(position, name, scope)
        yield
    return best_matches
