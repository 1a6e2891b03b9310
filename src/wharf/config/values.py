"""The values of settings one by one, and what of them may be shown: secrets are told as set or not."""

import enum
from collections.abc import Iterator
from typing import Any

import msgspec

from wharf.config.schema import is_section
from wharf.config.settings import AgentSettings
from wharf.config.tree import KeyPath, PlainValue
from wharf.contract.model.settings import Duration, SecretText, Size


def iterate_values(section: msgspec.Struct, path: KeyPath = ()) -> Iterator[tuple[KeyPath, object]]:
    """Every value with its path, what is inside tables that people name too; an empty such table is a value itself."""
    for key in section.__struct_fields__:
        value = getattr(section, key)
        yield from _values_in((*path, key), value)


def _values_in(path: KeyPath, value: Any) -> Iterator[tuple[KeyPath, object]]:
    if is_section(type(value)):
        yield from iterate_values(value, path)
    elif isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _values_in((*path, name), inner)
    else:
        yield path, value


def to_plain_value(value: Any) -> PlainValue:
    """A value as a file would hold it, without what is secret."""
    match value:
        case SecretText() | Duration() | Size():
            return str(value)
        case enum.Enum():
            return str(value.value)
        case tuple() | list():
            return [to_plain_value(item) for item in value]
        case dict():
            return {key: to_plain_value(item) for key, item in value.items()}
        case _ if is_section(type(value)):
            return {key: to_plain_value(getattr(value, key)) for key in value.__struct_fields__}
        case str() | int() | float() | None:
            return value
        case _:
            raise AssertionError(f"a setting of type {type(value).__name__} has no plain form")


def redact_settings(settings: AgentSettings) -> PlainValue:
    """The whole as one table, for `agent/self` and debug archives."""
    return to_plain_value(settings)


def list_secrets(settings: AgentSettings) -> list[str]:
    """The texts that must never show anywhere."""
    return [value.reveal() for _, value in iterate_values(settings) if isinstance(value, SecretText) and value]
