"""Unpacking archives: tar (plain, gzip, bzip2, xz), zip, and single compressed files.

Archives are not trusted. Entries are written only through `ConfinedFolder`. Bytes and entries are counted while they
are unpacked, whatever the headers of the archive claim. Devices and pipes are rejected.
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

from wharf.node.artifacts.errors import ArtifactError
from wharf.node.confined_folder import ConfinedFolder

CHUNK_BYTES: Final = 1 << 20
"""Bytes copied at a time."""
MAX_LINK_TARGET_BYTES: Final = 4_096
"""Limit of a link's target in a zip archive; protects memory."""
ARCHIVE_KINDS: Final = ("tar.gz", "tgz", "tar.bz2", "tbz2", "tar.xz", "txz", "tar", "zip", "gz", "bz2", "xz")
"""File name extensions; longer ones first, because `a.tar.gz` is not a `gz` file."""
_DECOMPRESSORS: Final[Mapping[str, Callable[..., IO[bytes]]]] = {
    "gz": cast(Callable[..., IO[bytes]], gzip.open),
    "bz2": cast(Callable[..., IO[bytes]], bz2.open),
    "xz": cast(Callable[..., IO[bytes]], lzma.open),
}
"""Cast, because the functions have no common type. Opened for reading, all of them return bytes."""


class UnpackBudget:
    """The remaining bytes and files that an artifact may unpack to.

    `is_needed` returns False once the result is no longer needed, which stops the thread that unpacks.
    """

    def __init__(self, max_bytes: int, max_files: int, is_needed: Callable[[], bool] = lambda: True) -> None:
        self._remaining_bytes, self._max_bytes = max_bytes, max_bytes
        self._remaining_files, self._max_files = max_files, max_files
        self._is_needed = is_needed

    def count_file(self) -> None:
        """Count one file, folder or link. Raises ArtifactError above the limit."""
        self._remaining_files -= 1
        if self._remaining_files < 0:
            raise ArtifactError(f"the content has more than {self._max_files:,} files", is_permanent=True)

    def count_bytes(self, count: int) -> None:
        """Count bytes that are about to be written. Raises ArtifactError above the limit, or if unpacking must stop."""
        self._remaining_bytes -= count
        if self._remaining_bytes < 0:
            raise ArtifactError(f"the unpacked content has more than {self._max_bytes:,} bytes", is_permanent=True)
        if not self._is_needed():
            raise ArtifactError("canceled")


def detect_archive_kind(name: str, option: str) -> str:
    """Return the kind of an archive by the option `archive` or else by its name.

    Empty if the file is not an archive or must not be unpacked. Raises ArtifactError.
    """
    if option in ("false", "0"):
        return ""
    if option and option != "true":
        if option not in ARCHIVE_KINDS:
            raise ArtifactError(
                f"unknown archive kind {option[:20]!r}: use {', '.join(ARCHIVE_KINDS)} or false", is_permanent=True
            )
        return option
    return next((kind for kind in ARCHIVE_KINDS if name.lower().endswith(f".{kind}")), "")


def unpack_archive(
    archive: Path,
    kind: str,
    name: str,
    archive_folder: str,
    task_folder: ConfinedFolder,
    destination: str,
    budget: UnpackBudget,
) -> list[str]:
    """Unpack below `destination` in the task's folder, and return the paths of the created files.

    If `archive_folder` is given, only this folder of the archive is unpacked. Raises ArtifactError, ConfinedPathError
    and OSError.
    """
    try:
        if kind == "zip":
            return _unpack_zip(archive, archive_folder, task_folder, destination, budget)
        if kind in _DECOMPRESSORS:
            path = f"{destination}/{name.removesuffix('.' + kind)}"
            with _DECOMPRESSORS[kind](archive, "rb") as source:
                write_file(source, task_folder, path, 0o644, budget)
            return [path]
        return _unpack_tar(archive, archive_folder, task_folder, destination, budget)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError) as error:
        raise ArtifactError(f"{name[:100]} is not a {kind} archive, or is damaged: {error}") from None
    except (gzip.BadGzipFile, RuntimeError, UnicodeDecodeError, ValueError) as error:
        raise ArtifactError(f"{name[:100]} cannot be unpacked: {error}") from None


def _unpack_tar(
    archive: Path, archive_folder: str, task_folder: ConfinedFolder, destination: str, budget: UnpackBudget
) -> list[str]:
    """Unpack a tar archive; its compression is detected. Returns the paths of the created files."""
    created = []
    with tarfile.open(archive, "r|*") as opened:
        for entry in opened:
            path = _make_relative(entry.name, archive_folder)
            if path is None:
                continue
            budget.count_file()
            target = f"{destination}/{path}" if path else destination
            mode = entry.mode & 0o777 or 0o644
            if entry.isdir():
                task_folder.make_folder(target)
            elif entry.isreg():
                source = opened.extractfile(entry)
                assert source is not None, "a regular file has content"
                write_file(source, task_folder, target, mode, budget)
                created.append(target)
            elif entry.issym():
                task_folder.create_link(target, entry.linkname)
            elif entry.islnk():
                linked_path = _make_relative(entry.linkname, archive_folder)
                if not linked_path:
                    raise ArtifactError(
                        f"{entry.name[:200]} is a hard link to a file that is not unpacked", is_permanent=True
                    )
                task_folder.create_hard_link(target, f"{destination}/{linked_path}")
            else:
                raise _build_special_file_error(entry.name)
    return created


def _unpack_zip(
    archive: Path, archive_folder: str, task_folder: ConfinedFolder, destination: str, budget: UnpackBudget
) -> list[str]:
    """Unpack a zip archive and return the paths of the created files."""
    created = []
    with zipfile.ZipFile(archive) as opened:
        for entry in opened.infolist():
            path = _make_relative(entry.filename, archive_folder)
            if path is None:
                continue
            budget.count_file()
            target = f"{destination}/{path}" if path else destination
            mode = entry.external_attr >> 16
            if entry.is_dir():
                task_folder.make_folder(target)
            elif stat.S_ISLNK(mode):
                with opened.open(entry) as source:
                    task_folder.create_link(target, source.read(MAX_LINK_TARGET_BYTES).decode())
            elif stat.S_IFMT(mode) in (0, stat.S_IFREG):
                with opened.open(entry) as source:
                    write_file(source, task_folder, target, mode & 0o777 or 0o644, budget)
                created.append(target)
            else:
                raise _build_special_file_error(entry.filename)
    return created


def _build_special_file_error(name: str) -> ArtifactError:
    return ArtifactError(f"{name[:200]} is not a file, folder or link, and cannot be unpacked", is_permanent=True)


def _make_relative(name: str, folder: str) -> str | None:
    """Return a member's path relative to the requested folder; None if it is outside of that folder."""
    plain = "/".join(step for step in name.split("/") if step not in ("", "."))
    if not folder:
        return plain
    if plain == folder:
        return ""
    return plain.removeprefix(f"{folder}/") if plain.startswith(f"{folder}/") else None


def write_file(source: IO[bytes], task_folder: ConfinedFolder, path: str, mode: int, budget: UnpackBudget) -> None:
    """Copy an open file to a new file in the task's folder.

    Raises ArtifactError above the budget, ConfinedPathError and OSError.
    """
    with task_folder.open_new_file(path, mode) as file:
        while chunk := source.read(CHUNK_BYTES):
            budget.count_bytes(len(chunk))
            file.write(chunk)
