"""Trees of values with their origins, and how several trees are merged.

Later values win. Tables are merged key by key. Lists from several files are joined without duplicates; a list from the
environment or a flag replaces them.
"""

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

Scalar = str | int | float | bool | None
PlainValue = Scalar | list["PlainValue"] | dict[str, "PlainValue"]
"""A value as parsed from a file, before it is checked against the settings."""

KeyPath = tuple[str, ...]
"""The keys from the root to a value: `("ports", "http")` is `ports.http`."""


class OriginKind(enum.StrEnum):
    """The kinds of sources of a value."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


class ValueOrigin(msgspec.Struct, frozen=True):
    """Where a value came from."""

    kind: OriginKind
    location: str = ""
    """`wharf.toml:12`, `WHARF_CONFIG__PORTS__HTTP` or `--port`; for a joined list, all locations."""

    def __str__(self) -> str:
        return self.location or self.kind.value


DEFAULT_ORIGIN: Final = ValueOrigin(OriginKind.DEFAULT)


class SettingLeaf(msgspec.Struct, frozen=True):
    """A single value with its origin."""

    value: Scalar | list[PlainValue]
    origin: ValueOrigin


class SettingTree(msgspec.Struct, frozen=True):
    """A table with its values and inner tables. Its origin is the location at which it begins."""

    children: Mapping[str, "SettingTree | SettingLeaf"]
    origin: ValueOrigin


def merge_trees(earlier: SettingTree, later: SettingTree) -> SettingTree:
    """Return a tree with the values of both; those of the later one win."""
    children = dict(earlier.children)
    for key, node in later.children.items():
        children[key] = _merge_node(children[key], node) if key in children else node
    return SettingTree(children, later.origin)


def _merge_node(earlier: SettingTree | SettingLeaf, later: SettingTree | SettingLeaf) -> SettingTree | SettingLeaf:
    """Merge two tables, join two lists from files, or return the later node."""
    if isinstance(earlier, SettingTree) and isinstance(later, SettingTree):
        return merge_trees(earlier, later)
    if isinstance(earlier, SettingLeaf) and isinstance(later, SettingLeaf) and _should_join(earlier, later):
        assert isinstance(earlier.value, list)
        assert isinstance(later.value, list)
        added_values = [value for value in later.value if value not in earlier.value]
        locations = f"{earlier.origin.location}, {later.origin.location}"
        return SettingLeaf([*earlier.value, *added_values], ValueOrigin(OriginKind.FILE, locations))
    return later


def _should_join(earlier: SettingLeaf, later: SettingLeaf) -> bool:
    """Return whether both values are lists from files."""
    both_are_lists = isinstance(earlier.value, list) and isinstance(later.value, list)
    return both_are_lists and earlier.origin.kind is later.origin.kind is OriginKind.FILE
