"""Follows growing files and rotated logs, and encodes what is read as frames for remote followers.

Also reads the end of a log.

A check for new data takes microseconds, so files are checked 50 times a second. A log folder with many entries is listed
less often, because a task can fill it.
"""

import asyncio
import base64
import contextlib
import os
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.wire.allocations.log_frames import LogFrame
from wharf.node.files.folder import LOGS_PATH, ReadOnlyFolder
from wharf.node.log_folder import LogFolder, NotRegularFile, open_regular_file

CHUNK_BYTES: Final = 64 << 10
"""Limit of the data in one frame."""
POLL_INTERVAL_S: Final = 0.02
"""Seconds between checks for new data."""
HEARTBEAT_INTERVAL_S: Final = 1.0
"""Seconds without data after which an empty frame is sent."""
MAX_LISTED_NAMES_PER_S: Final = 10_000
"""Names of a log folder that one follower lists in a second; protects the node agent from a task that fills the folder."""
MAX_FILES_PER_PASS: Final = 200
"""Log files that are opened or measured before other tasks of the event loop may continue."""
MAX_TAIL_FILES: Final = 100
"""Log files that are opened to read the end of a log; protects the event loop from a task that takes many names."""
DELETED_EVENT: Final = "file deleted"
TRUNCATED_EVENT: Final = "file truncated"


class FileFrame(NamedTuple):
    """A piece of a file as it is sent to a follower.

    A frame without data and event only shows that the stream is alive.
    """

    offset: int = 0  # the end of the data in the file
    data: bytes = b""
    file: str = ""  # the path of the file
    event: str = ""  # deletion or truncation of the file; empty: none


class TaskLogPosition(NamedTuple):
    """A position in a log over all its files. Frames contain it, so that a broken stream can be resumed there."""

    number: int  # of the log file
    offset: int  # in this file


async def encode_frames(frames: AsyncGenerator[FileFrame, None]) -> AsyncGenerator[bytes, None]:
    """Yield each frame as a JSON object, with its data in base64."""
    async with aclosing(frames):
        async for frame in frames:
            data = base64.b64encode(frame.data).decode()
            yield msgspec.json.encode(LogFrame(frame.offset, data, frame.file, frame.event))


async def extract_data(frames: AsyncGenerator[FileFrame, None]) -> AsyncGenerator[bytes, None]:
    """Yield only the data of each frame; an empty piece shows that the stream is alive."""
    async with aclosing(frames):
        async for frame in frames:
            yield frame.data


class ReadOrigin(Enum):
    """The place from which an offset in a file counts: forward from the start, or back from the end."""

    START = "start"
    END = "end"


async def follow_file(
    folder: ReadOnlyFolder, path: str, *, origin: ReadOrigin, offset: int, should_follow: bool
) -> AsyncGenerator[FileFrame, None]:
    """Yield the content of a file from `offset` on; with `should_follow` also what is appended later.

    `origin` says from where the offset counts. Truncation and deletion of the file are yielded as events. Raises
    `Refusal` before the first frame.
    """
    descriptor = folder.open_file(path)
    try:
        position = _get_start(os.fstat(descriptor).st_size, origin, offset)
        quiet_s = 0.0
        while True:
            data = os.pread(descriptor, CHUNK_BYTES, position)
            if data:
                position += len(data)
                quiet_s = 0.0
                yield FileFrame(position, data, path)
                await asyncio.sleep(0)  # A consumer that never waits would otherwise hold the event loop.
                continue
            if not should_follow:
                return
            if _is_truncated(descriptor, position):
                position = 0
                yield FileFrame(0, b"", path, TRUNCATED_EVENT)
                await asyncio.sleep(POLL_INTERVAL_S)
                continue
            if os.fstat(descriptor).st_nlink == 0:
                yield FileFrame(position, b"", path, DELETED_EVENT)
                return
            await asyncio.sleep(POLL_INTERVAL_S)
            quiet_s += POLL_INTERVAL_S
            if quiet_s >= HEARTBEAT_INTERVAL_S:
                quiet_s = 0.0
                yield FileFrame()
    finally:
        os.close(descriptor)


