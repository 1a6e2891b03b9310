"""Dialers: open a raw byte stream to one server, for relays that do not interpret what they forward."""

import asyncio
import ssl
from typing import Protocol
from urllib.parse import urlsplit

from wharf.contract.client.transport import CONNECT_TIMEOUT_S, UNIX_SCHEME, Unreachable

ByteStream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Dialer(Protocol):
    """Opens raw connections to one server."""

    async def open(self) -> ByteStream:
        """Return a new connection. Raises `Unreachable`."""
        ...


class ServerDialer:
    """Opens TCP, TLS or Unix socket connections to one server."""

    def __init__(self, address: str, *, tls: ssl.SSLContext | None = None) -> None:
        """`address` is the server's HTTP address, with its scheme."""
        self._address = address
        self._tls = tls

    async def open(self) -> ByteStream:
        """Connect to the address. Raises `Unreachable`."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if self._address.startswith(UNIX_SCHEME):
                    return await asyncio.open_unix_connection(self._address.removeprefix(UNIX_SCHEME))
                parts = urlsplit(self._address)
                is_tls = parts.scheme == "https"
                context = (self._tls or ssl.create_default_context()) if is_tls else None
                port = parts.port or (443 if is_tls else 80)
                return await asyncio.open_connection(parts.hostname, port, ssl=context)
        except (OSError, TimeoutError, ValueError) as error:
            raise Unreachable(f"cannot connect to {self._address} ({error})", is_sent=False) from error
