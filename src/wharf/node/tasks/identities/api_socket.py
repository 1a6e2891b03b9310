"""A Unix socket in a task's secrets folder that forwards HTTP requests to the API, so that tasks without a network
reach it too.

The socket grants no rights: each request must have a token, which servers check. One request per connection,
forwarded unchanged, so that nothing can follow the first request unchecked.
"""

import asyncio
import errno
import logging
import os
import socket
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from wharf.contract.client import Unreachable
from wharf.contract.client.relay.dialers import ByteStream, Dialer
from wharf.contract.client.transport import CONNECT_TIMEOUT_S
from wharf.contract.model.refusal import Refusal
from wharf.contract.wire.credentials import read_credentials, read_token
from wharf.node.confined_folder import ConfinedFolder, ConfinedPathError, get_descriptor_path, open_entry
from wharf.node.open_files import FairSlots
from wharf.node.tasks.identities.tokens import API_SOCKET_FILE
from wharf.world import World
from wharf.world.failover import FailoverAddresses
from wharf.world.tasks import cancel_tasks, start_supervised

log = logging.getLogger(__name__)

MAX_HEAD_BYTES: Final = 64 << 10
"""Limit of the request line and headers; protects the memory of the node."""
HEAD_TIMEOUT_S: Final = 30.0
"""Seconds that a task may take to send the headers of a request."""
CHUNK_BYTES: Final = 64 << 10
"""Bytes copied at a time."""
MAX_CONNECTIONS: Final = 100
"""Limit for one task; protects the file descriptors of the node."""
CONNECTION_HEADERS: Final = (b"connection", b"keep-alive", b"proxy-connection")
"""Headers that are replaced by `Connection: close`."""

NO_TOKEN_RESPONSE: Final = (b"401 Unauthorized", b"Unauthorized")
INVALID_REQUEST_RESPONSE: Final = (b"400 Bad Request", b"not an HTTP/1.1 request")
HEAD_TOO_LONG_RESPONSE: Final = (b"431 Request Header Fields Too Large", b"the request headers are too long")
TOO_MANY_REQUESTS_RESPONSE: Final = (b"429 Too Many Requests", b"this task or its namespace has too many requests open")
NO_SERVER_RESPONSE: Final = (b"502 Bad Gateway", b"no server can be reached")


