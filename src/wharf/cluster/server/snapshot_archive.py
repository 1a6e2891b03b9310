"""Snapshot archives: a gzipped tar of `meta.json`, `state.bin` and `SHA256SUMS`.

`state.bin` is a snapshot file (`engines.snapshot_file`) with its own checksum; such a file alone is accepted too. An archive is
read in one pass: nothing is unpacked to disk, and its unpacked size is limited.
"""

import gzip
import hashlib
import io
import tarfile
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, Final

import msgspec

from wharf.cluster.engines.port import StoredRecord
from wharf.cluster.engines.snapshot_file import (
    SNAPSHOT_MAGIC,
    SnapshotFileReader,
    SnapshotInfo,
    SnapshotLimits,
    SnapshotUnusable,
)
from wharf.contract.model.times import SECOND
from wharf.world.bounded_tar import BoundedTarInfo

STATE_FILE: Final = "state.bin"
META_FILE: Final = "meta.json"
CHECKSUMS_FILE: Final = "SHA256SUMS"
GZIP_MAGIC: Final = b"\x1f\x8b"
READ_CHUNK_BYTES: Final = 1024 * 1024
MAX_EXTRA_BYTES: Final = 16_000_000
"""What an archive may contain besides the snapshot file: the other files, and padding."""
MAX_ARCHIVE_FILES: Final = 16
"""Limits the work on an archive that is not a snapshot."""
MAX_META_BYTES: Final = 1_000_000
"""Limits the memory for `meta.json` and `SHA256SUMS`."""


def pack_archive(state: Path, archive: Path, snapshot_info: SnapshotInfo) -> bytes:
    """Write the snapshot file `state`, its metadata and checksums to `archive`. Return the archive's SHA-256 digest."""
    position = snapshot_info.trailer.standing
    meta = msgspec.json.format(
        msgspec.json.encode(
            {
                "Version": 1,
                "ID": f"{position.epoch}-{position.index}-{snapshot_info.header.created_ns // 1_000_000}",
                "Index": position.index,
                "Term": position.epoch,
                "Size": snapshot_info.size_bytes,
            }
        )
    )
    with state.open("rb") as file:
        state_digest = hashlib.file_digest(file, "sha256").hexdigest()
    checksum_text = f"{hashlib.sha256(meta).hexdigest()}  {META_FILE}\n{state_digest}  {STATE_FILE}\n".encode()
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        _add_member(tar, META_FILE, io.BytesIO(meta), len(meta), snapshot_info)
        with state.open("rb") as file:
            _add_member(tar, STATE_FILE, file, snapshot_info.size_bytes, snapshot_info)
        _add_member(tar, CHECKSUMS_FILE, io.BytesIO(checksum_text), len(checksum_text), snapshot_info)
    with archive.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


