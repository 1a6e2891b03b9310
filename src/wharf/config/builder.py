"""From a merged tree to settings: every unknown key and every wrong type is found in one pass."""

import difflib
import enum
import json
from collections.abc import Iterable
from typing import Any, Final, get_args, get_origin

import msgspec

from wharf.config.errors import ConfigurationProblem
from wharf.config.foreign_keys import REASON_BY_FOREIGN_KEY
from wharf.config.schema import describe_type, get_fields, is_section, iterate_fields
from wharf.config.settings import AgentSettings
from wharf.config.tree import KeyPath, PlainValue, Scalar, SettingLeaf, SettingTree, ValueOrigin
from wharf.contract.model.settings import Duration, SecretText, SettingInfo, Size

_MISSING: Final = object()
"""Stands for a value that could not be built; the problem is in the list."""

_NO_ABOUT: Final = SettingInfo("")


class SettingsBuilder:
    def __init__(self) -> None:
        self.problems: list[ConfigurationProblem] = []
        self.origins: dict[KeyPath, ValueOrigin] = {}
        """Of every leaf that was given; the others have their defaults."""

    def build(self, tree: SettingTree) -> AgentSettings | None:
        """None when there are problems."""
        built = self._section(AgentSettings, tree, ())
        return built if isinstance(built, AgentSettings) and not self.problems else None

    def _section(self, section: type[msgspec.Struct], tree: SettingTree, path: KeyPath) -> object:
        fields = get_fields(section)
        values: dict[str, object] = {}
        for key, node in tree.children.items():
            inner = (*path, key)
            if key in fields:
                value = self._value(fields[key].type, node, inner, fields[key].about)
                if value is not _MISSING:
                    values[key] = value
            else:
                what = describe_unknown_key(inner, fields)
                self.problems.append(ConfigurationProblem(node.origin.location, format_path(inner), what))
        return section(**values)

    def _value(self, kind: Any, node: SettingTree | SettingLeaf, path: KeyPath, about: SettingInfo) -> object:
        if is_section(kind):
            if isinstance(node, SettingTree):
                return self._section(kind, node, path)
        elif get_origin(kind) is dict:
            if isinstance(node, SettingTree):
                inner = get_args(kind)[1]
                children = {k: self._value(inner, n, (*path, k), _NO_ABOUT) for k, n in node.children.items()}
                return {key: value for key, value in children.items() if value is not _MISSING}
        elif isinstance(node, SettingLeaf):
            return self._leaf(kind, node, path, about)
        given = "a table" if isinstance(node, SettingTree) else describe_value(node.value)
        return self._refuse(node, path, f"expected {describe_type(kind)}, given {given}")

    def _leaf(self, kind: Any, leaf: SettingLeaf, path: KeyPath, about: SettingInfo) -> object:
        try:
            value = parse_scalar(kind, leaf.value)
        except ValueError:
            given = "a text that is none" if kind is SecretText else describe_value(leaf.value)
            return self._refuse(
                leaf, path, f"expected {describe_type(kind)}, given {given}{_nearest_value(kind, leaf.value)}"
            )
        if isinstance(value, int | float) and not isinstance(value, bool):
            if about.min_value is not None and value < about.min_value:
                return self._refuse(leaf, path, f"expected {about.min_value} or more, given {value}")
            if about.max_value is not None and value > about.max_value:
                return self._refuse(leaf, path, f"expected {about.max_value} or less, given {value}")
        self.origins[path] = leaf.origin
        return value

    def _refuse(self, node: SettingTree | SettingLeaf, path: KeyPath, what: str) -> object:
        self.problems.append(ConfigurationProblem(node.origin.location, format_path(path), what))
        return _MISSING


def parse_scalar(kind: Any, value: Scalar | list[PlainValue]) -> object:
    """A value of the type, from what files hold. Raises ValueError."""
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise ValueError("no list")
        return tuple(parse_scalar(get_args(kind)[0], _scalar(item)) for item in value)
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
    elif kind is SecretText and isinstance(value, str):
        return SecretText(value)
    elif kind is float and isinstance(value, int | float):
        return float(value)
    elif kind in (str, int) and isinstance(value, kind):
        return value
    raise ValueError("of another type")


def _scalar(value: PlainValue) -> Scalar | list[PlainValue]:
    if isinstance(value, dict):
        raise ValueError("a table in a list")
    return value


def format_path(path: KeyPath) -> str:
    return ".".join(key if key.replace("_", "").replace("-", "").isalnum() else json.dumps(key) for key in path)


def describe_value(value: object) -> str:
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


def describe_unknown_key(path: KeyPath, known: Iterable[str]) -> str:
    reason = REASON_BY_FOREIGN_KEY.get(path)
    if reason is not None:
        return f"there is no such setting here; {reason}"
    return f"there is no such setting{_nearest_key(path, known)}"


def _nearest_key(path: KeyPath, known: Iterable[str]) -> str:
    """The nearest key of the same table; else the key of the same name, or the nearest path, somewhere else."""
    names = list(known)
    near = difflib.get_close_matches(path[-1], names, n=1, cutoff=0.7)
    if near:
        return f"; did you mean {format_path((*path[:-1], near[0]))}?"
    elsewhere = {format_path(inner): inner for inner, _ in iterate_fields()}
    same = sorted((text for text, inner in elsewhere.items() if inner[-1] == path[-1]), key=len)
    near = same[:1] or difflib.get_close_matches(format_path(path), list(elsewhere), n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]}?"
    if len(path) > 1:
        return f"; {format_path(path[:-1])} has {', '.join(names)}"
    return "; docs/configuration.md lists all"


def _nearest_value(kind: Any, value: object) -> str:
    if not (isinstance(kind, type) and issubclass(kind, enum.Enum) and isinstance(value, str)):
        return ""
    near = difflib.get_close_matches(value.lower(), [str(member.value) for member in kind], n=1)
    return f'; did you mean "{near[0]}"?' if near else ""
