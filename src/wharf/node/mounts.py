"""Mounts, unmounts and lists file systems, and mounts a tmpfs for the secrets of a task, so that they are only in memory."""

import ctypes
import functools
import os
import tempfile
from pathlib import Path
from typing import Final

MS_RDONLY: Final = 1
MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8
MS_REMOUNT: Final = 32
MS_BIND: Final = 4096
MS_REC: Final = 16384
MNT_DETACH: Final = 2
UMOUNT_NOFOLLOW: Final = 8
MOUNTS_FILE: Final = Path("/proc/self/mounts")


def mount(source: str, mount_point: Path, *, file_system: str = "", flags: int = 0, options: str = "") -> None:
    """Call mount(2) to mount `source` at `mount_point`. Raises `OSError`."""
    arguments = (os.fsencode(argument) or None for argument in (source, str(mount_point), file_system))
    check_result(load_libc().mount(*arguments, flags, options.encode() or None), str(mount_point))


def list_mounts_below(folder: Path) -> list[Path]:
    """Return the mount points below a folder, deepest first."""
    prefix = f"{folder}/"
    escaped_paths = [line.split(" ", 2)[1] for line in MOUNTS_FILE.read_text().splitlines()]
    # The kernel writes spaces and some other characters as octal escapes.
    paths = [
        path.encode().decode("unicode_escape").encode("latin-1").decode(errors="replace") for path in escaped_paths
    ]
    return sorted((Path(path) for path in paths if path.startswith(prefix)), reverse=True)


def unmount_all_below(folder: Path) -> None:
    """Detach all mounts below a folder. Errors, such as a missing permission, are ignored.

    The detach is lazy: processes that still use a mount keep it until they end, so nothing waits for them.
    """
    for mount_point in list_mounts_below(folder):
        unmount(mount_point)


def unmount(mount_point: Path) -> None:
    """Detach one mount lazily: processes that still use it keep it. Errors are ignored."""
    load_libc().umount2(os.fsencode(mount_point), MNT_DETACH | UMOUNT_NOFOLLOW)


@functools.cache
def load_libc() -> ctypes.CDLL:
    """Return the C library, loaded once."""
    return ctypes.CDLL(None, use_errno=True)


def check_result(result: int, path: str) -> None:
    """Check the return value of a libc call: raise `OSError` about `path` if it is not 0."""
    if result:
        error_number = ctypes.get_errno()
        raise OSError(error_number, os.strerror(error_number), path)


SECRETS_SIZE: Final = "1m"
"""Size limit of a secrets folder in memory, as a tmpfs option; protects the memory of the node."""


def mount_secrets(folder: Path) -> None:
    """Mount a tmpfs over the secrets folder of a task; does nothing if one is mounted already.

    Files that are in the folder become hidden. If the process may not mount, the folder stays on the disk. Raises
    `OSError`.
    """
    if not can_mount_tmpfs() or os.path.ismount(folder):
        return
    # The task can replace the folder by a link, so what is open becomes the mount point.
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        mount_tmpfs(Path(f"/proc/self/fd/{descriptor}"))
    finally:
        os.close(descriptor)


def mount_tmpfs(folder: Path) -> None:
    """Mount a tmpfs with the size limit `SECRETS_SIZE` at `folder`. Raises `OSError`."""
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    mount("tmpfs", folder, file_system="tmpfs", flags=flags, options=f"size={SECRETS_SIZE},mode=0777")


def unmount_secrets(folder: Path) -> None:
    """Unmount the tmpfs at a task's secrets folder, which erases its content. Does nothing if none is mounted."""
    if os.path.ismount(folder):
        unmount(folder)


@functools.cache
def can_mount_tmpfs() -> bool:
    """Return whether this process can mount a tmpfs. Tries it, because user and capabilities do not suffice to decide."""
    with tempfile.TemporaryDirectory(prefix="wharf-") as folder:
        try:
            mount_tmpfs(Path(folder))
        except OSError:
            return False
        unmount_secrets(Path(folder))
    return True
