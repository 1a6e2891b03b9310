"""The ends of logs, for who asks when the files are gone."""

import contextlib
import os

from wharf.model.refusal import Refusal
from wharf.node.files.folder import Folder
from wharf.node.files.following import log_path, numbers_of


def tail_of(folder: Folder, task: str, stream: str, length: int) -> bytes:
    """So many bytes at most, over all files of the log; nothing where there is none. Begins with a line where it can."""
    pieces: list[bytes] = []
    left = length
    is_cut = False
    for number in reversed(_numbers(folder, task, stream)):
        if left <= 0:
            is_cut = True
            break
        with contextlib.suppress(Refusal):
            handle = folder.open(log_path(task, stream, number))
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


def _numbers(folder: Folder, task: str, stream: str) -> list[int]:
    try:
        return numbers_of(folder, task, stream)
    except (Refusal, OSError):
        return []
