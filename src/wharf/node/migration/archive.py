"""Packs what an ended allocation keeps: the data that its tasks share, and each task's own `local`.

An archive that broke off must never pass for a whole one, so the last entry says how many stand before it.

Unpacks what an allocation kept on another node, into a folder that nobody looks at until it is whole.

The archive comes from a node of the cluster, and holds what a task made: it is not believed. Only what an allocation keeps
is taken, through `Inside`, and only as much as there is room for.
"""

import io
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from wharf.node.artifacts.archives import UnpackBudget
from wharf.node.artifacts.confined_folder import ConfinedFolder
from wharf.node.artifacts.errors import ArtifactError

COMPLETION_ENTRY_NAME: Final = "complete"
"""The name of the last entry."""
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def list_migrated_folders(tasks: tuple[str, ...]) -> tuple[str, ...]:
    return ("alloc/data", *(f"{task}/local" for task in tasks))


def pack_folders(root: Path, tasks: tuple[str, ...], target: IO[bytes]) -> None:
    """Raises OSError. Pipes, sockets and devices are left out: they are nothing without who made them."""
    count = 0
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for folder in list_migrated_folders(tasks):
            for path in _all_below(root / folder):
                info = archive.gettarinfo(path, str(path.relative_to(root)))
                # It goes by numbers: the other node may know other names.
                info.uname = info.gname = ""
                if info.isreg():
                    with open(os.open(path, _FILE), "rb") as file:
                        archive.addfile(info, file)
                elif info.isdir() or info.issym() or info.islnk():
                    archive.addfile(info)
                count += 1
        said = str(count).encode()
        last = tarfile.TarInfo(COMPLETION_ENTRY_NAME)
        last.size = len(said)
        archive.addfile(last, io.BytesIO(said))


def _all_below(folder: Path) -> Iterator[Path]:
    """The folder itself, and what is in it; never through a link."""
    try:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            return
    except FileNotFoundError:
        return
    yield folder
    for above, folders, files in os.walk(folder, onerror=_raise):
        for name in sorted([*folders, *files]):
            path = Path(above, name)
            if stat.S_IFMT(path.lstat().st_mode) in (stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK):
                yield path


def _raise(error: OSError) -> None:
    raise error


CHUNK_BYTES: Final = 1 << 20
MODE_MASK: Final = 0o1777


class InvalidArchive(Exception):
    """The archive is none, or damaged, or only a part of one, or says what it should not."""


class TruncatedArchive(InvalidArchive):
    """It is the beginning of one: who sent it, or passed it on, was ended. Asked again it may come whole."""


def unpack_folders(archive: Path, tasks: tuple[str, ...], root: Path, budget: UnpackBudget) -> None:
    """Raises InvalidArchive, OSError."""
    inside = ConfinedFolder(root)
    folders: list[tarfile.TarInfo] = []
    count = 0
    try:
        with tarfile.open(archive, "r|") as opened:
            for entry in opened:
                if entry.name == COMPLETION_ENTRY_NAME:
                    _check_count(opened, entry, count)
                    break
                count += 1
                if not _is_kept(entry.name, tasks):
                    continue  # Of a task that the job has no more.
                _take(opened, entry, inside, budget)
                if entry.isdir():
                    folders.append(entry)
            else:
                raise TruncatedArchive("it breaks off")
        for entry in reversed(folders):  # A folder that nobody may write to was filled first.
            _own(root / entry.name, entry)
    except (tarfile.ReadError, EOFError) as error:
        raise TruncatedArchive(str(error)) from error
    except (tarfile.TarError, ArtifactError, ValueError) as error:
        raise InvalidArchive(str(error)) from error


def _check_count(opened: tarfile.TarFile, entry: tarfile.TarInfo, count: int) -> None:
    said = opened.extractfile(entry)
    if said is None or said.read(32) != str(count).encode():
        raise InvalidArchive("something is missing in it")


def _is_kept(name: str, tasks: tuple[str, ...]) -> bool:
    return any(name == folder or name.startswith(f"{folder}/") for folder in list_migrated_folders(tasks))


def _take(opened: tarfile.TarFile, entry: tarfile.TarInfo, inside: ConfinedFolder, budget: UnpackBudget) -> None:
    budget.count_file()
    if entry.isdir():
        inside.make_folder(entry.name)
    elif entry.isreg():
        source = opened.extractfile(entry)
        assert source is not None, "a regular file has content"
        with inside.open_new_file(entry.name, entry.mode & MODE_MASK) as file:
            while piece := source.read(CHUNK_BYTES):
                budget.count_bytes(len(piece))
                file.write(piece)
            _give(file.fileno(), entry)
    elif entry.issym():
        inside.create_link(entry.name, entry.linkname, may_lead_out=True)
    elif entry.islnk() and entry.linkname:
        inside.create_hard_link(entry.name, entry.linkname)
    else:
        raise InvalidArchive(f"{entry.name[:200]!r} is a device or the like")


def _own(folder: Path, entry: tarfile.TarInfo) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _give(handle, entry)
        os.fchmod(handle, entry.mode & MODE_MASK)
    finally:
        os.close(handle)


def _give(handle: int, entry: tarfile.TarInfo) -> None:
    """To whom it belonged; a node that is not root has but one user."""
    if os.geteuid() == 0:
        os.fchown(handle, entry.uid, entry.gid)