class ApiSocket:
    """The API socket of one task. Close it when the task has ended."""

    def __init__(
        self,
        world: World,
        servers: Sequence[Dialer],
        addresses: FailoverAddresses,
        *,
        slots: FairSlots,
        namespace: str = "",
    ) -> None:
        """`servers` are in the order of `addresses`, which the node's other connections share.

        `slots` limits the connections of all tasks of the node, by namespace.
        """
        self._slots = slots
        self._namespace = namespace
        self._world = world
        self._servers = servers
        self._addresses = addresses
        self._listener: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def open(self, secrets: Path) -> None:
        """Listen on a socket in the folder `secrets`. Does nothing if it is open. Raises `OSError`.

        A socket that an earlier agent process left is replaced.
        """
        if self._listener is not None:
            return
        bound = _bind_socket(secrets)
        self._listener = await asyncio.start_unix_server(self._on_connection, sock=bound, limit=MAX_HEAD_BYTES)

    async def close(self) -> None:
        """Stop listening and cancel all requests."""
        if self._listener is not None:
            self._listener.close()
        await cancel_tasks(*self._connections)

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a new connection in its own asyncio task."""
        if len(self._connections) >= MAX_CONNECTIONS or not self._slots.try_take(self._namespace):
            # Answered without waiting: a connection beyond the limit must not hold a file of the node.
            writer.write(_build_refusal(*TOO_MANY_REQUESTS_RESPONSE))
            writer.close()
            return
        task = start_supervised(self._world, self._serve(reader, writer), name="API connection of a task")
        self._connections.add(task)
        task.add_done_callback(self._on_served)

    def _on_served(self, task: asyncio.Task[None]) -> None:
        """Stop counting a connection that was served."""
        self._connections.discard(task)
        self._slots.release(self._namespace)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward the request of one connection, then close it. Connection errors are ignored."""
        try:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                await self._forward_request(reader, writer)
        finally:
            writer.close()

    async def _forward_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Check the headers of the request and forward it to a server, or send an error response.

        A request without a token is not forwarded.
        """
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            await _refuse(writer, *HEAD_TOO_LONG_RESPONSE)
            return
        first, *lines = head[:-4].split(b"\r\n")
        headers = [(line.partition(b":")[0].lower(), line) for line in lines]
        # A name with white space is no header: a server could read the line as part of the previous header.
        if not first.endswith(b" HTTP/1.1") or any(not name or name.split() != [name] for name, _ in headers):
            await _refuse(writer, *INVALID_REQUEST_RESPONSE)
            return
        try:
            credentials = read_credentials((name, line.partition(b":")[2]) for name, line in headers)
        except Refusal as refusal:
            await _refuse(writer, b"400 Bad Request", refusal.text.encode())
            return
        if not read_token(credentials):
            await _refuse(writer, *NO_TOKEN_RESPONSE)
            return
        try:
            (server_reader, server_writer), position = await self._connect()
        except Unreachable:
            await _refuse(writer, *NO_SERVER_RESPONSE)
            return
        if not any(name == b"upgrade" for name, _ in headers):
            forwarded_lines = [line for name, line in headers if name not in CONNECTION_HEADERS]
            head = b"\r\n".join([first, *forwarded_lines, b"Connection: close", b"", b""])
        try:
            server_writer.write(head)
            # A silent server never ends its reply, so end the connection: the task may send its request again.
            async with self._addresses.end_on_silence(position):
                await self._copy_both_ways(reader, server_writer, server_reader, writer)
        finally:
            server_writer.close()

    async def _connect(self) -> tuple[ByteStream, int]:
        """Connect to the first server that accepts in its part of the time. Return the streams and its position.

        Raises `Unreachable` if no server accepts.
        """
        if not self._servers:
            raise Unreachable("this node knows no server", is_sent=False)
        budget = self._addresses.start_call(CONNECT_TIMEOUT_S)
        while True:
            attempt = budget.next_attempt()
            try:
                async with asyncio.timeout(attempt.timeout_s):
                    return await self._servers[attempt.position].open(), attempt.position
            except (TimeoutError, Unreachable) as error:
                self._addresses.on_silence(attempt)
                if not budget.has_untried:
                    raise Unreachable("no server accepts a connection", is_sent=False) from error

    async def _copy_both_ways(
        self, reader: asyncio.StreamReader, server_writer: asyncio.StreamWriter, server_reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:  # fmt: skip
        """Copy the request to the server and its reply to the task, until the server has sent its whole reply."""
        upload = self._world.start_task(_copy(reader, server_writer), name="API request of a task")
        try:
            await _copy(server_reader, writer)
        finally:
            await cancel_tasks(upload)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copy a stream until its end."""
    while chunk := await source.read(CHUNK_BYTES):
        target.write(chunk)
        await target.drain()


async def _refuse(writer: asyncio.StreamWriter, status: bytes, text: bytes) -> None:
    """Send an error response to the task, without forwarding its request."""
    writer.write(_build_refusal(status, text))
    await writer.drain()


def _build_refusal(status: bytes, text: bytes) -> bytes:
    head = b"HTTP/1.1 %b\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    return head % (status, len(text)) + text


def _bind_socket(folder: Path) -> socket.socket:
    """Return a socket that is bound to a file in the folder, which every user may connect to. Raises `OSError`.

    It is bound through the folder's descriptor, because socket paths are limited to about 100 bytes.
    """
    api_socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with ConfinedFolder(folder).open_folder() as folder_descriptor:
            with suppress(FileNotFoundError):
                os.unlink(API_SOCKET_FILE, dir_fd=folder_descriptor)
            api_socket.bind(f"{get_descriptor_path(folder_descriptor)}/{API_SOCKET_FILE}")
            # The task can exchange the file meanwhile, so the mode of what is open is changed.
            with open_entry(API_SOCKET_FILE, folder_descriptor, stat.S_IFSOCK) as entry:
                os.chmod(get_descriptor_path(entry), 0o666)
    except (OSError, ConfinedPathError) as error:
        api_socket.close()
        raise error if isinstance(error, OSError) else OSError(errno.EBUSY, str(error)) from error
    api_socket.setblocking(False)
    return api_socket
