"""Patterns of method and path, and the name of the endpoint of a request.

A pattern is `METHOD /path`. The methods are separated by commas, or `*`. A segment is literal text, `{name}`, or a
`{name}` with a suffix (`{repository}.git`). A last segment `*` matches one or more segments. One segment before others
may be `**`, which matches 1 to `MAX_ANY_SEGMENTS` segments, such as the nested groups of a project. `GET` also matches
HEAD. `METHOD outside:/path` is a pattern for paths outside of the API's base path. `place_pattern` applies a base path to a
pattern; all other functions work on complete paths. This module knows nothing about rules. How a path becomes segments is
in `paths`.
"""

import re
from collections.abc import Sequence
from typing import Final, Generic, TypeVar
from urllib.parse import unquote

import msgspec

from wharf.limits.core.paths import encode_segment, split_path
from wharf.limits.core.rule import READ_METHODS

T = TypeVar("T")

KNOWN_METHODS: Final = READ_METHODS | {"POST", "PUT", "PATCH", "DELETE"}
MAX_NAME_CHARACTERS: Final = 512
"""Endpoint names are cut to this length. Limits memory: caches, counters and statistics hold the names of many endpoints."""
OTHER_NAME: Final = "other"
"""The text for all unknown methods in endpoint names, and for the shared counter of an owner in counter keys."""

MAX_ANY_SEGMENTS: Final = 24
"""The maximum number of segments that `**` matches: more than the 20 levels of groups that hosts allow. Limits the time
of a lookup, because each number of segments is tried."""
ANY_SEGMENTS: Final = "**"
OUTSIDE_PREFIX: Final = "outside:"
"""Begins the path of a pattern that matches only paths outside of the API's base path."""

_PATTERN: Final = re.compile(rf"(\*|[A-Z]+(?:,[A-Z]+)*) ({OUTSIDE_PREFIX})?(/\S*)")
_SEGMENT: Final = re.compile(r"(\{[a-z_]+\})?([^{}*]*)")
# Segments that are ids: numbers, hashes, UUIDs.
_IDENTIFIER: Final = re.compile(
    r"\d+|(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{7,}|[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}|[a-fA-F]{7,}"
)


class BadPattern(ValueError):
    """A pattern that cannot be parsed. The text shows a correct example."""


