"""Files that survive a power failure: each appears with its whole content or not at all.

What the files contain, and who may open them besides their owner, is decided by the callers.
"""

import contextlib
import os
from pathlib import Path
from typing import BinaryIO


def replace_file(file: Path, data: bytes) -> None:
    """Write `data` to `file` with mode 0600, replacing the old content atomically.

    When the function returns, the new content is on the disk. Raises `OSError`; the old content is then unchanged.
    """
    temporary_file = file.with_name(f"{file.name}.new")
    try:
        with open_private_file(temporary_file) as stream:
            stream.write(data)
            sync_file(stream)
        rename_durably(temporary_file, file)
    except OSError:
        with contextlib.suppress(OSError):
            temporary_file.unlink(missing_ok=True)
        raise


def create_file_once(file: Path, data: bytes) -> bool:
    """Write `data` to `file` with mode 0600, unless the file exists. Return whether this call created it.

    Of several processes that create the same file at once, one succeeds. Raises `OSError`.
    """
    temporary_file = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with open_private_file(temporary_file) as stream:
            stream.write(data)
            sync_file(stream)
        os.link(temporary_file, file)
    except FileExistsError:
        return False
    finally:
        temporary_file.unlink(missing_ok=True)
    sync_folder(file.parent)
    return True


def open_private_file(file: Path) -> BinaryIO:
    """Create or empty a file and open it for writing. Its mode is 0600, also if it existed. Raises `OSError`."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(descriptor).st_mode & 0o077:  # File systems without modes refuse a change.
            os.fchmod(descriptor, 0o600)
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "wb")


def sync_file(stream: BinaryIO) -> None:
    """Write buffered data to the disk. Raises `OSError`."""
    stream.flush()
    os.fsync(stream.fileno())


def rename_durably(source: Path, target: Path) -> None:
    """Rename a file over another in the same folder. The new name survives a power failure. Raises `OSError`."""
    source.replace(target)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make the creations, renames and removals in `folder` durable. Raises `OSError`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
