"""The files that a task's output is kept in, `<task>.<stream>.<n>`, written by the agent itself.

A container's output, from the engine's log into the task's files: each byte once, whoever of us ended in between.

How far one came is kept beside the files: the moment of the last whole entry, and where it ended in them. What the files
hold beyond that was written just before an end that nobody foresaw; so much is left out of what the engine tells again.
"""

import asyncio
import contextlib
import logging
import os
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from wharf.node.drivers.docker.engine import ContainerEngine
from wharf.node.drivers.docker.errors import EngineRejected, EngineUnreachable
from wharf.node.drivers.docker.output_stream import SECOND_NS, LogEntryChunk, TimestampDecoder


class LogFilePosition(NamedTuple):
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
        self._spot = LogFilePosition()

    def open_newest(self) -> LogFilePosition:
        """Where the next byte will be. Raises OSError."""
        if self._file is None:
            self._open(max(self._numbers(), default=0))
        return self._spot

    def write(self, data: bytes) -> None:
        """Raises OSError; what was written until then is counted."""
        left = memoryview(data)
        while left:
            spot = self.open_newest()
            if spot.size >= self._max_file_bytes:
                self.close()
                self._open(spot.number + 1)
                self._remove_old()
                continue
            assert self._file is not None
            written = os.write(self._file, left[: self._max_file_bytes - spot.size])
            self._spot = LogFilePosition(spot.number, spot.size + written)
            left = left[written:]

    def count_bytes_after(self, spot: LogFilePosition) -> int:
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
        self._spot = LogFilePosition(number, os.lseek(self._file, 0, os.SEEK_END))

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


log = logging.getLogger(__name__)

RETRY_DELAY_S: Final = 0.5
LOG_STREAMS: Final = ("stdout", "stderr")
RESUME_OVERLAP_S: Final = 1
"""Engines disagree whether `since` is meant with its moment or after it: it is asked for more, and that is left out."""


class LogProgress(msgspec.Struct, frozen=True):
    """`count`: how many entries of the same moment there were."""

    at_ns: int = 0
    count: int = 0
    spots: dict[str, LogFilePosition] = {}


class LogFollower:
    def __init__(
        self, engine: ContainerEngine, container: str, *, is_tty: bool, files: dict[str, LogFiles], progress_file: Path
    ) -> None:
        """`kept`: the file that says how far one came."""
        self._engine = engine
        self._container = container
        self._is_tty = is_tty
        self._files = files
        self._kept = progress_file
        self._reached = LogProgress()
        self._entry_ns = 0
        self._count = 0
        self._skips: dict[str, int] = {}
        self._told_before: LogProgress | None = None
        """Until the first entry that is new: the engine tells what was heard already."""
        self._heard_again = 0
        self._is_old = False
        self._is_whole = True

    async def follow(self) -> None:
        """Until cancelled, or until the log ends."""
        told = ""
        while True:
            try:
                await self._read(follow=True)
                return
            except EngineRejected as error:
                log.warning("the output of a container cannot be read: %s", error, extra={"container": self._container})
                return
            except (EngineUnreachable, OSError) as error:
                if str(error) != told:  # Once, however long it lasts.
                    told = str(error)
                    log.warning("the output of a container waits: %s", error, extra={"container": self._container})
                await asyncio.sleep(RETRY_DELAY_S)

    async def catch_up(self) -> None:
        """To its end, of a container that does not run any more. Raises EngineUnreachable, EngineRejected, OSError."""
        await self._read(follow=False)

    def close(self) -> None:
        for files in self._files.values():
            files.close()

    async def _read(self, *, follow: bool) -> None:
        self._resume()
        reached, stamped = self._reached, TimestampDecoder(is_tty=self._is_tty)
        since = str(max(0, reached.at_ns // SECOND_NS - RESUME_OVERLAP_S)) if reached.at_ns else ""
        try:
            async with contextlib.aclosing(
                self._engine.stream_logs(
                    self._container, is_tty=self._is_tty, follow=follow, since=since, timestamps=True
                )
            ) as chunks:
                async for chunk in chunks:
                    for piece in stamped.feed(chunk):
                        self._take(piece)
                    self._keep(self._reached)
        finally:
            self.close()

    def _resume(self) -> None:
        """Raises OSError."""
        with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
            self._reached = msgspec.json.decode(self._kept.read_bytes(), type=LogProgress)
        if not self._reached.spots:
            self._reached = LogProgress(spots={name: files.open_newest() for name, files in self._files.items()})
            self._keep(self._reached)
        spots = self._reached.spots
        self._skips = {
            name: files.count_bytes_after(spots.get(name, LogFilePosition())) for name, files in self._files.items()
        }
        self._told_before, self._heard_again, self._is_old = self._reached, 0, False
        self._entry_ns, self._count = self._reached.at_ns, self._reached.count
        self._is_whole = True

    def _take(self, piece: LogEntryChunk) -> None:
        if piece.at_ns is not None:
            self._is_old = self._was_heard(piece.at_ns)
            if not self._is_old:
                self._end_entry()
                self._count = self._count + 1 if piece.at_ns == self._entry_ns else 1
                self._entry_ns, self._is_whole = piece.at_ns, False
        if self._is_old:
            return
        skip = min(self._skips[piece.stream], len(piece.data))
        self._skips[piece.stream] -= skip
        self._files[piece.stream].write(piece.data[skip:])

    def _was_heard(self, at_ns: int) -> bool:
        before = self._told_before
        if before is None:
            return False
        if at_ns < before.at_ns:
            return True
        if at_ns == before.at_ns and self._heard_again < before.count:
            self._heard_again += 1
            return True
        self._told_before = None
        return False

    def _end_entry(self) -> None:
        """The entry before this one is whole."""
        # While what was written before is left out, the files are ahead of what is told.
        if self._is_whole or any(self._skips.values()):
            return
        self._is_whole = True
        self._reached = LogProgress(
            self._entry_ns, self._count, {name: files.open_newest() for name, files in self._files.items()}
        )

    def _keep(self, reached: LogProgress) -> None:
        draft = self._kept.with_suffix(".new")
        draft.write_bytes(msgspec.json.encode(reached))
        os.replace(draft, self._kept)
