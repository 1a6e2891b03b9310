"""The HTTP API for one task, as a socket among its secrets: a task without a network may ask the cluster, too.

It adds nothing to what the task may do: who asks shows a token, and servers decide about it. One request a connection,
passed on as it came, so that nothing that follows the first goes on unseen.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from wharf.contract.client import Unreachable
from wharf.contract.client.relay.dialers import ByteStream, Dialer
from wharf.node.tasks.identities.tokens import API_SOCKET_FILE
from wharf.world import World

log = logging.getLogger(__name__)

MAX_HEAD_BYTES: Final = 64 << 10
HEAD_TIMEOUT_S: Final = 30.0
CHUNK_BYTES: Final = 64 << 10
MAX_CONNECTIONS: Final = 100
"""Of one task: it may not use up the files of its node."""
TOKEN_HEADERS: Final = (b"x-cluster-token", b"authorization")
CONNECTION_HEADERS: Final = (b"connection", b"keep-alive", b"proxy-connection")
FOLDER_OPEN_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

NO_TOKEN_RESPONSE: Final = (b"401 Unauthorized", b"Unauthorized")
INVALID_REQUEST_RESPONSE: Final = (b"400 Bad Request", b"this is no request of HTTP/1.1")
HEAD_TOO_LONG_RESPONSE: Final = (b"431 Request Header Fields Too Large", b"the head of the request is too long")
TOO_MANY_REQUESTS_RESPONSE: Final = (b"429 Too Many Requests", b"this task has too many requests open")
NO_SERVER_RESPONSE: Final = (b"502 Bad Gateway", b"no server answers")


class ApiSocket:
    """`close` it when its task is over."""

    def __init__(self, world: World, doors: Sequence[Dialer]) -> None:
        self._world = world
        self._doors = list(doors)
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def open(self, secrets: Path) -> None:
        """In the place of one that an agent before us left. Raises OSError."""
        if self._server is not None:
            return
        bound = _bound(secrets)
        self._server = await asyncio.start_unix_server(self._begin, sock=bound, limit=MAX_HEAD_BYTES)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        serving = list(self._serving)
        for each in serving:
            each.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._world.start_task(self._serve(reader, writer), name="a request of a task")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                await self._answer(reader, writer)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._serving) > MAX_CONNECTIONS:
            await _refuse(writer, *TOO_MANY_REQUESTS_RESPONSE)
            return
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            await _refuse(writer, *HEAD_TOO_LONG_RESPONSE)
            return
        first, *lines = head[:-4].split(b"\r\n")
        named = [(line.partition(b":")[0].strip().lower(), line) for line in lines]
        if not first.endswith(b" HTTP/1.1"):
            await _refuse(writer, *INVALID_REQUEST_RESPONSE)
            return
        if not any(name in TOKEN_HEADERS and line.partition(b":")[2].strip() for name, line in named):
            await _refuse(writer, *NO_TOKEN_RESPONSE)
            return
        try:
            theirs, ours = await self._connected()
        except Unreachable:
            await _refuse(writer, *NO_SERVER_RESPONSE)
            return
        if not any(name == b"upgrade" for name, _ in named):
            kept = [line for name, line in named if name not in CONNECTION_HEADERS]
            head = b"\r\n".join([first, *kept, b"Connection: close", b"", b""])
        try:
            ours.write(head)
            await self._pass_on(reader, ours, theirs, writer)
        finally:
            ours.close()

    async def _connected(self) -> ByteStream:
        """To the first server that answers; those that did not are asked last from now on."""
        why = Unreachable("this node knows no server", is_sent=False)
        for _ in range(len(self._doors)):
            try:
                return await self._doors[0].open()
            except Unreachable as error:
                why = error
                self._doors.append(self._doors.pop(0))
        raise why

    async def _pass_on(
        self, reader: asyncio.StreamReader, ours: asyncio.StreamWriter, theirs: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:  # fmt: skip
        """Until the server has said all."""
        asking = self._world.start_task(_copy(reader, ours), name="what a task asks")
        try:
            await _copy(theirs, writer)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while piece := await source.read(CHUNK_BYTES):
        target.write(piece)
        await target.drain()


async def _refuse(writer: asyncio.StreamWriter, status: bytes, text: bytes) -> None:
    head = b"HTTP/1.1 %b\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    writer.write(head % (status, len(text)) + text)
    await writer.drain()


def _bound(folder: Path) -> socket.socket:
    """By way of its folder: paths of sockets may not be long, and those of allocations are."""
    handle = os.open(folder, FOLDER_OPEN_FLAGS)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(FileNotFoundError):
            os.unlink(API_SOCKET_FILE, dir_fd=handle)
        made.bind(f"/proc/self/fd/{handle}/{API_SOCKET_FILE}")
        os.chmod(API_SOCKET_FILE, 0o666, dir_fd=handle)
    except OSError:
        made.close()
        raise
    finally:
        os.close(handle)
    made.setblocking(False)
    return made
