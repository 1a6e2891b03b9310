"""The archive that a snapshot travels in over HTTP: a gzipped tar of `meta.json`, `state.bin` and `SHA256SUMS`.

`state.bin` is a snapshot file (`engines.snapshot`), which carries a checksum of its own. What comes in may also be such a
file by itself, as the commands save it.
"""

import hashlib
import io
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import msgspec

from wharf.engines.snapshot import MAGIC, SnapshotFacts
from wharf.model.durations import SECOND

STATE: Final = "state.bin"
META: Final = "meta.json"
SUMS: Final = "SHA256SUMS"
GZIP: Final = b"\x1f\x8b"
PART_BYTES: Final = 1024 * 1024
MEMBERS_MOST: Final = 16
SMALL_BYTES: Final = 1_000_000


class ArchiveRefused(Exception):
    """A sentence about an archive that cannot be used."""


def is_archive(path: Path) -> bool:
    """Whether it begins as an archive does; what cannot be read does not."""
    try:
        with path.open("rb") as file:
            return file.read(2) == GZIP
    except OSError:
        return False


def pack(state: Path, archive: Path, facts: SnapshotFacts) -> bytes:
    """Write the archive; the SHA-256 of its bytes."""
    standing = facts.trailer.standing
    meta = msgspec.json.format(
        msgspec.json.encode(
            {
                "Version": 1,
                "ID": f"{standing.epoch}-{standing.index}-{facts.header.created_ns // 1_000_000}",
                "Index": standing.index,
                "Term": standing.epoch,
                "Size": facts.size_bytes,
            }
        )
    )
    with state.open("rb") as file:
        state_digest = hashlib.file_digest(file, "sha256").hexdigest()
    sums = f"{hashlib.sha256(meta).hexdigest()}  {META}\n{state_digest}  {STATE}\n".encode()
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        _add(tar, META, io.BytesIO(meta), len(meta), facts)
        with state.open("rb") as file:
            _add(tar, STATE, file, facts.size_bytes, facts)
        _add(tar, SUMS, io.BytesIO(sums), len(sums), facts)
    with archive.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def unpack(archive: Path, state: Path) -> None:
    """Take the snapshot file out of an archive. Raises `ArchiveRefused`; `state` means nothing then."""
    with archive.open("rb") as file:
        start = file.read(len(MAGIC))
    if start == MAGIC:
        archive.rename(state)
        return
    if not start:
        raise ArchiveRefused("failed to decompress snapshot: it is empty")
    try:
        _take_out(archive, state)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise ArchiveRefused(f"failed to decompress snapshot: {error}") from error


def _take_out(archive: Path, state: Path) -> None:
    digests: dict[str, str] = {}
    sums = ""
    with tarfile.open(archive, "r:gz") as tar:
        for count, member in enumerate(tar):
            if count >= MEMBERS_MOST:
                raise ArchiveRefused("the archive holds more files than a snapshot has")
            inner = tar.extractfile(member)
            if inner is None or member.name not in (META, STATE, SUMS):
                continue
            if member.name == STATE:
                digests[STATE] = _copy(inner, state)
                continue
            if member.size > SMALL_BYTES:
                raise ArchiveRefused(f"{member.name} of the archive is larger than it can be")
            text = inner.read()
            digests[member.name] = hashlib.sha256(text).hexdigest()
            if member.name == SUMS:
                sums = text.decode("utf-8", "replace")
        while tar.fileobj is not None and tar.fileobj.read(PART_BYTES):
            pass  # To its end, so that one that was cut off is noticed.
    if STATE not in digests:
        raise ArchiveRefused(f"the archive holds no {STATE}: it is no snapshot")
    told = dict(_read_sums(sums))
    for name in (META, STATE):
        if told.get(name) != digests.get(name):
            raise ArchiveRefused(f"{name} of the archive is damaged: its checksum is another than {SUMS} says")


def _copy(inner: IO[bytes], state: Path) -> str:
    digest = hashlib.sha256()
    with state.open("wb") as out:
        while part := inner.read(PART_BYTES):
            digest.update(part)
            out.write(part)
    return digest.hexdigest()


def _read_sums(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        digest, _, name = line.partition("  ")
        yield name, digest


def _add(tar: tarfile.TarFile, name: str, content: IO[bytes], size: int, facts: SnapshotFacts) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o600, facts.header.created_ns // SECOND
    tar.addfile(info, content)
