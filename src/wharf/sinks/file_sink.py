"""A sink that appends records to a file, one in each line, with rotation by size and time."""

from collections.abc import Sequence
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

    async def send(self, batch: SinkBatch) -> int:
        """Append all records. Raises `SinkUnavailable` if the file cannot be written, such as on a full disk."""
        try:
            await self._calls.run(partial(self._write, batch.lines, self._world.now_ns()))
        except OSError as error:
            raise SinkUnavailable(f"{self._path} cannot be written: {error.strerror or error}") from error
        return 0

    def _write(self, lines: Sequence[bytes], now_ns: int) -> None:
        if self._file is None:
            self._file = RotatingFile(self._path, self._rotation, mode=0o600)
        # One write for each record: a record is never in two files, and a failure does not leave half of it.
        for line in lines:
            self._file.write(line + b"\n", now_ns=now_ns)

    async def close(self) -> None:
        if self._file is not None:
            self._file.close()
