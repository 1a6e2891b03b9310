"""Small files that must survive a power cut: each is replaced as a whole or not at all."""

import os
from pathlib import Path


def replace_file(file: Path, data: bytes) -> None:
    """Write `data` to `file` with mode 0600, replacing the old content atomically.

    When the function returns, the new content is on the disk. Raises `OSError`; the old content is then unchanged.
    """
    temporary_file = file.with_suffix(".new")
    with open(os.open(temporary_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    temporary_file.replace(file)
    sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    """Make the creations, renames and removals in `folder` durable. Raises `OSError`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