class SnapshotArchiveReader:
    """Reads the records of a snapshot in one pass and verifies it. The snapshot is an archive or a snapshot file.

    It is usable only if `iter_slices` came to its end, because the checksums are there.
    """

    def __init__(self, path: Path, limits: SnapshotLimits, *, name: str) -> None:
        """`name`: which snapshot it is, for error texts, such as its path or `that was sent`."""
        self._path = path
        self._limits = limits
        self._name = name
        self._info: SnapshotInfo | None = None

    def get_info(self) -> SnapshotInfo:
        """Return what the snapshot contains. Call after the end of `iter_slices`."""
        assert self._info is not None, "the snapshot was read to its end"
        return self._info

    def read_info(self) -> SnapshotInfo:
        """Read and verify the whole snapshot, and return what it contains. Raises `SnapshotUnusable`."""
        for _ in self.iter_slices():
            pass
        return self.get_info()

    def iter_slices(self) -> Iterator[list[StoredRecord]]:
        """Yield the records of each slice. Raises `SnapshotUnusable`."""
        try:
            with self._path.open("rb") as file:
                start = file.read(len(GZIP_MAGIC))
                file.seek(0)
                if start == GZIP_MAGIC:
                    yield from self._iter_archive(file)
                elif not start:
                    raise self._build_archive_error("it is empty")
                elif not SNAPSHOT_MAGIC.startswith(start):
                    raise self._build_archive_error("it is neither a gzip file nor a snapshot file")
                else:
                    reader = SnapshotFileReader(file, self._name, self._limits)
                    yield from reader.iter_slices()
                    self._info = reader.get_info()
        except OSError as error:
            raise SnapshotUnusable(f"the snapshot {self._name} cannot be read: {error.strerror or error}") from error

    def _iter_archive(self, file: IO[bytes]) -> Generator[list[StoredRecord], None, None]:
        """Yield the records of the snapshot file in an archive, and verify the archive's checksums."""
        try:
            with closing(_BoundedGzip(file, self._limits.max_bytes + MAX_EXTRA_BYTES)) as content:
                yield from self._iter_content(content)
        except _TooLong:
            raise SnapshotUnusable(
                f"the snapshot {self._name} has more than {self._limits.max_bytes:,} bytes when it is unpacked, the limit of "
                "snapshots.max_size: raise it if the snapshot is yours; nothing was changed"
            ) from None
        except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, ValueError) as error:
            raise self._build_archive_error(str(error)) from error

    def _iter_content(self, content: "_BoundedGzip") -> Generator[list[StoredRecord], None, None]:
        """Yield the records of the snapshot file in the unpacked archive."""
        digests: dict[str, str] = {}
        checksum_text = ""
        with tarfile.open(fileobj=content, mode="r|", bufsize=READ_CHUNK_BYTES, tarinfo=BoundedTarInfo) as tar:
            for count, member in enumerate(tar):
                if count >= MAX_ARCHIVE_FILES:
                    raise self._build_archive_error("it contains more files than a snapshot")
                inner = tar.extractfile(member) if member.isreg() else None
                if inner is None or member.name not in (META_FILE, STATE_FILE, CHECKSUMS_FILE):
                    continue
                if member.name in digests:
                    raise self._build_archive_error(f"it contains {member.name} twice")
                if member.name == STATE_FILE:
                    hashed = _HashedFile(inner)
                    reader = SnapshotFileReader(hashed, self._name, self._limits)
                    yield from reader.iter_slices()
                    self._info = reader.get_info()
                    digests[STATE_FILE] = hashed.digest.hexdigest()
                    continue
                if member.size > MAX_META_BYTES:
                    raise self._build_archive_error(f"{member.name} in it is larger than allowed")
                text = inner.read()
                digests[member.name] = hashlib.sha256(text).hexdigest()
                if member.name == CHECKSUMS_FILE:
                    checksum_text = text.decode("utf-8", "replace")
        while content.read(READ_CHUNK_BYTES):
            pass  # Read to the end to detect a truncated archive.
        if STATE_FILE not in digests:
            raise self._build_archive_error(f"it contains no {STATE_FILE}")
        checksums = dict(_parse_checksums(checksum_text))
        for name in (META_FILE, STATE_FILE):
            if checksums.get(name) != digests.get(name):
                raise self._build_archive_error(
                    f"{name} in it is damaged: its checksum differs from that in {CHECKSUMS_FILE}"
                )

    def _build_archive_error(self, reason: str) -> SnapshotUnusable:
        return SnapshotUnusable(
            f"failed to decompress snapshot: {reason}; the file {self._name} is damaged or is no snapshot: use another "
            "one; nothing was changed"
        )


class _TooLong(Exception):
    """The unpacked archive is longer than allowed."""


class _BoundedGzip(gzip.GzipFile):
    """Reads the content of a gzip file up to a limit."""

    def __init__(self, file: IO[bytes], max_bytes: int) -> None:
        super().__init__(fileobj=file)
        self._remaining_bytes = max_bytes

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes. Raises `_TooLong`."""
        data = super().read(size)
        self._remaining_bytes -= len(data)
        if self._remaining_bytes < 0:
            raise _TooLong
        return data


class _HashedFile:
    """A file in an archive, with the SHA-256 digest of what was read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def read(self, size: int, /) -> bytes:
        data = self._file.read(size)
        self.digest.update(data)
        return data


def _parse_checksums(text: str) -> Iterator[tuple[str, str]]:
    """Yield file name and digest of each line of `SHA256SUMS`."""
    for line in text.splitlines():
        digest, _, name = line.partition("  ")
        yield name, digest


def _add_member(tar: tarfile.TarFile, name: str, content: IO[bytes], size: int, snapshot_info: SnapshotInfo) -> None:
    """Add a file with this name, content and size to the tar archive."""
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o600, snapshot_info.header.created_ns // SECOND
    tar.addfile(info, content)
