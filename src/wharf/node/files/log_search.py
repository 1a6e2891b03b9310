"""Searches the files of a log for lines that contain a text. Runs on a thread: reading from a disk blocks."""

import contextlib
import os
from collections.abc import Callable
from typing import Final

from wharf.contract.wire.allocations.log_search import LineSearch
from wharf.node.files.folder import ReadOnlyFolder
from wharf.node.files.streams import build_log_path, build_log_stem, open_log_file
from wharf.node.log_folder import LogFolder

BLOCK_BYTES: Final = 256 << 10
"""How much is searched in one step, which holds the interpreter for about 0.3 ms, or 1.5 ms with colors: other threads run
between two steps."""


def search_log(
    folder: ReadOnlyFolder,
    task: str,
    stream: str,
    search: LineSearch,
    *,
    max_bytes: int,
    should_stop: Callable[[], bool],
) -> bool:
    """Search the last `max_bytes` of a log over all its files, newest first. Return whether that is the whole log.

    Ends early if `should_stop` returns true. Raises `Refusal` and `OSError`.
    """
    log_folder = folder.open_log_folder()
    try:
        left = max_bytes
        for number, size in _measure_files(log_folder, task, stream):
            if left <= 0:
                return False
            descriptor = open_log_file(log_folder, task, stream, number)
            if descriptor is None:
                continue  # It was rotated away.
            begin = max(0, size - left)
            try:
                _search_file(
                    descriptor, build_log_path(task, stream, number), begin, size, search, should_stop=should_stop
                )
            finally:
                os.close(descriptor)
            left -= size
            if should_stop():
                return False
        return left >= 0
    finally:
        log_folder.close()


def _measure_files(folder: LogFolder, task: str, stream: str) -> list[tuple[int, int]]:
    """Return number and size of each file of a log, newest first."""
    stem = build_log_stem(task, stream)
    sizes: list[tuple[int, int]] = []
    for number in reversed(folder.list_numbers(stem)):
        with contextlib.suppress(OSError):
            sizes.append((number, folder.measure_file(f"{stem}{number}")))
    return sizes


def _search_file(
    descriptor: int, file: str, begin: int, end: int, search: LineSearch, *, should_stop: Callable[[], bool]
) -> None:
    """Search a file from byte `begin` to byte `end`. What a task appends meanwhile is not searched."""
    position = begin
    while position < end and not should_stop():
        data = os.pread(descriptor, min(BLOCK_BYTES, end - position), position)
        is_last = not data or position + len(data) >= end  # A task can truncate its file.
        position += search.search_block(data, file, position, is_last=is_last)
        if is_last:
            return
