"""Copies a container's output from the engine's log to the task's log files `<task>.<stream>.<n>`, each byte once.

The progress is stored beside the files: the time of the last complete entry and the position in the files. After a
crash the files can hold more than the stored position; that many bytes of the repeated output are skipped.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from wharf.contract.model.times import SECOND
from wharf.node.drivers.docker.engine import ContainerEngine
from wharf.node.drivers.docker.errors import EngineRejected, EngineUnreachable
from wharf.node.drivers.docker.output_stream import LogEntryChunk, TimestampDecoder
from wharf.node.rotated_files import LogFilePosition, RotatedFiles

log = logging.getLogger(__name__)

CHUNKS_PER_STEP: Final = 32
"""Parts of log entries that are copied before other tasks of the node run, and before the progress is stored: a few
milliseconds. A container can write thousands of short lines at once."""
RETRY_DELAY_S: Final = 0.5
RESUME_OVERLAP_S: Final = 1
"""Engines disagree whether `since` includes its own second, so earlier output is requested too and skipped."""


class LogProgress(msgspec.Struct, frozen=True):
    """The position up to which a container's log was copied."""

    at_ns: int = 0
    """The time of the last complete entry; 0: none was copied."""
    count: int = 0
    """How many entries with this time were copied."""
    positions: dict[str, LogFilePosition] = msgspec.field(name="spots", default_factory=dict)
    """The position in the log files by stream."""


class LogFollower:
    """Copies the log of one container to the task's log files, each byte once."""

    def __init__(
        self,
        engine: ContainerEngine,
        container: str,
        *,
        is_tty: bool,
        files: dict[str, RotatedFiles],
        progress_file: Path,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Create a follower that stores its progress in `progress_file`; `files` are the log files by stream.

        `report` is called with a message for the users of the task, once, if output is missing in the logs.
        """
        self._report = report
        self._has_reported = False
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
        """Copy output until canceled, or until the container ends.

        After an error the copy is resumed, except if the engine rejects the request.
        """
        last_error = ""
        while True:
            try:
                await self._copy_output(follow=True)
                return
            except EngineRejected as error:
                log.warning("container output cannot be read container=%s error=%s", self._container, error)
                self._report_problem(f"the container engine does not send the output: {error}")
                return
            except (EngineUnreachable, OSError) as error:
                if isinstance(error, OSError):  # The disk is full, or a task has put something else in the place.
                    self._report_problem(
                        f"output cannot be written to the log files: {error.strerror or error}. Free space on the disk of "
                        "the node, or remove what blocks the names of the log files"
                    )
                if str(error) != last_error:  # Log each error once.
                    last_error = str(error)
                    log.warning(
                        "container output cannot be copied; retrying container=%s error=%s", self._container, error
                    )
                await asyncio.sleep(RETRY_DELAY_S)

    def _report_problem(self, message: str) -> None:
        """Report why output is missing in the logs, once for each container."""
        if not self._has_reported:
            self._has_reported = True
            self._report(message)

    async def catch_up(self) -> None:
        """Copy the output of an ended container that was not copied yet.

        Raises EngineUnreachable, EngineRejected and OSError.
        """
        await self._copy_output(follow=False)

    def close(self) -> None:
        """Close all log files and their folder."""
        for files in self._files.values():
            files.close()
            files.folder.close()

    async def _copy_output(self, *, follow: bool) -> None:
        """Copy output from the stored progress on, to the end of what exists; with `follow` until the container ends.

        Raises EngineUnreachable, EngineRejected and OSError.
        """
        self._resume()
        progress, decoder = self._progress, TimestampDecoder(is_tty=self._is_tty)
        since = str(max(0, progress.at_ns // SECOND - RESUME_OVERLAP_S)) if progress.at_ns else ""
        try:
            async with contextlib.aclosing(
                self._engine.stream_logs(
                    self._container, is_tty=self._is_tty, follow=follow, since=since, timestamps=True
                )
            ) as chunks:
                async for received in chunks:
                    entry_chunks = (entry_chunk for chunk in received for entry_chunk in decoder.feed(chunk))
                    while step := list(islice(entry_chunks, CHUNKS_PER_STEP)):
                        for entry_chunk in step:
                            self._write_chunk(entry_chunk)
                        self._store_progress(self._progress)
                        await asyncio.sleep(0)
        finally:
            self.close()

    def _resume(self) -> None:
        """Load the stored progress, or begin at the end of the log files, and count the bytes to skip.

        After a crash the files can be ahead of the stored progress; that many bytes of the repeated output are skipped.
        Raises OSError.
        """
        with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
            self._progress = msgspec.json.decode(self._progress_file.read_bytes(), type=LogProgress)
        if not self._progress.positions:
            self._progress = LogProgress(positions={name: files.open_newest() for name, files in self._files.items()})
            self._store_progress(self._progress)
        positions = self._progress.positions
        self._skips = {
            name: files.count_bytes_after(positions.get(name, LogFilePosition())) for name, files in self._files.items()
        }
        self._resumed_progress, self._repeated_count, self._is_repeated = self._progress, 0, False
        self._entry_ns, self._count = self._progress.at_ns, self._progress.count
        self._is_complete = True

    def _write_chunk(self, chunk: LogEntryChunk) -> None:
        """Write a part of a log entry to the file of its stream, without what was already copied."""
        if chunk.at_ns is not None:
            self._is_repeated = self._was_copied(chunk.at_ns)
            if not self._is_repeated:
                self._end_entry()
                self._count = self._count + 1 if chunk.at_ns == self._entry_ns else 1
                self._entry_ns, self._is_complete = chunk.at_ns, False
        if self._is_repeated:
            return
        skip = min(self._skips[chunk.stream], len(chunk.data))
        self._skips[chunk.stream] -= skip
        self._files[chunk.stream].write(chunk.data[skip:])

    def _was_copied(self, at_ns: int) -> bool:
        """Return whether the entry with this time was already copied before this connection.

        Entries with the time of the last copied one are counted, because several entries can have the same time.
        """
        resumed = self._resumed_progress
        if resumed is None:
            return False
        if at_ns < resumed.at_ns:
            return True
        if at_ns == resumed.at_ns and self._repeated_count < resumed.count:
            self._repeated_count += 1
            return True
        self._resumed_progress = None
        return False

    def _end_entry(self) -> None:
        """Update the progress in memory at the end of an entry, unless the files are ahead of the entries."""
        # While bytes are skipped, the files are ahead of the entries.
        if self._is_complete or any(self._skips.values()):
            return
        self._is_complete = True
        self._progress = LogProgress(
            self._entry_ns, self._count, {name: files.open_newest() for name, files in self._files.items()}
        )

    def _store_progress(self, progress: LogProgress) -> None:
        """Replace the progress file by the given progress. Raises OSError."""
        draft = self._progress_file.with_suffix(".new")
        draft.write_bytes(msgspec.json.encode(progress))
        os.replace(draft, self._progress_file)
