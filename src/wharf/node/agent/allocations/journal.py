"""The node's journal: a file with the assignment and the progress of every allocation, from which a restarted agent
continues.

Each entry starts with a fixed byte sequence (`ENTRY_MARK`), its length and a checksum. Entries are appended; the last
entry about an allocation is the valid one. A damaged entry is skipped and logged, and reading continues at the next
`ENTRY_MARK`. A truncated last entry is not damage, because it was never acknowledged. The file is compacted when most
of it is outdated.

An append reaches the kernel at once, which survives the death of the process. `wait_until_synced` waits until it is on
the disk. If the disk cannot be written, running tasks continue: everything is held in memory, and callers that need
durability wait. `retry_write` tries again to write everything.

The length of the journal is stored in a file of its own, so that a journal that lost its end, or is an older copy, is noticed.
"""

import asyncio
import contextlib
import errno
import gc
import logging
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol

import msgspec

from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.wire.nodes.messages import Assignment
from wharf.node.agent.allocations.shared_jobs import SharedJobParts
from wharf.node.core.record import AllocationRecord
from wharf.world.durable_file import rename_durably

log = logging.getLogger(__name__)

DAMAGED_SUFFIX: Final = ".damaged"
"""Suffix of the copy of a journal that was partly unreadable."""
END_SUFFIX: Final = ".end"
"""Suffix of the file that describes the journal's end."""


class JournalFile(Protocol):
    """The file below the journal: bytes are appended, synced or replaced as a whole.

    All methods but `close` raise `OSError`.
    """

    size: int  # of the content in bytes

    def read(self) -> bytes:
        """Return the whole content; empty if the file does not exist."""
        ...

    def append(self, data: bytes) -> None:
        """Append all of `data` or nothing.

        The appended data survive the end of this process, but a power cut only after `sync`.
        """
        ...

    def sync(self) -> asyncio.Future[None]:
        """Return a future that is done when all data appended before this call are on the disk."""
        ...

    def replace(self, parts: Iterable[bytes]) -> None:
        """Replace the whole content by the concatenated `parts` and sync it; after an error the old content remains."""
        ...

    def read_end(self) -> bytes:
        """Return what `write_end` has stored; empty if there is nothing."""
        ...

    def write_end(self, data: bytes) -> None:
        """Store a description of the journal's end beside it. Errors are ignored: then a loss may stay unnoticed."""
        ...

    def save_damaged(self, data: bytes) -> None:
        """Store a copy of a partly unreadable journal for inspection."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class DiskJournalFile:
    """The journal's file on a real disk.

    `replace` must be called before the first `append`, because it opens the file.
    """

    def __init__(self, path: Path) -> None:
        self.size = 0
        self._path = path
        self._file = -1
        # A thread of its own: nothing else that the node does may delay the sync before a start.
        self._sync_thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._end_file = -1

    def read(self) -> bytes:
        """Return the whole content; empty if the file does not exist."""
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return b""

    def append(self, data: bytes) -> None:
        """Append all of `data` or nothing. Raises `OSError`, also if the disk is full."""
        written = os.write(self._file, data)
        if written < len(data):  # The disk is full. A partial entry must not precede the next one.
            os.ftruncate(self._file, self.size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.size += len(data)

    def sync(self) -> asyncio.Future[None]:
        """Start to sync the file in a thread. Return a future that is done when the data are on the disk."""
        # A duplicate descriptor, because the file may be replaced before the sync ends.
        return asyncio.get_running_loop().run_in_executor(self._sync_thread, _sync, os.dup(self._file))

    def replace(self, parts: Iterable[bytes]) -> None:
        """Write `parts` to a new file, sync it, rename it over the journal and keep it open for appends.

        Raises `OSError`.
        """
        temporary_file = self._path.with_suffix(".new")
        descriptor = os.open(temporary_file, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(os.dup(descriptor), "wb") as stream:
                stream.writelines(parts)
                stream.flush()
            size = os.fstat(descriptor).st_size
            os.fdatasync(descriptor)
            rename_durably(temporary_file, self._path)
        except OSError:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                temporary_file.unlink()
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file = descriptor
        self.size = size

    def read_end(self) -> bytes:
        """Return what `write_end` has stored; empty if there is nothing."""
        try:
            return self._path.with_suffix(END_SUFFIX).read_bytes()
        except OSError:
            return b""

    def write_end(self, data: bytes) -> None:
        """Overwrite the description of the journal's end. Errors are ignored: then a loss may stay unnoticed."""
        with contextlib.suppress(OSError):
            if self._end_file < 0:
                path = self._path.with_suffix(END_SUFFIX)
                self._end_file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(self._end_file, data, 0)

    def save_damaged(self, data: bytes) -> None:
        """Write a copy of a partly unreadable journal beside it, with the suffix `.damaged`. Raises `OSError`."""
        self._path.with_suffix(DAMAGED_SUFFIX).write_bytes(data)

    def close(self) -> None:
        """Close the files that are open, and end the thread once its sync has ended."""
        self._sync_thread.shutdown(wait=False)
        for descriptor in (self._file, self._end_file):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._end_file = -1


