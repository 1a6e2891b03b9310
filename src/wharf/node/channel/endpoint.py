"""The node's end of its channel: answers many questions at once, each in a task of its own.

It decides nothing: an `Answerer` does. What a question makes is sent as far as the asking end has room.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Protocol

import msgspec

from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.wire.nodes import channel
from wharf.world import World

log = logging.getLogger(__name__)


class ChannelReply(msgspec.Struct, frozen=True):
    """A whole body, or its parts as they come."""

    content_type: str
    body: bytes = b""
    chunks: AsyncGenerator[bytes, None] | None = None
    release: Callable[[], Awaitable[None]] | None = None
    """Lets go of what is held for the parts before the first of them is asked for: it may be that none ever is. Called in
    any case, also when they are over."""


class RequestHandler(Protocol):
    async def handle_request(self, question: channel.ChannelRequest, inputs: AsyncIterator[bytes]) -> ChannelReply:
        """`inputs`: what is said while one answers. Raises `Refusal`."""
        ...


class _Answering:
    """One question."""

    def __init__(self, taken: Callable[[int], Awaitable[None]]) -> None:
        self._taken = taken
        self.inputs: asyncio.Queue[bytes] = asyncio.Queue()
        self.room = channel.WINDOW_BYTES
        self.more_room = asyncio.Event()

    async def heard(self) -> AsyncIterator[bytes]:
        while True:
            said = await self.inputs.get()
            yield said
            # Asked for the next: this one has found its way. Until that is told, only so much is sent.
            await self._taken(len(said))

    async def take_room(self, count: int) -> None:
        """Wait until so much more may be sent."""
        while self.room <= 0:
            self.more_room.clear()
            await self.more_room.wait()
        self.room -= count


class ChannelEndpoint:
    """`send` puts a message on the connection. Whoever reads the connection gives each to `hear`, and at its end calls `close`."""

    def __init__(self, world: World, answerer: RequestHandler, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._world = world
        self._answerer = answerer
        self._send = send
        self._open: dict[int, tuple[_Answering, asyncio.Task[None]]] = {}

    def receive_message(self, data: bytes) -> None:
        """Raises `msgspec.MsgspecError` where it cannot be read."""
        message = channel.decode_message_to_node(data)
        if isinstance(message, channel.ChannelRequest):
            number = message.id
            answering = _Answering(lambda count: self._say(channel.InputCredit(number, count)))
            task = self._world.start_task(self._answer(message, answering), name=f"answer {message.verb}")
            self._open[message.id] = (answering, task)
            return
        found = self._open.get(message.id)
        if found is None:
            return  # It was answered meanwhile.
        answering, task = found
        match message:
            case channel.ChannelInput(_, said):
                answering.inputs.put_nowait(said)
            case channel.OutputCredit(_, count):
                answering.room += count
                answering.more_room.set()
            case channel.CancelRequest():
                task.cancel()

    async def close(self) -> None:
        """Nobody listens any more."""
        tasks = [task for _, task in self._open.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, question: channel.ChannelRequest, answering: _Answering) -> None:
        number = question.id
        end: Callable[[], Awaitable[None]] | None = None
        try:
            reply = await self._answerer.handle_request(question, answering.heard())
            end = reply.release
            if reply.chunks is None and len(reply.body) <= channel.MAX_PART_BYTES:
                await self._say(channel.WholeReply(number, reply.content_type, reply.body))
                return
            await self._say(channel.StreamBegin(number, reply.content_type))
            parts = reply.chunks if reply.chunks is not None else _whole(reply.body)
            async with aclosing(parts):  # What it holds open is closed at once, also when whoever asked has gone.
                async for part in parts:
                    for begin in range(0, len(part), channel.MAX_PART_BYTES):
                        piece = part[begin : begin + channel.MAX_PART_BYTES]
                        await answering.take_room(len(piece))
                        await self._say(channel.StreamPart(number, piece))
            await self._say(channel.StreamEnd(number))
        except Refusal as refusal:
            await self._say(channel.ChannelRefusal(number, refusal.code, refusal.text))
        except ConnectionError:
            return  # The reader of the connection sees it too, and begins anew.
        except Exception:  # The top of a question: whoever asks must hear something.
            log.exception("the question %s about %s failed", question.verb, question.about or "the node")
            await self._say(
                channel.ChannelRefusal(
                    number, RefusalCode.OUTCOME_UNKNOWN, "an error of the node's own; its log tells of it"
                )
            )
        finally:
            self._open.pop(number, None)
            if end is not None:
                await end()

    async def _say(self, message: channel.MessageToServer) -> None:
        await self._send(channel.encode_message(message))


async def _whole(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body