class RoutePattern(msgspec.Struct, frozen=True):
    """A parsed pattern of method and path, such as `GET /search/*`."""

    text: str
    methods: frozenset[str]
    """Empty for all methods."""
    segments: tuple[str, ...]
    """The segments of its path, without a last `*`."""
    has_wildcard: bool
    """Whether the path ends in `*`, which matches one or more segments."""
    has_trailing_slash: bool = False
    """Whether the path ends in a slash. Matching ignores it; only a free endpoint must be spelled like its pattern."""
    is_outside: bool = False
    """Whether the pattern matches only paths outside of the API's base path; otherwise it matches only the others."""

    @property
    def path(self) -> str:
        """The path of the pattern, without `outside:`."""
        return self.text.partition(" ")[2].removeprefix(OUTSIDE_PREFIX)

    @property
    def is_template(self) -> bool:
        """Whether the pattern names one endpoint, so that its text is the endpoint name of matching requests."""
        return not self.has_wildcard and bool(self.methods)

    def matches_method(self, method: str) -> bool:
        """Return whether the pattern is for this method. A pattern for GET is also for HEAD."""
        return not self.methods or method in self.methods or (method == "HEAD" and "GET" in self.methods)

    def matches_path(self, segments: Sequence[str]) -> bool:
        """Return whether the segments of a path match, ignoring the method."""
        if ANY_SEGMENTS in self.segments:
            at = self.segments.index(ANY_SEGMENTS)
            return any(
                self._replace_any_segments(at, count).matches_path(segments) for count in range(1, MAX_ANY_SEGMENTS + 1)
            )
        if self.has_wildcard:
            if len(segments) <= len(self.segments):
                return False
        elif len(segments) != len(self.segments):
            return False
        return all(
            _segment_matches(pattern, segment) for pattern, segment in zip(self.segments, segments, strict=False)
        )

    def count_any_segments(self, segments: Sequence[str]) -> int:
        """Return how many segments of a path `**` stands for, at least. The path must match the pattern, which has `**`."""
        at = self.segments.index(ANY_SEGMENTS)
        after = self.segments[at + 1 :]
        last = len(segments) - len(after) - at - self.has_wildcard
        for count in range(1 if self.has_wildcard else last, last):
            if all(map(_segment_matches, after, segments[at + count : at + count + len(after)])):
                return count
        return last

    def _replace_any_segments(self, at: int, count: int) -> "RoutePattern":
        """Return the pattern with `**`, the segment number `at`, replaced by a number of single segments."""
        segments = (*self.segments[:at], *(("{any}",) * count), *self.segments[at + 1 :])
        return msgspec.structs.replace(self, segments=segments)

    def covers(self, narrow: "RoutePattern") -> bool:
        """Return whether this pattern matches every request that the narrow pattern matches.

        A pattern with `**` is only known to cover patterns with the same segments.
        """
        if self.is_outside is not narrow.is_outside:
            return False
        if ANY_SEGMENTS in self.segments and self.segments != narrow.segments[: len(self.segments)]:
            return False
        if ANY_SEGMENTS in narrow.segments and self.segments != narrow.segments:
            # The segments after `**` have no fixed position.
            if not self.has_wildcard:
                return False
            if ANY_SEGMENTS not in self.segments and len(self.segments) > narrow.segments.index(ANY_SEGMENTS) + 1:
                return False
        if self.methods and not (narrow.methods and all(self.matches_method(method) for method in narrow.methods)):
            return False
        if narrow.has_wildcard and not self.has_wildcard:
            return False
        min_segments = len(narrow.segments) + narrow.has_wildcard
        if (min_segments <= len(self.segments)) if self.has_wildcard else (min_segments != len(self.segments)):
            return False
        if len(narrow.segments) < len(self.segments):
            return False
        return all(
            _segment_covers(segment, narrow_segment)
            for segment, narrow_segment in zip(self.segments, narrow.segments, strict=False)
        )


def _segment_matches(pattern: str, segment: str) -> bool:
    """Return whether a segment of a path matches a segment of a pattern: a literal, `{name}`, or `{name}` with a suffix."""
    if not pattern.startswith("{"):
        return pattern == segment
    suffix = pattern.partition("}")[2]
    return segment.endswith(suffix) and len(segment) > len(suffix)


def _segment_covers(wide: str, narrow: str) -> bool:
    """Return whether a pattern segment matches everything that a narrower pattern segment matches."""
    return wide == narrow if not wide.startswith("{") else _suffix_covers(wide.partition("}")[2], narrow)


def _suffix_covers(suffix: str, segment: str) -> bool:
    """Return whether `{name}` with this suffix matches everything that the pattern segment matches."""
    return segment.endswith(suffix) and (segment.startswith("{") or len(segment) > len(suffix))


def parse_pattern(text: str) -> RoutePattern:
    """Return the parsed form of a pattern such as `GET /search/*`. Raises `BadPattern` if the text is not a pattern."""
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise BadPattern(
            f"{text!r} is not a pattern: write a method and a path, such as 'GET /search/*' or '* /files/{{id}}'"
        )
    methods, outside_prefix, path = match.groups()
    has_trailing_slash = len(path) > 1 and path.endswith("/")
    segments = split_path(path[:-1] if has_trailing_slash else path)
    has_wildcard = bool(segments) and segments[-1] == "*"
    fixed_segments = segments[:-1] if has_wildcard else segments
    if ANY_SEGMENTS in segments and (segments.count(ANY_SEGMENTS) > 1 or segments[-1] == ANY_SEGMENTS):
        raise BadPattern(f"{text!r}: '**' is allowed once, before other segments; end with '*' for all that follow")
    for segment in fixed_segments:
        if segment == ANY_SEGMENTS:
            continue
        if not segment or segment in (".", "..") or _SEGMENT.fullmatch(segment) is None:
            raise BadPattern(
                f"{text!r}: the segment {segment!r} is neither text nor '{{name}}'; '*' is only allowed as the last segment"
            )
    return RoutePattern(
        text,
        frozenset() if methods == "*" else frozenset(methods.split(",")),
        tuple(segment if segment.startswith("{") else unquote(segment) for segment in fixed_segments),
        has_wildcard,
        has_trailing_slash,
        outside_prefix is not None,
    )


