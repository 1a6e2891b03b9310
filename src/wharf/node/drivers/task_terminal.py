"""Opens a pseudo terminal in the sandbox of a running task, so that it has a name there, such as /dev/pts/0.

A terminal of the host has no name in the sandbox: `tty` reports none, and programs that open their terminal again fail.
"""

import fcntl
import os
import stat
import struct
from typing import Final

PTMX_STEPS: Final = ("dev", "pts", "ptmx")
"""The path of the device that creates terminals, below the root of the sandbox."""
PTMX_DEVICE: Final = os.makedev(5, 2)
UNLOCK_REQUEST: Final = 0x40045431
"""TIOCSPTLCK: unlocks the other end of a new terminal."""
OPEN_PEER_REQUEST: Final = 0x5441
"""TIOCGPTPEER: opens the other end of a terminal without its path, which the task could have covered."""
_STEP_FLAGS: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def open_task_terminal(root: str) -> tuple[int, int]:
    """Return the descriptors of both ends of a new terminal in a sandbox: ours, then the task's.

    `root` is the root folder of a process in the sandbox, such as /proc/4711/root.

    No link of the task is followed, and nothing but the device for terminals is opened. Raises OSError.
    """
    ptmx = _find_ptmx(root)
    try:
        if os.fstat(ptmx).st_rdev != PTMX_DEVICE or not stat.S_ISCHR(os.fstat(ptmx).st_mode):
            raise FileNotFoundError("the sandbox has no device for terminals")
        master = os.open(f"/proc/self/fd/{ptmx}", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    finally:
        os.close(ptmx)
    try:
        fcntl.ioctl(master, UNLOCK_REQUEST, struct.pack("i", 0))
        return master, fcntl.ioctl(master, OPEN_PEER_REQUEST, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        os.close(master)
        raise


def _find_ptmx(root: str) -> int:
    """Return a descriptor of the sandbox's device for terminals, which is not opened yet. Raises OSError."""
    current = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in PTMX_STEPS:
        try:
            following = os.open(name, _STEP_FLAGS, dir_fd=current)
        finally:
            os.close(current)
        current = following
    return current
