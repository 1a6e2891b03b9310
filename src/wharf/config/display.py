"""The configuration in force, value by value, with where each came from. Secrets are told as set or not, never shown."""

from typing import TypeVar

import msgspec

from wharf.config.building import say_path
from wharf.config.configuration import Configuration
from wharf.config.schema import fields_of, find_field
from wharf.config.settings import Settings
from wharf.config.tree import Path, Plain
from wharf.config.values import plain, values_of

S = TypeVar("S", bound=msgspec.Struct)


class Shown(msgspec.Struct, frozen=True):
    """One value, as it may be shown to anyone who may see the configuration."""

    key: str
    value: Plain
    origin: str


def shown(configuration: Configuration) -> list[Shown]:
    return [
        Shown(say_path(path), plain(value), str(configuration.origin_of(path)))
        for path, value in values_of(configuration.settings)
    ]


class Difference(msgspec.Struct, frozen=True):
    """What a reload would change."""

    applied: list[str]
    """Keys whose new values a running agent takes."""
    needs_restart: list[str]


def compare(running: Settings, wanted: Settings) -> Difference:
    before, after = dict(values_of(running)), dict(values_of(wanted))
    # A table of names people choose is itself a value while it is empty; what came in or went is told instead.
    paths = [path for path in {**before, **after} if {} not in (before.get(path), after.get(path))]
    changed = [path for path in paths if before.get(path) != after.get(path)]
    live = [path for path in changed if _is_live(path)]
    return Difference([say_path(path) for path in live], [say_path(path) for path in changed if path not in live])


def _is_live(path: Path) -> bool:
    found = find_field(path)
    return found is not None and found[0].about.live


def take_live(running: Settings, wanted: Settings) -> Settings:
    """The running settings with the new values of those that may change while running."""
    return _take_live(running, wanted)


def _take_live(running: S, wanted: S) -> S:
    changes: dict[str, object] = {}
    for key, field in fields_of(type(running)).items():
        old, new = getattr(running, key), getattr(wanted, key)
        if field.section is not None:
            changes[key] = _take_live(old, new)
        elif field.about.live:
            changes[key] = new
    return msgspec.structs.replace(running, **changes)
