"""The way from an api process to the brain of its own server: questions and answers over a Unix socket.

Many questions are on their way at once, each answered by its number. The brain's side serves, the api's side connects
when it has something to ask, and again when the brain was restarted.
"""

import asyncio
import itertools
import os
from pathlib import Path
from typing import Final

import msgspec

from wharf.cluster.engines.framing import FramingError, SocketFrameDecoder, encode_frame, open_socket_address
from wharf.cluster.server.rpc.leader import RpcReply, RpcTransport
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.world import World

READ_CHUNK_BYTES: Final = 256 * 1024
CONNECT_TIMEOUT_S: Final = 5.0
REPLY_TIMEOUT_S: Final = 15.0
"""More than the brain itself waits for a log that hangs: where it can, it tells by itself what it knows."""


class RpcRequestFrame(msgspec.Struct, frozen=True, gc=False, array_like=True):
    number: int
    subject: str
    body: bytes


class RpcReplyFrame(msgspec.Struct, frozen=True, gc=False, array_like=True):
    number: int
    answered: RpcReply


_read_question = msgspec.msgpack.Decoder(RpcRequestFrame).decode
_read_answer = msgspec.msgpack.Decoder(RpcReplyFrame).decode


class BrainSocketServer:
    """The brain's side."""

    def __init__(self, world: World, path: Path, answers: RpcTransport) -> None:
        self._world = world
        self._path = path
        self._answers = answers
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.StreamWriter, None] = {}

    async def open(self) -> None:
        """Listen, for this user alone. A socket file that a dead brain left is replaced."""
        self._path.unlink(missing_ok=True)
        with open_socket_address(self._path) as address:
            before = os.umask(0o177)
            try:
                self._server = await asyncio.start_unix_server(self._serve, address)
            finally:
                os.umask(before)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._connections):
            writer.close()
        self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = SocketFrameDecoder()
        working: dict[asyncio.Task[None], None] = {}
        self._connections[writer] = None
        try:
            while data := await reader.read(READ_CHUNK_BYTES):
                for body in frames.feed(data):
                    task = self._world.start_task(self._answer(_read_question(body), writer), name="answer")
                    working[task] = None
                    task.add_done_callback(lambda done: working.pop(done, None))
                await writer.drain()
        except (OSError, FramingError, msgspec.MsgspecError):
            pass  # The other end is gone, or is none of ours; either way there is nobody to answer.
        finally:
            for task in list(working):
                task.cancel()
            self._connections.pop(writer, None)
            writer.close()

    async def _answer(self, question: RpcRequestFrame, writer: asyncio.StreamWriter) -> None:
        answered = await self._answers.call(question.subject, question.body)
        if not writer.is_closing():
            writer.write(encode_frame(RpcReplyFrame(question.number, answered)))


class _Connection:
    """One connection of a link, and the questions that were asked on it and have no answer yet."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.waiting: dict[int, asyncio.Future[RpcReply]] = {}
        self.heard_s = float("-inf")


class BrainSocketClient:
    """The api's side; a `Link`. `answer_within_s`: how long a question waits for a brain that hangs."""

    def __init__(self, world: World, path: Path, *, reply_timeout_s: float = REPLY_TIMEOUT_S) -> None:
        self._world = world
        self._path = path
        self._answer_within_s = reply_timeout_s
        self._numbers = itertools.count(1)
        self._connection: _Connection | None = None
        self._reading: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()

    async def call(self, name: str, body: bytes) -> RpcReply:
        connection = await self._connected()
        number = next(self._numbers)
        answer: asyncio.Future[RpcReply] = asyncio.get_running_loop().create_future()
        connection.waiting[number] = answer
        asked_s = self._world.monotonic_s()
        try:
            connection.writer.write(encode_frame(RpcRequestFrame(number, name, body)))
            async with asyncio.timeout(self._answer_within_s):
                return await answer
        except TimeoutError as error:
            if connection.heard_s < asked_s:
                # It has answered nobody since. What it does not read must not pile up here.
                self._forget(connection)
                connection.writer.transport.abort()
            raise Refusal(
                RefusalCode.OUTCOME_UNKNOWN,
                f"this server's scheduler has not answered for {self._answer_within_s:g} s; read before you ask again",
            ) from error
        finally:
            connection.waiting.pop(number, None)

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    def _forget(self, connection: _Connection) -> None:
        if self._connection is connection:
            self._connection = None

    async def _connected(self) -> _Connection:
        async with self._connecting:
            if self._connection is not None:
                return self._connection
            try:
                with open_socket_address(self._path) as address:
                    async with asyncio.timeout(CONNECT_TIMEOUT_S):
                        reader, writer = await asyncio.open_unix_connection(address)
            except (OSError, TimeoutError) as error:
                raise Refusal(
                    RefusalCode.UNAVAILABLE,
                    f"this server's scheduler does not answer ({error}); it is being started again",
                ) from error
            connection = self._connection = _Connection(writer)
            self._reading = self._world.start_task(self._read(reader, connection), name="brain link")
            return connection

    async def _read(self, reader: asyncio.StreamReader, connection: _Connection) -> None:
        frames = SocketFrameDecoder()
        try:
            while data := await reader.read(READ_CHUNK_BYTES):
                connection.heard_s = self._world.monotonic_s()
                for body in frames.feed(data):
                    told = _read_answer(body)
                    waiting = connection.waiting.get(told.number)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(told.answered)
        except OSError:
            pass  # As good as the end of the stream.
        finally:
            self._forget(connection)
            connection.writer.close()
            for waiting in connection.waiting.values():
                if not waiting.done():
                    waiting.set_exception(
                        Refusal(
                            RefusalCode.OUTCOME_UNKNOWN,
                            "this server's scheduler ended while it was deciding; read before you ask again",
                        )
                    )
