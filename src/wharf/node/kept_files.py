"""Separates the files that a step keeps from the other files in the folder of its allocation.

Tasks could write there, so no link is followed and no path is resolved.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Final

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_PATH_STEPS: Final = 40
"""Folders of a kept path, each of which is open while its entries are moved; limits open files."""

KeptTree = dict[str, "KeptTree"]
"""The kept entries of a folder by name. An entry with an empty tree is kept as a whole."""


def build_tree(paths: Iterable[str]) -> KeptTree:
    """Return the tree of kept paths. Paths that lead out of the folder, or are too deep, keep nothing."""
    tree: KeptTree = {}
    wholes: list[list[str]] = []
    for path in paths:
        steps = [step for step in path.split("/") if step not in ("", ".")]
        if not steps or ".." in steps or len(steps) > MAX_PATH_STEPS:
            continue
        wholes.append(steps)
        folder = tree
        for step in steps:
            folder = folder.setdefault(step, {})
    for steps in wholes:  # A kept folder is kept as a whole, also if another path leads into it.
        folder = tree
        for step in steps:
            if step not in folder:
                break
            folder = folder[step]
        else:
            folder.clear()
    return tree


def move_other_entries(source: int, target: int, kept_paths: Iterable[str]) -> None:
    """Move everything in the open folder `source` to the open folder `target`, except the kept paths.

    It may be repeated after a crash. An entry that cannot be moved, such as a mounted one, stays.
    """
    _move_entries(source, target, build_tree(kept_paths), count())


def _move_entries(source: int, target: int, tree: KeptTree, numbers: Iterator[int]) -> None:
    for name in os.listdir(source):
        subtree = tree.get(name)
        if subtree is None:
            _move(name, source, target, numbers)
        elif subtree:
            with contextlib.suppress(OSError):  # A file or a link, where the path has a folder: nothing to keep below.
                folder = os.open(name, _FOLDER_FLAGS, dir_fd=source)
                try:
                    _move_entries(folder, target, subtree, numbers)
                finally:
                    os.close(folder)


def _move(name: str, source: int, target: int, numbers: Iterator[int]) -> None:
    """Move an entry to another folder under a name that is free there."""
    with contextlib.suppress(OSError):
        while True:
            new_name = str(next(numbers))
            try:
                os.stat(new_name, dir_fd=target, follow_symlinks=False)
            except FileNotFoundError:
                break
        os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)