def place_pattern(text: str, site_path: str, base_path: str) -> str:
    """Return a pattern of a rules file as a pattern of complete paths.

    `site_path` is the path below which the host serves everything, and `base_path` is the API's path below it. Both are
    empty, or begin with `/` and do not end with it. Without a base path no path is outside of it, so `outside:` has no
    effect and is removed.
    """
    methods, _, path = text.partition(" ")
    if not path.startswith(OUTSIDE_PREFIX):
        return f"{methods} {_join_paths(site_path + base_path, path)}"
    prefix = OUTSIDE_PREFIX if base_path else ""
    return f"{methods} {prefix}{_join_paths(site_path, path.removeprefix(OUTSIDE_PREFIX))}"


def _join_paths(prefix: str, path: str) -> str:
    """Return the path below a prefix; the prefix itself for the path `/`."""
    return prefix if prefix and path == "/" else prefix + path


def find_path_below(prefix: str, path: str) -> str | None:
    """Return the rest of a path below a prefix, or `None` if the path is not below it.

    The rest begins with `/`, and is `/` for the prefix itself. The prefix is empty, or begins with `/`.
    """
    if not prefix:
        return path
    if not path.startswith(prefix):
        return None
    rest = path[len(prefix) :] or "/"
    return rest if rest.startswith("/") else None


def is_identifier(segment: str) -> bool:
    """Return whether a segment of a path looks like the id of an object: a number, a hash or a UUID."""
    return _IDENTIFIER.fullmatch(segment) is not None


def derive_endpoint_name(method: str, segments: Sequence[str]) -> str:
    """Return the endpoint name of a path that matches no template: segments that look like ids become `*`.

    Paths with equal first segments share a name, if it would be longer than `MAX_NAME_CHARACTERS`.
    """
    texts = (
        "*" if is_identifier(segment) else encode_segment(segment) for segment in segments[: MAX_NAME_CHARACTERS + 1]
    )
    name = f"{get_counted_method(method)} /{'/'.join(texts)}"
    return name if len(name) <= MAX_NAME_CHARACTERS else f"{name[: MAX_NAME_CHARACTERS - 3]}..."


def get_counted_method(method: str) -> str:
    """Return the method in endpoint names: HEAD counts as GET, and all unknown methods count together."""
    if method == "HEAD":
        return "GET"
    return method if method in KNOWN_METHODS else OTHER_NAME


class _RouteNode(Generic[T]):
    """A node of the route tree: the patterns that begin with the same segments."""

    __slots__ = ("after_any", "by_literal", "by_suffix", "exact_entries", "wildcard_entries")

    def __init__(self) -> None:
        self.after_any: _RouteNode[T] | None = None  # The patterns that continue with `**`.
        self.by_literal: dict[str, _RouteNode[T]] = {}
        self.by_suffix: dict[str, _RouteNode[T]] = {}  # By the text after `{name}`, which may be empty.
        self.exact_entries: list[tuple[RoutePattern, T]] = []
        self.wildcard_entries: list[tuple[RoutePattern, T]] = []


