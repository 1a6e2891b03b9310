"""The socket that HTTP listens on: bound by the parent, so that a wrong address is told before anything starts.

It stays open while api processes come and go: a caller waits a moment instead of being refused.
"""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from wharf.agent.errors import CommandError

LISTEN_BACKLOG: Final = 4_096
_LONGEST_PATH: Final = 100
MAX_UNSENT_SOCKET_BYTES: Final = 256 * 1024
"""What may wait in the system for a caller to take it. The system itself would let megabytes wait for each, and a thousand
callers that read nothing would use up the memory that it has for all connections of the machine."""


def listen_tcp(address: str, port: int) -> socket.socket:
    """Raises CommandError with what to do."""
    host = "127.0.0.1" if address == "localhost" else address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_SOCKET_BYTES
        )  # Accepted ones inherit it.
        listening.bind((host, port))
        listening.listen(LISTEN_BACKLOG)
    except OSError as error:
        listening.close()
        raise CommandError(_say(error, address, port)) from error
    listening.setblocking(False)
    return listening


def listen_unix(path: Path, *, backlog: int = LISTEN_BACKLOG) -> socket.socket:
    """A socket in the file system, which only this user may use."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path.unlink(missing_ok=True)  # Of a process that was killed; the folder is ours.
    # Made without rights for anyone else from its first moment on.
    before = os.umask(0o177)
    try:
        with shorten_socket_path(path) as name:
            listening.bind(name)
    finally:
        os.umask(before)
    listening.listen(backlog)
    return listening


@contextlib.contextmanager
def shorten_socket_path(path: Path) -> Iterator[str]:
    """A name of a socket that fits the kernel's bound, also in a deep folder: by way of an open folder."""
    if len(os.fsencode(path)) <= _LONGEST_PATH or not Path("/proc/self/fd").exists():
        yield str(path)
        return
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield str(path)  # There is no such folder, and so no socket: let the caller find that out.
        return
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def build_url(listening: socket.socket, *, tls: bool) -> str:
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{shown}:{port}"


def _say(error: OSError, address: str, port: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"port {port} on {address} is in use: stop what listens there, or choose another with --port"
        case errno.EACCES:
            return f"not allowed to listen on port {port}: choose one above 1023 with --port"
        case errno.EADDRNOTAVAIL:
            return f"this machine has no address {address}: set bind_addr to one that it has"
        case _:
            return f"cannot listen on {address} port {port}: {error.strerror}"
