"""Files as they grow: from a place on, over the files of a log that is rotated, until there is no more or nobody looks.

Looking costs a few microseconds, so it is done often: what is written is on its way within a fiftieth of a second.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncGenerator, Callable
from enum import Enum
from typing import Final

from wharf.model.refusal import Code, Refusal
from wharf.node.files.folder import Folder
from wharf.node.files.frames import Frame

PIECE_BYTES: Final = 64 << 10
LOOK_S: Final = 0.02
BEAT_S: Final = 1.0
LOGS: Final = "alloc/logs"
DELETED: Final = "file deleted"
TRUNCATED: Final = "file truncated"


class Origin(Enum):
    START = "start"
    END = "end"


async def follow_file(
    folder: Folder, path: str, *, origin: Origin, offset: int, follows: bool
) -> AsyncGenerator[Frame, None]:
    """Raises Refusal, before the first frame."""
    handle = folder.open(path)
    try:
        at = _begin(os.fstat(handle).st_size, origin, offset)
        quiet_s = 0.0
        while True:
            data = os.pread(handle, PIECE_BYTES, at)
            if data:
                at += len(data)
                quiet_s = 0.0
                yield Frame(at, data, path)
                continue
            if not follows:
                return
            if _is_truncated(handle, at):
                at = 0
                yield Frame(0, b"", path, TRUNCATED)
                continue
            if os.fstat(handle).st_nlink == 0:
                yield Frame(at, b"", path, DELETED)
                return
            await asyncio.sleep(LOOK_S)
            quiet_s += LOOK_S
            if quiet_s >= BEAT_S:
                quiet_s = 0.0
                yield Frame()
    finally:
        os.close(handle)


async def follow_logs(
    folder: Folder,
    task: str,
    stream: str,
    *,
    origin: Origin,
    offset: int,
    follows: bool,
    is_over: Callable[[], bool],
) -> AsyncGenerator[Frame, None]:
    """Over all files of the task's log, the oldest first. With `follows` until `is_over` says that nothing will come.
    Raises Refusal, before the first frame."""
    numbers = numbers_of(folder, task, stream)
    if not numbers and not follows:
        raise Refusal(Code.UNKNOWN, f'no {stream} log of task "{task}" yet')
    place = _place(folder, task, stream, numbers, origin, offset) if numbers else (0, 0)
    number, at = place
    last = numbers[-1] if numbers else None
    quiet_s = 0.0
    handle: int | None = None
    try:
        while True:
            if handle is None:
                handle = _opened(folder, task, stream, number)
            data = os.pread(handle, PIECE_BYTES, at) if handle is not None else b""
            if data:
                at += len(data)
                quiet_s = 0.0
                yield Frame(at, data, log_path(task, stream, number))
                continue
            # Read before one looks for the next file: what was written until it was begun is in this one.
            was_over = is_over()
            following = [other for other in numbers_of(folder, task, stream) if other > number or handle is None]
            if handle is not None and os.fstat(handle).st_size > at:
                continue
            if following and (follows or (last is not None and following[0] <= last)):
                if handle is not None:
                    os.close(handle)
                handle, number, at = None, following[0], 0
                continue
            if not follows or was_over:
                return
            await asyncio.sleep(LOOK_S)
            quiet_s += LOOK_S
            if quiet_s >= BEAT_S:
                quiet_s = 0.0
                yield Frame()
    finally:
        if handle is not None:
            os.close(handle)


def _begin(size: int, origin: Origin, offset: int) -> int:
    return max(offset, 0) if origin is Origin.START else max(size - max(offset, 0), 0)


def _is_truncated(handle: int, at: int) -> bool:
    return os.fstat(handle).st_size < at


def log_path(task: str, stream: str, number: int) -> str:
    return f"{LOGS}/{task}.{stream}.{number}"


def numbers_of(folder: Folder, task: str, stream: str) -> list[int]:
    wanted = re.compile(re.escape(f"{task}.{stream}.") + r"(\d{1,15})")
    return sorted(int(found[1]) for name in folder.names(LOGS) if (found := wanted.fullmatch(name)))


def _place(folder: Folder, task: str, stream: str, numbers: list[int], origin: Origin, offset: int) -> tuple[int, int]:
    """The file and the place in it where the offset leads, counted over all of them."""
    sizes = [_size(folder, log_path(task, stream, number)) for number in numbers]
    left = _begin(sum(sizes), origin, offset)
    for number, size in zip(numbers, sizes, strict=True):
        if left < size:
            return number, left
        left -= size
    return numbers[-1], sizes[-1]


def _size(folder: Folder, path: str) -> int:
    with contextlib.suppress(Refusal):
        return folder.stat(path).size
    return 0


def _opened(folder: Folder, task: str, stream: str, number: int) -> int | None:
    """None where the file is gone (rotated away) or not there yet."""
    with contextlib.suppress(Refusal):
        return folder.open(log_path(task, stream, number))
    return None
