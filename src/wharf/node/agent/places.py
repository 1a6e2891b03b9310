"""Who a node is, and where its things are."""

from pathlib import Path

import msgspec


class NodePlaces(msgspec.Struct, frozen=True):
    name: str
    datacenter: str
    region: str
    state_folder: Path
    allocation_folder: Path
