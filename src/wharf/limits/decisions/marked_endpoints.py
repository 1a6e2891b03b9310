"""Which requests may create content that only the reply of the service shows, with the header `x-wharf-content`.

A mark arrives with the reply, when the content exists. So it counts, and later requests of the same action are checked. An
action is a route that the service names in the mark, an endpoint that the rules describe, or else a pattern that is learned from
the marked paths of one caller (decision record 0182). This module charges nothing.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, TypeVar

from wharf.limits.core.caches import BoundedCache
from wharf.limits.core.paths import list_readings
from wharf.limits.core.route import (
    BadPattern,
    RoutePattern,
    RouteTree,
    get_counted_method,
    is_identifier,
    parse_pattern,
)
from wharf.limits.core.rule import PathRules

T = TypeVar("T")

MAX_MARKED_ENDPOINTS: Final = 1_024
"""Endpoints that are stored; limits memory."""
MAX_MARKED_ROUTES: Final = 256
"""Routes that are stored; limits the time to build their tree again without the oldest one to less than 1 ms."""
MAX_MARKED_CALLERS: Final = 1_024
"""Callers whose patterns are stored; limits memory to 40 MB."""
MAX_PATTERN_NODES: Final = 128
"""Segments in the patterns of one caller; limits memory. With more, each segment that differs stands for any value."""
MAX_LITERALS: Final = 4
"""Different values of a segment after which it stands for any value. A service may have this many actions that create content
at the same place of its paths, such as `issues/new` and `releases/new`, without effect on its other actions there.
"""
MAX_UNEXPECTED_MARKS: Final = 10
"""Marks in an hour beyond the limit of a caller, of requests that had no known pattern. From then on, all requests of the caller
with the same method are checked. Limits how much content a caller can create by paths that always differ.
"""
UNEXPECTED_PERIOD_MS: Final = 3_600_000
MAX_PATTERN_SEGMENTS: Final = 16
"""Longer paths are compared by their beginning; limits memory."""
MAX_LITERAL_CHARACTERS: Final = 64
"""A longer segment counts as an id; limits memory."""
MAX_CACHED_PATHS: Final = 4_096
"""Paths whose patterns, or whose match with a route, are in the cache; limits memory."""
MAX_CACHED_PATH_CHARACTERS: Final = 256
"""Longer paths are not cached, so that callers cannot fill the memory with them."""
_IDENTIFIER: Final = "#"
_ANY_VALUE: Final = None
"""The key of the only child of a node whose segment stands for any value. No segment of a path equals it."""


class _PatternNode:
    """A segment in the patterns of a caller. It has either some literal children, or one child that stands for any value."""

    __slots__ = ("children", "is_marked")

    def __init__(self) -> None:
        self.children: dict[str | None, _PatternNode] = {}
        self.is_marked = False
        """Whether a marked path ends here."""

    def count_nodes(self) -> int:
        return 1 + sum(child.count_nodes() for child in self.children.values())

    def merge(self, other: "_PatternNode") -> None:
        """Add the patterns below another node to those below this one."""
        self.is_marked |= other.is_marked
        for segment, child in other.children.items():
            own = self.children.get(segment)
            if own is None:
                self.children[segment] = child
            else:
                own.merge(child)

    def generalize(self, max_literals: int) -> None:
        """Let each segment with too many values stand for any value, in all patterns below this node."""
        if len(self.children) > max_literals or (_ANY_VALUE in self.children and len(self.children) > 1):
            merged = _PatternNode()
            for child in self.children.values():
                merged.merge(child)
            self.children = {_ANY_VALUE: merged}
        for child in self.children.values():
            child.generalize(max_literals)


class _CallerPatterns:
    """The patterns of the marked paths of one caller, by method and number of segments."""

    __slots__ = ("_last_unexpected_ms", "_roots", "_unexpected_marks")

    def __init__(self) -> None:
        self._roots: dict[tuple[str, int], _PatternNode] = {}
        self._unexpected_marks = 0
        self._last_unexpected_ms = 0

    def has_method(self, method: str) -> bool:
        """Return whether a request with this method was marked."""
        return any(method == marked_method for marked_method, _ in self._roots)

    def matches(self, method: str, spellings: Iterable[tuple[str, ...]], now_ms: int) -> bool:
        """Return whether one spelling of a path has the pattern of a marked path. A request with this method was marked."""
        if self._unexpected_marks >= MAX_UNEXPECTED_MARKS:
            if now_ms - self._last_unexpected_ms < UNEXPECTED_PERIOD_MS:
                return True
            self._unexpected_marks = 0
        return any(self._matches_segments(method, segments) for segments in spellings)

    def _matches_segments(self, method: str, segments: tuple[str, ...]) -> bool:
        node = self._roots.get((method, len(segments)))
        for segment in segments:
            if node is None:
                return False
            node = node.children.get(_ANY_VALUE) or node.children.get(segment)
        return node is not None and node.is_marked

    def add(self, method: str, segments: tuple[str, ...]) -> None:
        """Add the path of a marked request."""
        root = node = self._roots.setdefault((method, len(segments)), _PatternNode())
        for segment in segments:
            key = _ANY_VALUE if _ANY_VALUE in node.children else segment
            node = node.children.setdefault(key, _PatternNode())
        node.is_marked = True
        root.generalize(MAX_LITERALS)
        if self._count_nodes() > MAX_PATTERN_NODES:
            for each in self._roots.values():
                each.generalize(1)
        while self._count_nodes() > MAX_PATTERN_NODES:
            del self._roots[next(iter(self._roots))]

    def _count_nodes(self) -> int:
        return sum(root.count_nodes() for root in self._roots.values())

    def add_unexpected_mark(self, now_ms: int) -> None:
        """Count a mark beyond the limit, of a request that had no known pattern."""
        if now_ms - self._last_unexpected_ms >= UNEXPECTED_PERIOD_MS:
            self._unexpected_marks = 0
        self._unexpected_marks += 1
        self._last_unexpected_ms = now_ms


class MarkedEndpoints:
    """The actions whose requests were marked. Beyond the maximum, those whose last mark is oldest are dropped."""

    def __init__(self) -> None:
        self._endpoints: OrderedDict[str, None] = OrderedDict()
        """Names of endpoints that the rules describe."""
        self._routes: OrderedDict[str, RoutePattern] = OrderedDict()
        """Routes that the service has named, by method and path."""
        self._route_tree: RouteTree[None] = RouteTree(is_folded=True)
        self._patterns: OrderedDict[str, _CallerPatterns] = OrderedDict()
        """By owner."""
        self._rules = PathRules()
        """The rules by which the paths in the caches were read."""
        self._path_patterns: BoundedCache[str, tuple[tuple[str, ...], ...]] = BoundedCache(MAX_CACHED_PATHS)
        self._is_route: BoundedCache[tuple[str, str], bool] = BoundedCache(MAX_CACHED_PATHS)

    def __bool__(self) -> bool:
        return bool(self._patterns or self._routes or self._endpoints)

    def __len__(self) -> int:
        return len(self._patterns) + len(self._routes) + len(self._endpoints)

    def may_create_content(
        self, owner: str, method: str, path: str, endpoint: str, *, rules: PathRules, now_ms: int
    ) -> bool:
        """Return whether a request has the action of an earlier one that was marked.

        `path` is its path in normal form, and `endpoint` the name of its endpoint.
        """
        if endpoint in self._endpoints or (self._routes and self._matches_route(method, path, rules)):
            return True
        patterns = self._patterns.get(owner)
        counted_method = get_counted_method(method)
        if patterns is None or not patterns.has_method(counted_method):
            return False
        return patterns.matches(counted_method, self._list_patterns(path, rules), now_ms)

    def add(
        self, owner: str, method: str, path: str, endpoint: str, *, route: str, rules: PathRules, now_ms: int
    ) -> bool:
        """Store the action of a marked request. Return whether it was unknown, so that the request was not checked.

        `route` is the route that the service names in the mark, such as `/{owner}/{repository}/wiki/{page}`; empty without one.
        It is ignored if it does not match the path.
        """
        is_known = self.may_create_content(owner, method, path, endpoint, rules=rules, now_ms=now_ms)
        if route and self._add_route(method, path, route, rules):
            return not is_known
        if "{" in endpoint:  # The rules describe it.
            _store_newest(self._endpoints, endpoint, None, MAX_MARKED_ENDPOINTS)
            return not is_known
        patterns = self._patterns.get(owner) or _CallerPatterns()
        _store_newest(self._patterns, owner, patterns, MAX_MARKED_CALLERS)
        if not is_known:
            # The first spelling has neither parameters nor separators that some services only read as text.
            patterns.add(get_counted_method(method), self._list_patterns(path, rules)[0])
        return not is_known

    def add_unexpected_mark(self, owner: str, now_ms: int) -> None:
        """Count a mark beyond the limit of a caller, of a request whose action was unknown."""
        patterns = self._patterns.get(owner)
        if patterns is not None:
            patterns.add_unexpected_mark(now_ms)

    def _add_route(self, method: str, path: str, route: str, rules: PathRules) -> bool:
        """Store a route. Return false if it is no pattern, or does not match the path."""
        name = f"{get_counted_method(method)} {route}"
        is_new = name not in self._routes
        if is_new:
            try:
                pattern = parse_pattern(name)
            except BadPattern:
                return False
        else:
            pattern = self._routes[name]
        tree: RouteTree[None] = RouteTree(is_folded=True)
        tree.add(pattern, None)
        if not any(tree.find_matches(method, segments) for segments in self._list_spellings(path, rules)):
            return False
        is_full = is_new and len(self._routes) == MAX_MARKED_ROUTES
        _store_newest(self._routes, name, pattern, MAX_MARKED_ROUTES)
        if is_new:
            self._is_route.clear()
            self._route_tree.add(pattern, None)
        if is_full:
            self._route_tree = RouteTree(is_folded=True)
            for stored in self._routes.values():
                self._route_tree.add(stored, None)
        return True

    def _matches_route(self, method: str, path: str, rules: PathRules) -> bool:
        """Return whether a request matches a route that the service has named, from the cache if possible."""
        self._use_rules(rules)
        found = self._is_route.get((method, path))
        if found is None:
            tree = self._route_tree
            found = any(tree.find_matches(method, segments) for segments in self._list_spellings(path, rules))
            if len(path) <= MAX_CACHED_PATH_CHARACTERS:
                self._is_route.store((method, path), found)
        return found

    def _list_patterns(self, path: str, rules: PathRules) -> tuple[tuple[str, ...], ...]:
        """Return the patterns of the spellings of a path, from the cache if possible."""
        self._use_rules(rules)
        patterns = self._path_patterns.get(path)
        if patterns is None:
            patterns = tuple(map(_derive_pattern, self._list_spellings(path, rules)))
            if len(path) <= MAX_CACHED_PATH_CHARACTERS:
                self._path_patterns.store(path, patterns)
        return patterns

    def _use_rules(self, rules: PathRules) -> None:
        """Clear the caches if paths are read by other rules than before."""
        if rules is not self._rules:
            self._rules = rules
            self._path_patterns.clear()
            self._is_route.clear()

    @staticmethod
    def _list_spellings(path: str, rules: PathRules) -> tuple[tuple[str, ...], ...]:
        """Return the case-folded segments of a path as services may read it."""
        readings = list_readings(path, rules)
        folded = [reading.segments for reading in readings if reading.is_folded] or (
            tuple([segment.casefold() for segment in reading.segments]) for reading in readings
        )
        return tuple(dict.fromkeys(folded))


def _store_newest(entries: OrderedDict[str, T], key: str, value: T, max_entries: int) -> None:
    """Store an entry as the newest one. Beyond the maximum, the oldest one is dropped."""
    entries[key] = value
    entries.move_to_end(key)
    if len(entries) > max_entries:
        entries.popitem(last=False)


def _derive_pattern(segments: tuple[str, ...]) -> tuple[str, ...]:
    """Return the segments of a path, with a sign in the place of each id. A long path is cut."""
    return tuple(
        [
            _IDENTIFIER if len(segment) > MAX_LITERAL_CHARACTERS or is_identifier(segment) else segment
            for segment in segments[:MAX_PATTERN_SEGMENTS]
        ]
    )
