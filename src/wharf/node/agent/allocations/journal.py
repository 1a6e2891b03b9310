"""Where the node's journal lies: bytes that are appended, made sure of, or replaced as a whole. It knows no entries.

What the node must know after its agent ended in the middle: each allocation with its orders, and how far it came.

A file of entries, each with a mark, its length and a checksum. Entries are appended; what is written last holds. What is
damaged is left out and told of, and reading goes on at the next mark; a last entry that is cut off was never made sure of
and is no damage. The file is written anew when most of it is old.

Where it lies is a port (`journal_file`). Writing goes to the kernel at once, which is enough for the death of the process;
`synced` waits until it is on the disk.
A disk that cannot be written stops nothing that runs: all is kept in memory, `synced` waits, and so do those who may only
begin something that is surely written down. `mend` tries again to write everything.
"""

import asyncio
import contextlib
import errno
import logging
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.wire.nodes.messages import Assignment
from wharf.node.core.record import AllocationRecord
from wharf.node.durable_file import sync_folder

DAMAGED_SUFFIX: Final = ".damaged"


class JournalFile(Protocol):
    """All but `close` raise OSError."""

    size: int

    def read(self) -> bytes:
        """All of it; nothing where there is none yet."""
        ...

    def append(self, data: bytes) -> None:
        """All of it or nothing. Afterwards it outlives this process, and not yet the machine."""
        ...

    def sync(self) -> asyncio.Future[None]:
        """Done when all that was appended until now is on the disk."""
        ...

    def replace(self, parts: Sequence[bytes]) -> None:
        """These stand in place of all that was, on the disk, or nothing has changed."""
        ...

    def save_damaged(self, data: bytes) -> None:
        """Put aside what could not be read."""
        ...

    def close(self) -> None: ...