class RouteTree(Generic[T]):
    """Patterns in a tree by segment, so that a lookup costs time by the length of the path, not the number of
    patterns. Patterns for paths outside of the API's base path are in a tree of their own.

    A tree that `is_folded` holds case-folded patterns. Case-folded segments match them in any case.
    """

    def __init__(self, *, is_folded: bool = False) -> None:
        self._root: _RouteNode[T] = _RouteNode()
        self._outside_root: _RouteNode[T] = _RouteNode()
        self._is_folded = is_folded

    def _get_root(self, *, is_outside: bool) -> _RouteNode[T]:
        return self._outside_root if is_outside else self._root

    def add(self, pattern: RoutePattern, value: T) -> None:
        """Add a pattern with the value that lookups return for it."""
        node = self._get_root(is_outside=pattern.is_outside)
        for written in pattern.segments:
            if written == ANY_SEGMENTS:
                node.after_any = node.after_any or _RouteNode()
                node = node.after_any
                continue
            segment = written.casefold() if self._is_folded else written
            is_value = segment.startswith("{")
            nodes = node.by_suffix if is_value else node.by_literal
            node = nodes.setdefault(segment.partition("}")[2] if is_value else segment, _RouteNode())
        (node.wildcard_entries if pattern.has_wildcard else node.exact_entries).append((pattern, value))

    def find_matches(
        self, method: str, segments: Sequence[str], *, is_outside: bool = False
    ) -> list[tuple[RoutePattern, T]]:
        """Return all patterns that match a request, with their values, as `find_path_matches` does."""
        found = self.find_path_matches(segments, is_outside=is_outside)
        return [pair for pair in found if pair[0].matches_method(method)]

    def find_path_matches(self, segments: Sequence[str], *, is_outside: bool = False) -> list[tuple[RoutePattern, T]]:
        """Return all patterns that match the segments of a path with any method, with their values, the most specific first.

        Literal segments come before `{name}`, and complete paths before `*`. `is_outside` is whether the path is outside
        of the API's base path.
        """
        found: list[tuple[RoutePattern, T]] = []
        _collect_matches(self._get_root(is_outside=is_outside), segments, 0, found)
        return found

    def find_covering(self, narrow: RoutePattern) -> list[T]:
        """Return the values of all patterns that match every request that the narrow pattern matches."""
        found: list[tuple[RoutePattern, T]] = []
        _collect_covering(self._get_root(is_outside=narrow.is_outside), narrow, 0, found)
        return [value for pattern, value in found if pattern.covers(narrow)]


def _collect_matches(
    node: _RouteNode[T], segments: Sequence[str], depth: int, found: list[tuple[RoutePattern, T]]
) -> None:
    """Append to `found` the entries below this node that match the path, the most specific first.

    `depth` is the number of segments that the path to this node has matched.
    """
    if depth == len(segments):
        found += node.exact_entries
        return
    segment = segments[depth]
    if (child := node.by_literal.get(segment)) is not None:
        _collect_matches(child, segments, depth + 1, found)
    for suffix, child in node.by_suffix.items():
        if segment.endswith(suffix) and len(segment) > len(suffix):
            _collect_matches(child, segments, depth + 1, found)
    if node.after_any is not None:
        for next_depth in range(depth + 1, min(depth + MAX_ANY_SEGMENTS, len(segments)) + 1):
            _collect_matches(node.after_any, segments, next_depth, found)
    found += node.wildcard_entries


def _collect_covering(
    node: _RouteNode[T], narrow: RoutePattern, depth: int, found: list[tuple[RoutePattern, T]]
) -> None:
    """Append to `found` the entries below this node whose path may match everything that the narrow pattern matches.

    `depth` is the number of segments on the path to this node.
    """
    if depth == len(narrow.segments):
        found += node.wildcard_entries if narrow.has_wildcard else node.exact_entries
        return
    segment = narrow.segments[depth]
    if segment == ANY_SEGMENTS and node.after_any is not None:
        _collect_covering(node.after_any, narrow, depth + 1, found)
    if (child := node.by_literal.get(segment)) is not None:
        _collect_covering(child, narrow, depth + 1, found)
    for suffix, child in node.by_suffix.items():
        if _suffix_covers(suffix, segment):
            _collect_covering(child, narrow, depth + 1, found)
    found += node.wildcard_entries
