"""Mounting, what is mounted in a folder, and letting go of it.

The folder of a task's secrets, in memory: what is in it never reaches a disk, and is gone with its task.
"""

import ctypes
import functools
import os
import tempfile
from pathlib import Path
from typing import Final

MS_BIND: Final = 4096
MNT_DETACH: Final = 2
UMOUNT_NOFOLLOW: Final = 8
MOUNTS_FILE: Final = Path("/proc/self/mounts")


def mount(source: str, place: Path, *, file_system: str = "", flags: int = 0, options: str = "") -> None:
    """As the kernel's own call. Raises OSError."""
    words = (os.fsencode(text) or None for text in (source, str(place), file_system))
    check_result(load_libc().mount(*words, flags, options.encode() or None), str(place))


def list_mounts_below(folder: Path) -> list[Path]:
    """The deepest first."""
    start = f"{folder}/"
    found = [line.split(" ", 2)[1] for line in MOUNTS_FILE.read_text().splitlines()]
    # The kernel writes blanks and the like in octal.
    places = [place.encode().decode("unicode_escape").encode("latin-1").decode(errors="replace") for place in found]
    return sorted((Path(place) for place in places if place.startswith(start)), reverse=True)


def unmount_all_below(folder: Path) -> None:
    """As far as this is allowed. Whoever still uses it keeps it until he ends: nothing is to wait for him."""
    for place in list_mounts_below(folder):
        unmount(place)


def unmount(place: Path) -> None:
    load_libc().umount2(os.fsencode(place), MNT_DETACH | UMOUNT_NOFOLLOW)


@functools.cache
def load_libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def check_result(result: int, what: str) -> None:
    """Of a call of `libc`. Raises OSError where it failed."""
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


SECRETS_SIZE: Final = "1m"
MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8


def mount_secrets(folder: Path) -> None:
    """Where this is possible; else the folder stays as it is. What is in it is hidden. Twice does no harm."""
    if can_mount_tmpfs() and not os.path.ismount(folder):
        mount_tmpfs(folder)


def mount_tmpfs(folder: Path) -> None:
    """Raises OSError."""
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    mount("tmpfs", folder, file_system="tmpfs", flags=flags, options=f"size={SECRETS_SIZE},mode=0777")


def unmount_secrets(folder: Path) -> None:
    if os.path.ismount(folder):
        unmount(folder)


@functools.cache
def can_mount_tmpfs() -> bool:
    """Found by trying: neither the user nor the capabilities tell it for sure."""
    with tempfile.TemporaryDirectory(prefix="wharf-") as folder:
        try:
            mount_tmpfs(Path(folder))
        except OSError:
            return False
        unmount_secrets(Path(folder))
    return True
