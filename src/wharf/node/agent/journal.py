"""What the node must know after its agent ended in the middle: each allocation with its orders, and how far it came.

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
import logging
import zlib
from collections.abc import Callable
from typing import Final

import msgspec

from wharf.model.allocation import ClientStatus
from wharf.node.agent.journal_file import JournalFile
from wharf.node.core.record import AllocationRecord
from wharf.wire.shapes import DesiredAllocation

log = logging.getLogger(__name__)

MARK: Final = b"WJ1\n"
HEAD_BYTES: Final = 12
GROWTH_BYTES: Final = 4_000_000
"""A file smaller than this is not written anew."""


class Kept(msgspec.Struct, frozen=True, tag="Kept"):
    """An allocation's orders. They change seldom and are long, so they stand apart from how far it came."""

    id: str
    order: DesiredAllocation
    is_gone: bool = False
    """The servers know it no more."""


class Came(msgspec.Struct, frozen=True, tag="Came"):
    record: AllocationRecord


class Settled(msgspec.Struct, frozen=True, tag="Settled", omit_defaults=True):
    """An allocation that is over, and servers know it: all that is kept of it, in place of its orders and how far it came."""

    record: AllocationRecord
    index: int
    """Of its latest orders."""
    client_status: ClientStatus = ClientStatus.PENDING
    """As those orders had it."""


class Forgotten(msgspec.Struct, frozen=True, tag="Forgotten"):
    id: str


class Booted(msgspec.Struct, frozen=True, tag="Booted"):
    """The life of the machine that what follows belongs to."""

    boot_id: str


Entry = Kept | Came | Settled | Forgotten | Booted


class Remembered(msgspec.Struct):
    """Of an allocation that is not settled."""

    order: Kept
    record: AllocationRecord | None = None


class Journal:
    """`load` it before anything is put."""

    def __init__(
        self, file: JournalFile, boot_id: str, *, on_trouble: Callable[[str], None] = lambda _why: None
    ) -> None:
        """`on_trouble` is told why it cannot be written; and with nothing to say, when it can again."""
        self._file = file
        self._boot_id = boot_id
        self._on_trouble = on_trouble
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
        self.was_other_boot = False
        self.damage = ""
        """What of it could not be read, as a sentence; empty where all could."""

    def load(self) -> dict[str, Remembered | Settled]:
        """All that is remembered; afterwards it can be written to. Raises OSError where it cannot be read at all."""
        found: dict[str, Remembered | Settled] = {}
        boot_id = self._boot_id
        for entry in self._read():
            match entry:
                case Kept(id):
                    known = found.get(id)
                    found[id] = Remembered(entry, known.record if isinstance(known, Remembered) else None)
                case Came(record) if record.id in found:
                    found[record.id] = _come_further(found[record.id], record)
                case Settled(record):
                    found[record.id] = entry
                case Forgotten(id):
                    found.pop(id, None)
                case Booted(boot_id):
                    pass
                case _:
                    pass
        self.was_other_boot = boot_id != self._boot_id
        for remembered in found.values():
            match remembered:
                case Settled():
                    self._note(remembered)
                case Remembered(order, came):
                    self._note(order)
                    if came is not None:
                        self._note(Came(came))
        try:
            self._write_anew()
        except OSError as error:
            self._fail(error)
        else:
            self._is_well.set()
        self._is_loaded = True
        return found

    def _read(self) -> list[Entry]:
        data = self._file.read()
        entries, lost = entries_of(data)
        if lost:
            self.damage = f"{lost} of {len(data)} bytes of the node's journal are damaged and left out"
            with contextlib.suppress(OSError):  # For whoever wants to know what was in it.
                self._file.keep_damaged(data)
            log.error("the node's journal is read without what is damaged: %s", self.damage)
        return entries

    def recall(self, allocation_id: str) -> Settled:
        """What is kept of one that is settled."""
        entry = _decoder.decode(self._orders[allocation_id][HEAD_BYTES:])
        assert isinstance(entry, Settled), "only what is settled is recalled"
        return entry

    def put(self, entry: Kept | Came | Settled | Forgotten) -> None:
        framed = self._framed(entry)
        self._keep(entry, framed)
        self._written += 1
        if not self.is_well:
            return
        try:
            self._file.append(framed)
            if self._file.size > GROWTH_BYTES and self._file.size > 4 * self._live_bytes:
                self._write_anew()
        except OSError as error:
            self._fail(error)

    @property
    def is_well(self) -> bool:
        return self._is_well.is_set()

    def mend(self) -> bool:
        """Try again to write all that holds. Whether it is well now."""
        if not self.is_well:
            try:
                self._write_anew()
            except OSError:
                return False
            self._is_well.set()
            self._on_trouble("")
        return True

    def _fail(self, error: OSError) -> None:
        """From here on all is kept in memory, until it is mended."""
        if self.is_well or not self._is_loaded:
            self._is_well.clear()
            self._on_trouble(error.strerror or str(error))

    def _framed(self, entry: Entry) -> bytes:
        return framed(self._encoder.encode(entry))

    def _note(self, entry: Kept | Came | Settled) -> None:
        self._keep(entry, self._framed(entry))

    def _keep(self, entry: Kept | Came | Settled | Forgotten, framed: bytes) -> None:
        match entry:
            case Kept(id):
                self._replace(self._orders, id, framed)
            case Came(record):
                self._replace(self._records, record.id, framed)
            case Settled(record):
                self._replace(self._orders, record.id, framed)
                self._drop(self._records, record.id)
            case Forgotten(id):
                self._drop(self._orders, id)
                self._drop(self._records, id)

    def _replace(self, kept: dict[str, bytes], id: str, framed: bytes) -> None:
        self._live_bytes += len(framed) - len(kept.get(id, b""))
        kept[id] = framed

    def _drop(self, kept: dict[str, bytes], id: str) -> None:
        self._live_bytes -= len(kept.pop(id, b""))

    def _write_anew(self) -> None:
        parts = [self._framed(Booted(self._boot_id))]
        for id, order in self._orders.items():
            parts.append(order)
            if (record := self._records.get(id)) is not None:
                parts.append(record)
        self._file.replace(parts)
        self._on_disk = self._written

    async def synced(self) -> None:
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


