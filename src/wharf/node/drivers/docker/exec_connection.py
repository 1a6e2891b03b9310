"""A connection to the engine that is upgraded from HTTP to a raw stream for the input and output of a command.

The HTTP library does not hand over its connections, so this request is written by hand.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from wharf.node.drivers.docker.errors import EngineRejected, EngineUnreachable
from wharf.node.drivers.docker.output_stream import ContainerOutput, OutputFrameDecoder

CHUNK_BYTES: Final = 64 << 10
MAX_HEAD_BYTES: Final = 64 << 10
"""Limit of the response's header; protects the memory of the agent."""


class ExecConnection:
    """The connection for the input and output of a command in a container."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_tty: bool) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = OutputFrameDecoder(is_tty=is_tty)

    async def write(self, data: bytes) -> None:
        """Write to the command's input. Raises EngineUnreachable."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise EngineUnreachable(f"the input cannot be sent to the container engine: {error}") from error

    def close_input(self) -> None:
        """Close the command's input, if the connection can be closed in one direction."""
        with contextlib.suppress(OSError, NotImplementedError):
            if self._writer.can_write_eof():
                self._writer.write_eof()

    async def read_output(self) -> AsyncIterator[ContainerOutput]:
        """Yield the output until the command has closed it."""
        while True:
            try:
                data = await self._reader.read(CHUNK_BYTES)
            except OSError:
                return
            if not data:
                return
            for chunk in self._frames.feed(data):
                yield chunk

    async def close(self) -> None:
        """Close the connection and wait until it is closed."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


async def open_exec_connection(socket: Path, path: str, body: bytes, *, is_tty: bool) -> ExecConnection:
    """Send the POST request that starts a command, and return the connection for its input and output.

    Raises EngineUnreachable and EngineRejected.
    """
    try:
        reader, writer = await asyncio.open_unix_connection(str(socket), limit=MAX_HEAD_BYTES)
    except OSError as error:
        raise EngineUnreachable(f"the container engine at {socket} does not answer: {error}") from error
    request_head = (
        f"POST {path} HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        "Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
    )
    try:
        writer.write(request_head.encode() + body)
        await writer.drain()
        response_head = await reader.readuntil(b"\r\n\r\n")
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        writer.close()
        raise EngineUnreachable(f"the container engine closed the connection: {error}") from error
    status = int(response_head.split(b" ", 2)[1])
    if status not in (101, 200):
        error_text = (await reader.read(CHUNK_BYTES)).decode(errors="replace")
        writer.close()
        raise EngineRejected(status, error_text.strip() or f"the container engine returned HTTP status {status}")
    return ExecConnection(reader, writer, is_tty=is_tty)
