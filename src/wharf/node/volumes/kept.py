"""Which volumes this node was told to have: on disk before anything is made, so that nothing is made and forgotten."""

from pathlib import Path

import msgspec

from wharf.node.kept_file import keep
from wharf.wire.volume_shapes import NodeVolume


class KeptVolume(msgspec.Struct, frozen=True):
    volume: NodeVolume
    is_there: bool = False
    """It was made, or found, and `host_path` says where."""


class Kept:
    """Raises OSError where it cannot be read or written, and ValueError where it is damaged."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._by_id: dict[str, KeptVolume] = {}
        if file.exists():
            try:
                self._by_id = msgspec.json.decode(file.read_bytes(), type=dict[str, KeptVolume])
            except msgspec.MsgspecError as error:
                raise ValueError(f"{file} cannot be read: {error}") from error

    def all(self) -> list[KeptVolume]:
        return list(self._by_id.values())

    def get(self, volume_id: str) -> KeptVolume | None:
        return self._by_id.get(volume_id)

    def put(self, kept: KeptVolume) -> None:
        self._write({**self._by_id, kept.volume.id: kept})

    def drop(self, volume_id: str) -> None:
        self._write({id: kept for id, kept in self._by_id.items() if id != volume_id})

    def _write(self, by_id: dict[str, KeptVolume]) -> None:
        keep(self._file, msgspec.json.encode(by_id))
        self._by_id = by_id
