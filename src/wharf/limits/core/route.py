"""Patterns of method and path, and the name of the endpoint that a request goes to.

A pattern is `METHOD /path`: methods separated by commas, or `*`; a segment is text, `{name}`, or a `{name}` with text
after it (`{repository}.git`); a last segment `*` stands for one or more segments. `GET` matches HEAD too, as it is the
same work. This module knows nothing of rules.
"""

import re
from collections.abc import Sequence
from typing import Final, Generic, TypeVar

import msgspec

from wharf.limits.core.rule import READ_METHODS

T = TypeVar("T")

KNOWN_METHODS: Final = READ_METHODS | {"POST", "PUT", "PATCH", "DELETE"}
OTHER: Final = "other"

_PATTERN: Final = re.compile(r"(\*|[A-Z]+(?:,[A-Z]+)*) (/\S*)")
_SEGMENT: Final = re.compile(r"(\{[a-z_]+\})?([^{}*]*)")
# Segments that name one thing among many: numbers, hashes, UUIDs.
_NAMES_ONE: Final = re.compile(
    r"\d+|(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{7,}|[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}|[a-fA-F]{7,}"
)
_UNRESERVED_ESCAPE: Final = re.compile(r"%(2[dDeE]|3[0-9]|4[1-9a-fA-F]|5[0-9aAfF]|6[1-9a-fA-F]|7[0-9aAeE])")
_NEEDS_TIDYING: Final = re.compile(r"%|//|/\.|[?#]|.+/$")


class BadPattern(ValueError):
    """A pattern that cannot be read, with what a right one looks like."""


class RoutePattern(msgspec.Struct, frozen=True):
    text: str
    methods: frozenset[str]
    """Empty for all."""
    segments: tuple[str, ...]
    has_wildcard: bool

    @property
    def is_template(self) -> bool:
        """Whether it names one endpoint, and so is the name that its requests are counted under."""
        return not self.has_wildcard and bool(self.methods)

    def matches_method(self, method: str) -> bool:
        return not self.methods or method in self.methods or (method == "HEAD" and "GET" in self.methods)

    def matches_path(self, segments: Sequence[str]) -> bool:
        if self.has_wildcard:
            if len(segments) <= len(self.segments):
                return False
        elif len(segments) != len(self.segments):
            return False
        return all(_fits(wanted, given) for wanted, given in zip(self.segments, segments, strict=False))

    def covers(self, other: "RoutePattern") -> bool:
        """Whether every request that the other matches is matched by this one."""
        if self.methods and not (other.methods and all(self.matches_method(method) for method in other.methods)):
            return False
        if other.has_wildcard and not self.has_wildcard:
            return False
        longer = len(other.segments) + other.has_wildcard
        if (longer <= len(self.segments)) if self.has_wildcard else (longer != len(self.segments)):
            return False
        if len(other.segments) < len(self.segments):
            return False
        return all(_covers(mine, theirs) for mine, theirs in zip(self.segments, other.segments, strict=False))


def _fits(wanted: str, given: str) -> bool:
    if not wanted.startswith("{"):
        return wanted == given
    after = wanted.partition("}")[2]
    return given.endswith(after) and len(given) > len(after)


def _covers(mine: str, theirs: str) -> bool:
    return mine == theirs if not mine.startswith("{") else _takes(mine.partition("}")[2], theirs)


def _takes(after: str, segment: str) -> bool:
    """Whether a value with this text after it may be all that a segment of a pattern may be."""
    return segment.endswith(after) and (segment.startswith("{") or len(segment) > len(after))


def parse_pattern(text: str) -> RoutePattern:
    found = _PATTERN.fullmatch(text)
    if found is None:
        raise BadPattern(
            f"{text!r} is no pattern: write a method and a path, such as 'GET /search/*' or '* /files/{{id}}'"
        )
    methods, path = found.groups()
    segments = split_path(path)
    takes_rest = bool(segments) and segments[-1] == "*"
    plain = segments[:-1] if takes_rest else segments
    for segment in plain:
        if not segment or _SEGMENT.fullmatch(segment) is None:
            raise BadPattern(
                f"{text!r}: the segment {segment!r} is neither text nor '{{name}}'; '*' stands only at the end of a path"
            )
    return RoutePattern(text, frozenset() if methods == "*" else frozenset(methods.split(",")), plain, takes_rest)


