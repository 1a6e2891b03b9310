"""Unpacks what an allocation kept on another node, into a folder that nobody looks at until it is whole.

The archive comes from a node of the cluster, and holds what a task made: it is not believed. Only what an allocation keeps
is taken, through `Inside`, and only as much as there is room for.
"""

import os
import tarfile
from pathlib import Path
from typing import Final

from wharf.node.artifacts.archives import Budget
from wharf.node.artifacts.errors import ArtifactError
from wharf.node.artifacts.inside import Inside
from wharf.node.migrating.packing import LAST, kept_folders

PIECE_BYTES: Final = 1 << 20
MODE: Final = 0o1777


class NotWhole(Exception):
    """The archive is none, or damaged, or only a part of one, or says what it should not."""


class BrokenOff(NotWhole):
    """It is the beginning of one: who sent it, or passed it on, was ended. Asked again it may come whole."""


def unpack(archive: Path, tasks: tuple[str, ...], root: Path, budget: Budget) -> None:
    """Raises NotWhole, OSError."""
    inside = Inside(root)
    folders: list[tarfile.TarInfo] = []
    count = 0
    try:
        with tarfile.open(archive, "r|") as opened:
            for entry in opened:
                if entry.name == LAST:
                    _check_count(opened, entry, count)
                    break
                count += 1
                if not _is_kept(entry.name, tasks):
                    continue  # Of a task that the job has no more.
                _take(opened, entry, inside, budget)
                if entry.isdir():
                    folders.append(entry)
            else:
                raise BrokenOff("it breaks off")
        for entry in reversed(folders):  # A folder that nobody may write to was filled first.
            _own(root / entry.name, entry)
    except (tarfile.ReadError, EOFError) as error:
        raise BrokenOff(str(error)) from error
    except (tarfile.TarError, ArtifactError, ValueError) as error:
        raise NotWhole(str(error)) from error


def _check_count(opened: tarfile.TarFile, entry: tarfile.TarInfo, count: int) -> None:
    said = opened.extractfile(entry)
    if said is None or said.read(32) != str(count).encode():
        raise NotWhole("something is missing in it")


def _is_kept(name: str, tasks: tuple[str, ...]) -> bool:
    return any(name == folder or name.startswith(f"{folder}/") for folder in kept_folders(tasks))


def _take(opened: tarfile.TarFile, entry: tarfile.TarInfo, inside: Inside, budget: Budget) -> None:
    budget.file()
    if entry.isdir():
        inside.make_folder(entry.name)
    elif entry.isreg():
        source = opened.extractfile(entry)
        assert source is not None, "a regular file has content"
        with inside.file(entry.name, entry.mode & MODE) as file:
            while piece := source.read(PIECE_BYTES):
                budget.bytes(len(piece))
                file.write(piece)
            _give(file.fileno(), entry)
    elif entry.issym():
        inside.link(entry.name, entry.linkname, may_lead_out=True)
    elif entry.islnk() and entry.linkname:
        inside.same(entry.name, entry.linkname)
    else:
        raise NotWhole(f"{entry.name[:200]!r} is a device or the like")


def _own(folder: Path, entry: tarfile.TarInfo) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _give(handle, entry)
        os.fchmod(handle, entry.mode & MODE)
    finally:
        os.close(handle)


def _give(handle: int, entry: tarfile.TarInfo) -> None:
    """To whom it belonged; a node that is not root has but one user."""
    if os.geteuid() == 0:
        os.fchown(handle, entry.uid, entry.gid)
