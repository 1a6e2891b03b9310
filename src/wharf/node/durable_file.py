"""Small files that the node must find again after a power cut: each is replaced as a whole, or not at all."""

import os
from pathlib import Path


def replace_file(file: Path, data: bytes) -> None:
    """On the disk when this comes back, and for its owner's eyes alone. Raises OSError; then what was there is still there."""
    draft = file.with_suffix(".new")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as writing:
        writing.write(data)
        writing.flush()
        os.fsync(writing.fileno())
    draft.replace(file)
    sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    """What was made, renamed or removed in it until now is on the disk. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
