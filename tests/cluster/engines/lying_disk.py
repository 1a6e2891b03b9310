"""A disk for SQLite that loses unsynced data at a power cut, and one that fails on request.

Both are file systems of SQLite (VFS) over the machine's: the files lie in a real folder, so that connections share them as
they do in production. `PowerCutDisk` keeps beside them what is surely on the disk, and what may or may not be.
"""

# ruff: noqa: N802 (SQLite's names)
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import apsw

SECTOR_BYTES = 512

# What SQLite's xOpen is given beside a name: a list of flags that it may change.
Flags = list[int]


@dataclass
class Contents:
    """What a file holds for sure, and what was written since and may be lost: (offset, bytes), or a new length."""

    synced: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes] | int] = field(default_factory=list)
    name_is_synced: bool = False


class PowerCutDisk(apsw.VFS):
    """Counts writes and syncs; at the operation with number `cut_at` the power is cut.

    What the disk then holds is put into `survivors`; the program runs on, and whatever it is told from then on, nobody
    hears. Of what was not synced every sector is kept or lost by chance, as a disk with a cache does it.
    """

    def __init__(self, name: str, random: Random) -> None:
        self.vfs_name = name
        super().__init__(name, "")
        self.random = random
        self.cut_at = 0
        self.operations = 0
        self.survivors: dict[str, bytes] | None = None
        self._files: dict[str, Contents] = {}
        self._deleted: dict[str, Contents] = {}
        """Files whose names are gone, though perhaps not yet from the disk."""
        self._moved: tuple[str, str, Contents | None] | None = None
        """A file that took another's place, though perhaps not yet on the disk: from where, to where, and the other."""
        self._lock = threading.RLock()

    def is_off(self) -> bool:
        return self.survivors is not None

    def begin(self, files: dict[str, bytes], *, cut_at: int) -> None:
        """Turn the power on again, with these files."""
        self._files = {path: Contents(bytearray(data), name_is_synced=True) for path, data in files.items()}
        self._deleted, self._moved = {}, None
        self.operations, self.cut_at, self.survivors = 0, cut_at, None

    def xOpen(self, name: str | apsw.URIFilename | None, flags: Flags) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        return WatchedFile(self, path, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        with self._lock:
            super().xDelete(filename, syncdir)
            contents = self._files.pop(filename, None)
            if contents is not None and not syncdir:
                self._deleted[filename] = contents
            self._count()

    def was_written(self, path: str, change: tuple[int, bytes] | int) -> None:
        with self._lock:
            self._count()
            self._files.setdefault(path, Contents()).pending.append(change)

    def was_synced(self, path: str) -> None:
        with self._lock:
            self._count()
            contents = self._files.setdefault(path, Contents())
            for change in contents.pending:
                apply(contents.synced, change)
            contents.pending.clear()
            contents.name_is_synced = True
            self._count()  # The power may go after the sync, before anybody hears of it.

    def was_renamed(self, source: str, target: str) -> None:
        with self._lock:
            self._count()
            self._moved = (source, target, self._files.get(target))
            self._files[target] = self._files.pop(source)
            self._count()

    def was_folder_synced(self) -> None:
        with self._lock:
            self._count()
            self._deleted, self._moved = {}, None
            for contents in self._files.values():
                contents.name_is_synced = True
            self._count()

    def cut(self) -> None:
        """Cut the power, if it is still on."""
        with self._lock:
            if self.survivors is None:
                self.survivors = {
                    path: self._after_the_cut(contents)
                    for path, contents in self._files.items()
                    if contents.name_is_synced or self.random.random() < 0.5
                }
                for path, contents in self._deleted.items():
                    if path not in self.survivors and self.random.random() < 0.5:
                        self.survivors[path] = self._after_the_cut(contents)
                if self._moved is not None and self.random.random() < 0.5:
                    source, target, replaced = self._moved
                    if target in self.survivors:
                        self.survivors[source] = self.survivors.pop(target)
                    if replaced is not None:
                        self.survivors[target] = self._after_the_cut(replaced)

    def _count(self) -> None:
        self.operations += 1
        if self.operations == self.cut_at:
            self.cut()

    def _after_the_cut(self, contents: Contents) -> bytes:
        left = bytearray(contents.synced)
        chance = self.random.choice((0.0, 0.5, 0.9, 1.0))
        for change in contents.pending:
            if isinstance(change, int):
                if self.random.random() < chance:
                    apply(left, change)
                continue
            offset, data = change
            for start in range(0, len(data), SECTOR_BYTES):
                if self.random.random() < chance:
                    apply(left, (offset + start, data[start : start + SECTOR_BYTES]))
        return bytes(left)


class WatchedFile(apsw.VFSFile):
    def __init__(self, disk: PowerCutDisk, path: str, name: str | apsw.URIFilename | None, flags: Flags) -> None:
        super().__init__("", name, flags)
        self._disk = disk
        self._path = path

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        self._disk.was_written(self._path, (offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        self._disk.was_written(self._path, newsize)

    def xSync(self, flags: int) -> None:  # noqa: ARG002 (a sync is a sync)
        self._disk.was_synced(self._path)


class FailingDisk(apsw.VFS):
    """A disk that works until `fail` is set, which returns the error to raise for an operation and path."""

    def __init__(self, name: str) -> None:
        self.vfs_name = name
        super().__init__(name, "")
        self.fail: Callable[[str, str], Exception | None] = lambda _operation, _path: None

    def xOpen(self, name: str | apsw.URIFilename | None, flags: Flags) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        return FailingFile(self, path, name, flags)

    def check(self, operation: str, path: str) -> None:
        error = self.fail(operation, path)
        if error is not None:
            raise error


class FailingFile(apsw.VFSFile):
    def __init__(self, disk: FailingDisk, path: str, name: str | apsw.URIFilename | None, flags: Flags) -> None:
        super().__init__("", name, flags)
        self._disk = disk
        self._path = path

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.check("write", self._path)
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        self._disk.check("truncate", self._path)
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        self._disk.check("sync", self._path)
        super().xSync(flags)


def apply(content: bytearray, change: tuple[int, bytes] | int) -> None:
    if isinstance(change, int):
        del content[change:]
        content.extend(bytes(change - len(content)))
        return
    offset, data = change
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(data)] = data


def write_files(files: dict[str, bytes], folder: Path) -> None:
    """Make a folder hold exactly these files."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for path, data in files.items():
        Path(path).write_bytes(data)
