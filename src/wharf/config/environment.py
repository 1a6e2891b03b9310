"""Reads settings from environment variables: WHARF_CONFIG__STATE__ETCD__PASSWORD sets state.etcd.password.

Meant for secrets, which do not belong in a file, and for containers. Elements of lists are separated by commas.
"""

from collections.abc import Mapping
from typing import Any, Final, get_origin

from wharf.config.schema import find_field
from wharf.config.tree import KeyPath, OriginKind, PlainValue, Scalar, SettingLeaf, SettingTree, ValueOrigin

ENVIRONMENT_PREFIX: Final = "WHARF_CONFIG__"


def read_environment(environment: Mapping[str, str]) -> SettingTree:
    """Return the settings of all variables with the prefix. Other variables are ignored."""
    tree = SettingTree({}, ValueOrigin(OriginKind.ENVIRONMENT))
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX):
            path = tuple(name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__"))
            tree = with_leaf(
                tree, path, SettingLeaf(_parse_text(path, environment[name]), ValueOrigin(OriginKind.ENVIRONMENT, name))
            )
    return tree


def with_leaf(tree: SettingTree, path: KeyPath, leaf: SettingLeaf) -> SettingTree:
    """Return the tree with a leaf at this path. It replaces an existing value, also one in place of a table on the path."""
    first, *rest = path
    if not rest:
        return SettingTree({**tree.children, first: leaf}, tree.origin)
    child = tree.children.get(first)
    subtree = child if isinstance(child, SettingTree) else SettingTree({}, leaf.origin)
    return SettingTree({**tree.children, first: with_leaf(subtree, tuple(rest), leaf)}, tree.origin)


def _parse_text(path: KeyPath, text: str) -> Scalar | list[PlainValue]:
    """Convert the text to the type of the setting. A text that cannot be converted is kept, and reported later."""
    field_and_type = find_field(path)
    kind: Any = field_and_type[1] if field_and_type is not None else str
    if get_origin(kind) is tuple:
        return [part.strip() for part in text.split(",") if part.strip()]
    if kind is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        if kind is int:
            return int(text)
        if kind is float:
            return float(text)
    except ValueError:
        pass
    return text
