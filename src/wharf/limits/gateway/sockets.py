"""Options of the sockets of the gateway that asyncio has no function for."""

import contextlib
import os
import socket
import struct
from typing import Final, Protocol

KEEPALIVE_OPTIONS: Final = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
"""The kernel ends a connection without traffic two minutes after the other machine has vanished."""
_NO_LINGER: Final = struct.pack("ii", 1, 0)


class TransportSocket(Protocol):
    """The socket of a transport. That of uvloop has no `setsockopt`."""

    def fileno(self) -> int: ...


def _set_options(transport_socket: TransportSocket, *options: tuple[int, int, int | bytes]) -> None:
    """Set options (level, name, value) of the socket of a transport. Without a free descriptor, none are set."""
    with (
        contextlib.suppress(OSError),
        socket.socket(fileno=os.dup(transport_socket.fileno())) as duplicate,
    ):
        for option in options:
            duplicate.setsockopt(*option)


def enable_keepalive(transport_socket: TransportSocket) -> None:
    """Let the kernel find out that the other side has vanished; on a listening socket, for all that it accepts.

    Otherwise a websocket to a machine that lost its power stays open forever.
    """
    _set_options(
        transport_socket,
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        *((socket.IPPROTO_TCP, option, value) for option, value in KEEPALIVE_OPTIONS),
    )


def reset_when_closed(transport_socket: TransportSocket) -> None:
    """Let the kernel send RST instead of FIN when the connection is closed. For HTTP/1.0, FIN ends a complete reply."""
    _set_options(transport_socket, (socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER))
