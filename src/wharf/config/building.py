"""From a merged tree to settings: every unknown key and every wrong type is found in one pass."""

import difflib
import enum
import json
from collections.abc import Iterable
from typing import Any, Final, get_args, get_origin

import msgspec

from wharf.config.left_out import REASONS
from wharf.config.problems import Problem
from wharf.config.schema import all_fields, fields_of, is_section, say_type
from wharf.config.settings import Settings
from wharf.config.tree import Leaf, Origin, Path, Plain, Scalar, Tree
from wharf.model.setting import About, Duration, Secret, Size

_MISSING: Final = object()
"""Stands for a value that could not be built; the problem is in the list."""

_NO_ABOUT: Final = About("")


class Builder:
    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.origins: dict[Path, Origin] = {}
        """Of every leaf that was given; the others have their defaults."""

    def build(self, tree: Tree) -> Settings | None:
        """None when there are problems."""
        built = self._section(Settings, tree, ())
        return built if isinstance(built, Settings) and not self.problems else None

    def _section(self, section: type[msgspec.Struct], tree: Tree, path: Path) -> object:
        fields = fields_of(section)
        values: dict[str, object] = {}
        for key, node in tree.children.items():
            inner = (*path, key)
            if key in fields:
                value = self._value(fields[key].type, node, inner, fields[key].about)
                if value is not _MISSING:
                    values[key] = value
            else:
                what = say_unknown(inner, fields)
                self.problems.append(Problem(node.origin.place, say_path(inner), what))
        return section(**values)

    def _value(self, kind: Any, node: Tree | Leaf, path: Path, about: About) -> object:
        if is_section(kind):
            if isinstance(node, Tree):
                return self._section(kind, node, path)
        elif get_origin(kind) is dict:
            if isinstance(node, Tree):
                inner = get_args(kind)[1]
                children = {k: self._value(inner, n, (*path, k), _NO_ABOUT) for k, n in node.children.items()}
                return {key: value for key, value in children.items() if value is not _MISSING}
        elif isinstance(node, Leaf):
            return self._leaf(kind, node, path, about)
        given = "a table" if isinstance(node, Tree) else say_given(node.value)
        return self._refuse(node, path, f"expected {say_type(kind)}, given {given}")

    def _leaf(self, kind: Any, leaf: Leaf, path: Path, about: About) -> object:
        try:
            value = read_scalar(kind, leaf.value)
        except ValueError:
            given = "a text that is none" if kind is Secret else say_given(leaf.value)
            return self._refuse(
                leaf, path, f"expected {say_type(kind)}, given {given}{_nearest_value(kind, leaf.value)}"
            )
        if isinstance(value, int | float) and not isinstance(value, bool):
            if about.least is not None and value < about.least:
                return self._refuse(leaf, path, f"expected {about.least} or more, given {value}")
            if about.most is not None and value > about.most:
                return self._refuse(leaf, path, f"expected {about.most} or less, given {value}")
        self.origins[path] = leaf.origin
        return value

    def _refuse(self, node: Tree | Leaf, path: Path, what: str) -> object:
        self.problems.append(Problem(node.origin.place, say_path(path), what))
        return _MISSING


def read_scalar(kind: Any, value: Scalar | list[Plain]) -> object:
    """A value of the type, from what files hold. Raises ValueError."""
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise ValueError("no list")
        return tuple(read_scalar(get_args(kind)[0], _scalar(item)) for item in value)
    if isinstance(value, bool) or value is None or isinstance(value, list):
        if kind is bool and isinstance(value, bool):
            return value
        raise ValueError("of another type")
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(value.lower() if isinstance(value, str) else value)
    if kind in (Duration, Size):
        if kind is Size and isinstance(value, int) and value >= 0:
            return Size(value)
        if isinstance(value, str):
            return kind.parse(value)
    elif kind is Secret and isinstance(value, str):
        return Secret(value)
    elif kind is float and isinstance(value, int | float):
        return float(value)
    elif kind in (str, int) and isinstance(value, kind):
        return value
    raise ValueError("of another type")


def _scalar(value: Plain) -> Scalar | list[Plain]:
    if isinstance(value, dict):
        raise ValueError("a table in a list")
    return value


def say_path(path: Path) -> str:
    return ".".join(key if key.replace("_", "").replace("-", "").isalnum() else json.dumps(key) for key in path)


def say_given(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f"the text {json.dumps(value, ensure_ascii=False)}"
        case list():
            return "a list"
        case int() | float():
            return f"the number {value}"
        case _:  # Dates and times, which TOML has and no setting takes.
            return f"the date or time {value}"


def say_unknown(path: Path, known: Iterable[str]) -> str:
    reason = REASONS.get(path)
    if reason is not None:
        return f"there is no such setting here; {reason}"
    return f"there is no such setting{_nearest_key(path, known)}"


def _nearest_key(path: Path, known: Iterable[str]) -> str:
    """The nearest key of the same table; else the key of the same name, or the nearest path, somewhere else."""
    names = list(known)
    near = difflib.get_close_matches(path[-1], names, n=1, cutoff=0.7)
    if near:
        return f"; did you mean {say_path((*path[:-1], near[0]))}?"
    elsewhere = {say_path(inner): inner for inner, _ in all_fields()}
    same = sorted((text for text, inner in elsewhere.items() if inner[-1] == path[-1]), key=len)
    near = same[:1] or difflib.get_close_matches(say_path(path), list(elsewhere), n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]}?"
    if len(path) > 1:
        return f"; {say_path(path[:-1])} has {', '.join(names)}"
    return "; docs/configuration.md lists all"


def _nearest_value(kind: Any, value: object) -> str:
    if not (isinstance(kind, type) and issubclass(kind, enum.Enum) and isinstance(value, str)):
        return ""
    near = difflib.get_close_matches(value.lower(), [str(member.value) for member in kind], n=1)
    return f'; did you mean "{near[0]}"?' if near else ""
