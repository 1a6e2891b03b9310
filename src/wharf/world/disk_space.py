"""Whether a disk is nearly full: the threshold is the same for logs of servers and for folders of nodes."""

import os
from pathlib import Path
from typing import Final, NamedTuple

MIN_FREE_BYTES: Final = 256 << 20
"""With less free space, a disk is reported as nearly full. A log may need this for its write-ahead log at once."""
MAX_RESERVED_SHARE: Final = 0.05
"""The largest part of a disk that may have to be free, for small disks."""


class DiskSpace(NamedTuple):
    """The space of the disk that has a folder, in bytes."""

    total_bytes: int
    available_bytes: int  # for programs without privileges
    free_bytes: int  # with the part that is reserved for root

    @property
    def needed_bytes(self) -> int:
        """The available space below which the disk is nearly full."""
        return min(MIN_FREE_BYTES, int(self.total_bytes * MAX_RESERVED_SHARE))

    @property
    def is_nearly_full(self) -> bool:
        """Whether writes may soon fail."""
        return self.available_bytes < self.needed_bytes

    @property
    def is_full(self) -> bool:
        """Whether no file can grow, also for root."""
        return self.free_bytes == 0

    def describe_shortage(self) -> str:
        """Return the available and the needed space, such as `is nearly full (12 MB free, 256 MB recommended)`."""
        if self.is_full:
            return "is full"
        available_mb, needed_mb = self.available_bytes >> 20, self.needed_bytes >> 20
        return f"is nearly full ({available_mb} MB free, {needed_mb} MB recommended)"


def measure_disk_space(folder: Path) -> DiskSpace:
    """Return the space of the disk that has this folder. Raises `OSError`; may block while the disk hangs."""
    disk = os.statvfs(folder)
    return DiskSpace(disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize, disk.f_bfree * disk.f_frsize)
