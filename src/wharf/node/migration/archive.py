"""Packs the data of an ended allocation into an archive, and unpacks such an archive.

The data are the folder that the tasks share and each task's own `local`. The last entry holds the number of entries
before it, so that a truncated archive is never taken for a complete one. The archive comes from another node and
contains what tasks wrote, so unpacking trusts nothing: it takes only the expected folders, and not more than the
budget allows.
"""

import errno
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, NamedTuple

from wharf.node.confined_folder import ConfinedFolder, ConfinedPathError
from wharf.node.unpacking.archives import open_tar
from wharf.node.unpacking.budget import CopyBudget
from wharf.node.unpacking.decompression import CountedFile
from wharf.node.unpacking.errors import ArtifactError

COMPLETION_ENTRY_NAME: Final = "complete"
"""The name of the last entry, which holds the number of entries before it."""
_FILE_OPEN_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def list_migrated_folders(tasks: tuple[str, ...]) -> tuple[str, ...]:
    """Return the folders that migration moves, relative to the allocation's folder: `alloc/data` and each task's
    `local`.
    """
    return ("alloc/data", *(f"{task}/local" for task in tasks))


def pack_folders(root: Path, tasks: tuple[str, ...], target: IO[bytes]) -> None:
    """Write an archive of the allocation's migrated folders to `target`. Raises `OSError`.

    `root` is the allocation's folder. Pipes, sockets and devices are left out. The last entry holds the number of
    entries.
    """
    entry_count = 0
    names_by_inode: dict[tuple[int, int], str] = {}
    confined_folder = ConfinedFolder(root)
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for folder in list_migrated_folders(tasks):
            for entry in _iter_entries(confined_folder, folder):
                _pack_entry(archive, entry, names_by_inode)
                entry_count += 1
        count_text = str(entry_count).encode()
        completion_entry = tarfile.TarInfo(COMPLETION_ENTRY_NAME)
        completion_entry.size = len(count_text)
        archive.addfile(completion_entry, io.BytesIO(count_text))


class _Entry(NamedTuple):
    """A folder, file or link that is packed."""

    path: str  # below the allocation's folder
    status: os.stat_result
    parent: int = -1
    """The open folder that contains it, valid until the next entry; not used for folders."""


def _pack_entry(archive: tarfile.TarFile, entry: _Entry, names_by_inode: dict[tuple[int, int], str]) -> None:
    """Add one entry to the archive. Raises `OSError`.

    `names_by_inode` has the files that are packed already, of which another name is packed as a hard link.
    """
    info, name = tarfile.TarInfo(entry.path), os.path.basename(entry.path)
    file: IO[bytes] | None = None
    status = entry.status
    try:
        if stat.S_ISREG(status.st_mode):
            file = open(os.open(name, _FILE_OPEN_FLAGS, dir_fd=entry.parent), "rb")  # noqa: SIM115  # closed below
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.ESTALE, "it was replaced by another file", entry.path)
            first_name = names_by_inode.setdefault((status.st_dev, status.st_ino), entry.path)
            if first_name != entry.path and status.st_nlink > 1:
                info.type, info.linkname = tarfile.LNKTYPE, first_name
            else:
                info.size = status.st_size
        elif stat.S_ISLNK(status.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=entry.parent)
        else:
            info.type = tarfile.DIRTYPE
        # Owners are numbers only, because the other node may have other user names.
        info.mode, info.uid, info.gid = stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid
        info.mtime = status.st_mtime
        archive.addfile(info, file if info.isreg() else None)
    finally:
        if file is not None:
            file.close()


def _iter_entries(root: ConfinedFolder, folder: str) -> Iterator[_Entry]:
    """Yield the folder itself and all folders, files and links below it. Links are not followed.

    Each folder is opened from the root without links, because a process that outlived its task may still exchange
    folders. Nothing is yielded if the folder does not exist. Raises `OSError`.
    """
    remaining = [folder]
    while remaining:
        path = remaining.pop()
        try:
            with root.open_folder(path) as descriptor:
                yield _Entry(path, os.fstat(descriptor))
                folders = []
                for name in sorted(os.listdir(descriptor)):
                    status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode):
                        folders.append(f"{path}/{name}")
                    elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                        yield _Entry(f"{path}/{name}", status, descriptor)
                remaining += reversed(folders)
        except (FileNotFoundError, ConfinedPathError) as error:
            if path != folder:
                raise OSError(errno.ESTALE, "it was replaced meanwhile", path) from error


