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

from wharf.engines.store_wire import Frames, NotOurs, socket_address
from wharf.model.refusal import Code, Refusal
from wharf.server.asking import Answered, Link
from wharf.world import World

READ_BYTES: Final = 256 * 1024
CONNECT_S: Final = 5.0


class Question(msgspec.Struct, frozen=True, gc=False, array_like=True):
    number: int
    subject: str
    body: bytes


class NumberedAnswer(msgspec.Struct, frozen=True, gc=False, array_like=True):
    number: int
    answered: Answered


_encode = msgspec.msgpack.Encoder().encode
_read_question = msgspec.msgpack.Decoder(Question).decode
_read_answer = msgspec.msgpack.Decoder(NumberedAnswer).decode


def _framed(message: msgspec.Struct) -> bytes:
    body = _encode(message)
    return len(body).to_bytes(4, "big") + body


class BrainSocket:
    """The brain's side."""

    def __init__(self, world: World, path: Path, answers: Link) -> None:
        self._world = world
        self._path = path
        self._answers = answers
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.StreamWriter, None] = {}

    async def open(self) -> None:
        """Listen, for this user alone. A socket file that a dead brain left is replaced."""
        self._path.unlink(missing_ok=True)
        with socket_address(self._path) as address:
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
        frames = Frames()
        working: dict[asyncio.Task[None], None] = {}
        self._connections[writer] = None
        try:
            while data := await reader.read(READ_BYTES):
                for body in frames.feed(data):
                    task = self._world.start(self._answer(_read_question(body), writer), name="answer")
                    working[task] = None
                    task.add_done_callback(lambda done: working.pop(done, None))
                await writer.drain()
        except (OSError, NotOurs, msgspec.MsgspecError):
            pass  # The other end is gone, or is none of ours; either way there is nobody to answer.
        finally:
            for task in list(working):
                task.cancel()
            self._connections.pop(writer, None)
            writer.close()

    async def _answer(self, question: Question, writer: asyncio.StreamWriter) -> None:
        answered = await self._answers.ask(question.subject, question.body)
        if not writer.is_closing():
            writer.write(_framed(NumberedAnswer(question.number, answered)))


class BrainLink:
    """The api's side; a `Link`."""

    def __init__(self, world: World, path: Path) -> None:
        self._world = world
        self._path = path
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Answered]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()

    async def ask(self, name: str, body: bytes) -> Answered:
        writer = await self._connected()
        number = next(self._numbers)
        answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            writer.write(_framed(Question(number, name, body)))
            return await answer
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _connected(self) -> asyncio.StreamWriter:
        async with self._connecting:
            if self._writer is not None:
                return self._writer
            try:
                with socket_address(self._path) as address:
                    async with asyncio.timeout(CONNECT_S):
                        reader, writer = await asyncio.open_unix_connection(address)
            except (OSError, TimeoutError) as error:
                raise Refusal(
                    Code.UNAVAILABLE, f"this server's scheduler does not answer ({error}); it is being started again"
                ) from error
            self._writer = writer
            self._reading = self._world.start(self._read(reader, writer), name="brain link")
            return writer

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = Frames()
        try:
            while data := await reader.read(READ_BYTES):
                for body in frames.feed(data):
                    told = _read_answer(body)
                    waiting = self._waiting.get(told.number)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(told.answered)
        except OSError:
            pass  # As good as the end of the stream.
        finally:
            self._writer = None
            writer.close()
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(
                        Refusal(
                            Code.UNDECIDED,
                            "this server's scheduler ended while it was deciding; read before you ask again",
                        )
                    )