def _sync(descriptor: int) -> None:
    """Sync the file to the disk, then close the descriptor. Blocks, so it is run in a thread."""
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


ENTRY_MARK: Final = b"WJ1\n"
"""The first bytes of every entry; reading continues at the next mark after damage."""
HEADER_BYTES: Final = 12
"""Length of mark, body length and checksum."""
MIN_COMPACTION_BYTES: Final = 4_000_000
"""A smaller file is never compacted."""


class StoredAssignment(msgspec.Struct, frozen=True, tag="Kept"):
    """The journal entry with an allocation's assignment, as servers sent it.

    It is long and changes rarely, so it is stored separately from the progress.
    """

    id: str  # The allocation's id.
    assignment: Assignment = msgspec.field(name="order")
    is_gone: bool = False
    """Servers no longer know the allocation: it must be stopped, then deleted."""


class StoredProgress(msgspec.Struct, frozen=True, tag="Came"):
    """The journal entry with the state of an allocation and its tasks."""

    record: AllocationRecord


class SettledAllocation(msgspec.Struct, frozen=True, tag="Settled", omit_defaults=True):
    """The journal entry of an allocation that has ended and whose end servers have acknowledged.

    It replaces the entries with the allocation's assignment and progress.
    """

    record: AllocationRecord
    index: int
    """The modify index of its latest assignment."""
    client_status: ClientStatus = ClientStatus.PENDING
    """The client status in that assignment."""
    is_batch: bool = False
    """Whether its job is a batch or sysbatch job; `False` also if an older version wrote the entry."""


class DeletedAllocation(msgspec.Struct, frozen=True, tag="Forgotten"):
    """The journal entry that invalidates all earlier entries about an allocation."""

    id: str  # The allocation's id.


class BootMarker(msgspec.Struct, frozen=True, tag="Booted"):
    """The journal entry with the boot of the machine during which the entries after it were written."""

    boot_id: str  # The random id that the kernel creates at each boot.
    generation: int = 0
    """How often the file was rewritten; 0: an older version wrote it, which did not count."""


class JournalEnd(msgspec.Struct, frozen=True):
    """The description of the journal's end, in a file of its own."""

    generation: int
    """The generation of the journal that it describes."""
    boot_id: str
    size: int
    """The length of the journal in bytes, which holds unless the machine has restarted."""
    synced_size: int
    """The length that is on the disk for certain."""


JournalEntry = StoredAssignment | StoredProgress | SettledAllocation | DeletedAllocation | BootMarker


class RestoredAllocation(msgspec.Struct):
    """An allocation as read from the journal, if servers have not acknowledged its end."""

    stored_assignment: StoredAssignment
    record: AllocationRecord | None = None
    """`None`: it was assigned, and nothing was done yet."""


