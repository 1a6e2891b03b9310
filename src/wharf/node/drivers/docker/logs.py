"""Copies a container's output from the engine's log to the task's log files `<task>.<stream>.<n>`, each byte once.

The progress is stored beside the files: the time of the last complete entry and the position in the files. After a
crash the files can hold more than the stored position; that many bytes of the repeated output are skipped.
"""

import asyncio
import contextlib
import logging
import os
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from wharf.contract.model.times import SECOND
from wharf.node.drivers.docker.engine import ContainerEngine
from wharf.node.drivers.docker.errors import EngineRejected, EngineUnreachable
from wharf.node.drivers.docker.output_stream import LogEntryChunk, TimestampDecoder


class LogFilePosition(NamedTuple):
    """How far a stream was written: the number of its newest log file and that file's size."""

    number: int = 0
    size: int = 0


class LogFiles:
    """The log files of one stream. Writes are not buffered."""

    def __init__(self, folder: Path, task: str, stream: str, *, max_files: int, max_file_bytes: int) -> None:
        self._folder = folder
        self._stem = f"{task}.{stream}."
        self._max_files = max_files
        self._max_file_bytes = max_file_bytes
        self._file: int | None = None
        self._position = LogFilePosition()

    def open_newest(self) -> LogFilePosition:
        """Open the newest file if none is open, and return the position of the next byte. Raises OSError."""
        if self._file is None:
            self._open(max(self._list_file_numbers(), default=0))
        return self._position

    def write(self, data: bytes) -> None:
        """Write data and start new files at the size limit.

        Raises OSError; bytes written before the error are included in the position.
        """
        left = memoryview(data)
        while left:
            position = self.open_newest()
            if position.size >= self._max_file_bytes:
                self.close()
                self._open(position.number + 1)
                self._remove_old()
                continue
            assert self._file is not None
            written = os.write(self._file, left[: self._max_file_bytes - position.size])
            self._position = LogFilePosition(position.number, position.size + written)
            left = left[written:]

    def count_bytes_after(self, position: LogFilePosition) -> int:
        """Return how many bytes the files hold after this position."""
        sizes = {
            number: os.path.getsize(self._folder / f"{self._stem}{number}") for number in self._list_file_numbers()
        }
        return max(0, sum(size for number, size in sizes.items() if number >= position.number) - position.size)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self, number: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(self._folder / f"{self._stem}{number}", flags, 0o644)
        self._position = LogFilePosition(number, os.lseek(self._file, 0, os.SEEK_END))

    def _remove_old(self) -> None:
        """Delete the oldest files beyond the limit."""
        for number in self._list_file_numbers():
            if number <= self._position.number - self._max_files:
                (self._folder / f"{self._stem}{number}").unlink(missing_ok=True)

    def _list_file_numbers(self) -> list[int]:
        names: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            names = os.listdir(self._folder)
        suffixes = [name.removeprefix(self._stem) for name in names if name.startswith(self._stem)]
        return [int(suffix) for suffix in suffixes if suffix.isdecimal()]


log = logging.getLogger(__name__)

RETRY_DELAY_S: Final = 0.5
LOG_STREAMS: Final = ("stdout", "stderr")
RESUME_OVERLAP_S: Final = 1
"""Engines disagree whether `since` includes its own second, so earlier output is requested too and skipped."""


class LogProgress(msgspec.Struct, frozen=True):
    """How far a container's log was copied. `count`: number of entries with the time `at_ns`."""

    at_ns: int = 0
    count: int = 0
    spots: dict[str, LogFilePosition] = {}


