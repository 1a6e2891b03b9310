"""Lists the values of a configuration with their origins, and compares two configurations for a reload.

Secrets are shown as set or not set, never by value.
"""

from typing import TypeVar

import msgspec

from wharf.config.builder import format_path
from wharf.config.configuration import Configuration
from wharf.config.schema import find_field, get_fields
from wharf.config.settings import AgentSettings
from wharf.config.tree import KeyPath, PlainValue
from wharf.config.values import iterate_values, to_plain_value

S = TypeVar("S", bound=msgspec.Struct)


class DisplayedValue(msgspec.Struct, frozen=True):
    """One value of a configuration, without secrets, as text and plain data."""

    key: str
    value: PlainValue
    origin: str


def list_values(configuration: Configuration) -> list[DisplayedValue]:
    """Return every value of a configuration in the order of the declarations."""
    return [
        DisplayedValue(format_path(path), to_plain_value(value), str(configuration.origin_of(path)))
        for path, value in iterate_values(configuration.settings)
    ]


class ReloadDifference(msgspec.Struct, frozen=True):
    """The keys whose values differ between the running and the loaded configuration."""

    applied: list[str]
    """Keys whose new values a reload applies."""
    needs_restart: list[str]
    """Keys whose new values take effect only after a restart."""


def compare_settings(running: AgentSettings, loaded: AgentSettings) -> ReloadDifference:
    """Return which values differ, and which of them a reload can apply."""
    before, after = dict(iterate_values(running)), dict(iterate_values(loaded))
    # An empty map is listed as a value of its own. Its added or removed entries are reported instead.
    paths = [path for path in {**before, **after} if {} not in (before.get(path), after.get(path))]
    changed_paths = [path for path in paths if before.get(path) != after.get(path)]
    reloadable_paths = [path for path in changed_paths if _is_reloadable(path)]
    return ReloadDifference(
        [format_path(path) for path in reloadable_paths],
        [format_path(path) for path in changed_paths if path not in reloadable_paths],
    )


def _is_reloadable(path: KeyPath) -> bool:
    field_and_type = find_field(path)
    return field_and_type is not None and field_and_type[0].info.is_reloadable


def apply_live_settings(running: AgentSettings, loaded: AgentSettings) -> AgentSettings:
    """Return the running settings, with the loaded values of those that a reload can apply."""
    return _copy_reloadable_values(running, loaded)


def _copy_reloadable_values(running: S, loaded: S) -> S:
    """Return a copy of a table with the loaded values of its reloadable settings, including those of inner tables."""
    changes: dict[str, object] = {}
    for key, field in get_fields(type(running)).items():
        old_value, new_value = getattr(running, key), getattr(loaded, key)
        if field.section_type is not None:
            changes[key] = _copy_reloadable_values(old_value, new_value)
        elif field.info.is_reloadable:
            changes[key] = new_value
    return msgspec.structs.replace(running, **changes)
