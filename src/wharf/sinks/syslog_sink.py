"""A sink that sends records as syslog messages (RFC 5424) over UDP, TCP, TLS or a Unix socket.

Each message has one record as JSON text. The receivers of syslog confirm nothing. Over TCP and TLS, the last batch is
therefore sent again after the receiver closed the connection, so that a restart of the receiver loses none of it; its
records have the same ids. Over UDP, records can be lost without a trace.
"""

import contextlib
import errno
import os
import select
import socket
import ssl
import stat
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from wharf.sinks.port import RecordsRejected, SinkBatch, SinkUnavailable
from wharf.sinks.records import decode_head
from wharf.sinks.thread_calls import SingleThreadCall
from wharf.world.tls_contexts import ClientTls, load_client_context

DEFAULT_PORTS: Final = {"udp": 514, "tcp": 514, "tls": 6514}
MAX_DATAGRAM_BYTES: Final = 65_000
"""What fits into one datagram of UDP."""
SOCKET_TIMEOUT_S: Final = 5.0
"""How long connecting and each write may take. Shorter than the timeout of a batch."""
APPLICATION: Final = "wharf"
MAX_NAME_CHARACTERS: Final = 32
"""The longest message id of the format."""


class InvalidSyslogUrl(ValueError):
    """The URL of a syslog receiver cannot be used. The text shows a correct one."""


class SyslogAddress(NamedTuple):
    """Where a syslog receiver listens."""

    transport: str
    """`udp`, `tcp`, `tls` or `unix`."""
    host: str = ""
    port: int = 0
    path: str = ""


def read_syslog_url(text: str) -> SyslogAddress:
    """Return the address in a URL such as `tcp://logs.example:514`. Raises `InvalidSyslogUrl`."""
    error = InvalidSyslogUrl(
        f"{text!r} is not a syslog receiver: write udp://host:514, tcp://host:514, tls://host:6514 or unix:///dev/log"
    )
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise error from None
    if parts.scheme == "unix" and not parts.netloc and parts.path.startswith("/"):
        return SyslogAddress("unix", path=parts.path)
    if parts.scheme not in DEFAULT_PORTS or not host or parts.path not in ("", "/") or port == 0:
        raise error
    return SyslogAddress(parts.scheme, host, port or DEFAULT_PORTS[parts.scheme])


def format_syslog_message(line: bytes, *, facility: int, process_id: int) -> bytes:
    """Return a record as a message of RFC 5424, without framing."""
    try:
        head = decode_head(line)
    except msgspec.DecodeError as error:
        raise RecordsRejected(f"not a record: {error}") from None
    host, _, _process = head.source.partition("/")
    fields = (
        f"<{facility * 8 + head.syslog_severity}>1 {head.time} {_clean(host)} {APPLICATION} {process_id} "
        f"{_clean(head.type)[:MAX_NAME_CHARACTERS]} - "
    )
    return fields.encode() + line


def _clean(text: str) -> str:
    """Return a text as a field of a message: printable ASCII characters without spaces, and `-` for an empty one."""
    return "".join(sign if "!" <= sign <= "~" else "?" for sign in text[:255]) or "-"


class SyslogSink:
    """Sends records to one syslog receiver. The connection stays open between batches."""

    def __init__(self, address: SyslogAddress, *, facility: int, ca_file: str = "") -> None:
        self._address = address
        self._facility = facility
        self._tls = ClientTls(ca_file=ca_file)
        self._socket: socket.socket | None = None
        self._calls = SingleThreadCall()
        self._is_datagram = address.transport == "udp"
        self._unconfirmed: list[bytes] = []
        """The framed messages of the last batch on this connection, which the receiver may not have read."""

    async def send(self, batch: SinkBatch) -> int:
        """Send one message for each record. Raises `SinkUnavailable` or `RecordsRejected`."""
        messages = [
            format_syslog_message(line, facility=self._facility, process_id=os.getpid()) for line in batch.lines
        ]
        try:
            context = await load_client_context(self._tls) if self._address.transport == "tls" else None
            await self._calls.run(partial(self._send_messages, messages, context))
        except (OSError, ValueError) as error:
            self._disconnect()
            reason = getattr(error, "strerror", None) or error
            raise SinkUnavailable(f"syslog receiver {self._describe()}: {reason}") from error
        return 0

    def _send_messages(self, messages: Sequence[bytes], context: ssl.SSLContext | None) -> None:
        if self._socket is not None and not self._is_datagram and _is_closed(self._socket):
            self._disconnect()
        if self._socket is None:
            self._socket = self._connect(context)
            repeated, self._unconfirmed = self._unconfirmed, []
            if repeated and not self._is_datagram:
                self._socket.sendall(b"".join(repeated))
        if self._is_datagram:
            for message in messages:
                if len(message) > MAX_DATAGRAM_BYTES:
                    raise RecordsRejected(f"a message has {len(message):,} bytes: use tcp:// for records this long")
                self._socket.send(message)
            return
        framed = [self._frame(message) for message in messages]
        self._socket.sendall(b"".join(framed))
        self._unconfirmed = framed

    def _frame(self, message: bytes) -> bytes:
        """Return a message for a byte stream: with its length before it (RFC 6587), or as a line of a Unix socket."""
        return message + b"\n" if self._address.transport == "unix" else b"%d %b" % (len(message), message)

    def _connect(self, context: ssl.SSLContext | None) -> socket.socket:
        """Return a new connection. Raises `OSError`."""
        address = self._address
        if address.transport == "unix":
            if not stat.S_ISSOCK(os.stat(address.path).st_mode):
                raise OSError("not a socket")
            return self._connect_unix(address.path)
        if address.transport == "udp":
            family, kind, protocol, _, target = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)[
                0
            ]
            connection = socket.socket(family, kind, protocol)
            try:
                connection.settimeout(SOCKET_TIMEOUT_S)
                connection.connect(target)
            except BaseException:
                connection.close()
                raise
            return connection
        plain = socket.create_connection((address.host, address.port), SOCKET_TIMEOUT_S)
        if context is None:
            return plain
        try:
            return context.wrap_socket(plain, server_hostname=address.host)
        except BaseException:
            plain.close()
            raise

    def _connect_unix(self, path: str) -> socket.socket:
        """Return a connection to a Unix socket: of datagrams, as `/dev/log` usually is, or else a stream."""
        for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
            connection = socket.socket(socket.AF_UNIX, kind)
            connection.settimeout(SOCKET_TIMEOUT_S)
            try:
                connection.connect(path)
            except OSError as error:
                connection.close()
                if kind is socket.SOCK_DGRAM and error.errno == errno.EPROTOTYPE:
                    continue
                raise
            self._is_datagram = kind is socket.SOCK_DGRAM
            return connection
        raise OSError("neither a socket of datagrams nor a stream")

    def _disconnect(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None

    def _describe(self) -> str:
        address = self._address
        return address.path or f"{address.host}:{address.port}"

    async def close(self) -> None:
        """Close the connection after what was sent."""
        if self._socket is not None and not self._is_datagram:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
        self._disconnect()


def _is_closed(connection: socket.socket) -> bool:
    """Return whether the receiver has closed the connection. Receivers of syslog never send anything."""
    try:
        poll = select.poll()  # `select.select` is limited to low descriptors.
        poll.register(connection, select.POLLIN)
        readable = poll.poll(0)
        if not readable:
            return False
        connection.setblocking(False)
        try:
            return connection.recv(1) == b""
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        finally:
            connection.settimeout(SOCKET_TIMEOUT_S)
    except (OSError, ValueError):
        return True
