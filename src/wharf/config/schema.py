"""The settings that exist, with types, descriptions and defaults, read from the structs that declare them."""

import enum
import functools
from collections.abc import Iterator
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from wharf.config.settings import AgentSettings
from wharf.config.tree import KeyPath
from wharf.contract.model.settings import Duration, SecretText, SettingInfo, Size

ANY_NAME = "<name>"
"""Stands in a path for a key that users choose, such as the name of a volume."""


class SettingField(msgspec.Struct, frozen=True):
    """One key of a table: its type, description and default."""

    key: str
    type: Any  # A type annotation; Python has no narrower type for it.
    info: SettingInfo
    default: object

    @property
    def section_type(self) -> type[msgspec.Struct] | None:
        """The struct that declares the keys, if this is a table of known keys."""
        return self.type if is_section(self.type) else None

    @property
    def map_value_type(self) -> Any:
        """The type of the values, if this is a table whose keys users choose."""
        return get_args(self.type)[1] if get_origin(self.type) is dict else None


_SCALARS: tuple[type, ...] = (Duration, Size, SecretText)


def is_section(candidate: object) -> bool:
    """Return whether this is a struct that declares a table. Single values such as `Duration` are structs too."""
    is_struct = isinstance(candidate, type) and issubclass(candidate, msgspec.Struct)
    return is_struct and candidate not in _SCALARS


@functools.cache
def get_fields(section: type[msgspec.Struct]) -> dict[str, SettingField]:
    """Return the keys of a table, in the order of their declaration."""
    hints = get_type_hints(section, include_extras=True)
    field_by_key: dict[str, SettingField] = {}
    for declared in msgspec.structs.fields(section):
        hint = hints[declared.name]
        info = next((extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, SettingInfo)), None)
        assert info is not None, f"{section.__name__}.{declared.name} has no SettingInfo"
        default = (
            declared.default
            if declared.default is not msgspec.NODEFAULT
            else _call_default_factory(declared.default_factory)
        )
        field_by_key[declared.name] = SettingField(declared.encode_name, get_args(hint)[0], info, default)
    return field_by_key


def _call_default_factory(factory: object) -> object:
    assert callable(factory), "every setting has a default"
    return factory()


def iterate_fields(
    section: type[msgspec.Struct] = AgentSettings, path: KeyPath = ()
) -> Iterator[tuple[KeyPath, SettingField]]:
    """Yield every key with its path, each table before the keys in it."""
    for key, field in get_fields(section).items():
        yield (*path, key), field
        if field.section_type is not None:
            yield from iterate_fields(field.section_type, (*path, key))
        elif is_section(field.map_value_type):
            yield from iterate_fields(field.map_value_type, (*path, key, ANY_NAME))


def describe_type(kind: Any) -> str:
    """Return a description of the expected values, for error messages and documentation."""
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return "one of " + ", ".join(f'"{member.value}"' for member in kind)
    if get_origin(kind) is tuple:
        return f"a list of {_PLURAL_BY_TYPE[get_args(kind)[0]]}"
    if get_origin(kind) is dict or is_section(kind):
        return "a table"
    return _NAME_BY_TYPE[kind]


_NAME_BY_TYPE: dict[Any, str] = {
    str: "a text",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    Duration: 'a duration such as "30s"',
    Size: 'a size such as "10MB"',
    SecretText: "a text",
}
_PLURAL_BY_TYPE: dict[Any, str] = {str: "texts", int: "integers"}


def find_field(path: KeyPath) -> tuple[SettingField, Any] | None:
    """Return the declared field for a path of keys, and the type of the value at the path.

    Return `None` if the path is unknown. A key that users choose, such as a volume's name, has no field of its own. Its
    field is that of the table around it.
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
