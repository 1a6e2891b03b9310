"""Settings from the environment: WHARF_CONFIG__STATE__ETCD__PASSWORD is state.etcd.password.

Made for what does not belong in a file (secrets) and for containers. Lists are separated by commas.
"""

from collections.abc import Mapping
from typing import Any, Final, get_origin

from wharf.config.schema import find_field
from wharf.config.tree import KeyPath, OriginKind, PlainValue, Scalar, SettingLeaf, SettingTree, ValueOrigin

ENVIRONMENT_PREFIX: Final = "WHARF_CONFIG__"


def read_environment(environment: Mapping[str, str]) -> SettingTree:
    tree = SettingTree({}, ValueOrigin(OriginKind.ENVIRONMENT))
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX):
            path = tuple(name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__"))
            tree = with_leaf(
                tree, path, SettingLeaf(_read(path, environment[name]), ValueOrigin(OriginKind.ENVIRONMENT, name))
            )
    return tree


def with_leaf(tree: SettingTree, path: KeyPath, leaf: SettingLeaf) -> SettingTree:
    """The same tree with one leaf more. What stood where the leaf or a table on its way goes is replaced."""
    first, *rest = path
    if not rest:
        return SettingTree({**tree.children, first: leaf}, tree.origin)
    inner = tree.children.get(first)
    below = inner if isinstance(inner, SettingTree) else SettingTree({}, leaf.origin)
    return SettingTree({**tree.children, first: with_leaf(below, tuple(rest), leaf)}, tree.origin)


def _read(path: KeyPath, text: str) -> Scalar | list[PlainValue]:
    """The text as the type that is expected there; left a text where it is none, to be told apart later."""
    found = find_field(path)
    kind: Any = found[1] if found is not None else str
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
