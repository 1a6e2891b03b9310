"""From method and path to an endpoint, at the same cost for one route or two hundred.

A path is looked up segment by segment in a tree. Where an id may hold slashes, the end of the path decides: whatever
stands before a known ending is the id (so a job named `a/plan` cannot be read; the reference has the same gap).
"""

from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote

import msgspec

from wharf.contract.wire.endpoint_table import Endpoint

EndpointByMethod = dict[str, Endpoint]

MAX_SUFFIX_SEGMENTS: Final = 3
"""Segments of the longest ending after an id that may hold slashes."""


class RouteMatch(msgspec.Struct, frozen=True):
    """`methods` is empty where no such path exists; then `is_above` and `lacks_id` tell what is near: a path that goes
    on with an id, and one whose id is empty."""

    methods: EndpointByMethod
    path_values: dict[str, str]
    is_id_prefix: bool = False
    is_missing_id: bool = False


NO_MATCH: Final = RouteMatch({}, {})
ID_PREFIX_MATCH: Final = RouteMatch({}, {}, is_id_prefix=True)
MISSING_ID_MATCH: Final = RouteMatch({}, {}, is_missing_id=True)


class _Ending:
    """What may follow an id with slashes. A named part in it (`versions/{tag}/tag`) takes any segment."""

    __slots__ = ("methods", "names", "segments")

    def __init__(self, segments: tuple[str, ...]) -> None:
        self.segments = segments
        self.names = tuple(segment[1:-1] if segment.startswith("{") else "" for segment in segments)
        self.methods: EndpointByMethod = {}

    def values(self, given: list[str]) -> dict[str, str] | None:
        """The named parts; None where this is not the ending."""
        values = {}
        for segment, name, part in zip(self.segments, self.names, given, strict=True):
            if name and part:
                values[name] = unquote(part)
            elif segment != part:
                return None
        return values


class _Node:
    __slots__ = ("endings", "long_name", "methods", "named", "open_endings", "segments", "short_name")

    def __init__(self) -> None:
        self.methods: EndpointByMethod = {}
        self.segments: dict[str, _Node] = {}
        self.named: _Node | None = None
        self.short_name = ""
        self.long_name = ""
        self.endings: dict[tuple[str, ...], _Ending] = {}
        self.open_endings: dict[int, list[_Ending]] = {}
        """Those with named parts, by their length."""


class Router:
    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._root = _Node()
        for endpoint in endpoints:
            self._add(endpoint)

    def _add(self, endpoint: Endpoint) -> None:
        node = self._root
        segments = endpoint.path.split("/")[1:]
        methods: EndpointByMethod | None = None
        for position, segment in enumerate(segments):
            if segment.endswith("...}"):
                name = segment[1:-4]
                assert node.long_name in ("", name), f"two names for one place: {node.long_name} and {name}"
                assert node.named is None, f"{endpoint.path}: an id of one segment and a long one in one place"
                node.long_name = name
                methods = _ending_of(node, tuple(segments[position + 1 :])).methods
                break
            if segment.startswith("{"):
                if node.named is None:
                    node.named = _Node()
                name = segment[1:-1]
                assert node.short_name in ("", name), f"two names for one place: {node.short_name} and {name}"
                node.short_name = name
                node = node.named
            else:
                node = node.segments.setdefault(segment, _Node())
        if methods is None:
            methods = node.methods
        both = endpoint.method == "PUT" and not endpoint.is_put_only
        for method in ("PUT", "POST") if both else (endpoint.method,):
            # A POST declared for itself goes before one that only stands for PUT.
            stands = methods.get(method)
            assert stands is None or stands.method != endpoint.method, f"{endpoint.name}: declared twice"
            if method == endpoint.method or stands is None:
                methods[method] = endpoint

    def find_route(self, raw_path: str) -> RouteMatch:
        """`raw_path` is still percent-encoded, so that an encoded slash is no separator of a short id."""
        node = self._root
        segments = raw_path.split("/")[1:]
        values: dict[str, str] = {}
        for position, segment in enumerate(segments):
            inner = node.segments.get(segment)
            if inner is None and node.endings:
                return _long(node, segments[position:], values)
            if inner is None and node.named is not None:
                if not segment:
                    return MISSING_ID_MATCH if position == len(segments) - 1 else NO_MATCH
                values[node.short_name] = unquote(segment)
                inner = node.named
            if inner is None:
                return NO_MATCH
            node = inner
        if not node.methods and (node.named is not None or node.endings):
            return ID_PREFIX_MATCH
        return RouteMatch(node.methods, values)


def _ending_of(node: _Node, segments: tuple[str, ...]) -> _Ending:
    assert len(segments) <= MAX_SUFFIX_SEGMENTS, f"an ending of {len(segments)} segments: raise ENDING_MAX"
    ending = node.endings.get(segments)
    if ending is None:
        ending = node.endings[segments] = _Ending(segments)
        if any(ending.names):
            node.open_endings.setdefault(len(segments), []).append(ending)
    return ending


def _long(node: _Node, segments: list[str], values: dict[str, str]) -> RouteMatch:
    """The longest ending that fits, and the id before it."""
    if not any(segments):
        return MISSING_ID_MATCH
    for length in range(min(MAX_SUFFIX_SEGMENTS, len(segments) - 1), -1, -1):
        cut = len(segments) - length
        tail = segments[cut:]
        exact = node.endings.get(tuple(tail))
        for ending in (*((exact,) if exact else ()), *node.open_endings.get(length, ())):
            named = ending.values(tail)
            if named is not None and any(segments[:cut]):
                return RouteMatch(
                    ending.methods, {**values, node.long_name: unquote("/".join(segments[:cut])), **named}
                )
    return NO_MATCH
