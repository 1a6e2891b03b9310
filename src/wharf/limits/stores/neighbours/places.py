"""The names of Unix sockets, which must be short though their folders may lie deep."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def name_below(path: Path) -> Iterator[str]:
    """A name for this socket by way of its open folder, good while this lasts."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
