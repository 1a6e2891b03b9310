"""What the node must know after its agent ended in the middle: each allocation with its orders, and how far it came.

A file of entries, each with its length and a checksum. Entries are appended; what is written last holds. An entry that was
cut off by a crash is at the end, and counts as not written. The file is written anew when most of it is old.

Writing goes to the kernel at once, which is enough for the death of the process; `synced` waits until it is on the disk.
"""

import asyncio
import logging
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from wharf.node.core.record import AllocationRecord
from wharf.wire.shapes import DesiredAllocation

log = logging.getLogger(__name__)

HEAD_BYTES: Final = 8
GROWTH_BYTES: Final = 4_000_000
"""A file smaller than this is not written anew."""


class Kept(msgspec.Struct, frozen=True, tag=True):
    """An allocation's orders. They change seldom and are long, so they stand apart from how far it came."""

    id: str
    order: DesiredAllocation
    is_gone: bool = False
    """The servers know it no more."""


class Came(msgspec.Struct, frozen=True, tag=True):
    record: AllocationRecord


class Forgotten(msgspec.Struct, frozen=True, tag=True):
    id: str


class Booted(msgspec.Struct, frozen=True, tag=True):
    """The life of the machine that what follows belongs to."""

    boot_id: str


Entry = Kept | Came | Forgotten | Booted


class Remembered(msgspec.Struct):
    order: Kept
    record: AllocationRecord | None = None


class Journal:
    """Open it by `open_journal`."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._encoder = msgspec.msgpack.Encoder()
        self._live: dict[str, dict[str, bytes]] = {}
        self._live_bytes = 0
        self._file = -1
        self._size = 0
        self._written = 0
        self._on_disk = 0
        self._syncing: asyncio.Future[None] | None = None
        self.was_other_boot = False

    def load(self) -> dict[str, Remembered]:
        """All that is remembered; afterwards it can be written to. Raises OSError."""
        found: dict[str, Remembered] = {}
        boot_id = self._boot_id
        for entry in self._read():
            match entry:
                case Kept(id):
                    found.setdefault(id, Remembered(entry)).order = entry
                case Came(record) if record.id in found:
                    found[record.id].record = record
                case Forgotten(id):
                    found.pop(id, None)
                case Booted(boot_id):
                    pass
                case _:
                    pass
        self.was_other_boot = boot_id != self._boot_id
        for remembered in found.values():
            self._note(remembered.order)
            if remembered.record is not None:
                self._note(Came(remembered.record))
        self._write_anew()
        return found

    def _read(self) -> Iterator[Entry]:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        decoder, at = msgspec.msgpack.Decoder(Entry), 0
        while at + HEAD_BYTES <= len(data):
            size = int.from_bytes(data[at : at + 4], "big")
            body = data[at + HEAD_BYTES : at + HEAD_BYTES + size]
            if len(body) < size or zlib.crc32(body) != int.from_bytes(data[at + 4 : at + HEAD_BYTES], "big"):
                break
            yield decoder.decode(body)
            at += HEAD_BYTES + size
        if at < len(data):
            log.warning("the node's journal ends in the middle of an entry: %d bytes are left out", len(data) - at)

    def put(self, entry: Kept | Came | Forgotten) -> None:
        """Raises OSError where it cannot be written; then it does not count as said."""
        body = self._encoder.encode(entry)
        framed = len(body).to_bytes(4, "big") + zlib.crc32(body).to_bytes(4, "big") + body
        self._append(framed)
        self._keep(entry, framed)
        if self._size > GROWTH_BYTES and self._size > 4 * self._live_bytes:
            self._write_anew()

    def _append(self, framed: bytes) -> None:
        written = os.write(self._file, framed)
        if written < len(framed):  # A full disk: what was written in part must not stand before what comes next.
            os.ftruncate(self._file, self._size)
            raise OSError(28, "no space is left for the node's journal")
        self._size += len(framed)
        self._written += 1

    def _note(self, entry: Kept | Came) -> None:
        body = self._encoder.encode(entry)
        self._keep(entry, len(body).to_bytes(4, "big") + zlib.crc32(body).to_bytes(4, "big") + body)

    def _keep(self, entry: Kept | Came | Forgotten, framed: bytes) -> None:
        match entry:
            case Forgotten(id):
                self._live_bytes -= sum(map(len, self._live.pop(id, {}).values()))
                return
            case Kept(id):
                name = "order"
            case Came(record):
                id, name = record.id, "record"
        kept = self._live.setdefault(id, {})
        self._live_bytes += len(framed) - len(kept.get(name, b""))
        kept[name] = framed

    def _write_anew(self) -> None:
        body = self._encoder.encode(Booted(self._boot_id))
        head = len(body).to_bytes(4, "big") + zlib.crc32(body).to_bytes(4, "big") + body
        parts = [head]
        for kept in self._live.values():
            parts += [kept[name] for name in ("order", "record") if name in kept]
        draft = self._path.with_suffix(".new")
        file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(os.dup(file), "wb") as writing:
            writing.writelines(parts)
        os.fdatasync(file)
        draft.rename(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
        os.fsync(folder)
        os.close(folder)
        if self._file >= 0:
            os.close(self._file)
        self._file = file
        self._size = sum(map(len, parts))
        self._on_disk = self._written

    async def synced(self) -> None:
        """Until all that was put before is on the disk. Those who wait at one time share the work."""
        wanted = self._written
        while self._on_disk < wanted:
            if self._syncing is None:
                self._syncing = asyncio.get_running_loop().run_in_executor(
                    None, self._sync, os.dup(self._file), self._written
                )
            syncing = self._syncing
            try:
                await asyncio.shield(syncing)
            finally:
                if self._syncing is syncing and syncing.done():
                    self._syncing = None

    def _sync(self, file: int, written: int) -> None:
        """`file` is a descriptor of its own: the journal may be written anew meanwhile."""
        try:
            os.fdatasync(file)
        finally:
            os.close(file)
        self._on_disk = max(self._on_disk, written)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