class NodeJournal:
    """The journal of a node: appends entries to its file, and holds the latest entries in memory.

    Call `load` before any other method.
    """

    def __init__(
        self, file: JournalFile, boot_id: str, *, on_write_state_changed: Callable[[str], None] = lambda _why: None
    ) -> None:
        """`on_write_state_changed` receives the reason when writing fails, and an empty text when it works again."""
        self._file = file
        self._boot_id = boot_id
        self._on_write_state_changed = on_write_state_changed
        self._encoder = msgspec.msgpack.Encoder()
        self.shared_jobs = SharedJobParts()
        """Lets the assignments in memory share equal parts of their jobs."""
        self._assignments: dict[str, StoredAssignment | bytes] = {}
        """The `StoredAssignment` or the encoded `SettledAllocation` of each allocation.

        Assignments are encoded when the file is rewritten: decoded ones share parts of their jobs.
        """
        self._assignment_bytes: dict[str, int] = {}
        """The encoded size of each allocation's assignment."""
        self._records: dict[str, bytes] = {}
        self._live_bytes = 0
        self._is_loaded = False
        self._appended_count = 0
        self._synced_count = 0
        self._syncing: tuple[asyncio.Future[None], int, tuple[int, int]] | None = None
        """The running sync, how many entries will be on the disk when it is done, and generation and size of the file."""
        self._is_writable_event = asyncio.Event()
        self._generation = 0
        self._synced_size = 0
        self.has_rebooted = False
        self.damage_text = ""
        """A sentence about the part that is lost or could not be read; empty if everything was read."""

    def load(self) -> dict[str, RestoredAllocation | SettledAllocation]:
        """Read the journal, rewrite it without outdated entries, and return all stored allocations by id.

        Sets `has_rebooted` and `damage_text`. If only the rewrite fails, the journal is not writable until
        `retry_write` succeeds. Raises `OSError` if the file cannot be read at all.
        """
        was_collecting = gc.isenabled()
        gc.disable()  # A journal can have a hundred thousand entries. None of them becomes garbage in a cycle.
        try:
            return self._load()
        finally:
            if was_collecting:
                gc.enable()

    def _load(self) -> dict[str, RestoredAllocation | SettledAllocation]:
        """Read the journal, rewrite it and return all stored allocations by id. Raises `OSError`."""
        allocations: dict[str, RestoredAllocation | SettledAllocation] = {}
        encoded_settled: dict[str, bytes] = {}
        boot_id = self._boot_id
        for entry, encoded in self._read():
            match entry:
                case StoredAssignment(id):
                    previous = allocations.get(id)
                    allocations[id] = RestoredAllocation(
                        entry, previous.record if isinstance(previous, RestoredAllocation) else None
                    )
                case StoredProgress(record) if record.id in allocations:
                    allocations[record.id] = _with_progress(allocations[record.id], record)
                case SettledAllocation(record):
                    allocations[record.id] = entry
                    encoded_settled[record.id] = encoded
                case DeletedAllocation(id):
                    allocations.pop(id, None)
                case BootMarker(boot_id, generation):
                    self._generation = max(self._generation, generation)
                case _:
                    pass
        self.has_rebooted = boot_id != self._boot_id
        for allocation in allocations.values():
            match allocation:
                case SettledAllocation(record):
                    # These are most entries, so they are not encoded again.
                    self._store_encoded(allocation, encoded_settled[record.id])
                case RestoredAllocation(stored_assignment, progress):
                    self._add_entry(stored_assignment)
                    if progress is not None:
                        self._add_entry(StoredProgress(progress))
        try:
            self._compact()
        except OSError as error:
            self._on_write_failed(error)
        else:
            self._is_writable_event.set()
        self._is_loaded = True
        return allocations

    def _read(self) -> list[tuple[JournalEntry, bytes]]:
        """Return all readable entries of the file, those of settled allocations with their bytes.

        If parts are damaged, set `damage_text`, log it, and save a copy of the file.
        """
        data = self._file.read()
        entries, damaged_bytes = split_entries(data, self.shared_jobs)
        if damaged_bytes:
            self.damage_text = (
                f"{damaged_bytes} of {len(data)} bytes of the node's journal are damaged and were skipped"
            )
            with contextlib.suppress(OSError):  # For an operator who wants to inspect it.
                self._file.save_damaged(data)
            log.error("journal is partly damaged damaged_bytes=%s bytes=%s", damaged_bytes, len(data))
        elif lost_text := self._describe_loss(len(data), [entry for entry, _ in entries[:1]]):
            self.damage_text = lost_text
            with contextlib.suppress(OSError):
                self._file.save_damaged(data)
            log.error("journal has lost entries reason=%s", lost_text)
        return entries

    def _describe_loss(self, size: int, first_entries: Sequence[JournalEntry]) -> str:
        """Return a sentence if the journal is shorter than its stored end says, or an older copy; otherwise nothing."""
        stored = self._file.read_end()
        frame_end = find_entry_end(stored, 0)
        if frame_end is None:
            return ""
        try:
            end = msgspec.msgpack.decode(stored[HEADER_BYTES:frame_end], type=JournalEnd)
        except msgspec.MsgspecError:
            return ""
        self._generation = end.generation
        marker = first_entries[0] if first_entries else None
        if not isinstance(marker, BootMarker):
            return "the node's journal is missing, or its beginning is" if marker is None else ""
        if not marker.generation or marker.generation > end.generation:
            return ""
        if marker.generation < end.generation:
            return "the node's journal is an older copy"
        missing_bytes = (end.size if end.boot_id == self._boot_id else end.synced_size) - size
        return f"{missing_bytes} bytes at the end of the node's journal are missing" if missing_bytes > 0 else ""

    def _store_end(self) -> None:
        """Store where the journal ends now."""
        end = JournalEnd(self._generation, self._boot_id, self._file.size, self._synced_size)
        self._file.write_end(frame_entry(self._encoder.encode(end)))

    def read_settled(self, allocation_id: str) -> SettledAllocation:
        """Return the entry of an allocation whose end servers have acknowledged.

        Raises `KeyError` if it is unknown.
        """
        encoded = self._assignments[allocation_id]
        assert isinstance(encoded, bytes), "the allocation is settled"
        entry = _decoder.decode(encoded[HEADER_BYTES:])
        assert isinstance(entry, SettledAllocation), "the allocation is settled"
        return entry

    def append_entry(self, entry: StoredAssignment | StoredProgress | SettledAllocation | DeletedAllocation) -> None:
        """Add an entry in memory and append it to the file, without waiting for the disk.

        While the disk cannot be written, the entry is only held in memory. A file that is mostly outdated is rewritten.
        """
        encoded = self._encode_entry(entry)
        self._store_encoded(entry, encoded)
        self._appended_count += 1
        if not self.is_writable:
            return
        try:
            self._file.append(encoded)
            self._store_end()
            if self._file.size > MIN_COMPACTION_BYTES and self._file.size > 4 * self._live_bytes:
                self._compact()
        except OSError as error:
            self._on_write_failed(error)

    @property
    def is_writable(self) -> bool:
        """Whether the last write succeeded."""
        return self._is_writable_event.is_set()

    def retry_write(self) -> bool:
        """Try again to write everything, if the last write failed. Return whether the journal is writable now."""
        if not self.is_writable:
            try:
                self._compact()
            except OSError:
                return False
            self._is_writable_event.set()
            self._on_write_state_changed("")
        return True

    def _on_write_failed(self, error: OSError) -> None:
        """Record that the file cannot be written, and report the reason once."""
        if self.is_writable or not self._is_loaded:
            self._is_writable_event.clear()
            self._on_write_state_changed(error.strerror or str(error))

    def _encode_entry(self, entry: JournalEntry) -> bytes:
        """Return the entry as bytes for the file, with `ENTRY_MARK`, length and checksum."""
        return frame_entry(self._encoder.encode(entry))

    def _add_entry(self, entry: StoredAssignment | StoredProgress | SettledAllocation) -> None:
        """Encode an entry and store it in memory, without writing it to the file."""
        self._store_encoded(entry, self._encode_entry(entry))

    def _store_encoded(
        self, entry: StoredAssignment | StoredProgress | SettledAllocation | DeletedAllocation, encoded: bytes
    ) -> None:
        """Put the encoded entry into the tables in memory, and delete the entries that it replaces."""
        match entry:
            case StoredAssignment(id):
                self._put_assignment(id, entry, len(encoded))
            case StoredProgress(record):
                self._live_bytes += len(encoded) - len(self._records.get(record.id, b""))
                self._records[record.id] = encoded
            case SettledAllocation(record):
                self._put_assignment(record.id, encoded, len(encoded))
                self._drop_record(record.id)
            case DeletedAllocation(id):
                self._assignments.pop(id, None)
                self._live_bytes -= self._assignment_bytes.pop(id, 0)
                self._drop_record(id)

    def _put_assignment(self, id: str, entry: StoredAssignment | bytes, size: int) -> None:
        """Store the assignment or the encoded end of an allocation, and add the change in size to the live bytes."""
        self._live_bytes += size - self._assignment_bytes.get(id, 0)
        self._assignments[id] = entry
        self._assignment_bytes[id] = size

    def _drop_record(self, id: str) -> None:
        """Delete the encoded progress of the allocation, if any, and subtract its size from the live bytes."""
        self._live_bytes -= len(self._records.pop(id, b""))

    def _compact(self) -> None:
        """Rewrite the file with only the latest entries of each allocation, and count all entries as synced.

        Raises `OSError`.
        """
        self._file.replace(self._iter_latest_entries())
        self._generation += 1
        self._synced_count = self._appended_count
        self._synced_size = self._file.size
        self._store_end()

    def _iter_latest_entries(self) -> Iterator[bytes]:
        """Yield the bytes of the boot marker and of the latest entries of each allocation."""
        yield self._encode_entry(BootMarker(self._boot_id, self._generation + 1))
        for id, assignment in self._assignments.items():
            yield assignment if isinstance(assignment, bytes) else self._encode_entry(assignment)
            if (record := self._records.get(id)) is not None:
                yield record

    async def wait_until_synced(self) -> None:
        """Wait until every entry that was appended before this call is on the disk.

        Callers that wait at the same time share one sync. While the disk cannot be written, the wait goes on.
        """
        target_count = self._appended_count
        while self._synced_count < target_count:
            await self._is_writable_event.wait()
            if self._syncing is None:
                self._syncing = self._file.sync(), self._appended_count, (self._generation, self._file.size)
            sync, count_after, (generation, size) = self._syncing
            try:
                await asyncio.shield(sync)
                self._synced_count = max(self._synced_count, count_after)
                if generation == self._generation and size > self._synced_size:
                    self._synced_size = size
                    self._store_end()
            except OSError as error:
                self._on_write_failed(error)
            finally:
                if self._syncing is not None and self._syncing[0] is sync and sync.done():
                    self._syncing = None

    def close(self) -> None:
        """Close the journal's file."""
        self._file.close()


