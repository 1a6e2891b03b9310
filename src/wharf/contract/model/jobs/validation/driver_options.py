"""Finds options of tasks that their drivers do not have, such as `comand`, also inside of blocks such as `mount`.

Only options of built-in drivers are known. A plug-in checks its options itself, when a task starts.
"""

import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

import msgspec

from wharf.contract.model.drivers import DRIVER_CONFIGS
from wharf.languages.suggestions import find_nearest_name

MAX_UNKNOWN_OPTIONS: Final = 20
"""The unknown options of one task that are reported. Searching a similar name is slow."""
MAX_SHOWN_CHARS: Final = 80
MAX_LISTED_OPTIONS: Final = 12
"""A longer list of options would hide the error."""
_FORMER_DOCKER_OPTIONS: Final[Mapping[str, str]] = {
    "port_map": 'write network { port "NAME" { to = PORT } } in the group, and ports = ["NAME"] here',
    "ssl": "delete it: registries are always used with TLS",
    "volumes_from": "write a volume in the group and volume_mount in the task, or volumes here",
    "advertise_ipv6_address": 'delete it, and write address_mode = "driver" in the service',
    "isolation": "delete it: it is an option for Windows",
}
"""Options of earlier versions of Nomad, and of Windows, with what to write instead."""

OptionPath = tuple[str | int, ...]


class UnknownOption(NamedTuple):
    """An option that the driver of a task does not have. `path` leads to it in the task's `Config`."""

    path: OptionPath
    message: str
    fix: str


def find_unknown_options(driver: str, config: Mapping[str, object]) -> Iterator[UnknownOption]:
    """Yield the first options of a task that its driver does not have. Nothing is yielded for drivers of plug-ins."""
    config_type = DRIVER_CONFIGS.get(driver)
    if config_type is None:
        return
    found = _iterate_unknown_options(config, config_type, (), f"driver {driver}")
    for _, option in zip(range(MAX_UNKNOWN_OPTIONS), found, strict=False):
        yield option


def _iterate_unknown_options(
    config: Mapping[str, object], config_type: type[msgspec.Struct], path: OptionPath, owner: str
) -> Iterator[UnknownOption]:
    """Yield the unknown options of one object. A block may be an object, or a list of objects."""
    blocks = _list_blocks(config_type)
    names = config_type.__struct_fields__
    for key, value in config.items():
        if key not in names:
            message = f'unknown key "{key[:MAX_SHOWN_CHARS]}" for {owner}'
            yield UnknownOption((*path, key), message, _suggest_option(key, names, owner))
            continue
        block_type = blocks.get(key)
        if block_type is None:
            continue
        items = enumerate(value) if isinstance(value, list) else [(None, value)]
        for at, item in items:
            item_path = (*path, key) if at is None else (*path, key, at)
            if isinstance(item, dict):
                yield from _iterate_unknown_options(item, block_type, item_path, f"block {key}")


def _suggest_option(key: str, names: Sequence[str], owner: str) -> str:
    """Return what to write instead of an unknown option."""
    if owner == "driver docker" and key in _FORMER_DOCKER_OPTIONS:
        return _FORMER_DOCKER_OPTIONS[key]
    nearest = find_nearest_name(key, names)
    if nearest is not None:
        return f'did you mean "{nearest}"?'
    if len(names) <= MAX_LISTED_OPTIONS:
        return f"the options are {', '.join(names)}"
    return f"`wharf job explain-field {owner.rpartition(' ')[2]}` lists the options"


@cache
def _list_blocks(config_type: type[msgspec.Struct]) -> Mapping[str, type[msgspec.Struct]]:
    """Return the options of a type that are blocks, with the types of the blocks."""
    blocks: dict[str, type[msgspec.Struct]] = {}
    for name, kind in typing.get_type_hints(config_type).items():
        for part in (kind, *typing.get_args(kind)):
            if isinstance(part, type) and issubclass(part, msgspec.Struct):
                blocks[name] = part
    return blocks
