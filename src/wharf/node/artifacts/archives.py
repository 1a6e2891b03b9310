"""Unpacks archives: tar (plain, gzip, bzip2, xz), zip, and single compressed files.

Archives are not trusted. Entries are written only through `ConfinedFolder`. Bytes and entries are counted while they
are unpacked, because the headers of the archive may be wrong. Devices and pipes are rejected.
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
from wharf.world.bounded_tar import BoundedTarInfo

CHUNK_BYTES: Final = 1 << 20
"""Bytes copied at a time."""
MAX_LINK_TARGET_BYTES: Final = 4_096
"""Limit of a link's target in a zip archive; protects memory."""
MAX_SKIPPED_ENTRIES: Final = 1_000_000
"""Entries of an archive outside the requested folder; limits the time of a useless search."""
ARCHIVE_FORMATS: Final = ("tar.gz", "tgz", "tar.bz2", "tbz2", "tar.xz", "txz", "tar", "zip", "gz", "bz2", "xz")
"""File name extensions; longer ones first, because `a.tar.gz` is not a `gz` file."""
_DECOMPRESSORS: Final[Mapping[str, Callable[..., IO[bytes]]]] = {
    "gz": cast(Callable[..., IO[bytes]], gzip.open),
    "bz2": cast(Callable[..., IO[bytes]], bz2.open),
    "xz": cast(Callable[..., IO[bytes]], lzma.open),
}
"""Cast, because the functions have no common type. Opened for reading, all of them return bytes."""


class UnpackBudget:
    """The remaining number of bytes and files that an artifact may unpack to.

    `is_needed` returns False once the result is no longer needed, which stops the thread that unpacks.
    """

    def __init__(self, max_bytes: int, max_files: int, is_needed: Callable[[], bool] = lambda: True) -> None:
        self._remaining_bytes, self._max_bytes = max_bytes, max_bytes
        self._remaining_files, self._max_files = max_files, max_files
        self._skipped = 0
        self._is_needed = is_needed

    def count_file(self) -> None:
        """Subtract one file, folder or link from the budget. Raises ArtifactError if none is left."""
        self._remaining_files -= 1
        if self._remaining_files < 0:
            raise ArtifactError(f"the content has more than {self._max_files:,} files", is_permanent=True)
        self._require_needed()

    def count_skipped(self) -> None:
        """Count an entry that is not unpacked. Raises ArtifactError if there are too many, or unpacking is canceled."""
        self._skipped += 1
        if self._skipped > MAX_SKIPPED_ENTRIES:
            raise ArtifactError(
                f"the archive has more than {MAX_SKIPPED_ENTRIES:,} entries outside the requested folder",
                is_permanent=True,
            )
        self._require_needed()

    def _require_needed(self) -> None:
        """Raise ArtifactError if unpacking is canceled."""
        if not self._is_needed():
            raise ArtifactError("canceled")

    def count_bytes(self, byte_count: int) -> None:
        """Subtract bytes that are about to be written.

        Raises ArtifactError if too few are left or unpacking is canceled.
        """
        self._remaining_bytes -= byte_count
        if self._remaining_bytes < 0:
            raise ArtifactError(f"the unpacked content has more than {self._max_bytes:,} bytes", is_permanent=True)
        self._require_needed()


def detect_archive_format(name: str, option: str) -> str:
    """Return the format of an archive, such as `tar.gz`: the option `archive` if set, else by the name's extension.

    Empty if the file is not an archive or must not be unpacked. Raises ArtifactError for an unknown option.
    """
    if option in ("false", "0"):
        return ""
    if option and option != "true":
        if option not in ARCHIVE_FORMATS:
            raise ArtifactError(
                f"unknown archive kind {option[:20]!r}: use {', '.join(ARCHIVE_FORMATS)} or false",
                is_permanent=True,
            )
        return option
    return next((extension for extension in ARCHIVE_FORMATS if name.lower().endswith(f".{extension}")), "")


def unpack_archive(
    archive: Path,
    archive_format: str,
    name: str,
    archive_folder: str,
    task_folder: ConfinedFolder,
    destination: str,
    budget: UnpackBudget,
) -> list[str]:
    """Unpack an archive below `destination` in the task's folder. Return the paths of the created files.

    `archive` is the archive's path, `name` its original file name. If `archive_folder` is given, only this folder of
    the archive is unpacked. Raises ArtifactError, ConfinedPathError and OSError.
    """
    try:
        if archive_format == "zip":
            return _unpack_zip(archive, archive_folder, task_folder, destination, budget)
        if archive_format in _DECOMPRESSORS:
            path = f"{destination}/{name.removesuffix('.' + archive_format)}"
            with _DECOMPRESSORS[archive_format](archive, "rb") as source:
                write_file(source, task_folder, path, 0o644, budget)
            return [path]
        return _unpack_tar(archive, archive_folder, task_folder, destination, budget)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError) as error:
        raise ArtifactError(f"{name[:100]} is not a {archive_format} archive, or is damaged: {error}") from None
    except (gzip.BadGzipFile, RuntimeError, UnicodeDecodeError, ValueError) as error:
        raise ArtifactError(f"{name[:100]} cannot be unpacked: {error}") from None


def _unpack_tar(
    archive: Path, archive_folder: str, task_folder: ConfinedFolder, destination: str, budget: UnpackBudget
) -> list[str]:
    """Unpack a tar archive with any compression. Return the paths of the created files.

    Devices and pipes are rejected. Raises ArtifactError, ConfinedPathError and OSError.
    """
    created = []
    with tarfile.open(archive, "r|*", tarinfo=BoundedTarInfo) as opened:
        for entry in opened:
            opened.members = []  # type: ignore[attr-defined]  # Otherwise the library keeps all entries in memory.
            path = _make_relative(entry.name, archive_folder)
            if path is None:
                budget.count_skipped()
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
    """Unpack a zip archive. Return the paths of the created files.

    Devices and pipes are rejected. Raises ArtifactError, ConfinedPathError and OSError.
    """
    created = []
    with zipfile.ZipFile(archive) as opened:
        for entry in opened.infolist():
            path = _make_relative(entry.filename, archive_folder)
            if path is None:
                budget.count_skipped()
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
    """Return a member's path relative to `folder` in the archive; None if the member is not in that folder."""
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
