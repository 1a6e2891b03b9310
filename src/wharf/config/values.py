"""The values of settings one by one, and what of them may be shown: secrets are told as set or not."""

import enum
from collections.abc import Iterator
from typing import Any

import msgspec

from wharf.config.schema import is_section
from wharf.config.settings import Settings
from wharf.config.tree import Path, Plain
from wharf.model.setting import Duration, Secret, Size


def values_of(section: msgspec.Struct, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Every value with its path, what is inside tables that people name too; an empty such table is a value itself."""
    for key in section.__struct_fields__:
        value = getattr(section, key)
        yield from _values_in((*path, key), value)


def _values_in(path: Path, value: Any) -> Iterator[tuple[Path, object]]:
    if is_section(type(value)):
        yield from values_of(value, path)
    elif isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _values_in((*path, name), inner)
    else:
        yield path, value


def plain(value: Any) -> Plain:
    """A value as a file would hold it, without what is secret."""
    match value:
        case Secret() | Duration() | Size():
            return str(value)
        case enum.Enum():
            return str(value.value)
        case tuple() | list():
            return [plain(item) for item in value]
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case _ if is_section(type(value)):
            return {key: plain(getattr(value, key)) for key in value.__struct_fields__}
        case str() | int() | float() | None:
            return value
        case _:
            raise AssertionError(f"a setting of type {type(value).__name__} has no plain form")


def redacted(settings: Settings) -> Plain:
    """The whole as one table, for `agent/self` and debug archives."""
    return plain(settings)


def secrets_in(settings: Settings) -> list[str]:
    """The texts that must never show anywhere."""
    return [value.reveal() for _, value in values_of(settings) if isinstance(value, Secret) and value]
