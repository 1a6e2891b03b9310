"""From method and path to an endpoint, at the same cost for one route or two hundred.

A path is looked up segment by segment in a tree. Where an id may hold slashes, the end of the path decides: whatever
stands before a known ending is the id (so a job named `a/plan` cannot be read; the reference has the same gap).
"""

from collections.abc import Iterable
from urllib.parse import unquote

import msgspec

from wharf.wire.endpoints import Endpoint

Methods = dict[str, Endpoint]


class Routed(msgspec.Struct, frozen=True):
    """`methods` is empty where no such path exists."""

    methods: Methods
    values: dict[str, str]


NOWHERE = Routed({}, {})


class _Node:
    __slots__ = ("endings", "long_name", "methods", "named", "segments", "short_name")

    def __init__(self) -> None:
        self.methods: Methods = {}
        self.segments: dict[str, _Node] = {}
        self.named: _Node | None = None
        self.short_name = ""
        self.long_name = ""
        self.endings: dict[tuple[str, ...], Methods] = {}


class Router:
    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._root = _Node()
        for endpoint in endpoints:
            self._add(endpoint)

    def _add(self, endpoint: Endpoint) -> None:
        node = self._root
        segments = endpoint.path.split("/")[1:]
        methods: Methods | None = None
        for position, segment in enumerate(segments):
            if segment.endswith("...}"):
                name = segment[1:-4]
                assert node.long_name in ("", name), f"two names for one place: {node.long_name} and {name}"
                assert node.named is None, f"{endpoint.path}: an id of one segment and a long one in one place"
                node.long_name = name
                methods = node.endings.setdefault(tuple(segments[position + 1 :]), {})
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
        for method in ("PUT", "POST") if endpoint.method == "PUT" else (endpoint.method,):
            # A POST declared for itself goes before one that only stands for PUT.
            stands = methods.get(method)
            assert stands is None or stands.method != endpoint.method, f"{endpoint.name}: declared twice"
            if method == endpoint.method or stands is None:
                methods[method] = endpoint

    def find(self, raw_path: str) -> Routed:
        """`raw_path` is still percent-encoded, so that an encoded slash is no separator of a short id."""
        node = self._root
        segments = raw_path.split("/")[1:]
        values: dict[str, str] = {}
        for position, segment in enumerate(segments):
            if node.endings:
                return self._long(node, segments[position:], values)
            inner = node.segments.get(segment)
            if inner is None and node.named is not None and segment:
                values[node.short_name] = unquote(segment)
                inner = node.named
            if inner is None:
                return NOWHERE
            node = inner
        return Routed(node.methods, values)

    @staticmethod
    def _long(node: _Node, segments: list[str], values: dict[str, str]) -> Routed:
        for length in range(min(3, len(segments) - 1), -1, -1):
            cut = len(segments) - length
            methods = node.endings.get(tuple(segments[cut:]))
            if methods is not None and any(segments[:cut]):
                return Routed(methods, {**values, node.long_name: unquote("/".join(segments[:cut]))})
        return NOWHERE
