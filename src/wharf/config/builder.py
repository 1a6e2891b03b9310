"""Builds settings from a merged tree, and collects every unknown key and every value of a wrong type in one pass."""

import enum
import json
from collections.abc import Iterable
from typing import Any, Final, get_args, get_origin

import msgspec

from wharf.config.errors import MAX_REPORTED_PROBLEMS, ConfigurationProblem
from wharf.config.foreign_keys import REASON_BY_FOREIGN_KEY
from wharf.config.schema import describe_type, get_fields, is_section, iterate_fields
from wharf.config.settings import AgentSettings
from wharf.config.tree import KeyPath, PlainValue, Scalar, SettingLeaf, SettingTree, ValueOrigin
from wharf.contract.model.settings import Duration, SecretText, SettingInfo, Size
from wharf.languages.suggestions import find_nearest_name

_INVALID: Final = object()
"""Returned instead of a value that is invalid. The problem has been added to the list."""

_NO_INFO: Final = SettingInfo("")


class SettingsBuilder:
    """Converts one tree to settings. `problems` lists what is wrong with it."""

    def __init__(self) -> None:
        self.problems: list[ConfigurationProblem] = []
        self.origins: dict[KeyPath, ValueOrigin] = {}
        """The origin of every value in the tree. Values without an origin are defaults."""

    def build(self, tree: SettingTree) -> AgentSettings | None:
        """Return the settings that the tree describes, or `None` if there are problems, which `problems` then lists."""
        settings = self._build_section(AgentSettings, tree, ())
        return settings if isinstance(settings, AgentSettings) and not self.problems else None

    def _build_section(self, section: type[msgspec.Struct], tree: SettingTree, path: KeyPath) -> object:
        """Return the settings of one table.

        Unknown keys and invalid values are added to the problems, and have their defaults here.
        """
        fields = get_fields(section)
        values: dict[str, object] = {}
        for key, node in tree.children.items():
            inner_path = (*path, key)
            if key in fields:
                value = self._build_value(fields[key].type, node, inner_path, fields[key].info)
                if value is not _INVALID:
                    values[key] = value
            else:
                has_hint = len(self.problems) < MAX_REPORTED_PROBLEMS
                message = describe_unknown_key(inner_path, fields) if has_hint else "there is no such setting"
                self.problems.append(ConfigurationProblem(node.origin.location, format_path(inner_path), message))
        return section(**values)

    def _build_value(self, kind: Any, node: SettingTree | SettingLeaf, path: KeyPath, info: SettingInfo) -> object:
        """Return the value of one key: a table of known keys, a map or a single value, whichever its type requires.

        Return `_INVALID` if the value has another type.
        """
        if is_section(kind):
            if isinstance(node, SettingTree):
                return self._build_section(kind, node, path)
        elif get_origin(kind) is dict:
            if isinstance(node, SettingTree):
                value_type = get_args(kind)[1]
                children = {
                    child_key: self._build_value(value_type, child, (*path, child_key), _NO_INFO)
                    for child_key, child in node.children.items()
                }
                return {key: value for key, value in children.items() if value is not _INVALID}
        elif isinstance(node, SettingLeaf):
            return self._build_leaf(kind, node, path, info)
        description = "a table" if isinstance(node, SettingTree) else describe_value(node.value)
        return self._add_problem(node, path, f"expected {describe_type(kind)}, given {description}")

    def _build_leaf(self, kind: Any, leaf: SettingLeaf, path: KeyPath, info: SettingInfo) -> object:
        """Convert a single value, check its limits, and record its origin.

        Return `_INVALID` and add a problem if it is invalid. The text of a problem never contains the value of a
        secret.
        """
        try:
            value = parse_scalar(kind, leaf.value)
        except ValueError:
            description = "a value of another type" if kind is SecretText else describe_value(leaf.value)
            return self._add_problem(
                leaf, path, f"expected {describe_type(kind)}, given {description}{_suggest_value(kind, leaf.value)}"
            )
        if isinstance(value, int | float) and not isinstance(value, bool):
            if info.min_value is not None and value < info.min_value:
                return self._add_problem(leaf, path, f"expected {info.min_value} or more, given {value}")
            if info.max_value is not None and value > info.max_value:
                return self._add_problem(leaf, path, f"expected {info.max_value} or less, given {value}")
        self.origins[path] = leaf.origin
        return value

    def _add_problem(self, node: SettingTree | SettingLeaf, path: KeyPath, message: str) -> object:
        """Add a problem to the list and return the marker of an invalid value."""
        self.problems.append(ConfigurationProblem(node.origin.location, format_path(path), message))
        return _INVALID


def parse_scalar(kind: Any, value: Scalar | list[PlainValue]) -> object:
    """Convert a value from a file, variable or flag to the type of its setting. Raises `ValueError`."""
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise ValueError("not a list")
        return tuple(parse_scalar(get_args(kind)[0], _require_scalar(item)) for item in value)
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


def _require_scalar(value: PlainValue) -> Scalar | list[PlainValue]:
    """Return an element of a list. Raises `ValueError` if it is a table."""
    if isinstance(value, dict):
        raise ValueError("a table in a list")
    return value


def format_path(path: KeyPath) -> str:
    """Return the keys joined by dots. Keys with special characters are quoted."""
    return ".".join(key if key.replace("_", "").replace("-", "").isalnum() else json.dumps(key) for key in path)


def describe_value(value: object) -> str:
    """Return type and text of a value, for error messages."""
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
        case _:  # TOML has dates and times, but no setting accepts them.
            return f"the date or time {value}"


def describe_unknown_key(path: KeyPath, known: Iterable[str]) -> str:
    """Return the error text for an unknown key: why it is not supported, or the key that was probably meant."""
    reason = REASON_BY_FOREIGN_KEY.get(path)
    if reason is not None:
        return f"there is no such setting here; {reason}"
    return f"there is no such setting{_suggest_key(path, known)}"


def _suggest_key(path: KeyPath, known: Iterable[str]) -> str:
    """Return a hint with the most similar key of the same table, or else a similar key of another table."""
    names = list(known)
    nearest = find_nearest_name(path[-1], names)
    if nearest:
        return f"; did you mean {format_path((*path[:-1], nearest))}?"
    # A table around the key is no suggestion: it exists already.
    path_by_text = {format_path(other): other for other, _ in iterate_fields() if other != path[: len(other)]}
    paths_by_key = sorted((text for text, other in path_by_text.items() if other[-1] == path[-1]), key=len)
    nearest = (
        paths_by_key[0] if paths_by_key else find_nearest_name(format_path(path), path_by_text, min_similarity=0.5)
    )
    if nearest:
        return f"; did you mean {nearest}?"
    if len(path) > 1:
        return f"; {format_path(path[:-1])} has {', '.join(names)}"
    return "; the documentation page Configuration lists all"


def _suggest_value(kind: Any, value: object) -> str:
    """Return a hint with the most similar value of an enum, or "" if there is none."""
    if not (isinstance(kind, type) and issubclass(kind, enum.Enum) and isinstance(value, str)):
        return ""
    nearest = find_nearest_name(value, [str(member.value) for member in kind])
    return f'; did you mean "{nearest}"?' if nearest else ""