def split_path(path: str) -> tuple[str, ...]:
    return tuple(path[1:].split("/")) if len(path) > 1 else ()


def normalize_path(path: str) -> str:
    """The path as a service will read it: no query, no escapes that hide letters, no empty or dot segments."""
    if _NEEDS_TIDYING.search(path) is None:
        return path
    bare = path.partition("?")[0].partition("#")[0]
    bare = _UNRESERVED_ESCAPE.sub(lambda found: chr(int(found[1], 16)), bare)
    kept: list[str] = []
    for segment in bare.split("/"):
        if segment == "..":
            del kept[-1:]
        elif segment not in ("", "."):
            kept.append(segment)
    return "/" + "/".join(kept)


def derive_endpoint_name(method: str, path: str) -> str:
    """The name of an endpoint that no template names: what stands for one thing among many is replaced."""
    segments = ("*" if _NAMES_ONE.fullmatch(segment) else segment for segment in split_path(path))
    return f"{method if method in KNOWN_METHODS else OTHER} /{'/'.join(segments)}"


class _Branch(Generic[T]):
    __slots__ = ("by_text", "by_value", "ends", "rests")

    def __init__(self) -> None:
        self.by_text: dict[str, _Branch[T]] = {}
        self.by_value: dict[str, _Branch[T]] = {}  # `{}` and what stands after it.
        self.ends: list[tuple[RoutePattern, T]] = []
        self.rests: list[tuple[RoutePattern, T]] = []


class RouteTree(Generic[T]):
    """Patterns as a tree by segment, so that finding all that match costs by the path's length, not by their number."""

    def __init__(self) -> None:
        self._root: _Branch[T] = _Branch()

    def add(self, pattern: RoutePattern, value: T) -> None:
        branch = self._root
        for segment in pattern.segments:
            is_value = segment.startswith("{")
            branches = branch.by_value if is_value else branch.by_text
            branch = branches.setdefault(segment.partition("}")[2] if is_value else segment, _Branch())
        (branch.rests if pattern.has_wildcard else branch.ends).append((pattern, value))

    def find_matches(self, method: str, path: str) -> list[tuple[RoutePattern, T]]:
        """All patterns that match, the most specific first: text before `{name}`, whole paths before `*`."""
        found: list[tuple[RoutePattern, T]] = []
        _walk(self._root, split_path(path), 0, found)
        return [pair for pair in found if pair[0].matches_method(method)]

    def find_covering(self, narrow: RoutePattern) -> list[T]:
        """The values of all patterns that match whatever the narrow one matches."""
        found: list[tuple[RoutePattern, T]] = []
        _walk_covering(self._root, narrow, 0, found)
        return [value for pattern, value in found if pattern.covers(narrow)]


def _walk(branch: _Branch[T], segments: Sequence[str], depth: int, found: list[tuple[RoutePattern, T]]) -> None:
    if depth == len(segments):
        found += branch.ends
        return
    segment = segments[depth]
    if (exact := branch.by_text.get(segment)) is not None:
        _walk(exact, segments, depth + 1, found)
    for after, inner in branch.by_value.items():
        if segment.endswith(after) and len(segment) > len(after):
            _walk(inner, segments, depth + 1, found)
    found += branch.rests


def _walk_covering(branch: _Branch[T], narrow: RoutePattern, depth: int, found: list[tuple[RoutePattern, T]]) -> None:
    if depth == len(narrow.segments):
        found += branch.rests if narrow.has_wildcard else branch.ends
        return
    segment = narrow.segments[depth]
    if (exact := branch.by_text.get(segment)) is not None:
        _walk_covering(exact, narrow, depth + 1, found)
    for after, inner in branch.by_value.items():
        if _takes(after, segment):
            _walk_covering(inner, narrow, depth + 1, found)
    found += branch.rests
