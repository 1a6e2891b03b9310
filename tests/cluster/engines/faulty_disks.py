"""A disk for SQLite that loses unsynced data at a power cut, and one that fails on request.

Both are virtual file systems of SQLite (VFS). The files are in a real folder, so that connections share them as in
production. `PowerCutDisk` also records which data is synced and which may be lost.
"""

# ruff: noqa: N802 (SQLite's names)
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import apsw

SECTOR_BYTES = 512

# The second argument of SQLite's xOpen: a list of flags, which xOpen may change.
Flags = list[int]


@dataclass
class Contents:
    """The synced data of a file, and the later changes, which a power cut may lose: (offset, bytes), or a new length."""

    synced: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes] | int] = field(default_factory=list)
    name_is_synced: bool = False


class PowerCutDisk(apsw.VFS):
    """A disk that counts its operations and loses power at operation number `cut_at`.

    Then `survivors` has the contents of the disk. The program continues, but the test ignores all later results. Each
    unsynced sector survives or is lost at random, as on a disk with a write cache.
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
        """Deleted files whose deletion is not synced."""
        self._rename: tuple[str, str, Contents | None] | None = None
        """A rename that is not synced: source, target, and the contents that the target had before."""
        self._lock = threading.RLock()

    def is_power_off(self) -> bool:
        return self.survivors is not None

    def power_on(self, files: dict[str, bytes], *, cut_at: int) -> None:
        """Turn the power on, with these files. It is cut at operation `cut_at`; -1: never."""
        self._files = {path: Contents(bytearray(data), name_is_synced=True) for path, data in files.items()}
        self._deleted, self._rename = {}, None
        self.operations, self.cut_at, self.survivors = 0, cut_at, None

    def xOpen(self, name: str | apsw.URIFilename | None, flags: Flags) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        return PowerCutFile(self, path, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        with self._lock:
            super().xDelete(filename, syncdir)
            contents = self._files.pop(filename, None)
            if contents is not None and not syncdir:
                self._deleted[filename] = contents
            self._count_operation()

    def on_write(self, path: str, change: tuple[int, bytes] | int) -> None:
        with self._lock:
            self._count_operation()
            self._files.setdefault(path, Contents()).pending.append(change)

    def on_sync(self, path: str) -> None:
        with self._lock:
            self._count_operation()
            contents = self._files.setdefault(path, Contents())
            for change in contents.pending:
                apply(contents.synced, change)
            contents.pending.clear()
            contents.name_is_synced = True
            self._count_operation()  # The power may fail after the sync, but before it returns.

    def on_rename(self, source: str, target: str) -> None:
        with self._lock:
            self._count_operation()
            self._rename = (source, target, self._files.get(target))
            self._files[target] = self._files.pop(source)
            self._count_operation()

    def on_folder_sync(self) -> None:
        with self._lock:
            self._count_operation()
            self._deleted, self._rename = {}, None
            for contents in self._files.values():
                contents.name_is_synced = True
            self._count_operation()

    def cut(self) -> None:
        """Cut the power, if it is still on."""
        with self._lock:
            if self.survivors is None:
                self.survivors = {
                    path: self._lose_unsynced(contents)
                    for path, contents in self._files.items()
                    if contents.name_is_synced or self.random.random() < 0.5
                }
                for path, contents in self._deleted.items():
                    if path not in self.survivors and self.random.random() < 0.5:
                        self.survivors[path] = self._lose_unsynced(contents)
                if self._rename is not None and self.random.random() < 0.5:
                    source, target, replaced = self._rename
                    if target in self.survivors:
                        self.survivors[source] = self.survivors.pop(target)
                    if replaced is not None:
                        self.survivors[target] = self._lose_unsynced(replaced)

    def _count_operation(self) -> None:
        self.operations += 1
        if self.operations == self.cut_at:
            self.cut()

    def _lose_unsynced(self, contents: Contents) -> bytes:
        """Return the contents of a file after the power cut."""
        surviving = bytearray(contents.synced)
        chance = self.random.choice((0.0, 0.5, 0.9, 1.0))
        for change in contents.pending:
            if isinstance(change, int):
                if self.random.random() < chance:
                    apply(surviving, change)
                continue
            offset, data = change
            for start in range(0, len(data), SECTOR_BYTES):
                if self.random.random() < chance:
                    apply(surviving, (offset + start, data[start : start + SECTOR_BYTES]))
        return bytes(surviving)


class PowerCutFile(apsw.VFSFile):
    """A file that reports its writes and syncs to its disk."""

    def __init__(self, disk: PowerCutDisk, path: str, name: str | apsw.URIFilename | None, flags: Flags) -> None:
        super().__init__("", name, flags)
        self._disk = disk
        self._path = path

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        self._disk.on_write(self._path, (offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        self._disk.on_write(self._path, newsize)

    def xSync(self, flags: int) -> None:  # noqa: ARG002 (all kinds of syncs are equal here)
        self._disk.on_sync(self._path)


class FailingDisk(apsw.VFS):
    """A disk that works until `fail` is set, which returns the error to raise for an operation and path."""

    def __init__(self, name: str) -> None:
        self.vfs_name = name
        super().__init__(name, "")
        self.fail: Callable[[str, str], Exception | None] = lambda _operation, _path: None

    def xOpen(self, name: str | apsw.URIFilename | None, flags: Flags) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        return FailingFile(self, path, name, flags)

    def raise_error(self, operation: str, path: str) -> None:
        error = self.fail(operation, path)
        if error is not None:
            raise error


class FailingFile(apsw.VFSFile):
    """A file whose operations may raise the error of its disk."""

    def __init__(self, disk: FailingDisk, path: str, name: str | apsw.URIFilename | None, flags: Flags) -> None:
        super().__init__("", name, flags)
        self._disk = disk
        self._path = path

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.raise_error("write", self._path)
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        self._disk.raise_error("truncate", self._path)
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        self._disk.raise_error("sync", self._path)
        super().xSync(flags)


def apply(content: bytearray, change: tuple[int, bytes] | int) -> None:
    """Apply a change to the content of a file: (offset, bytes), or a new length."""
    if isinstance(change, int):
        del content[change:]
        content.extend(bytes(change - len(content)))
        return
    offset, data = change
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(data)] = data


def write_files(files: dict[str, bytes], folder: Path) -> None:
    """Write these files, and delete all other files of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for path, data in files.items():
        Path(path).write_bytes(data)