_decoder: Final = msgspec.msgpack.Decoder(JournalEntry)


def frame_entry(body: bytes) -> bytes:
    """Return the bytes of one journal entry: `ENTRY_MARK`, the length of `body`, a CRC-32 checksum and `body`."""
    size = len(body).to_bytes(4, "big")
    return ENTRY_MARK + size + zlib.crc32(size + body).to_bytes(4, "big") + body


def decode_entries(data: bytes) -> tuple[list[JournalEntry], int]:
    """Return (the readable entries, the number of damaged bytes)."""
    entries, damaged_bytes = split_entries(data)
    return [entry for entry, _ in entries], damaged_bytes


def split_entries(
    data: bytes, shared_jobs: SharedJobParts | None = None
) -> tuple[list[tuple[JournalEntry, bytes]], int]:
    """Return (the readable entries, those of settled allocations with their bytes, and the number of damaged bytes).

    Assignments share equal parts of their jobs through `shared_jobs`, if given.

    A truncated entry at the end is neither returned nor counted as damage. Complete entries of unknown types are
    skipped.
    """
    offset, damaged_bytes = 0, 0
    entries: list[tuple[JournalEntry, bytes]] = []
    while offset < len(data):
        end = find_entry_end(data, offset)
        if end is not None:
            # A complete entry that cannot be decoded has an unknown type: another version wrote it.
            with contextlib.suppress(msgspec.MsgspecError):
                encoded = data[offset:end]
                entry = _decoder.decode(memoryview(encoded)[HEADER_BYTES:])
                if isinstance(entry, StoredAssignment) and shared_jobs is not None:
                    shared_jobs.share(entry.assignment.job)
                entries.append((entry, encoded if isinstance(entry, SettledAllocation) else b""))
                offset = end
                continue
        next_mark = data.find(ENTRY_MARK, offset + 1)
        if next_mark < 0 and is_truncated_entry(data[offset:]):
            log.debug("ignoring truncated last entry of the journal bytes=%s", len(data) - offset)
            break
        next_mark = len(data) if next_mark < 0 else next_mark
        damaged_bytes, offset = damaged_bytes + next_mark - offset, next_mark
    return entries, damaged_bytes


