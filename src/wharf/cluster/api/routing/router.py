"""Routing from method and path to an endpoint. The cost does not grow with the number of routes.

A path is matched segment by segment in a tree. If an id may contain slashes, the end of the path decides: everything
before a known suffix is the id. A job named `a/plan` can therefore not be read; Nomad has the same limitation.
"""

from collections.abc import Iterable
from functools import cache
from typing import Final
from urllib.parse import unquote

import msgspec

from wharf.contract.wire.endpoint_table import ENDPOINTS, Endpoint

EndpointByMethod = dict[str, Endpoint]

MAX_SUFFIX_SEGMENTS: Final = 3
"""Maximum number of segments in the suffix after an id that may contain slashes."""


class RouteMatch(msgspec.Struct, frozen=True):
    """What a path leads to: its endpoints by method, and the values of the named parts of the path."""

    methods: EndpointByMethod
    """Empty if the path has no endpoint."""
    path_values: dict[str, str]
    is_id_prefix: bool = False
    """Whether the path has no endpoint, but has one with `/<id>` appended."""
    is_missing_id: bool = False
    """Whether the path has no endpoint because its id is empty."""


NO_MATCH: Final = RouteMatch({}, {})
ID_PREFIX_MATCH: Final = RouteMatch({}, {}, is_id_prefix=True)
MISSING_ID_MATCH: Final = RouteMatch({}, {}, is_missing_id=True)


class _Suffix:
    """The end of a path after an id that may contain slashes, such as `plan` in `/v1/job/{job_id...}/plan`.

    A named part in it, such as `{tag}`, matches any segment.
    """

    __slots__ = ("methods", "names", "segments")

    def __init__(self, segments: tuple[str, ...]) -> None:
        self.segments = segments
        self.names = tuple(segment[1:-1] if segment.startswith("{") else "" for segment in segments)
        self.methods: EndpointByMethod = {}

    def values(self, segments: list[str]) -> dict[str, str] | None:
        """Return the values of the named parts of this suffix, or `None` if the segments do not match it."""
        values = {}
        for segment, name, part in zip(self.segments, self.names, segments, strict=True):
            if name and part:
                values[name] = unquote(part)
            elif segment != part:
                return None
        return values


class _PathNode:
    """A node of the routing tree: the endpoints of one path, and the paths that continue it."""

    __slots__ = ("long_name", "methods", "named", "named_suffixes", "segments", "short_name", "suffixes")

    def __init__(self) -> None:
        self.methods: EndpointByMethod = {}
        self.segments: dict[str, _PathNode] = {}
        self.named: _PathNode | None = None
        """The node after an id of one segment."""
        self.short_name = ""
        """The name of an id of one segment."""
        self.long_name = ""
        """The name of an id that may contain slashes."""
        self.suffixes: dict[tuple[str, ...], _Suffix] = {}
        self.named_suffixes: dict[int, list[_Suffix]] = {}
        """Suffixes with named parts, by their number of segments."""


class Router:
    """Finds the endpoints of a path, in a tree with one level for each path segment."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._root = _PathNode()
        for endpoint in endpoints:
            self._add(endpoint)

    def _add(self, endpoint: Endpoint) -> None:
        """Add an endpoint to the tree. A PUT endpoint is also added for POST, unless it allows only PUT."""
        node = self._root
        segments = endpoint.path.split("/")[1:]
        methods: EndpointByMethod | None = None
        for position, segment in enumerate(segments):
            if segment.endswith("...}"):
                name = segment[1:-4]
                assert node.long_name in ("", name), f"two names for one path position: {node.long_name} and {name}"
                assert node.named is None, (
                    f"{endpoint.path}: an id of one segment and an id with slashes at one position"
                )
                node.long_name = name
                methods = _get_or_add_suffix(node, tuple(segments[position + 1 :])).methods
                break
            if segment.startswith("{"):
                if node.named is None:
                    node.named = _PathNode()
                name = segment[1:-1]
                assert node.short_name in ("", name), f"two names for one path position: {node.short_name} and {name}"
                node.short_name = name
                node = node.named
            else:
                node = node.segments.setdefault(segment, _PathNode())
        if methods is None:
            methods = node.methods
        both = endpoint.method == "PUT" and not endpoint.is_put_only
        for method in ("PUT", "POST") if both else (endpoint.method,):
            # An endpoint declared as POST takes precedence over the POST alias of a PUT endpoint.
            existing = methods.get(method)
            assert existing is None or existing.method != endpoint.method, f"{endpoint.name}: declared twice"
            if method == endpoint.method or existing is None:
                methods[method] = endpoint

    def find_route(self, raw_path: str) -> RouteMatch:
        """Return the endpoints and path values of a path.

        `raw_path` is still percent-encoded, so that an encoded slash does not split an id of one segment.
        """
        node = self._root
        segments = raw_path.split("/")[1:]
        values: dict[str, str] = {}
        for position, segment in enumerate(segments):
            child = node.segments.get(segment)
            if child is None and node.suffixes:
                return _match_suffix(node, segments[position:], values)
            if child is None and node.named is not None:
                if not segment:
                    return MISSING_ID_MATCH if position == len(segments) - 1 else NO_MATCH
                values[node.short_name] = unquote(segment)
                child = node.named
            if child is None:
                return NO_MATCH
            node = child
        if not node.methods and (node.named is not None or node.suffixes):
            return ID_PREFIX_MATCH
        return RouteMatch(node.methods, values)


@cache
def get_api_router() -> Router:
    """Return the router of all endpoints, which does not change."""
    return Router(ENDPOINTS)


def _get_or_add_suffix(node: _PathNode, segments: tuple[str, ...]) -> _Suffix:
    """Return the path suffix of these segments, such as `("plan",)` for `/v1/job/{job_id...}/plan`. Create it if needed.

    A suffix is the end of a path after an id that may contain slashes. `node` is the place of that id in the routing tree.
    """
    assert len(segments) <= MAX_SUFFIX_SEGMENTS, f"a suffix of {len(segments)} segments: raise MAX_SUFFIX_SEGMENTS"
    suffix = node.suffixes.get(segments)
    if suffix is None:
        suffix = node.suffixes[segments] = _Suffix(segments)
        if any(suffix.names):
            node.named_suffixes.setdefault(len(segments), []).append(suffix)
    return suffix


def _match_suffix(node: _PathNode, segments: list[str], values: dict[str, str]) -> RouteMatch:
    """Return the match of segments that begin with an id that may contain slashes.

    The longest known suffix wins; the segments before it are the id. `values`: path values that were matched before.
    """
    if not any(segments):
        return MISSING_ID_MATCH
    for length in range(min(MAX_SUFFIX_SEGMENTS, len(segments) - 1), -1, -1):
        cut = len(segments) - length
        tail = segments[cut:]
        exact = node.suffixes.get(tuple(tail))
        for suffix in (*((exact,) if exact else ()), *node.named_suffixes.get(length, ())):
            named = suffix.values(tail)
            if named is not None and any(segments[:cut]):
                return RouteMatch(
                    suffix.methods, {**values, node.long_name: unquote("/".join(segments[:cut])), **named}
                )
    return NO_MATCH
