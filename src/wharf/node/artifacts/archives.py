"""Unpacking archives: tar (plain, gzip, bzip2, xz), zip, and single compressed files.

An archive is somebody else's: it may say anything of itself. Entries are read one after another and written through
`Inside`; bytes and entries are counted as they come, whatever the headers claim; devices and the like are refused.
"""

import bz2
import gzip
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Final, cast

from wharf.node.artifacts.confined_folder import ConfinedFolder
from wharf.node.artifacts.errors import ArtifactError

CHUNK_BYTES: Final = 1 << 20
# The longest first: `.tar.gz` is not `.gz`.
ARCHIVE_KINDS: Final = ("tar.gz", "tgz", "tar.bz2", "tbz2", "tar.xz", "txz", "tar", "zip", "gz", "bz2", "xz")
_SINGLE: Final[Mapping[str, Callable[..., IO[bytes]]]] = {
    "gz": cast(Callable[..., IO[bytes]], gzip.open),
    "bz2": cast(Callable[..., IO[bytes]], bz2.open),
    "xz": cast(Callable[..., IO[bytes]], lzma.open),
}  # Their types name no common one; opened for reading, all of them read bytes.


class UnpackBudget:
    """The remaining bytes and files that an artifact may unpack to. `is_wanted` returns False once the task is gone."""

    def __init__(self, max_bytes: int, max_files: int, is_wanted: Callable[[], bool] = lambda: True) -> None:
        self._bytes_left, self._bytes_max = max_bytes, max_bytes
        self._files_left, self._files_max = max_files, max_files
        self._is_wanted = is_wanted

    def count_file(self) -> None:
        self._files_left -= 1
        if self._files_left < 0:
            raise ArtifactError(f"it holds more than {self._files_max:,} files", is_permanent=True)

    def count_bytes(self, count: int) -> None:
        self._bytes_left -= count
        if self._bytes_left < 0:
            raise ArtifactError(f"it grows over {self._bytes_max:,} bytes when unpacked", is_permanent=True)
        if not self._is_wanted():
            raise ArtifactError("nobody wants it any more")


def detect_archive_kind(name: str, said: str) -> str:
    """Return the kind of archive; empty if the file is no archive or is not to be unpacked. Raises ArtifactError."""
    if said in ("false", "0"):
        return ""
    if said and said != "true":
        if said not in ARCHIVE_KINDS:
            raise ArtifactError(
                f"archive is {said[:20]}: there are {', '.join(ARCHIVE_KINDS)}, or false", is_permanent=True
            )
        return said
    return next((kind for kind in ARCHIVE_KINDS if name.lower().endswith(f".{kind}")), "")


def unpack_archive(
    archive: Path, kind: str, name: str, folder: str, inside: ConfinedFolder, into: str, budget: UnpackBudget
) -> list[str]:
    """Unpack below `into` and return the created files. Raises ArtifactError and OSError.

    If `folder` is given, only this folder of the archive is unpacked.
    """
    try:
        if kind == "zip":
            return _unpack_zip(archive, folder, inside, into, budget)
        if kind in _SINGLE:
            path = f"{into}/{name.removesuffix('.' + kind)}"
            with _SINGLE[kind](archive, "rb") as source:
                _write(source, inside, path, 0o644, budget)
            return [path]
        return _unpack_tar(archive, folder, inside, into, budget)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError) as error:
        raise ArtifactError(f"{name[:100]} is no {kind} archive, or a damaged one: {error}") from None
    except (gzip.BadGzipFile, RuntimeError, UnicodeDecodeError, ValueError) as error:
        raise ArtifactError(f"{name[:100]} cannot be unpacked: {error}") from None


def _unpack_tar(archive: Path, folder: str, inside: ConfinedFolder, into: str, budget: UnpackBudget) -> list[str]:
    made = []
    with tarfile.open(archive, "r|*") as opened:
        for entry in opened:
            path = _below(entry.name, folder)
            if path is None:
                continue
            budget.count_file()
            target = f"{into}/{path}" if path else into
            mode = entry.mode & 0o777 or 0o644
            if entry.isdir():
                inside.make_folder(target)
            elif entry.isreg():
                source = opened.extractfile(entry)
                assert source is not None, "a regular file has content"
                _write(source, inside, target, mode, budget)
                made.append(target)
            elif entry.issym():
                inside.create_link(target, entry.linkname)
            elif entry.islnk():
                other = _below(entry.linkname, folder)
                if not other:
                    raise ArtifactError(
                        f"{entry.name[:200]} is another name of what is not unpacked", is_permanent=True
                    )
                inside.create_hard_link(target, f"{into}/{other}")
            else:
                raise ArtifactError(f"{entry.name[:200]} is a device or the like, and not unpacked", is_permanent=True)
    return made


def _unpack_zip(archive: Path, folder: str, inside: ConfinedFolder, into: str, budget: UnpackBudget) -> list[str]:
    made = []
    with zipfile.ZipFile(archive) as opened:
        for entry in opened.infolist():
            path = _below(entry.filename, folder)
            if path is None:
                continue
            budget.count_file()
            target = f"{into}/{path}" if path else into
            mode = entry.external_attr >> 16
            if entry.is_dir():
                inside.make_folder(target)
            elif stat.S_ISLNK(mode):
                with opened.open(entry) as source:
                    inside.create_link(target, source.read(4_096).decode())
            elif stat.S_IFMT(mode) in (0, stat.S_IFREG):
                with opened.open(entry) as source:
                    _write(source, inside, target, mode & 0o777 or 0o644, budget)
                made.append(target)
            else:
                raise ArtifactError(
                    f"{entry.filename[:200]} is a device or the like, and not unpacked", is_permanent=True
                )
    return made


def _below(name: str, folder: str) -> str | None:
    """Return a member's path relative to the requested folder; None if it is outside of that folder."""
    plain = "/".join(step for step in name.split("/") if step not in ("", "."))
    if not folder:
        return plain
    if plain == folder:
        return ""
    return plain.removeprefix(f"{folder}/") if plain.startswith(f"{folder}/") else None


def _write(source: IO[bytes], inside: ConfinedFolder, path: str, mode: int, budget: UnpackBudget) -> None:
    with inside.open_new_file(path, mode) as file:
        while piece := source.read(CHUNK_BYTES):
            budget.count_bytes(len(piece))
            file.write(piece)
