"""A sink that appends records to a file, one in each line, with rotation by size and time."""

from functools import partial
from pathlib import Path

from wharf.sinks.port import SinkBatch, SinkUnavailable
from wharf.sinks.rotation import RotatingFile, Rotation
from wharf.sinks.thread_calls import SingleThreadCall
from wharf.world import World


class FileSink:
    """Appends to a file that only its owner can read. It is opened with the first batch."""

    def __init__(self, world: World, path: Path, rotation: Rotation) -> None:
        self._world = world
        self._path = path
        self._rotation = rotation
        self._file: RotatingFile | None = None
        self._calls = SingleThreadCall()
        self._batch_name = ""
        self._written_lines = 0
        """The records of this batch that are written."""
        self._has_failed = False

    async def send(self, batch: SinkBatch) -> int:
        """Append all records. Raises `SinkUnavailable` if the file cannot be written, such as on a full disk."""
        try:
            await self._calls.run(partial(self._write, batch, self._world.now_ns()))
        except OSError as error:
            raise SinkUnavailable(f"{self._path} cannot be written: {error.strerror or error}") from error
        return 0

    def _write(self, batch: SinkBatch, now_ns: int) -> None:
        """Append the records of a batch that an earlier attempt has not written. Raises `OSError`."""
        if self._file is None:
            self._file = RotatingFile(self._path, self._rotation, mode=0o600)
        if batch.name != self._batch_name:
            self._batch_name, self._written_lines = batch.name, 0
        # One write for each record, so that no record is in two files.
        for line in batch.lines[self._written_lines :]:
            # A failed write may have left a part of its line, such as on a full disk.
            start = b"\n" if self._has_failed else b""
            self._has_failed = True
            self._file.write(start + line + b"\n", now_ns=now_ns)
            self._has_failed = False
            self._written_lines += 1

    async def close(self) -> None:
        if self._file is not None:
            self._file.close()
