"""The files that a task's output is kept in, `<task>.<stream>.<n>`, written by the agent itself."""

import contextlib
import os
from pathlib import Path
from typing import NamedTuple


class Spot(NamedTuple):
    """So far a stream was written: the number of its newest file, and the size of that."""

    number: int = 0
    size: int = 0


class LogFiles:
    """Those of one stream. What was written is in the kernel's hands at once."""

    def __init__(self, folder: Path, task: str, stream: str, *, max_files: int, max_file_bytes: int) -> None:
        self._folder = folder
        self._stem = f"{task}.{stream}."
        self._max_files = max_files
        self._max_file_bytes = max_file_bytes
        self._file: int | None = None
        self._spot = Spot()

    def open(self) -> Spot:
        """Where the next byte will be. Raises OSError."""
        if self._file is None:
            self._open(max(self._numbers(), default=0))
        return self._spot

    def write(self, data: bytes) -> None:
        """Raises OSError; what was written until then is counted."""
        left = memoryview(data)
        while left:
            spot = self.open()
            if spot.size >= self._max_file_bytes:
                self.close()
                self._open(spot.number + 1)
                self._remove_old()
                continue
            assert self._file is not None
            written = os.write(self._file, left[: self._max_file_bytes - spot.size])
            self._spot = Spot(spot.number, spot.size + written)
            left = left[written:]

    def beyond(self, spot: Spot) -> int:
        """How many bytes lie behind that spot."""
        sizes = {number: os.path.getsize(self._folder / f"{self._stem}{number}") for number in self._numbers()}
        return max(0, sum(size for number, size in sizes.items() if number >= spot.number) - spot.size)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self, number: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(self._folder / f"{self._stem}{number}", flags, 0o644)
        self._spot = Spot(number, os.lseek(self._file, 0, os.SEEK_END))

    def _remove_old(self) -> None:
        for number in self._numbers():
            if number <= self._spot.number - self._max_files:
                (self._folder / f"{self._stem}{number}").unlink(missing_ok=True)

    def _numbers(self) -> list[int]:
        names: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            names = os.listdir(self._folder)
        ends = [name.removeprefix(self._stem) for name in names if name.startswith(self._stem)]
        return [int(end) for end in ends if end.isdecimal()]
