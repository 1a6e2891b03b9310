"""One file of lines that several processes append to, and that begins anew by size or time.

A line is one write to a descriptor opened for appending, so lines of several processes never mix. Whoever notices that
a new file is due takes the lock beside it, looks again, and renames; the others see that the name leads elsewhere and
open it again. Nobody waits for a coordinator and no timer runs: a file is looked at when a line comes.
"""

import contextlib
import fcntl
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from wharf.contract.model.times import SECOND

_STAMP: Final = "%Y%m%dT%H%M%S"
_STAMPED: Final = re.compile(r"-(\d{8}T\d{6})(?:\.(\d+))?")


class Rotation(msgspec.Struct, frozen=True):
    """When a new file begins, and how many older ones stay. 0 is never, or all."""

    bytes: int = 0
    duration_ns: int = 0
    """Files span whole multiples of this since 1970: `24h` begins a new one at midnight UTC."""
    max_files: int = 0


class RotatingFile:
    def __init__(self, path: Path, rotation: Rotation, *, mode: int = 0o640) -> None:
        """Raises OSError when the file cannot be opened."""
        self.path = path
        self._rotation = rotation
        self._mode = mode
        self._descriptor = -1
        self._identity = (0, 0)
        self._open()

    def write(self, line: bytes, *, now_ns: int) -> None:
        """Append one line, ended by a newline. Raises OSError when the disk takes it not, or not whole."""
        if self._is_due(self._follow_name(), len(line), now_ns):
            self._begin_anew(len(line), now_ns)
        written = os.write(self._descriptor, line)
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes were written to {self.path}")

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> os.stat_result:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, self._mode)
        self.close()
        self._descriptor = descriptor
        status = os.fstat(descriptor)
        self._identity = (status.st_dev, status.st_ino)
        return status

    def _follow_name(self) -> os.stat_result:
        """The file that the name leads to is open now; tells how it stands."""
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return self._open()
        return status if (status.st_dev, status.st_ino) == self._identity else self._open()

    def _is_due(self, status: os.stat_result, more: int, now_ns: int) -> bool:
        if status.st_size == 0:
            return False
        if self._rotation.bytes and status.st_size + more > self._rotation.bytes:
            return True
        span = self._rotation.duration_ns
        # When the last line was written tells which span the file belongs to; that survives restarts.
        return bool(span) and now_ns // span > status.st_mtime_ns // span

    def _begin_anew(self, more: int, now_ns: int) -> None:
        lock = os.open(self.path.with_name(f".{self.path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self._is_due(self._follow_name(), more, now_ns):
                return  # Another process was first.
            os.rename(self.path, self._older_name(now_ns))
            self._open()
            self._drop_oldest()
        finally:
            os.close(lock)

    def _older_name(self, now_ns: int) -> Path:
        stamp = datetime.fromtimestamp(now_ns // SECOND, tz=UTC).strftime(_STAMP)
        name = self.path.with_name(f"{self.path.stem}-{stamp}{self.path.suffix}")
        number = 0
        while name.exists():
            number += 1
            name = self.path.with_name(f"{self.path.stem}-{stamp}.{number}{self.path.suffix}")
        return name

    def _drop_oldest(self) -> None:
        if not self._rotation.max_files:
            return
        for old in list_rotated_files(self.path)[: -self._rotation.max_files]:
            with contextlib.suppress(FileNotFoundError):
                old.unlink()


def list_rotated_files(path: Path) -> list[Path]:
    """The files that were begun anew, oldest first."""
    found: list[tuple[str, int, Path]] = []
    for file in path.parent.glob(f"{path.stem}-*{path.suffix}"):
        stamped = _STAMPED.fullmatch(file.name.removeprefix(path.stem).removesuffix(path.suffix))
        if stamped is not None:
            found.append((stamped[1], int(stamped[2] or 0), file))
    return [file for _, _, file in sorted(found)]
