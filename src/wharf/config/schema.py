"""What settings there are: read from the structs that declare them, never written down a second time."""

import enum
import functools
from collections.abc import Iterator
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from wharf.config.settings import AgentSettings
from wharf.config.tree import KeyPath
from wharf.contract.model.settings import Duration, SecretText, SettingInfo, Size

ANY_NAME = "<name>"
"""Stands in a path for a key that people choose, such as the name of a volume."""


class SettingField(msgspec.Struct, frozen=True):
    """One key of a table."""

    key: str
    type: Any  # A type, as annotations give it: there is no narrower type for types with parameters.
    about: SettingInfo
    default: object

    @property
    def section_type(self) -> type[msgspec.Struct] | None:
        """The struct that declares what is inside, when this is a table of known keys."""
        return self.type if is_section(self.type) else None

    @property
    def map_value_type(self) -> Any:
        """The type of the values, when this is a table whose keys people choose."""
        return get_args(self.type)[1] if get_origin(self.type) is dict else None


_SCALARS: tuple[type, ...] = (Duration, Size, SecretText)


def is_section(candidate: object) -> bool:
    is_struct = isinstance(candidate, type) and issubclass(candidate, msgspec.Struct)
    return is_struct and candidate not in _SCALARS


@functools.cache
def get_fields(section: type[msgspec.Struct]) -> dict[str, SettingField]:
    """The keys of one table, in the order in which they are declared."""
    hints = get_type_hints(section, include_extras=True)
    found: dict[str, SettingField] = {}
    for declared in msgspec.structs.fields(section):
        hint = hints[declared.name]
        about = next((extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, SettingInfo)), None)
        assert about is not None, f"{section.__name__}.{declared.name} says nothing about itself"
        default = declared.default if declared.default is not msgspec.NODEFAULT else _made(declared.default_factory)
        found[declared.name] = SettingField(declared.encode_name, get_args(hint)[0], about, default)
    return found


def _made(factory: object) -> object:
    assert callable(factory), "every setting has a default"
    return factory()


def iterate_fields(
    section: type[msgspec.Struct] = AgentSettings, path: KeyPath = ()
) -> Iterator[tuple[KeyPath, SettingField]]:
    """Every key with its path, tables before what they hold."""
    for key, field in get_fields(section).items():
        yield (*path, key), field
        if field.section_type is not None:
            yield from iterate_fields(field.section_type, (*path, key))
        elif is_section(field.map_value_type):
            yield from iterate_fields(field.map_value_type, (*path, key, ANY_NAME))


def describe_type(kind: Any) -> str:
    """What is expected, for people."""
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return "one of " + ", ".join(f'"{member.value}"' for member in kind)
    if get_origin(kind) is tuple:
        return f"a list of {_PLURALS[get_args(kind)[0]]}"
    if get_origin(kind) is dict or is_section(kind):
        return "a table"
    return _NAMES[kind]


_NAMES: dict[Any, str] = {
    str: "a text",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    Duration: 'a duration such as "30s"',
    Size: 'a size such as "10MB"',
    SecretText: "a text",
}
_PLURALS: dict[Any, str] = {str: "texts", int: "integers"}


def find_field(path: KeyPath) -> tuple[SettingField, Any] | None:
    """The declared field at or around a path of keys as people write them, and the type at its very end.

    Around: a key that people chose is declared by the table that holds it.
    """
    kind: Any = AgentSettings
    field: SettingField | None = None
    for key in path:
        if is_section(kind):
            field = get_fields(kind).get(key)
            if field is None:
                return None
            kind = field.type
        elif get_origin(kind) is dict:
            kind = get_args(kind)[1]
        else:
            return None
    return (field, kind) if field is not None else None
