"""Mounting, what is mounted in a folder, and letting go of it."""

import ctypes
import functools
import os
from pathlib import Path
from typing import Final

MS_BIND: Final = 4096
MNT_DETACH: Final = 2
UMOUNT_NOFOLLOW: Final = 8
MOUNTS: Final = Path("/proc/self/mounts")


def mount(source: str, place: Path, *, kind: str = "", flags: int = 0, options: str = "") -> None:
    """As the kernel's own call. Raises OSError."""
    words = (os.fsencode(text) or None for text in (source, str(place), kind))
    check(libc().mount(*words, flags, options.encode() or None), str(place))


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


def check(result: int, what: str) -> None:
    """Of a call of `libc`. Raises OSError where it failed."""
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
