"""Values with the places they came from, as a tree of tables, and how several trees become one.

Later wins. Tables merge key by key. Lists that several files give are joined, without repeating what is in them
already; a list from the environment or a flag replaces them all.
"""

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

Scalar = str | int | float | bool | None
Plain = Scalar | list["Plain"] | dict[str, "Plain"]
"""What a file may hold, before anything is known about its keys."""

Path = tuple[str, ...]


class Source(enum.StrEnum):
    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


class Origin(msgspec.Struct, frozen=True):
    """Where a value came from."""

    source: Source
    place: str = ""
    """`wharf.toml:12`, `WHARF_CONFIG__PORTS__HTTP`, `--port`; of a joined list, all of them."""

    def __str__(self) -> str:
        return self.place or self.source.value


DEFAULT: Final = Origin(Source.DEFAULT)


class Leaf(msgspec.Struct, frozen=True):
    value: Scalar | list[Plain]
    origin: Origin


class Tree(msgspec.Struct, frozen=True):
    """A table. Its own origin is where it begins."""

    children: Mapping[str, "Tree | Leaf"]
    origin: Origin


def merge(earlier: Tree, later: Tree) -> Tree:
    children = dict(earlier.children)
    for key, node in later.children.items():
        children[key] = _merge_node(children[key], node) if key in children else node
    return Tree(children, later.origin)


def _merge_node(earlier: Tree | Leaf, later: Tree | Leaf) -> Tree | Leaf:
    if isinstance(earlier, Tree) and isinstance(later, Tree):
        return merge(earlier, later)
    if isinstance(earlier, Leaf) and isinstance(later, Leaf) and _join(earlier, later):
        assert isinstance(earlier.value, list)
        assert isinstance(later.value, list)
        added = [value for value in later.value if value not in earlier.value]
        places = f"{earlier.origin.place}, {later.origin.place}"
        return Leaf([*earlier.value, *added], Origin(Source.FILE, places))
    return later


def _join(earlier: Leaf, later: Leaf) -> bool:
    both_are_lists = isinstance(earlier.value, list) and isinstance(later.value, list)
    return both_are_lists and earlier.origin.source is later.origin.source is Source.FILE
