"""What a follower is sent: pieces of a file with the place where they end, and what became of the file.

Files as they grow: from a place on, over the files of a log that is rotated, until there is no more or nobody looks.

Looking costs a few microseconds, so it is done often: what is written is on its way within a fiftieth of a second.

The ends of logs, for who asks when the files are gone.
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
from wharf.node.files.folder import ReadOnlyFolder


class FileFrame(NamedTuple):
    """Without data and event it only says that one still looks."""

    offset: int = 0
    data: bytes = b""
    file: str = ""
    event: str = ""


class _Shape(
    msgspec.Struct,
    omit_defaults=True,
    rename={"offset": "Offset", "data": "Data", "file": "File", "event": "FileEvent"},
):
    offset: int = 0
    data: str = ""
    file: str = ""
    event: str = ""


async def encode_frames(frames: AsyncGenerator[FileFrame, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(frames):
        async for frame in frames:
            data = base64.b64encode(frame.data).decode()
            yield msgspec.json.encode(_Shape(frame.offset, data, frame.file, frame.event))


async def extract_data(frames: AsyncGenerator[FileFrame, None]) -> AsyncGenerator[bytes, None]:
    """The bytes alone. That one still looks is said by none."""
    async with aclosing(frames):
        async for frame in frames:
            yield frame.data


CHUNK_BYTES: Final = 64 << 10
POLL_INTERVAL_S: Final = 0.02
HEARTBEAT_INTERVAL_S: Final = 1.0
LOGS_PATH: Final = "alloc/logs"
DELETED_EVENT: Final = "file deleted"
TRUNCATED_EVENT: Final = "file truncated"


class ReadOrigin(Enum):
    START = "start"
    END = "end"


async def follow_file(
    folder: ReadOnlyFolder, path: str, *, origin: ReadOrigin, offset: int, should_follow: bool
) -> AsyncGenerator[FileFrame, None]:
    """Raises Refusal, before the first frame."""
    handle = folder.open_file(path)
    try:
        at = _begin(os.fstat(handle).st_size, origin, offset)
        quiet_s = 0.0
        while True:
            data = os.pread(handle, CHUNK_BYTES, at)
            if data:
                at += len(data)
                quiet_s = 0.0
                yield FileFrame(at, data, path)
                continue
            if not should_follow:
                return
            if _is_truncated(handle, at):
                at = 0
                yield FileFrame(0, b"", path, TRUNCATED_EVENT)
                continue
            if os.fstat(handle).st_nlink == 0:
                yield FileFrame(at, b"", path, DELETED_EVENT)
                return
            await asyncio.sleep(POLL_INTERVAL_S)
            quiet_s += POLL_INTERVAL_S
            if quiet_s >= HEARTBEAT_INTERVAL_S:
                quiet_s = 0.0
                yield FileFrame()
    finally:
        os.close(handle)


async def follow_logs(
    folder: ReadOnlyFolder,
    task: str,
    stream: str,
    *,
    origin: ReadOrigin,
    offset: int,
    should_follow: bool,
    is_over: Callable[[], bool],
) -> AsyncGenerator[FileFrame, None]:
    """Over all files of the task's log, the oldest first. With `follows` until `is_over` says that nothing will come.
    Raises Refusal, before the first frame."""
    numbers = list_log_numbers(folder, task, stream)
    if not numbers and not should_follow:
        raise Refusal(RefusalCode.NOT_FOUND, f'no {stream} log of task "{task}" yet')
    place = _place(folder, task, stream, numbers, origin, offset) if numbers else (0, 0)
    number, at = place
    last = numbers[-1] if numbers else None
    quiet_s = 0.0
    handle: int | None = None
    try:
        while True:
            if handle is None:
                handle = _opened(folder, task, stream, number)
            data = os.pread(handle, CHUNK_BYTES, at) if handle is not None else b""
            if data:
                at += len(data)
                quiet_s = 0.0
                yield FileFrame(at, data, build_log_path(task, stream, number))
                continue
            # Read before one looks for the next file: what was written until it was begun is in this one.
            was_over = is_over()
            following = [other for other in list_log_numbers(folder, task, stream) if other > number or handle is None]
            if handle is not None and os.fstat(handle).st_size > at:
                continue
            if following and (should_follow or (last is not None and following[0] <= last)):
                if handle is not None:
                    os.close(handle)
                handle, number, at = None, following[0], 0
                continue
            if not should_follow or was_over:
                return
            await asyncio.sleep(POLL_INTERVAL_S)
            quiet_s += POLL_INTERVAL_S
            if quiet_s >= HEARTBEAT_INTERVAL_S:
                quiet_s = 0.0
                yield FileFrame()
    finally:
        if handle is not None:
            os.close(handle)


def _begin(size: int, origin: ReadOrigin, offset: int) -> int:
    return max(offset, 0) if origin is ReadOrigin.START else max(size - max(offset, 0), 0)


def _is_truncated(handle: int, at: int) -> bool:
    return os.fstat(handle).st_size < at


def build_log_path(task: str, stream: str, number: int) -> str:
    return f"{LOGS_PATH}/{task}.{stream}.{number}"


def list_log_numbers(folder: ReadOnlyFolder, task: str, stream: str) -> list[int]:
    wanted = re.compile(re.escape(f"{task}.{stream}.") + r"(\d{1,15})")
    return sorted(int(found[1]) for name in folder.list_names(LOGS_PATH) if (found := wanted.fullmatch(name)))


def _place(
    folder: ReadOnlyFolder, task: str, stream: str, numbers: list[int], origin: ReadOrigin, offset: int
) -> tuple[int, int]:
    """The file and the place in it where the offset leads, counted over all of them."""
    sizes = [_size(folder, build_log_path(task, stream, number)) for number in numbers]
    left = _begin(sum(sizes), origin, offset)
    for number, size in zip(numbers, sizes, strict=True):
        if left < size:
            return number, left
        left -= size
    return numbers[-1], sizes[-1]


def _size(folder: ReadOnlyFolder, path: str) -> int:
    with contextlib.suppress(Refusal):
        return folder.read_info(path).size
    return 0


def _opened(folder: ReadOnlyFolder, task: str, stream: str, number: int) -> int | None:
    """None where the file is gone (rotated away) or not there yet."""
    with contextlib.suppress(Refusal):
        return folder.open_file(build_log_path(task, stream, number))
    return None


def read_log_tail(folder: ReadOnlyFolder, task: str, stream: str, max_bytes: int) -> bytes:
    """So many bytes at most, over all files of the log; nothing where there is none. Begins with a line where it can."""
    pieces: list[bytes] = []
    left = max_bytes
    is_cut = False
    for number in reversed(_numbers(folder, task, stream)):
        if left <= 0:
            is_cut = True
            break
        with contextlib.suppress(Refusal):
            handle = folder.open_file(build_log_path(task, stream, number))
            try:
                size = os.fstat(handle).st_size
                begin = max(0, size - left)
                is_cut = begin > 0
                pieces.append(os.pread(handle, size - begin, begin))
            finally:
                os.close(handle)
            left -= len(pieces[-1])
    text = b"".join(reversed(pieces))
    _, line_end, rest = text.partition(b"\n")
    return rest if is_cut and line_end and rest else text


def _numbers(folder: ReadOnlyFolder, task: str, stream: str) -> list[int]:
    try:
        return list_log_numbers(folder, task, stream)
    except (Refusal, OSError):
        return []
