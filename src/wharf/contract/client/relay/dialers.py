"""Dialers: open a raw byte stream to one server, for relays that do not interpret what they forward."""

import asyncio
import ssl
from typing import Protocol
from urllib.parse import urlsplit

from wharf.contract.client.transport import CONNECT_TIMEOUT_S, UNIX_SCHEME, Unreachable
from wharf.world.tls_contexts import load_client_context

ByteStream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
"""The two directions of one connection."""


class Dialer(Protocol):
    """Opens raw connections to one server, whose bytes are not interpreted."""

    async def open(self) -> ByteStream:
        """Return the reader and the writer of a new connection. Raises `Unreachable` if it cannot be opened."""
        ...


class ServerDialer:
    """Opens raw TCP, TLS or Unix socket connections to one server."""

    def __init__(self, address: str, *, tls: ssl.SSLContext | None = None) -> None:
        """`address` is the server's HTTP address, with its scheme."""
        self._address = address
        self._tls = tls

    async def open(self) -> ByteStream:
        """Return the reader and the writer of a new connection to the server.

        Without a TLS context, the system's trusted certificates are used. Raises `Unreachable` if the server cannot be
        reached in time.
        """
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if self._address.startswith(UNIX_SCHEME):
                    return await asyncio.open_unix_connection(self._address.removeprefix(UNIX_SCHEME))
                parts = urlsplit(self._address)
                is_tls = parts.scheme == "https"
                context = (self._tls or await load_client_context()) if is_tls else None
                port = parts.port or (443 if is_tls else 80)
                return await asyncio.open_connection(parts.hostname, port, ssl=context)
        except (OSError, TimeoutError, ValueError) as error:
            raise Unreachable(f"cannot connect to {self._address} ({error})", is_sent=False) from error
