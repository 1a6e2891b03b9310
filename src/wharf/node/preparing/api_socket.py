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

from wharf.client import Unreachable
from wharf.client.doors import Bytes, Door
from wharf.node.preparing.identities import API_SOCKET
from wharf.world import World

log = logging.getLogger(__name__)

HEAD_MAX_BYTES: Final = 64 << 10
HEAD_WITHIN_S: Final = 30.0
PIECE_BYTES: Final = 64 << 10
CONNECTIONS_MAX: Final = 100
"""Of one task: it may not use up the files of its node."""
TOKEN_HEADERS: Final = (b"x-cluster-token", b"authorization")
OF_THE_CONNECTION: Final = (b"connection", b"keep-alive", b"proxy-connection")
FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

NO_TOKEN: Final = (b"401 Unauthorized", b"Unauthorized")
NO_REQUEST: Final = (b"400 Bad Request", b"this is no request of HTTP/1.1")
TOO_LONG: Final = (b"431 Request Header Fields Too Large", b"the head of the request is too long")
TOO_MANY: Final = (b"429 Too Many Requests", b"this task has too many requests open")
NO_SERVER: Final = (b"502 Bad Gateway", b"no server answers")


class ApiSocket:
    """`close` it when its task is over."""

    def __init__(self, world: World, doors: Sequence[Door]) -> None:
        self._world = world
        self._doors = list(doors)
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def open(self, secrets: Path) -> None:
        """In the place of one that an agent before us left. Raises OSError."""
        if self._server is not None:
            return
        bound = _bound(secrets)
        self._server = await asyncio.start_unix_server(self._begin, sock=bound, limit=HEAD_MAX_BYTES)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        serving = list(self._serving)
        for each in serving:
            each.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._world.start(self._serve(reader, writer), name="a request of a task")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                await self._answer(reader, writer)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._serving) > CONNECTIONS_MAX:
            await _refuse(writer, *TOO_MANY)
            return
        try:
            async with asyncio.timeout(HEAD_WITHIN_S):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            await _refuse(writer, *TOO_LONG)
            return
        first, *lines = head[:-4].split(b"\r\n")
        named = [(line.partition(b":")[0].strip().lower(), line) for line in lines]
        if not first.endswith(b" HTTP/1.1"):
            await _refuse(writer, *NO_REQUEST)
            return
        if not any(name in TOKEN_HEADERS and line.partition(b":")[2].strip() for name, line in named):
            await _refuse(writer, *NO_TOKEN)
            return
        try:
            theirs, ours = await self._connected()
        except Unreachable:
            await _refuse(writer, *NO_SERVER)
            return
        if not any(name == b"upgrade" for name, _ in named):
            kept = [line for name, line in named if name not in OF_THE_CONNECTION]
            head = b"\r\n".join([first, *kept, b"Connection: close", b"", b""])
        try:
            ours.write(head)
            await self._pass_on(reader, ours, theirs, writer)
        finally:
            ours.close()

    async def _connected(self) -> Bytes:
        """To the first server that answers; those that did not are asked last from now on."""
        why = Unreachable("this node knows no server", sent=False)
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
        asking = self._world.start(_copy(reader, ours), name="what a task asks")
        try:
            await _copy(theirs, writer)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while piece := await source.read(PIECE_BYTES):
        target.write(piece)
        await target.drain()


async def _refuse(writer: asyncio.StreamWriter, status: bytes, text: bytes) -> None:
    head = b"HTTP/1.1 %b\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    writer.write(head % (status, len(text)) + text)
    await writer.drain()


def _bound(folder: Path) -> socket.socket:
    """By way of its folder: paths of sockets may not be long, and those of allocations are."""
    handle = os.open(folder, FOLDER)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(FileNotFoundError):
            os.unlink(API_SOCKET, dir_fd=handle)
        made.bind(f"/proc/self/fd/{handle}/{API_SOCKET}")
        os.chmod(API_SOCKET, 0o666, dir_fd=handle)
    except OSError:
        made.close()
        raise
    finally:
        os.close(handle)
    made.setblocking(False)
    return made
