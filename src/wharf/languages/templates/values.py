"""The values of templates: null, booleans, numbers, texts, lists and maps, and special maps for records and variables.

A field is a key of a map, never an attribute of an object, so a template cannot access anything else.
"""

from collections.abc import Mapping
from typing import Any, Final

from wharf.languages.suggestions import find_nearest_name
from wharf.languages.templates.errors import EvaluationError

NO_VALUE_TEXT: Final = "<no value>"


class RecordFields(dict[str, Any]):
    """A record with all of its fields. To read a field that it does not have is an error."""


class VariableEntry(str):
    """One value of a variable: a text that also stores its key."""

    __slots__ = ("key",)

    def __new__(cls, value: str, key: str) -> "VariableEntry":
        entry = super().__new__(cls, value)
        entry.key = key
        return entry

    key: str


class VariableEntries(dict[str, Any]):
    """The entries of a variable. `.Keys`, `.Values` and `.Tuples` list them; `.Metadata` describes the variable."""

    def __init__(self, entries: Mapping[str, str], metadata: Mapping[str, Any]) -> None:
        super().__init__({key: VariableEntry(entries[key], key) for key in sorted(entries)})
        self.metadata = RecordFields(metadata)


def is_true(value: Any) -> bool:
    """Return whether a condition with this value holds: null, false, zero and empty values are false."""
    return bool(value)


def format_value(value: Any) -> str:
    """Return a value as text, in the notation that Go's templates use for lists and maps."""
    match value:
        case None:
            return NO_VALUE_TEXT
        case bool():
            return "true" if value else "false"
        case str() | int():
            return str(value)
        case float():
            return str(int(value)) if value.is_integer() and abs(value) < 1e21 else f"{value:g}"
        case dict():
            return "map[" + " ".join(f"{key}:{format_value(item)}" for key, item in sorted(value.items())) + "]"
        case _:
            return "[" + " ".join(format_value(item) for item in value) + "]"


def get_field(value: Any, name: str, *, is_strict: bool) -> Any:
    """Return a field of a value. Raises `EvaluationError` if it has no such field.

    A missing key of a plain map is null, unless `is_strict` is set.
    """
    match value:
        case VariableEntry():
            fields = {"Key": value.key, "K": value.key, "Value": str(value), "V": str(value)}
            if name in fields:
                return fields[name]
        case VariableEntries() if name in ("Keys", "Values", "Tuples", "Metadata"):
            return _get_entries_field(value, name)
        case RecordFields():
            if name in value:
                return value[name]
            nearest = find_nearest_name(name, value)
            raise EvaluationError(
                f"there is no field .{name}: "
                + (f"did you mean .{nearest}?" if nearest else f"the fields are {', '.join(value)}")
            )
        case dict():
            if is_strict and name not in value:
                raise EvaluationError(f"there is no key {name}: the keys are {', '.join(map(str, value)) or '(none)'}")
            return value.get(name)
        case None:
            if is_strict:
                raise EvaluationError(f"a null value has no field .{name}")
            return None
        case list():
            raise EvaluationError(f"a list has no field .{name}: use {{{{range .}}}} to visit its elements")
    raise EvaluationError(f"{format_value(value)[:40]} has no field .{name}")


def _get_entries_field(entries: VariableEntries, name: str) -> Any:
    """Return `.Keys`, `.Values`, `.Tuples` or `.Metadata` of a variable."""
    match name:
        case "Keys":
            return list(entries)
        case "Values":
            return [str(value) for value in entries.values()]
        case "Tuples":
            return [RecordFields(K=key, V=str(value)) for key, value in entries.items()]
        case _:
            return entries.metadata