_decoder: Final = msgspec.msgpack.Decoder(Entry)


def framed(body: bytes) -> bytes:
    size = len(body).to_bytes(4, "big")
    return MARK + size + zlib.crc32(size + body).to_bytes(4, "big") + body


def entries_of(data: bytes) -> tuple[list[Entry], int]:
    """All that can be read, and how many bytes are damaged."""
    at, lost = 0, 0
    found: list[Entry] = []
    while at < len(data):
        end = entry_end(data, at)
        if end is not None:
            with contextlib.suppress(msgspec.MsgspecError):  # Whole, and yet nothing we know: another program's.
                found.append(_decoder.decode(data[at + HEAD_BYTES : end]))
                at = end
                continue
        following = data.find(MARK, at + 1)
        if following < 0 and is_cut_off(data[at:]):
            log.debug(
                "the last %s bytes of the node's journal are an entry that was never written to its end", len(data) - at
            )
            break
        following = len(data) if following < 0 else following
        lost, at = lost + following - at, following
    return found, lost


def _come_further(known: Remembered | Settled, record: AllocationRecord) -> Remembered | Settled:
    return Remembered(known.order, record) if isinstance(known, Remembered) else known


def entry_end(data: bytes, at: int) -> int | None:
    """Where the entry that begins here ends; None where none begins here, or not a whole one."""
    head = data[at : at + HEAD_BYTES]
    if len(head) < HEAD_BYTES or not head.startswith(MARK):
        return None
    end = at + HEAD_BYTES + int.from_bytes(head[4:8], "big")
    if end > len(data) or zlib.crc32(head[4:8] + data[at + HEAD_BYTES : end]) != int.from_bytes(head[8:], "big"):
        return None
    return end


def is_cut_off(last: bytes) -> bool:
    """Whether this is the beginning of an entry, which the power cut or the agent's death kept from being written whole."""
    if len(last) < HEAD_BYTES:
        return last.startswith(MARK[: len(last)])
    if not last.startswith(MARK) or HEAD_BYTES + int.from_bytes(last[4:8], "big") <= len(last):
        return False
    try:
        msgspec.msgpack.decode(last[HEAD_BYTES:])
    except msgspec.MsgspecError:
        return True
    return False  # All of it is there, and its length is what is damaged.
