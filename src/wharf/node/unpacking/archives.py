"""Unpacks archives: tar (plain, gzip, bzip2, xz), zip, and single compressed files.

Archives are not trusted. Entries are written only through `ConfinedFolder`. Bytes and entries are counted while they
are unpacked, because the headers of the archive may be wrong. Devices and pipes are rejected.
"""

import lzma
import stat
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import IO, BinaryIO, Final, Protocol, cast

from wharf.node.confined_folder import ConfinedFolder
from wharf.node.unpacking.budget import CopyBudget
from wharf.node.unpacking.decompression import (
    MAX_XZ_MEMORY_BYTES,
    CountedFile,
    DecompressedFile,
    detect_compression,
)
from wharf.node.unpacking.errors import ArtifactError
from wharf.node.unpacking.zip_archives import open_zip
from wharf.world.bounded_tar import BoundedTarInfo

CHUNK_BYTES: Final = 1 << 20
"""Bytes copied at a time."""
MAX_LINK_TARGET_BYTES: Final = 4_096
"""Limit of a link's target in a zip archive; protects memory."""
ARCHIVE_FORMATS: Final = ("tar.gz", "tgz", "tar.bz2", "tbz2", "tar.xz", "txz", "tar", "zip", "gz", "bz2", "xz")
"""File name extensions; longer ones first, because `a.tar.gz` is not a `gz` file."""
SINGLE_FILE_FORMATS: Final = ("gz", "bz2", "xz")
"""Extensions of compressed files that are no archives."""


class Readable(Protocol):
    """Something that `write_file` can read."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes, none at the end."""


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
    budget: CopyBudget,
) -> list[str]:
    """Unpack an archive below `destination` in the task's folder. Return the paths of the created files.

    `archive` is the archive's path, `name` its original file name. If `archive_folder` is given, only this folder of
    the archive is unpacked. Raises ArtifactError, ConfinedPathError and OSError.
    """
    try:
        if archive_format == "zip":
            return _unpack_zip(archive, archive_folder, task_folder, destination, budget)
        if archive_format in SINGLE_FILE_FORMATS:
            path = f"{destination}/{name.removesuffix('.' + archive_format)}"
            with archive.open("rb") as file:
                write_file(DecompressedFile(file, archive_format, budget), task_folder, path, 0o644, budget)
            return [path]
        return _unpack_tar(archive, archive_folder, task_folder, destination, budget)
    except lzma.LZMAError as error:
        if "Memory usage limit" not in str(error):
            raise _build_damaged_error(name, archive_format, error) from None
        raise ArtifactError(
            f"{name[:100]} needs more than {MAX_XZ_MEMORY_BYTES >> 20} MiB of memory to unpack: compress it again",
            is_permanent=True,
        ) from None
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise _build_damaged_error(name, archive_format, error) from None
    except (NotImplementedError, RuntimeError, ValueError, OverflowError) as error:
        raise ArtifactError(f"{name[:100]} cannot be unpacked: {error}") from None


def _build_damaged_error(name: str, archive_format: str, error: Exception) -> ArtifactError:
    return ArtifactError(f"{name[:100]} is not a {archive_format} archive, or is damaged: {error}")


def _unpack_tar(
    archive: Path, archive_folder: str, task_folder: ConfinedFolder, destination: str, budget: CopyBudget
) -> list[str]:
    """Unpack a tar archive with any compression. Return the paths of the created files.

    Devices and pipes are rejected. Raises ArtifactError, ConfinedPathError and OSError.
    """
    created = []
    with archive.open("rb") as file, open_tar(_decompress(file, budget)) as opened:
        for entry in opened:
            opened.members = []  # type: ignore[attr-defined]  # Otherwise the library keeps all entries in memory.
            path = _make_relative(entry.name, archive_folder)
            if path is None:
                budget.count_skipped()
                continue
            budget.count_file()
            budget.count_name(entry.name)
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


def _decompress(file: BinaryIO, budget: CopyBudget) -> Readable:
    """Return the content of a file, decompressed if it is compressed. All that is read counts for the budget."""
    compression = detect_compression(file)
    return DecompressedFile(file, compression, budget) if compression else CountedFile(file, budget)


def open_tar(source: Readable) -> tarfile.TarFile:
    """Open a tar archive for reading its entries in order."""
    return tarfile.open(fileobj=cast(IO[bytes], source), mode="r|", tarinfo=BoundedTarInfo)


def _unpack_zip(
    archive: Path, archive_folder: str, task_folder: ConfinedFolder, destination: str, budget: CopyBudget
) -> list[str]:
    """Unpack a zip archive. Return the paths of the created files.

    Devices and pipes are rejected. Raises ArtifactError, ConfinedPathError and OSError.
    """
    created = []
    with open_zip(archive, budget) as opened:
        for entry in opened.infolist():
            path = _make_relative(entry.filename, archive_folder)
            if path is None:
                budget.count_skipped()
                continue
            budget.count_file()
            budget.count_name(entry.filename)
            target = f"{destination}/{path}" if path else destination
            mode = entry.external_attr >> 16
            if entry.is_dir():
                task_folder.make_folder(target)
            elif stat.S_ISLNK(mode):
                task_folder.create_link(target, _read_link_target(opened, entry))
            elif stat.S_IFMT(mode) in (0, stat.S_IFREG):
                with opened.open(entry) as source:
                    write_file(source, task_folder, target, mode & 0o777 or 0o644, budget)
                created.append(target)
            else:
                raise _build_special_file_error(entry.filename)
    return created


def _read_link_target(opened: zipfile.ZipFile, entry: zipfile.ZipInfo) -> str:
    """Return the target of a link in a zip archive. Raises ArtifactError if it is too long."""
    with opened.open(entry) as source:
        target = source.read(MAX_LINK_TARGET_BYTES + 1)
    if len(target) > MAX_LINK_TARGET_BYTES:
        raise ArtifactError(
            f"{entry.filename[:200]} is a link with a target of more than {MAX_LINK_TARGET_BYTES:,} bytes",
            is_permanent=True,
        )
    return target.decode()


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


def write_file(source: Readable, task_folder: ConfinedFolder, path: str, mode: int, budget: CopyBudget) -> None:
    """Copy an open file to a new file in the task's folder.

    Raises ArtifactError above the budget, ConfinedPathError and OSError.
    """
    with task_folder.open_new_file(path, mode) as file:
        while chunk := source.read(CHUNK_BYTES):
            budget.count_bytes(len(chunk))
            file.write(chunk)
