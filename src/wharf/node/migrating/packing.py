"""Packs what an ended allocation keeps: the data that its tasks share, and each task's own `local`.

An archive that broke off must never pass for a whole one, so the last entry says how many stand before it.
"""

import io
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

LAST: Final = "complete"
"""The name of the last entry."""
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def kept_folders(tasks: tuple[str, ...]) -> tuple[str, ...]:
    return ("alloc/data", *(f"{task}/local" for task in tasks))


def pack(root: Path, tasks: tuple[str, ...], target: IO[bytes]) -> None:
    """Raises OSError. Pipes, sockets and devices are left out: they are nothing without who made them."""
    count = 0
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for folder in kept_folders(tasks):
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
        last = tarfile.TarInfo(LAST)
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
