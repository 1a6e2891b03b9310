"""What is mounted in a folder, and letting go of it."""

import ctypes
import functools
import os
from pathlib import Path
from typing import Final

MNT_DETACH: Final = 2
UMOUNT_NOFOLLOW: Final = 8
MOUNTS: Final = Path("/proc/self/mounts")


def mounts_below(folder: Path) -> list[Path]:
    """The deepest first."""
    start = f"{folder}/"
    found = [line.split(" ", 2)[1] for line in MOUNTS.read_text().splitlines()]
    # The kernel writes blanks and the like in octal.
    places = [place.encode().decode("unicode_escape").encode("latin-1").decode(errors="replace") for place in found]
    return sorted((Path(place) for place in places if place.startswith(start)), reverse=True)


def unmount_below(folder: Path) -> None:
    """As far as this is allowed. Whoever still uses it keeps it until he ends: nothing is to wait for him."""
    for place in mounts_below(folder):
        unmount(place)


def unmount(place: Path) -> None:
    libc().umount2(os.fsencode(place), MNT_DETACH | UMOUNT_NOFOLLOW)


@functools.cache
def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
