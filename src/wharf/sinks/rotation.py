"""A log file that several processes append to, rotated by size or time.

Each line is one write to a descriptor opened for appending, so lines of several processes never mix. The process that
notices that rotation is due takes a lock file, checks again, and renames the log file. The other processes notice the
rename and open the new file. There is no timer: rotation is checked at each write.
"""

import contextlib
import fcntl
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

SECOND_NS: Final = 1_000_000_000
_STAMP: Final = "%Y%m%dT%H%M%S"
_STAMP_PATTERN: Final = re.compile(r"-(\d{8}T\d{6})(?:\.(\d+))?")


class Rotation(msgspec.Struct, frozen=True):
    """When to rotate a file, and how many rotated files to keep. 0 means never rotate, or keep all."""

    bytes: int = 0
    duration_ns: int = 0
    """Files cover whole multiples of this duration since 1970: `24h` rotates at midnight UTC."""
    max_files: int = 0


class RotatingFile:
    """A file to append lines to, shared with other processes."""

    def __init__(self, path: Path, rotation: Rotation, *, mode: int = 0o640) -> None:
        """Raises OSError when the file cannot be opened."""
        self.path = path
        self._rotation = rotation
        self._mode = mode
        self._descriptor = -1
        self._identity = (0, 0)
        self._open()

    def write(self, line: bytes, *, now_ns: int) -> None:
        """Append one line, which must end with a newline. Raises `OSError` if it cannot be written completely."""
        if self._is_due(self._reopen_if_renamed(), len(line), now_ns):
            self._rotate(len(line), now_ns)
        written = os.write(self._descriptor, line)
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes were written to {self.path}")

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> os.stat_result:
        """Open the file, create it if it is missing, and return its status."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, self._mode)
        self.close()
        self._descriptor = descriptor
        status = os.fstat(descriptor)
        self._identity = (status.st_dev, status.st_ino)
        return status

    def _reopen_if_renamed(self) -> os.stat_result:
        """Open the file again if another process renamed it. Return its status."""
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return self._open()
        return status if (status.st_dev, status.st_ino) == self._identity else self._open()

    def _is_due(self, status: os.stat_result, line_bytes: int, now_ns: int) -> bool:
        """Return whether to rotate the file before a line of this size is written."""
        if status.st_size == 0:
            return False
        if self._rotation.bytes and status.st_size + line_bytes > self._rotation.bytes:
            return True
        period_ns = self._rotation.duration_ns
        # The file belongs to the period of its last write, also after a restart.
        return bool(period_ns) and now_ns // period_ns > status.st_mtime_ns // period_ns

    def _rotate(self, line_bytes: int, now_ns: int) -> None:
        """Rename the file and open a new one, unless another process did so first."""
        lock = os.open(self.path.with_name(f".{self.path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self._is_due(self._reopen_if_renamed(), line_bytes, now_ns):
                return  # Another process was first.
            rotated = self._build_rotated_name(now_ns)
            os.rename(self.path, rotated)
            self._open()
            self._delete_oldest(rotated, now_ns)
        finally:
            os.close(lock)

    def _build_rotated_name(self, now_ns: int) -> Path:
        """Return an unused name for the rotated file, with the time in it."""
        stamp = _format_stamp(now_ns)
        name = self.path.with_name(f"{self.path.stem}-{stamp}{self.path.suffix}")
        number = 0
        while name.exists():
            number += 1
            name = self.path.with_name(f"{self.path.stem}-{stamp}.{number}{self.path.suffix}")
        return name

    def _delete_oldest(self, newest: Path, now_ns: int) -> None:
        """Delete rotated files beyond `max_files`, but never `newest`.

        Files with a time ahead of the clock count as the oldest, so that a jump of the clock does not displace newer files.
        A file that cannot be deleted stays: a log line must not be lost because of it.
        """
        if not self._rotation.max_files:
            return
        stamp = _format_stamp(now_ns)
        files = list_rotated_files(self.path)
        files.sort(key=lambda file: (file == newest, file.name[len(self.path.stem) + 1 :][: len(stamp)] <= stamp))
        for old in files[: -self._rotation.max_files]:
            with contextlib.suppress(OSError):
                old.unlink()


def _format_stamp(now_ns: int) -> str:
    """Return the time as it is in the names of rotated files."""
    return datetime.fromtimestamp(now_ns // SECOND_NS, tz=UTC).strftime(_STAMP)


def list_rotated_files(path: Path) -> list[Path]:
    """Return the rotated files of a log file, oldest first."""
    rotated: list[tuple[str, int, Path]] = []
    for file in path.parent.glob(f"{path.stem}-*{path.suffix}"):
        match = _STAMP_PATTERN.fullmatch(file.name.removeprefix(path.stem).removesuffix(path.suffix))
        if match is not None:
            rotated.append((match[1], int(match[2] or 0), file))
    return [file for _, _, file in sorted(rotated)]