CHUNK_BYTES: Final = 1 << 20
"""Bytes written at a time."""
MODE_MASK: Final = 0o1777
"""The permission bits that are taken from an archive; set-user-id and set-group-id are dropped."""


class InvalidMigrationArchive(Exception):
    """The error of an archive that is damaged, incomplete, or contains something that is not allowed."""


class TruncatedArchive(InvalidMigrationArchive):
    """The error of an archive that ends early because its sender was interrupted. Another attempt may succeed."""


def unpack_folders(archive: Path, tasks: tuple[str, ...], root: Path, budget: CopyBudget) -> None:
    """Unpack the migrated folders of these tasks below `root`; other entries are ignored.

    Raises `InvalidMigrationArchive` and `OSError`.
    """
    confined_folder = ConfinedFolder(root)
    folders: list[tarfile.TarInfo] = []
    entry_count = 0
    try:
        with archive.open("rb") as file, open_tar(CountedFile(file, budget)) as tar:
            for entry in tar:
                tar.members = []  # type: ignore[attr-defined]  # Otherwise the library keeps all entries in memory.
                if entry.name == COMPLETION_ENTRY_NAME:
                    _check_count(tar, entry, entry_count)
                    break
                entry_count += 1
                if not _is_migrated(entry.name, tasks):
                    budget.count_skipped()
                    continue  # It belongs to a task that the job no longer has.
                _unpack_entry(tar, entry, confined_folder, budget)
                if entry.isdir():
                    folders.append(entry)
            else:
                raise TruncatedArchive("the archive is truncated")
        for entry in reversed(folders):  # Modes are set last, because a folder may be read-only.
            with confined_folder.open_folder(entry.name) as descriptor:
                _set_owner(descriptor, entry)
                os.fchmod(descriptor, entry.mode & MODE_MASK)
    except (tarfile.ReadError, EOFError) as error:
        raise TruncatedArchive(str(error)) from error
    except (tarfile.TarError, ArtifactError, ConfinedPathError, ValueError) as error:
        raise InvalidMigrationArchive(str(error)) from error


def _check_count(tar: tarfile.TarFile, entry: tarfile.TarInfo, entry_count: int) -> None:
    """Check that the archive has as many entries as its last entry says. Raises `InvalidMigrationArchive` otherwise."""
    count_text = tar.extractfile(entry)
    if count_text is None or count_text.read(32) != str(entry_count).encode():
        raise InvalidMigrationArchive("entries are missing from the archive")


def _is_migrated(name: str, tasks: tuple[str, ...]) -> bool:
    """Return whether the entry with this path is in a folder that migration moves."""
    return any(name == folder or name.startswith(f"{folder}/") for folder in list_migrated_folders(tasks))


def _unpack_entry(
    tar: tarfile.TarFile, entry: tarfile.TarInfo, confined_folder: ConfinedFolder, budget: CopyBudget
) -> None:
    """Unpack one file, folder or link below the confined folder, and subtract it from the budget.

    Raises `InvalidMigrationArchive`, `ArtifactError`, `ConfinedPathError` and `OSError`.
    """
    budget.count_file()
    if entry.isdir():
        confined_folder.make_folder(entry.name)
    elif entry.isreg():
        source = tar.extractfile(entry)
        assert source is not None, "a regular file has content"
        with confined_folder.open_new_file(entry.name, entry.mode & MODE_MASK) as file:
            while chunk := source.read(CHUNK_BYTES):
                budget.count_bytes(len(chunk))
                file.write(chunk)
            _set_owner(file.fileno(), entry)
    elif entry.issym():
        confined_folder.create_link(entry.name, entry.linkname, may_lead_out=True)
    elif entry.islnk() and entry.linkname:
        confined_folder.create_hard_link(entry.name, entry.linkname)
    else:
        raise InvalidMigrationArchive(f"{entry.name[:200]!r} is not a file, folder or link")


def _set_owner(descriptor: int, entry: tarfile.TarInfo) -> None:
    """Set the owner of an open file to that of the archive's entry, if this process runs as root. Raises `OSError`."""
    if os.geteuid() == 0:
        os.fchown(descriptor, entry.uid, entry.gid)
