"""Networks that the operator has declared, in files as the Container Network Interface has them."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from wharf.node.networks.chain import Chain

log = logging.getLogger(__name__)

ENDINGS: Final = (".conflist", ".conf", ".json")


class _Declared(msgspec.Struct):
    name: str
    plugins: list[dict[str, Any]] | None = None
    type: str = ""


def declared(folder: Path) -> Iterator[Chain]:
    """A file that cannot be read is told in the log, and left out."""
    if not folder.is_dir():
        return
    for file in sorted(file for file in folder.iterdir() if file.suffix in ENDINGS):
        try:
            text = file.read_bytes()
            found = msgspec.json.decode(text, type=_Declared)
            plugins = found.plugins if found.plugins is not None else [msgspec.json.decode(text, type=dict[str, Any])]
            if all(isinstance(plugin.get("type"), str) for plugin in plugins):
                yield Chain(found.name, tuple(plugins))
            else:
                log.warning("the network %s is left out: a plugin of it has no type", file)
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("the network %s cannot be read: %s", file, error)
