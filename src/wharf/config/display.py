"""The configuration in force, value by value, with where each came from. Secrets are told as set or not, never shown."""

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
    """One value, as it may be shown to anyone who may see the configuration."""

    key: str
    value: PlainValue
    origin: str


def list_values(configuration: Configuration) -> list[DisplayedValue]:
    return [
        DisplayedValue(format_path(path), to_plain_value(value), str(configuration.origin_of(path)))
        for path, value in iterate_values(configuration.settings)
    ]


class ReloadDifference(msgspec.Struct, frozen=True):
    """What a reload would change."""

    applied: list[str]
    """Keys whose new values a running agent takes."""
    needs_restart: list[str]


def compare_settings(running: AgentSettings, loaded: AgentSettings) -> ReloadDifference:
    before, after = dict(iterate_values(running)), dict(iterate_values(loaded))
    # A table of names people choose is itself a value while it is empty; what came in or went is told instead.
    paths = [path for path in {**before, **after} if {} not in (before.get(path), after.get(path))]
    changed = [path for path in paths if before.get(path) != after.get(path)]
    live = [path for path in changed if _is_live(path)]
    return ReloadDifference(
        [format_path(path) for path in live], [format_path(path) for path in changed if path not in live]
    )


def _is_live(path: KeyPath) -> bool:
    found = find_field(path)
    return found is not None and found[0].about.is_reloadable


def apply_live_settings(running: AgentSettings, loaded: AgentSettings) -> AgentSettings:
    """The running settings with the new values of those that may change while running."""
    return _take_live(running, loaded)


def _take_live(running: S, wanted: S) -> S:
    changes: dict[str, object] = {}
    for key, field in get_fields(type(running)).items():
        old, new = getattr(running, key), getattr(wanted, key)
        if field.section_type is not None:
            changes[key] = _take_live(old, new)
        elif field.about.is_reloadable:
            changes[key] = new
    return msgspec.structs.replace(running, **changes)