class DiskJournalFile:
    """The real one."""

    def __init__(self, path: Path) -> None:
        self.size = 0
        self._path = path
        self._file = -1

    def read(self) -> bytes:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return b""

    def append(self, data: bytes) -> None:
        written = os.write(self._file, data)
        if written < len(data):  # A full disk: what was written in part must not stand before what comes next.
            os.ftruncate(self._file, self.size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.size += len(data)

    def sync(self) -> asyncio.Future[None]:
        # A descriptor of its own: the file may be replaced meanwhile.
        return asyncio.get_running_loop().run_in_executor(None, _sync, os.dup(self._file))

    def replace(self, parts: Sequence[bytes]) -> None:
        draft = self._path.with_suffix(".new")
        file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(os.dup(file), "wb") as writing:
                writing.writelines(parts)
            os.fdatasync(file)
            draft.rename(self._path)
            sync_folder(self._path.parent)
        except OSError:
            os.close(file)
            with contextlib.suppress(OSError):
                draft.unlink()
            raise
        self.close()
        self._file = file
        self.size = sum(map(len, parts))

    def save_damaged(self, data: bytes) -> None:
        self._path.with_suffix(DAMAGED_SUFFIX).write_bytes(data)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _sync(file: int) -> None:
    try:
        os.fdatasync(file)
    finally:
        os.close(file)


log = logging.getLogger(__name__)

ENTRY_MARK: Final = b"WJ1\n"
HEADER_BYTES: Final = 12
MIN_COMPACTION_BYTES: Final = 4_000_000
"""A file smaller than this is not written anew."""


class StoredAssignment(msgspec.Struct, frozen=True, tag="Kept"):
    """An allocation's orders. They change seldom and are long, so they stand apart from how far it came."""

    id: str
    order: Assignment
    is_gone: bool = False
    """The servers know it no more."""


class StoredProgress(msgspec.Struct, frozen=True, tag="Came"):
    record: AllocationRecord


class SettledAllocation(msgspec.Struct, frozen=True, tag="Settled", omit_defaults=True):
    """An allocation that is over, and servers know it: all that is kept of it, in place of its orders and how far it came."""

    record: AllocationRecord
    index: int
    """Of its latest orders."""
    client_status: ClientStatus = ClientStatus.PENDING
    """As those orders had it."""


class DeletedAllocation(msgspec.Struct, frozen=True, tag="Forgotten"):
    id: str


class BootMarker(msgspec.Struct, frozen=True, tag="Booted"):
    """The life of the machine that what follows belongs to."""

    boot_id: str


JournalEntry = StoredAssignment | StoredProgress | SettledAllocation | DeletedAllocation | BootMarker


class RestoredAllocation(msgspec.Struct):
    """Of an allocation that is not settled."""

    assignment: StoredAssignment
    record: AllocationRecord | None = None


class NodeJournal:
    """`load` it before anything is put."""

    def __init__(
        self, file: JournalFile, boot_id: str, *, on_write_state_changed: Callable[[str], None] = lambda _why: None
    ) -> None:
        """`on_trouble` is told why it cannot be written; and with nothing to say, when it can again."""
        self._file = file
        self._boot_id = boot_id
        self._on_trouble = on_write_state_changed
        self._encoder = msgspec.msgpack.Encoder()
        self._orders: dict[str, bytes] = {}
        """What is kept of each allocation, as it is written: its orders, or that it is settled."""
        self._records: dict[str, bytes] = {}
        self._live_bytes = 0
        self._is_loaded = False
        self._written = 0
        self._on_disk = 0
        self._syncing: tuple[asyncio.Future[None], int] | None = None
        """What is on its way to the disk, and how many entries are there when it has come."""
        self._is_well = asyncio.Event()
        self.has_rebooted = False
        self.damage_text = ""
        """What of it could not be read, as a sentence; empty where all could."""

    def load(self) -> dict[str, RestoredAllocation | SettledAllocation]:
        """All that is remembered; afterwards it can be written to. Raises OSError where it cannot be read at all."""
        found: dict[str, RestoredAllocation | SettledAllocation] = {}
        boot_id = self._boot_id
        for entry in self._read():
            match entry:
                case StoredAssignment(id):
                    known = found.get(id)
                    found[id] = RestoredAllocation(
                        entry, known.record if isinstance(known, RestoredAllocation) else None
                    )
                case StoredProgress(record) if record.id in found:
                    found[record.id] = _come_further(found[record.id], record)
                case SettledAllocation(record):
                    found[record.id] = entry
                case DeletedAllocation(id):
                    found.pop(id, None)
                case BootMarker(boot_id):
                    pass
                case _:
                    pass
        self.has_rebooted = boot_id != self._boot_id
        for remembered in found.values():
            match remembered:
                case SettledAllocation():
                    self._note(remembered)
                case RestoredAllocation(order, came):
                    self._note(order)
                    if came is not None:
                        self._note(StoredProgress(came))
        try:
            self._write_anew()
        except OSError as error:
            self._fail(error)
        else:
            self._is_well.set()
        self._is_loaded = True
        return found

    def _read(self) -> list[JournalEntry]:
        data = self._file.read()
        entries, lost = decode_entries(data)
        if lost:
            self.damage_text = f"{lost} of {len(data)} bytes of the node's journal are damaged and left out"
            with contextlib.suppress(OSError):  # For whoever wants to know what was in it.
                self._file.save_damaged(data)
            log.error("the node's journal is read without what is damaged: %s", self.damage_text)
        return entries

    def read_settled(self, allocation_id: str) -> SettledAllocation:
        """What is kept of one that is settled."""
        entry = _decoder.decode(self._orders[allocation_id][HEADER_BYTES:])
        assert isinstance(entry, SettledAllocation), "only what is settled is recalled"
        return entry

    def append_entry(self, entry: StoredAssignment | StoredProgress | SettledAllocation | DeletedAllocation) -> None:
        framed = self._framed(entry)
        self._keep(entry, framed)
        self._written += 1
        if not self.is_writable:
            return
        try:
            self._file.append(framed)
            if self._file.size > MIN_COMPACTION_BYTES and self._file.size > 4 * self._live_bytes:
                self._write_anew()
        except OSError as error:
            self._fail(error)

    @property
    def is_writable(self) -> bool:
        return self._is_well.is_set()

    def retry_write(self) -> bool:
        """Try again to write all that holds. Whether it is well now."""
        if not self.is_writable:
            try:
                self._write_anew()
            except OSError:
                return False
            self._is_well.set()
            self._on_trouble("")
        return True

    def _fail(self, error: OSError) -> None:
        """From here on all is kept in memory, until it is mended."""
        if self.is_writable or not self._is_loaded:
            self._is_well.clear()
            self._on_trouble(error.strerror or str(error))

    def _framed(self, entry: JournalEntry) -> bytes:
        return frame_entry(self._encoder.encode(entry))

    def _note(self, entry: StoredAssignment | StoredProgress | SettledAllocation) -> None:
        self._keep(entry, self._framed(entry))

    def _keep(
        self, entry: StoredAssignment | StoredProgress | SettledAllocation | DeletedAllocation, framed: bytes
    ) -> None:
        match entry:
            case StoredAssignment(id):
                self._replace(self._orders, id, framed)
            case StoredProgress(record):
                self._replace(self._records, record.id, framed)
            case SettledAllocation(record):
                self._replace(self._orders, record.id, framed)
                self._drop(self._records, record.id)
            case DeletedAllocation(id):
                self._drop(self._orders, id)
                self._drop(self._records, id)

    def _replace(self, kept: dict[str, bytes], id: str, framed: bytes) -> None:
        self._live_bytes += len(framed) - len(kept.get(id, b""))
        kept[id] = framed

    def _drop(self, kept: dict[str, bytes], id: str) -> None:
        self._live_bytes -= len(kept.pop(id, b""))

    def _write_anew(self) -> None:
        parts = [self._framed(BootMarker(self._boot_id))]
        for id, order in self._orders.items():
            parts.append(order)
            if (record := self._records.get(id)) is not None:
                parts.append(record)
        self._file.replace(parts)
        self._on_disk = self._written

    async def wait_until_synced(self) -> None:
        """Until all that was put before is on the disk. Those who wait at one time share the work."""
        wanted = self._written
        while self._on_disk < wanted:
            await self._is_well.wait()
            if self._syncing is None:
                self._syncing = self._file.sync(), self._written
            syncing, count = self._syncing
            try:
                await asyncio.shield(syncing)
                self._on_disk = max(self._on_disk, count)
            except OSError as error:
                self._fail(error)
            finally:
                if self._syncing is not None and self._syncing[0] is syncing and syncing.done():
                    self._syncing = None

    def close(self) -> None:
        self._file.close()


_decoder: Final = msgspec.msgpack.Decoder(JournalEntry)


def frame_entry(body: bytes) -> bytes:
    size = len(body).to_bytes(4, "big")
    return ENTRY_MARK + size + zlib.crc32(size + body).to_bytes(4, "big") + body


def decode_entries(data: bytes) -> tuple[list[JournalEntry], int]:
    """All that can be read, and how many bytes are damaged."""
    at, lost = 0, 0
    found: list[JournalEntry] = []
    while at < len(data):
        end = find_entry_end(data, at)
        if end is not None:
            with contextlib.suppress(msgspec.MsgspecError):  # Whole, and yet nothing we know: another program's.
                found.append(_decoder.decode(data[at + HEADER_BYTES : end]))
                at = end
                continue
        following = data.find(ENTRY_MARK, at + 1)
        if following < 0 and is_truncated_entry(data[at:]):
            log.debug(
                "the last %s bytes of the node's journal are an entry that was never written to its end", len(data) - at
            )
            break
        following = len(data) if following < 0 else following
        lost, at = lost + following - at, following
    return found, lost


def _come_further(
    known: RestoredAllocation | SettledAllocation, record: AllocationRecord
) -> RestoredAllocation | SettledAllocation:
    return RestoredAllocation(known.assignment, record) if isinstance(known, RestoredAllocation) else known


def find_entry_end(data: bytes, at: int) -> int | None:
    """Where the entry that begins here ends; None where none begins here, or not a whole one."""
    head = data[at : at + HEADER_BYTES]
    if len(head) < HEADER_BYTES or not head.startswith(ENTRY_MARK):
        return None
    end = at + HEADER_BYTES + int.from_bytes(head[4:8], "big")
    if end > len(data) or zlib.crc32(head[4:8] + data[at + HEADER_BYTES : end]) != int.from_bytes(head[8:], "big"):
        return None
    return end


def is_truncated_entry(last: bytes) -> bool:
    """Whether this is the beginning of an entry, which the power cut or the agent's death kept from being written whole."""
    if len(last) < HEADER_BYTES:
        return last.startswith(ENTRY_MARK[: len(last)])
    if not last.startswith(ENTRY_MARK) or HEADER_BYTES + int.from_bytes(last[4:8], "big") <= len(last):
        return False
    try:
        msgspec.msgpack.decode(last[HEADER_BYTES:])
    except msgspec.MsgspecError:
        return True
    return False  # All of it is there, and its length is what is damaged.
