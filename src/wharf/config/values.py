"""Iterates over the values of settings, and converts them to plain data in which secrets are redacted."""

import enum
from collections.abc import Iterator
from typing import Any

import msgspec

from wharf.config.schema import is_section
from wharf.config.settings import AgentSettings
from wharf.config.tree import KeyPath, PlainValue
from wharf.contract.model.settings import Duration, SecretText, Size


def iterate_values(section: msgspec.Struct, path: KeyPath = ()) -> Iterator[tuple[KeyPath, object]]:
    """Yield every value with its path, including those in maps whose keys users choose. An empty map is one value."""
    for key in section.__struct_fields__:
        value = getattr(section, key)
        yield from _iterate_inner_values((*path, key), value)


def _iterate_inner_values(path: KeyPath, value: Any) -> Iterator[tuple[KeyPath, object]]:
    """Yield the values within a table or a map, or the value itself."""
    if is_section(type(value)):
        yield from iterate_values(value, path)
    elif isinstance(value, dict) and value:
        for name, inner_value in value.items():
            yield from _iterate_inner_values((*path, name), inner_value)
    else:
        yield path, value


def to_plain_value(value: Any) -> PlainValue:
    """Return a value as a file would contain it, with secrets redacted."""
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
            raise AssertionError(f"a setting of type {type(value).__name__} cannot be converted to plain data")


def redact_settings(settings: AgentSettings) -> PlainValue:
    """Return all settings as one table without secrets, for `agent/self` and debug archives."""
    return to_plain_value(settings)


def list_secrets(settings: AgentSettings) -> list[str]:
    """Return the values of all secrets, so that callers can remove them from texts."""
    return [value.reveal() for _, value in iterate_values(settings) if isinstance(value, SecretText) and value]
