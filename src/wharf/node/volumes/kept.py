"""Which volumes this node was told to have: on disk before anything is made, so that nothing is made and forgotten."""

import os
from pathlib import Path

import msgspec

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
        draft = self._file.with_suffix(".new")
        # Parameters may hold secrets of a plugin.
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as writing:
            writing.write(msgspec.json.encode(by_id))
            writing.flush()
            os.fsync(writing.fileno())
        draft.replace(self._file)
        self._by_id = by_id
