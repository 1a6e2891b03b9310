"""The socket that HTTP listens on: bound by the parent, so that a wrong address is told before anything starts.

It stays open while api processes come and go: a caller waits a moment instead of being refused.
"""

import errno
import socket
from typing import Final

from wharf.agent.refusal import Refused

BACKLOG: Final = 4_096
UNSENT_MOST_BYTES: Final = 256 * 1024
"""What may wait in the system for a caller to take it. The system itself would let megabytes wait for each, and a thousand
callers that read nothing would use up the memory that it has for all connections of the machine."""


def listen(address: str, port: int) -> socket.socket:
    """Raises Refused with what to do."""
    host = "127.0.0.1" if address == "localhost" else address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_MOST_BYTES
        )  # Accepted ones inherit it.
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise Refused(_say(error, address, port)) from error
    listening.setblocking(False)
    return listening


def url_of(listening: socket.socket, *, tls: bool) -> str:
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
