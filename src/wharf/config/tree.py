"""Values with the places they came from, as a tree of tables, and how several trees become one.

Later wins. Tables merge key by key. Lists that several files give are joined, without repeating what is in them
already; a list from the environment or a flag replaces them all.
"""

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

Scalar = str | int | float | bool | None
PlainValue = Scalar | list["PlainValue"] | dict[str, "PlainValue"]
"""What a file may hold, before anything is known about its keys."""

KeyPath = tuple[str, ...]


class OriginKind(enum.StrEnum):
    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


class ValueOrigin(msgspec.Struct, frozen=True):
    """Where a value came from."""

    kind: OriginKind
    location: str = ""
    """`wharf.toml:12`, `WHARF_CONFIG__PORTS__HTTP`, `--port`; of a joined list, all of them."""

    def __str__(self) -> str:
        return self.location or self.kind.value


DEFAULT_ORIGIN: Final = ValueOrigin(OriginKind.DEFAULT)


class SettingLeaf(msgspec.Struct, frozen=True):
    value: Scalar | list[PlainValue]
    origin: ValueOrigin


class SettingTree(msgspec.Struct, frozen=True):
    """A table. Its own origin is where it begins."""

    children: Mapping[str, "SettingTree | SettingLeaf"]
    origin: ValueOrigin


def merge_trees(earlier: SettingTree, later: SettingTree) -> SettingTree:
    children = dict(earlier.children)
    for key, node in later.children.items():
        children[key] = _merge_node(children[key], node) if key in children else node
    return SettingTree(children, later.origin)


def _merge_node(earlier: SettingTree | SettingLeaf, later: SettingTree | SettingLeaf) -> SettingTree | SettingLeaf:
    if isinstance(earlier, SettingTree) and isinstance(later, SettingTree):
        return merge_trees(earlier, later)
    if isinstance(earlier, SettingLeaf) and isinstance(later, SettingLeaf) and _join(earlier, later):
        assert isinstance(earlier.value, list)
        assert isinstance(later.value, list)
        added = [value for value in later.value if value not in earlier.value]
        places = f"{earlier.origin.location}, {later.origin.location}"
        return SettingLeaf([*earlier.value, *added], ValueOrigin(OriginKind.FILE, places))
    return later


def _join(earlier: SettingLeaf, later: SettingLeaf) -> bool:
    both_are_lists = isinstance(earlier.value, list) and isinstance(later.value, list)
    return both_are_lists and earlier.origin.kind is later.origin.kind is OriginKind.FILE
