"""RPC from an api process to the brain of its own server, over a Unix socket.

Many calls can be in flight; each has a number. The client connects at the first call and again after the brain was
restarted.
"""

import asyncio
import itertools
from pathlib import Path
from typing import Final

import msgspec

from wharf.cluster.server.rpc.method import RpcReply, RpcTransport
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.world import World
from wharf.world.framing import FrameDecoder, FrameTooLong, encode_frame
from wharf.world.tasks import cancel_tasks
from wharf.world.unix_sockets import bind_private_socket, shorten_socket_path

READ_CHUNK_BYTES: Final = 256 * 1024
MAX_FRAME_BYTES: Final = 256_000_000
"""Protects the memory of both processes against data that is not of this protocol."""
CONNECT_TIMEOUT_S: Final = 5.0
"""How long to wait for the connection to the brain."""
REPLY_TIMEOUT_S: Final = 15.0
"""How long to wait for a reply.

Longer than the brain waits for a hanging log, so that the brain can report that itself.
"""


class RpcRequestFrame(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One RPC call as it is sent over the socket. The order of the fields is the wire format."""

    number: int
    """Identifies the call on its connection."""
    method: str
    body: bytes


class RpcReplyFrame(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The reply to the call with the same number, as it is sent over the socket.

    The order of the fields is the wire format.
    """

    number: int
    reply: RpcReply


_decode_request = msgspec.msgpack.Decoder(RpcRequestFrame).decode
_decode_reply_frame = msgspec.msgpack.Decoder(RpcReplyFrame).decode


class BrainSocketServer:
    """Listens on the Unix socket of the brain and executes the calls that arrive."""

    def __init__(self, world: World, path: Path, dispatcher: RpcTransport) -> None:
        self._world = world
        self._path = path
        self._dispatcher = dispatcher
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.StreamWriter, None] = {}

    async def open(self) -> None:
        """Start to listen. Only the same user may connect. A socket file of an earlier brain is replaced."""
        self._server = await asyncio.start_unix_server(self._serve, sock=bind_private_socket(self._path))

    async def close(self) -> None:
        """Stop listening, close all connections and remove the socket file."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._connections):
            writer.close()
        self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Execute the calls of one connection, each in its own task, until the client disconnects."""
        frames = FrameDecoder(MAX_FRAME_BYTES)
        tasks: dict[asyncio.Task[None], None] = {}
        self._connections[writer] = None
        try:
            while data := await reader.read(READ_CHUNK_BYTES):
                for body in frames.feed(data):
                    task = self._world.start_task(self._handle_request(_decode_request(body), writer), name="answer")
                    tasks[task] = None
                    task.add_done_callback(lambda done: tasks.pop(done, None))
                await writer.drain()
        except (OSError, FrameTooLong, msgspec.MsgspecError):
            pass  # The client is gone or sent an invalid frame. There is nobody to reply to.
        finally:
            for task in list(tasks):
                task.cancel()
            self._connections.pop(writer, None)
            writer.close()

    async def _handle_request(self, request: RpcRequestFrame, writer: asyncio.StreamWriter) -> None:
        """Handle one call and write its reply."""
        reply = await self._dispatcher.call(request.method, request.body)
        if not writer.is_closing():
            writer.write(encode_frame(RpcReplyFrame(request.number, reply)))


class _RpcConnection:
    """One connection to the brain."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.pending: dict[int, asyncio.Future[RpcReply]] = {}
        """Calls without a reply, by number."""
        self.last_received_s = float("-inf")
        """Monotonic time at which data arrived last."""


class BrainSocketClient:
    """Sends RPC calls of an api process to the brain of its server, over a Unix socket.

    `reply_timeout_s`: how long a call waits for its reply.
    """

    def __init__(self, world: World, path: Path, *, reply_timeout_s: float = REPLY_TIMEOUT_S) -> None:
        self._world = world
        self._path = path
        self._reply_timeout_s = reply_timeout_s
        self._numbers = itertools.count(1)
        self._connection: _RpcConnection | None = None
        self._read_task: asyncio.Task[None] | None = None
        self._connect_lock = asyncio.Lock()

    async def call(self, name: str, body: bytes) -> RpcReply:
        """Send the encoded request `body` for the method `name`, and return the reply.

        Raises `Refusal`: UNAVAILABLE if the brain cannot be reached, OUTCOME_UNKNOWN if no reply arrives.
        """
        connection = await self._connect()
        number = next(self._numbers)
        future: asyncio.Future[RpcReply] = asyncio.get_running_loop().create_future()
        connection.pending[number] = future
        sent_s = self._world.monotonic_s()
        try:
            connection.writer.write(encode_frame(RpcRequestFrame(number, name, body)))
            async with asyncio.timeout(self._reply_timeout_s):
                return await future
        except TimeoutError as error:
            if connection.last_received_s < sent_s:
                # The brain replied to nothing since this call. Reconnect, so that unread data does not accumulate.
                self._discard_connection(connection)
                connection.writer.transport.abort()
            raise Refusal(
                RefusalCode.OUTCOME_UNKNOWN,
                f"this server's scheduler process has not replied for {self._reply_timeout_s:g} s; check the current state before you retry",
            ) from error
        finally:
            connection.pending.pop(number, None)

    async def close(self) -> None:
        """Close the connection."""
        if self._read_task is not None:
            await cancel_tasks(self._read_task)

    def _discard_connection(self, connection: _RpcConnection) -> None:
        """Use this connection for no further calls. Does nothing if there is a newer one."""
        if self._connection is connection:
            self._connection = None

    async def _connect(self) -> _RpcConnection:
        """Return the open connection to the brain, or open one. Raises `Refusal` if that fails."""
        async with self._connect_lock:
            if self._connection is not None:
                return self._connection
            try:
                with shorten_socket_path(self._path) as address:
                    async with asyncio.timeout(CONNECT_TIMEOUT_S):
                        reader, writer = await asyncio.open_unix_connection(address)
            except (OSError, TimeoutError) as error:
                raise Refusal(
                    RefusalCode.UNAVAILABLE,
                    f"this server's scheduler process does not reply ({error}); it is restarting",
                ) from error
            connection = self._connection = _RpcConnection(writer)
            self._read_task = self._world.start_task(self._read(reader, connection), name="brain link")
            return connection

    async def _read(self, reader: asyncio.StreamReader, connection: _RpcConnection) -> None:
        """Give each reply to its caller until the connection ends; then fail all calls without a reply."""
        frames = FrameDecoder(MAX_FRAME_BYTES)
        try:
            while data := await reader.read(READ_CHUNK_BYTES):
                connection.last_received_s = self._world.monotonic_s()
                for body in frames.feed(data):
                    frame = _decode_reply_frame(body)
                    pending = connection.pending.get(frame.number)
                    if pending is not None and not pending.done():
                        pending.set_result(frame.reply)
        except OSError:
            pass  # Same as the end of the stream.
        finally:
            self._discard_connection(connection)
            connection.writer.close()
            for pending in connection.pending.values():
                if not pending.done():
                    pending.set_exception(
                        Refusal(
                            RefusalCode.OUTCOME_UNKNOWN,
                            "this server's scheduler process ended during the call; check the current state before you retry",
                        )
                    )
