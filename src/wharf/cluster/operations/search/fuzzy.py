"""Search by a part of a name, wherever in it, capitals or not."""

import heapq
from collections.abc import Generator, Iterable
from typing import Final

import msgspec

from wharf.cluster.access import Rights
from wharf.cluster.operations.search.contexts import (
    ALL_NAMESPACES,
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

BUFFERED_RESULTS_RATIO: Final = 2
"""So many times the results shown are kept before the worst are let go."""


class NameMatch(msgspec.Struct, frozen=True):
    """`scope`: its parents from outside in, and its id last where that differs from the name."""

    id: str
    scope: tuple[str, ...] = ()


class FuzzySearchResult(msgspec.Struct, frozen=True):
    """By context. Absent: nothing of that kind has such a name."""

    matches: dict[str, tuple[NameMatch, ...]]
    truncations: dict[str, bool]


def search_fuzzy(
    replica: Replica,
    contexts: Iterable[SearchContext],
    text: str,
    rights: Rights,
    *,
    namespace: str,
    limits: SearchLimits,
) -> Generator[None, None, FuzzySearchResult]:
    """The names that hold the text, those that hold it earliest first. What has no name is found by the beginning of its
    id. Give it time to others whenever it yields."""
    matches: dict[str, tuple[NameMatch, ...]] = {}
    truncations: dict[str, bool] = {}
    for context in contexts:
        if context in NAME_READERS:
            best = yield from _named(replica, context, text.lower(), rights, namespace, limits)
            matches |= {shown: each.names() for shown, each in best.items() if each.found}
            truncations |= {shown: each.is_truncated for shown, each in best.items()}
            continue
        by_id = yield from search_by_prefix(replica, (context,), text, rights, namespace=namespace, limits=limits)
        truncations[context] = by_id.truncations[context]
        ids = by_id.matches.get(context)
        if ids or SEARCH_TARGETS[context].has_uuid:
            matches[context] = tuple(NameMatch(each) for each in ids or ())
    return FuzzySearchResult(matches, truncations)


class _Best:
    """The best so far, by where the text stands in the name; then by name."""

    def __init__(self, shown_max: int) -> None:
        self.found: list[tuple[int, str, tuple[str, ...]]] = []
        self.is_truncated = False
        self._shown_max = shown_max

    def take(self, position: int, name: str, scope: tuple[str, ...]) -> None:
        self.found.append((position, name, scope))
        if len(self.found) > BUFFERED_RESULTS_RATIO * self._shown_max:
            self._let_go()

    def _let_go(self) -> None:
        self.is_truncated = self.is_truncated or len(self.found) > self._shown_max
        self.found = heapq.nsmallest(self._shown_max, self.found)

    def names(self) -> tuple[NameMatch, ...]:
        self._let_go()
        return tuple(NameMatch(name, scope) for _, name, scope in self.found)


def _named(
    replica: Replica, context: SearchContext, text: str, rights: Rights, namespace: str, limits: SearchLimits
) -> Generator[None, None, dict[str, _Best]]:
    table = SEARCH_TARGETS[context].table
    best = {shown: _Best(limits.max_results) for shown in RESULT_CONTEXTS.get(context, (context,))}
    assert table is not None, f"{context} has names and no table"
    is_seen, names_of = make_visibility_filter(rights, context, namespace), NAME_READERS[context]
    lies_in_namespaces = len(table.key_attributes) > 1
    beginning = namespace + KEY_SEPARATOR if lies_in_namespaces and namespace != ALL_NAMESPACES else ""
    examined = 0
    steps = (
        iterate_by_key(replica, table, beginning)
        if table.order is ListOrder.KEY
        else iterate_by_creation(replica, table)
    )
    for some in steps:
        for record in some:
            if examined == limits.max_examined_records:
                for each in best.values():
                    each.is_truncated = True
                return best
            examined += 1
            if not is_seen(record):
                continue
            for shown, name, scope in names_of(record):
                position = name.lower().find(text)
                if position >= 0:
                    best[shown].take(position, name, scope)
        yield
    return best
