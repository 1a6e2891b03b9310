"""The folder of a task's secrets, in memory: what is in it never reaches a disk, and is gone with its task."""

import functools
import os
import tempfile
from pathlib import Path
from typing import Final

from wharf.node.mounts import mount, unmount

SIZE: Final = "1m"
MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8


def mount_secrets(folder: Path) -> None:
    """Where this is possible; else the folder stays as it is. What is in it is hidden. Twice does no harm."""
    if can_mount() and not os.path.ismount(folder):
        mount_memory(folder)


def mount_memory(folder: Path) -> None:
    """Raises OSError."""
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    mount("tmpfs", folder, kind="tmpfs", flags=flags, options=f"size={SIZE},mode=0777")


def unmount_secrets(folder: Path) -> None:
    if os.path.ismount(folder):
        unmount(folder)


@functools.cache
def can_mount() -> bool:
    """Found by trying: neither the user nor the capabilities tell it for sure."""
    with tempfile.TemporaryDirectory(prefix="wharf-") as folder:
        try:
            mount_memory(Path(folder))
        except OSError:
            return False
        unmount_secrets(Path(folder))
    return True
