"""Passes texts to a program as open files with fixed descriptors, so that no file system and no argument contains them.

The program that reads them closes them, or the programs that it becomes inherit them.
"""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

FIRST_INPUT_DESCRIPTOR: Final = 6
"""The descriptor at which the program finds the first of its input texts."""
MIN_SPARE_DESCRIPTOR: Final = 64
"""Descriptors of input texts are moved above this number, so that dup2 cannot overwrite one of them."""

Duplications = list[tuple[int, int, int]]
"""File actions of `os.posix_spawn`."""


@contextmanager
def open_input_texts(texts: Sequence[str]) -> Iterator[Duplications]:
    """Create a file in memory for each text. Yield the file actions that put them at FIRST_INPUT_DESCRIPTOR and after.

    The files are closed at the end. Raises OSError.
    """
    descriptors: list[int] = []
    try:
        descriptors.extend(map(_create_input, texts))
        yield [
            (os.POSIX_SPAWN_DUP2, descriptor, FIRST_INPUT_DESCRIPTOR + offset)
            for offset, descriptor in enumerate(descriptors)
        ]
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _create_input(text: str) -> int:
    """Return the descriptor of an in-memory file with this text.

    Its number is at least MIN_SPARE_DESCRIPTOR, so that dup2 to low numbers cannot overwrite it.
    """
    descriptor = os.memfd_create("wharf-input")
    try:
        os.write(descriptor, text.encode())
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, MIN_SPARE_DESCRIPTOR)
    finally:
        os.close(descriptor)
