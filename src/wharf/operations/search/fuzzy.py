"""Search by a part of a name, wherever in it, capitals or not."""

import heapq
from collections.abc import Generator, Iterable
from typing import Final

import msgspec

from wharf.access import Rights
from wharf.model.changes import SEPARATOR
from wharf.operations.search.contexts import EVERY_NAMESPACE, SEARCHED, Context, seen_by
from wharf.operations.search.limits import SearchLimits
from wharf.operations.search.names import NAMES, SHOWN_UNDER
from wharf.operations.search.prefix import find_by_prefix
from wharf.operations.search.steps import all_in_steps, in_steps
from wharf.state import Order, Replica

KEPT: Final = 2
"""So many times the results shown are kept before the worst are let go."""


class FuzzyName(msgspec.Struct, frozen=True):
    """`scope`: its parents from outside in, and its id last where that differs from the name."""

    id: str
    scope: tuple[str, ...] = ()


class FuzzyFound(msgspec.Struct, frozen=True):
    """By context. Absent: nothing of that kind has such a name."""

    matches: dict[str, tuple[FuzzyName, ...]]
    truncations: dict[str, bool]


def find_fuzzily(
    replica: Replica,
    contexts: Iterable[Context],
    text: str,
    rights: Rights,
    *,
    namespace: str,
    limits: SearchLimits,
) -> Generator[None, None, FuzzyFound]:
    """The names that hold the text, those that hold it earliest first. What has no name is found by the beginning of its
    id. Give it time to others whenever it yields."""
    matches: dict[str, tuple[FuzzyName, ...]] = {}
    truncations: dict[str, bool] = {}
    for context in contexts:
        if context in NAMES:
            best = yield from _named(replica, context, text.lower(), rights, namespace, limits)
            matches |= {shown: each.names() for shown, each in best.items() if each.found}
            truncations |= {shown: each.is_truncated for shown, each in best.items()}
            continue
        by_id = yield from find_by_prefix(replica, (context,), text, rights, namespace=namespace, limits=limits)
        truncations[context] = by_id.truncations[context]
        ids = by_id.matches.get(context)
        if ids or SEARCHED[context].has_uuid:
            matches[context] = tuple(FuzzyName(each) for each in ids or ())
    return FuzzyFound(matches, truncations)


class _Best:
    """The best so far, by where the text stands in the name; then by name."""

    def __init__(self, shown_max: int) -> None:
        self.found: list[tuple[int, str, tuple[str, ...]]] = []
        self.is_truncated = False
        self._shown_max = shown_max

    def take(self, position: int, name: str, scope: tuple[str, ...]) -> None:
        self.found.append((position, name, scope))
        if len(self.found) > KEPT * self._shown_max:
            self._let_go()

    def _let_go(self) -> None:
        self.is_truncated = self.is_truncated or len(self.found) > self._shown_max
        self.found = heapq.nsmallest(self._shown_max, self.found)

    def names(self) -> tuple[FuzzyName, ...]:
        self._let_go()
        return tuple(FuzzyName(name, scope) for _, name, scope in self.found)


def _named(
    replica: Replica, context: Context, text: str, rights: Rights, namespace: str, limits: SearchLimits
) -> Generator[None, None, dict[str, _Best]]:
    table = SEARCHED[context].table
    best = {shown: _Best(limits.results_max) for shown in SHOWN_UNDER.get(context, (context,))}
    assert table is not None, f"{context} has names and no table"
    is_seen, names_of = seen_by(rights, context, namespace), NAMES[context]
    lies_in_namespaces = len(table.key_attributes) > 1
    beginning = namespace + SEPARATOR if lies_in_namespaces and namespace != EVERY_NAMESPACE else ""
    examined = 0
    steps = in_steps(replica, table, beginning) if table.order is Order.KEY else all_in_steps(replica, table)
    for some in steps:
        for record in some:
            if examined == limits.examined_max:
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