class LogFollower:
    """Copies the log of one container to the files of its streams."""

    def __init__(
        self, engine: ContainerEngine, container: str, *, is_tty: bool, files: dict[str, LogFiles], progress_file: Path
    ) -> None:
        """`progress_file`: where the progress is stored."""
        self._engine = engine
        self._container = container
        self._is_tty = is_tty
        self._files = files
        self._progress_file = progress_file
        self._progress = LogProgress()
        self._entry_ns = 0
        self._count = 0
        self._skips: dict[str, int] = {}
        self._resumed_progress: LogProgress | None = None
        """The stored progress, until the first new entry arrives; None afterwards."""
        self._repeated_count = 0
        self._is_repeated = False
        self._is_complete = True

    async def follow(self) -> None:
        """Copy output until cancelled, or until the log ends."""
        last_error = ""
        while True:
            try:
                await self._read(follow=True)
                return
            except EngineRejected as error:
                log.warning("container output cannot be read container=%s error=%s", self._container, error)
                return
            except (EngineUnreachable, OSError) as error:
                if str(error) != last_error:  # Log each error once.
                    last_error = str(error)
                    log.warning(
                        "container output cannot be copied; retrying container=%s error=%s", self._container, error
                    )
                await asyncio.sleep(RETRY_DELAY_S)

    async def catch_up(self) -> None:
        """Copy the rest of the output of an ended container.

        Raises EngineUnreachable, EngineRejected and OSError.
        """
        await self._read(follow=False)

    def close(self) -> None:
        for files in self._files.values():
            files.close()

    async def _read(self, *, follow: bool) -> None:
        self._resume()
        progress, stamped = self._progress, TimestampDecoder(is_tty=self._is_tty)
        since = str(max(0, progress.at_ns // SECOND - RESUME_OVERLAP_S)) if progress.at_ns else ""
        try:
            async with contextlib.aclosing(
                self._engine.stream_logs(
                    self._container, is_tty=self._is_tty, follow=follow, since=since, timestamps=True
                )
            ) as chunks:
                async for chunk in chunks:
                    for piece in stamped.feed(chunk):
                        self._write_chunk(piece)
                    self._store_progress(self._progress)
        finally:
            self.close()

    def _resume(self) -> None:
        """Load the stored progress and count the bytes to skip. Raises OSError."""
        with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
            self._progress = msgspec.json.decode(self._progress_file.read_bytes(), type=LogProgress)
        if not self._progress.spots:
            self._progress = LogProgress(spots={name: files.open_newest() for name, files in self._files.items()})
            self._store_progress(self._progress)
        spots = self._progress.spots
        self._skips = {
            name: files.count_bytes_after(spots.get(name, LogFilePosition())) for name, files in self._files.items()
        }
        self._resumed_progress, self._repeated_count, self._is_repeated = self._progress, 0, False
        self._entry_ns, self._count = self._progress.at_ns, self._progress.count
        self._is_complete = True

    def _write_chunk(self, piece: LogEntryChunk) -> None:
        """Write a chunk of an entry, unless it was already copied."""
        if piece.at_ns is not None:
            self._is_repeated = self._was_copied(piece.at_ns)
            if not self._is_repeated:
                self._end_entry()
                self._count = self._count + 1 if piece.at_ns == self._entry_ns else 1
                self._entry_ns, self._is_complete = piece.at_ns, False
        if self._is_repeated:
            return
        skip = min(self._skips[piece.stream], len(piece.data))
        self._skips[piece.stream] -= skip
        self._files[piece.stream].write(piece.data[skip:])

    def _was_copied(self, at_ns: int) -> bool:
        """Return whether the entry with this time was already copied before the restart."""
        before = self._resumed_progress
        if before is None:
            return False
        if at_ns < before.at_ns:
            return True
        if at_ns == before.at_ns and self._repeated_count < before.count:
            self._repeated_count += 1
            return True
        self._resumed_progress = None
        return False

    def _end_entry(self) -> None:
        """Record the progress after a complete entry."""
        # While bytes are skipped, the files are ahead of the entries.
        if self._is_complete or any(self._skips.values()):
            return
        self._is_complete = True
        self._progress = LogProgress(
            self._entry_ns, self._count, {name: files.open_newest() for name, files in self._files.items()}
        )

    def _store_progress(self, progress: LogProgress) -> None:
        """Replace the progress file."""
        draft = self._progress_file.with_suffix(".new")
        draft.write_bytes(msgspec.json.encode(progress))
        os.replace(draft, self._progress_file)
