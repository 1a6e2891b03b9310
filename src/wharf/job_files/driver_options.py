"""Checks the options of drivers in a job: names that a driver does not have are errors, with the nearest name.

Only options of built-in drivers are known. A plug-in checks its options itself, when a task starts.
"""

import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import msgspec

from wharf.contract.model.drivers import DRIVER_CONFIGS
from wharf.job_files.fields import FieldProblem, FilePath, iterate_tasks
from wharf.languages.suggestions import find_nearest_name


def find_unknown_driver_options(document: Mapping[str, Any]) -> Iterator[FieldProblem]:
    """Yield a problem for each option of a task that its driver does not have, also inside of blocks such as `mount`."""
    for path, task in iterate_tasks(document):
        driver, config = task.get("Driver"), task.get("Config")
        config_type = DRIVER_CONFIGS.get(driver) if isinstance(driver, str) else None
        if config_type is not None and isinstance(config, dict):
            yield from _find_unknown_options(config, config_type, (*path, "Config"), str(driver))


def _find_unknown_options(
    config: Mapping[str, Any], config_type: type[msgspec.Struct], path: FilePath, owner: str
) -> Iterator[FieldProblem]:
    """Yield the unknown options of one object. A block may be an object, or a list of objects."""
    blocks = _list_blocks(config_type)
    names = config_type.__struct_fields__
    for key, value in config.items():
        if key not in names:
            nearest = find_nearest_name(key, names)
            fix = f'did you mean "{nearest}"?' if nearest is not None else f"the options are {', '.join(names)}"[:300]
            kind = "driver" if owner in DRIVER_CONFIGS else "block"
            yield FieldProblem((*path, key), f'unknown key "{key[:80]}" for {kind} {owner}', fix)
            continue
        block_type = blocks.get(key)
        if block_type is None:
            continue
        items = enumerate(value) if isinstance(value, list) else [(None, value)]
        for at, item in items:
            item_path = (*path, key) if at is None else (*path, key, at)
            if isinstance(item, dict):
                yield from _find_unknown_options(item, block_type, item_path, key)


@cache
def _list_blocks(config_type: type[msgspec.Struct]) -> Mapping[str, type[msgspec.Struct]]:
    """Return the options of a type that are blocks, with the types of the blocks."""
    blocks: dict[str, type[msgspec.Struct]] = {}
    for name, kind in typing.get_type_hints(config_type).items():
        for part in (kind, *typing.get_args(kind)):
            if isinstance(part, type) and issubclass(part, msgspec.Struct):
                blocks[name] = part
    return blocks