def _with_progress(
    allocation: RestoredAllocation | SettledAllocation, record: AllocationRecord
) -> RestoredAllocation | SettledAllocation:
    """Return the allocation with `record` as its progress; a settled allocation is returned unchanged.

    Settled: over, and servers have acknowledged it.
    """
    return (
        RestoredAllocation(allocation.stored_assignment, record)
        if isinstance(allocation, RestoredAllocation)
        else allocation
    )


def find_entry_end(data: bytes, offset: int) -> int | None:
    """Return the end of the entry that begins at `offset`, both as positions in `data`.

    `None` if no complete and undamaged entry begins at `offset`.
    """
    header = data[offset : offset + HEADER_BYTES]
    if len(header) < HEADER_BYTES or not header.startswith(ENTRY_MARK):
        return None
    end = offset + HEADER_BYTES + int.from_bytes(header[4:8], "big")
    if end > len(data) or zlib.crc32(header[4:8] + data[offset + HEADER_BYTES : end]) != int.from_bytes(
        header[8:], "big"
    ):
        return None
    return end


def is_truncated_entry(data: bytes) -> bool:
    """Return whether `data` is the beginning of an entry that a crash cut off.

    `False` if the body is complete although the header announces more bytes: then the length is damaged.
    """
    if len(data) < HEADER_BYTES:
        return data.startswith(ENTRY_MARK[: len(data)])
    if not data.startswith(ENTRY_MARK) or HEADER_BYTES + int.from_bytes(data[4:8], "big") <= len(data):
        return False
    try:
        msgspec.msgpack.decode(data[HEADER_BYTES:])
    except msgspec.MsgspecError:
        return True
    return False  # The body is complete, so the length in the header is damaged.
