"""Opens listening sockets: the TCP socket of the HTTP port, and Unix sockets in the data folder.

The parent process opens the TCP socket, so that a wrong address fails before a child starts. The socket stays open while
api processes restart: clients wait instead of being refused.
"""

import errno
import socket
from pathlib import Path
from typing import Final

from wharf.agent.errors import CommandError
from wharf.world.addresses import format_host_and_port, is_unspecified
from wharf.world.unix_sockets import bind_private_socket

LISTEN_BACKLOG: Final = 4_096
MAX_UNSENT_SOCKET_BYTES: Final = 256 * 1024
"""Limits unsent reply data of each connection in the kernel. By default the kernel buffers megabytes, and a thousand
clients that read nothing would use up the memory of all connections of the machine."""


def listen_tcp(address: str, port: int) -> socket.socket:
    """Return a listening TCP socket. Raises `CommandError`, which says what to do."""
    host = "127.0.0.1" if address == "localhost" else address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_SOCKET_BYTES
        )  # Accepted connections inherit it.
        if family == socket.AF_INET6 and is_unspecified(host):
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # All addresses, also those of IPv4.
        listening.bind((host, port))
        listening.listen(LISTEN_BACKLOG)
    except OSError as error:
        listening.close()
        raise CommandError(_describe_error(error, address, port)) from error
    listening.setblocking(False)
    return listening


def listen_unix(path: Path, *, backlog: int = LISTEN_BACKLOG) -> socket.socket:
    """Return a listening Unix socket that only this user may connect to. An old socket file is replaced."""
    listening = bind_private_socket(path)
    try:
        listening.listen(backlog)
    except BaseException:
        listening.close()
        raise
    return listening


def build_url(listening: socket.socket, *, tls: bool) -> str:
    """Return the URL of a listening TCP socket."""
    host, port = listening.getsockname()[:2]
    return f"{'https' if tls else 'http'}://{format_host_and_port(host, port)}"


def _describe_error(error: OSError, address: str, port: int) -> str:
    """Return why the address cannot be used and what to do."""
    match error.errno:
        case errno.EADDRINUSE:
            return f"port {port} on {address} is in use: stop what listens there, or choose another with --port"
        case errno.EACCES:
            return f"not allowed to listen on port {port}: choose one above 1023 with --port"
        case errno.EADDRNOTAVAIL:
            return f"this machine has no address {address}: set bind_addr to one that it has"
        case _:
            return f"cannot listen on {address} port {port}: {error.strerror}"
