"""Unix sockets in folders of any depth. The kernel limits the path of a socket to 107 bytes.

Sockets in folders that other users may change are opened by their owners, through a descriptor of the folder.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

MAX_SOCKET_PATH_BYTES: Final = 100
"""Longer paths are shortened. Socket addresses hold 104 to 108 bytes, depending on the system."""


@contextmanager
def shorten_socket_path(path: Path) -> Iterator[str]:
    """Yield a path to the socket that fits into a socket address. It is valid inside the `with` block.

    A long path is replaced by `/proc/self/fd/N/NAME`, where N is a descriptor of the folder. Raises `OSError` if that folder
    cannot be opened, such as `FileNotFoundError` if it does not exist.
    """
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES or not Path("/proc/self/fd").exists():
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def bind_private_socket(path: Path) -> socket.socket:
    """Return a stream socket at `path` that only this user may connect to, once the caller listens on it.

    An old socket file is replaced: a killed process leaves one, so call this only in a folder of this process. Raises
    `OSError`.
    """
    path.unlink(missing_ok=True)
    bound_socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with shorten_socket_path(path) as address:
            bound_socket.bind(address)
        path.chmod(0o600)  # No process can connect before the caller listens.
    except BaseException:
        bound_socket.close()
        raise
    return bound_socket


def is_listening(path: Path) -> bool:
    """Return whether a process listens on the socket at `path`. A socket file that a killed process left does not count."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            with shorten_socket_path(path) as address:
                probe.connect(address)
        except OSError:
            return False
    return True
