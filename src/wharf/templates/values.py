"""Values that a template handles: nothing, truths, numbers, texts, lists and maps; and two that know more of
themselves. A field is a key of a map, never an attribute of an object, so a template reaches nothing else."""

import difflib
from collections.abc import Mapping
from typing import Any, Final

from wharf.templates.errors import Wrong

NOTHING: Final = "<no value>"


class Fields(dict[str, Any]):  # What a record holds is of any kind.
    """A record with all of its names: one that is missing is a mistake, not nothing."""


class Entry(str):
    """One value of a variable: a text that knows its key."""

    __slots__ = ("key",)

    def __new__(cls, value: str, key: str) -> "Entry":
        entry = super().__new__(cls, value)
        entry.key = key
        return entry

    key: str


class Entries(dict[str, Any]):
    """The entries of a variable. `.Keys`, `.Values` and `.Tuples` list them, `.Metadata` tells of the variable."""

    def __init__(self, entries: Mapping[str, str], metadata: Mapping[str, Any]) -> None:
        super().__init__({key: Entry(entries[key], key) for key in sorted(entries)})
        self.metadata = Fields(metadata)


def is_true(value: Any) -> bool:
    """Nothing, false, zero and whatever is empty are not true."""
    return bool(value)


def shown(value: Any) -> str:
    """A value as text."""
    match value:
        case None:
            return NOTHING
        case bool():
            return "true" if value else "false"
        case str() | int():
            return str(value)
        case float():
            return str(int(value)) if value.is_integer() and abs(value) < 1e21 else f"{value:g}"
        case dict():
            return "map[" + " ".join(f"{key}:{shown(one)}" for key, one in sorted(value.items())) + "]"
        case _:
            return "[" + " ".join(shown(one) for one in value) + "]"


def field_of(value: Any, name: str, *, is_strict: bool) -> Any:
    """Raises Wrong. Of a plain map a missing key is nothing, unless one is strict."""
    match value:
        case Entry():
            fields = {"Key": value.key, "K": value.key, "Value": str(value), "V": str(value)}
            if name in fields:
                return fields[name]
        case Entries() if name in ("Keys", "Values", "Tuples", "Metadata"):
            return _of_entries(value, name)
        case Fields():
            if name in value:
                return value[name]
            near = difflib.get_close_matches(name, list(value), n=1)
            raise Wrong(
                f"there is no field .{name}: "
                + (f"did you mean .{near[0]}?" if near else f"there are {', '.join(value)}")
            )
        case dict():
            if is_strict and name not in value:
                raise Wrong(f"there is no key {name}: there are {', '.join(map(str, value)) or 'none'}")
            return value.get(name)
        case None:
            if is_strict:
                raise Wrong(f".{name} is asked of nothing")
            return None
        case list():
            raise Wrong(f".{name} is asked of a list: {{{{range .}}}} goes over it")
    raise Wrong(f".{name} is asked of {shown(value)[:40]}, which has no fields")


def _of_entries(entries: Entries, name: str) -> Any:
    match name:
        case "Keys":
            return list(entries)
        case "Values":
            return [str(value) for value in entries.values()]
        case "Tuples":
            return [Fields(K=key, V=str(value)) for key, value in entries.items()]
        case _:
            return entries.metadata