async def follow_logs(
    folder: ReadOnlyFolder,
    task: str,
    stream: str,
    *,
    origin: ReadOrigin,
    offset: int,
    should_follow: bool,
    is_over: Callable[[], bool],
    start: TaskLogPosition | None = None,
) -> AsyncGenerator[FileFrame, None]:
    """Yield the log of a task over all its files, oldest first, from `offset` on.

    `origin` says from where the offset counts. `start` replaces both: a position that an earlier frame contained. If its
    file was deleted since, the log continues with the oldest newer file. With `should_follow` it continues until
    `is_over` returns that the task writes no more. Raises `Refusal` before the first frame.
    """
    log_folder = folder.open_log_folder()
    reader = _LogReader(log_folder, task, stream)
    quiet_s = 0.0
    try:
        numbers = log_folder.list_numbers(build_log_stem(task, stream))
        if not numbers and not should_follow:
            raise Refusal(RefusalCode.NOT_FOUND, f'no {stream} log of task "{task}" yet')
        if start is not None:
            reader.number, reader.position = start
        elif numbers:
            reader.number, reader.position = await _locate_offset(log_folder, task, stream, numbers, origin, offset)
        last_number = None if should_follow else numbers[-1]
        if should_follow and start is None and origin is ReadOrigin.END:
            # A follower of the end can then resume its stream even if it breaks before any data.
            yield FileFrame(reader.position, b"", build_log_path(task, stream, reader.number))
        while True:
            if (frame := reader.read_frame()) is not None:
                quiet_s = 0.0
                yield frame
                await asyncio.sleep(0)  # A consumer that never waits would otherwise hold the event loop.
                continue
            # Checked before the list of files: anything written until now is in the files that are listed.
            was_over = is_over()
            is_last_check = not should_follow or was_over
            if (is_last_check or reader.is_listing_due()) and (
                reader.has_more_data() or await reader.move_to_next_file(last_number)
            ):
                continue
            if is_last_check:
                return
            await asyncio.sleep(POLL_INTERVAL_S)
            quiet_s += POLL_INTERVAL_S
            if quiet_s >= HEARTBEAT_INTERVAL_S:
                quiet_s = 0.0
                yield FileFrame()
    finally:
        reader.close()
        log_folder.close()


class _LogReader:
    """Reads the numbered files of a log one after another.

    The next frame begins at `position` in the file with the number `number`.
    """

    def __init__(self, folder: LogFolder, task: str, stream: str) -> None:
        self.number = 0
        self.position = 0
        self._folder = folder
        self._task = task
        self._stream = stream
        self._descriptor: int | None = None
        self._next_numbers: list[int] = []
        self._first_unchecked = 0
        """Larger numbers were not tried yet. A name that was no log file when it was tried is not tried again."""
        self._next_listing_s = 0.0

    def read_frame(self) -> FileFrame | None:
        """Return the next data of the current file; `None` at its end, or if it does not exist."""
        if self._descriptor is None:
            self._descriptor = open_log_file(self._folder, self._task, self._stream, self.number)
        if self._descriptor is None:
            return None
        data = os.pread(self._descriptor, CHUNK_BYTES, self.position)
        if not data:
            return None
        self.position += len(data)
        return FileFrame(self.position, data, build_log_path(self._task, self._stream, self.number))

    def is_listing_due(self) -> bool:
        """Return whether the folder may be listed again: the more entries it had, the later."""
        return asyncio.get_running_loop().time() >= self._next_listing_s

    def has_more_data(self) -> bool:
        """Return whether the current file has unread data; also list the later files for `move_to_next_file`.

        The files are listed first, so that nothing written in between is skipped.
        """
        numbers, entry_count = self._folder.scan(build_log_stem(self._task, self._stream))
        self._next_listing_s = asyncio.get_running_loop().time() + entry_count / MAX_LISTED_NAMES_PER_S
        # A file that could not be opened may have been created meanwhile.
        first_number = self.number if self._descriptor is None else self.number + 1
        self._next_numbers = [number for number in numbers if number >= first_number]
        return self._descriptor is not None and os.fstat(self._descriptor).st_size > self.position

    async def move_to_next_file(self, last_number: int | None) -> bool:
        """Continue with the next listed file that can be opened. Return whether there was one.

        A file with a number above `last_number` is not read; `None`: no limit.
        """
        for count, number in enumerate(self._next_numbers, start=1):
            if last_number is not None and number > last_number:
                return False
            if number != self.number and number < self._first_unchecked:
                continue
            if count % MAX_FILES_PER_PASS == 0:
                await asyncio.sleep(0)
            self._first_unchecked = max(self._first_unchecked, number + 1)
            descriptor = open_log_file(self._folder, self._task, self._stream, number)
            if descriptor is None:
                continue
            self.close()
            self._descriptor = descriptor
            if number != self.number:
                self.number, self.position = number, 0
            return True
        return False

    def close(self) -> None:
        """Close the current file, if it is open."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _get_start(size: int, origin: ReadOrigin, offset: int) -> int:
    """Return the position at which reading begins, for an offset that counts from `origin` in a file of `size` bytes."""
    return max(offset, 0) if origin is ReadOrigin.START else max(size - max(offset, 0), 0)


def _is_truncated(descriptor: int, position: int) -> bool:
    """Return whether the file is shorter than `position`, up to which it was read."""
    return os.fstat(descriptor).st_size < position


def build_log_stem(task: str, stream: str) -> str:
    """Return the names of a log's files without the number, such as `web.stdout.`."""
    return f"{task}.{stream}."


