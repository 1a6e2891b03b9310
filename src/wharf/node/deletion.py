"""Deletes folders that tasks have filled: of any depth, without following links, with few open files and no recursion."""

import contextlib
import errno
import os
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Final

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_ENTRIES_PER_PASS: Final = 10_000
"""Entries of a folder that are held in memory at a time; a task can create any number."""
MAX_PASSES: Final = 100_000
"""How often the root is listed: once for each level of the deepest folder and for each 10,000 entries. Ends the race with a
process that goes on creating files.
"""


def delete_tree(path: Path) -> None:
    """Delete a folder with its content. What cannot be deleted remains; a missing folder or a link is ignored.

    Folders in a folder are first moved up to the root, because a task may nest more folders than a process may open.
    """
    with contextlib.suppress(OSError):
        root = os.open(path, _FOLDER_FLAGS)
        try:
            numbers = count()
            for _ in range(MAX_PASSES):
                if not _delete_level(root, numbers):
                    break
        finally:
            os.close(root)
        os.rmdir(path)


def _delete_level(root: int, numbers: Iterator[int]) -> bool:
    """Delete files in the root and in its folders, and move folders up. Return whether anything was deleted or moved."""
    has_changed = False
    for name, is_folder in _list_entries(root):
        if not is_folder:
            has_changed |= _try_unlink(name, root)
            continue
        with contextlib.suppress(OSError):
            folder = os.open(name, _FOLDER_FLAGS, dir_fd=root)
            try:
                for inner, is_inner_folder in _list_entries(folder):
                    if is_inner_folder:
                        has_changed |= _move_up(inner, folder, root, numbers)
                    else:
                        has_changed |= _try_unlink(inner, folder)
            finally:
                os.close(folder)
            os.rmdir(name, dir_fd=root)
            has_changed = True
    return has_changed


def _list_entries(folder: int) -> list[tuple[str, bool]]:
    """Return up to `MAX_ENTRIES_PER_PASS` names in an open folder, each with whether it is a folder and no link."""
    with os.scandir(folder) as entries:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in islice(entries, MAX_ENTRIES_PER_PASS)]


def _move_up(name: str, folder: int, root: int, numbers: Iterator[int]) -> bool:
    """Move a folder to the root, under a name that is free there or belongs to an empty folder. Return the success."""
    for number in numbers:
        try:
            os.rename(name, f".moved.{number}", src_dir_fd=folder, dst_dir_fd=root)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                return False
        else:
            return True
    return False


def _try_unlink(name: str, folder: int) -> bool:
    """Delete a file or link. Return whether that succeeded."""
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        return False
    return True
