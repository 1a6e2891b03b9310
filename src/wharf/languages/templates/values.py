"""Values that a template handles: nothing, truths, numbers, texts, lists and maps; and two that know more of
themselves. A field is a key of a map, never an attribute of an object, so a template reaches nothing else."""

import difflib
from collections.abc import Mapping
from typing import Any, Final

from wharf.languages.templates.errors import EvaluationError

NO_VALUE_TEXT: Final = "<no value>"


class RecordFields(dict[str, Any]):  # What a record holds is of any kind.
    """A record with all of its names: one that is missing is a mistake, not nothing."""


class VariableEntry(str):
    """One value of a variable: a text that knows its key."""

    __slots__ = ("key",)

    def __new__(cls, value: str, key: str) -> "VariableEntry":
        entry = super().__new__(cls, value)
        entry.key = key
        return entry

    key: str


class VariableEntries(dict[str, Any]):
    """The entries of a variable. `.Keys`, `.Values` and `.Tuples` list them, `.Metadata` tells of the variable."""

    def __init__(self, entries: Mapping[str, str], metadata: Mapping[str, Any]) -> None:
        super().__init__({key: VariableEntry(entries[key], key) for key in sorted(entries)})
        self.metadata = RecordFields(metadata)


def is_true(value: Any) -> bool:
    """Nothing, false, zero and whatever is empty are not true."""
    return bool(value)


def format_value(value: Any) -> str:
    """A value as text."""
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
            return "map[" + " ".join(f"{key}:{format_value(one)}" for key, one in sorted(value.items())) + "]"
        case _:
            return "[" + " ".join(format_value(one) for one in value) + "]"


def get_field(value: Any, name: str, *, is_strict: bool) -> Any:
    """Raises EvaluationError. Of a plain map a missing key is nothing, unless one is strict."""
    match value:
        case VariableEntry():
            fields = {"Key": value.key, "K": value.key, "Value": str(value), "V": str(value)}
            if name in fields:
                return fields[name]
        case VariableEntries() if name in ("Keys", "Values", "Tuples", "Metadata"):
            return _of_entries(value, name)
        case RecordFields():
            if name in value:
                return value[name]
            near = difflib.get_close_matches(name, list(value), n=1)
            raise EvaluationError(
                f"there is no field .{name}: "
                + (f"did you mean .{near[0]}?" if near else f"there are {', '.join(value)}")
            )
        case dict():
            if is_strict and name not in value:
                raise EvaluationError(f"there is no key {name}: there are {', '.join(map(str, value)) or 'none'}")
            return value.get(name)
        case None:
            if is_strict:
                raise EvaluationError(f".{name} is asked of nothing")
            return None
        case list():
            raise EvaluationError(f".{name} is asked of a list: {{{{range .}}}} goes over it")
    raise EvaluationError(f".{name} is asked of {format_value(value)[:40]}, which has no fields")


def _of_entries(entries: VariableEntries, name: str) -> Any:
    match name:
        case "Keys":
            return list(entries)
        case "Values":
            return [str(value) for value in entries.values()]
        case "Tuples":
            return [RecordFields(K=key, V=str(value)) for key, value in entries.items()]
        case _:
            return entries.metadata