def build_log_path(task: str, stream: str, number: int) -> str:
    """Return the path of a log file below the folder of its allocation, such as `alloc/logs/web.stdout.0`."""
    return f"{LOGS_PATH}/{task}.{stream}.{number}"


def parse_log_position(task: str, stream: str, path: str, offset: int) -> TaskLogPosition | None:
    """Return the position at `offset` in the log file `path`; `None` if the task's log has no files of such a name."""
    pattern = re.escape(build_log_stem(task, stream)) + r"([0-9]{1,15})"
    match = re.fullmatch(pattern, path.removeprefix(f"{LOGS_PATH}/"))
    return TaskLogPosition(int(match[1]), max(0, offset)) if match is not None else None


def has_log(folder: ReadOnlyFolder, task: str, stream: str) -> bool:
    """Return whether the log has any file. Raises `Refusal`, such as if the folder of the logs is not a folder."""
    log_folder = folder.open_log_folder()
    try:
        return bool(log_folder.list_numbers(build_log_stem(task, stream)))
    finally:
        log_folder.close()


async def _locate_offset(
    folder: LogFolder, task: str, stream: str, numbers: list[int], origin: ReadOrigin, offset: int
) -> tuple[int, int]:
    """Return (file number, position in that file) for an offset over all files of the log.

    An offset beyond the end gives the end of the last file.
    """
    stem, sizes = build_log_stem(task, stream), []
    for count, number in enumerate(numbers, start=1):
        sizes.append(_measure_log_file(folder, f"{stem}{number}"))
        if count % MAX_FILES_PER_PASS == 0:
            await asyncio.sleep(0)
    remaining = _get_start(sum(sizes), origin, offset)
    for number, size in zip(numbers, sizes, strict=True):
        if remaining < size:
            return number, remaining
        remaining -= size
    return numbers[-1], sizes[-1]


def _measure_log_file(folder: LogFolder, name: str) -> int:
    """Return the size of a file; 0 if it does not exist."""
    with contextlib.suppress(OSError):
        return folder.measure_file(name)
    return 0


def open_log_file(folder: LogFolder, task: str, stream: str, number: int) -> int | None:
    """Open a log file and return its descriptor; `None` if it does not exist, such as after it was rotated away.

    Also `None` if the name belongs to anything but a regular file that can be read. Raises OSError.
    """
    with contextlib.suppress(NotRegularFile, FileNotFoundError, PermissionError, NotADirectoryError, BlockingIOError):
        return open_regular_file(f"{build_log_stem(task, stream)}{number}", os.O_RDONLY, folder=folder.open())
    return None


def read_log_tail(folder: ReadOnlyFolder, task: str, stream: str, max_bytes: int) -> bytes:
    """Return the last `max_bytes` of a log over all its files; empty if the log does not exist.

    If the beginning is cut off, the result begins at the start of a line if possible. At most `MAX_TAIL_FILES` files are
    read.
    """
    try:
        log_folder = folder.open_log_folder()
    except Refusal:
        return b""
    try:
        return _read_tail(log_folder, task, stream, max_bytes)
    except OSError:
        return b""
    finally:
        log_folder.close()


def _read_tail(folder: LogFolder, task: str, stream: str, max_bytes: int) -> bytes:
    """Return the last bytes of a log as `read_log_tail` does. Raises OSError."""
    pieces: list[bytes] = []
    remaining = max_bytes
    is_cut = False
    for number in folder.list_numbers(build_log_stem(task, stream))[: -MAX_TAIL_FILES - 1 : -1]:
        if remaining <= 0:
            is_cut = True
            break
        descriptor = open_log_file(folder, task, stream, number)
        if descriptor is None:
            continue
        try:
            size = os.fstat(descriptor).st_size
            begin = max(0, size - remaining)
            is_cut = begin > 0
            pieces.append(os.pread(descriptor, size - begin, begin))
        finally:
            os.close(descriptor)
        remaining -= len(pieces[-1])
    text = b"".join(reversed(pieces))
    _, line_end, rest = text.partition(b"\n")
    return rest if is_cut and line_end and rest else text
