"""The server's end of a node's channel: questions go out with a number, and what comes back finds who asked."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from wharf.model.refusal import Code, Refusal
from wharf.server.node_channels import NodeAnswer, NodeQuestion, Talk
from wharf.wire import channel


class _Asked:
    """One question on its way."""

    def __init__(self) -> None:
        self.begun: asyncio.Future[channel.Answer | channel.Begin] = asyncio.get_running_loop().create_future()
        self.parts: asyncio.Queue[bytes | Refusal | None] = asyncio.Queue()
        self.is_over = False
        self.input_room = channel.WINDOW_BYTES
        self.more_input_room = asyncio.Event()

    async def take_input_room(self, count: int) -> None:
        """Wait until so much more may be said, or nobody listens any more."""
        while self.input_room <= 0 and not self.is_over:
            self.more_input_room.clear()
            await self.more_input_room.wait()
        self.input_room -= count


class NodeLink:
    """`send` puts a message on the connection. Whoever reads the connection gives it to `hear`, and at its end calls `break_off`."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._send = send
        self._asked: dict[int, _Asked] = {}
        self._next = 0
        self._is_broken = False

    async def ask(self, question: NodeQuestion) -> NodeAnswer:
        """Raises Refusal."""
        number, asked = await self._begin(question)
        try:
            first = await asked.begun
        except BaseException:
            await self._end(number, asked)
            raise
        if isinstance(first, channel.Answer):
            return NodeAnswer(first.content_type, first.body)
        return NodeAnswer(first.content_type, parts=self._parts(number, asked))

    async def talk(self, question: NodeQuestion) -> Talk:
        """A question that goes on: what is said goes in, what is answered comes out. Raises Refusal."""
        number, asked = await self._begin(question)
        try:
            await asked.begun
        except BaseException:
            await self._end(number, asked)
            raise
        return LinkTalk(self._parts(number, asked), lambda data: self._tell(number, asked, data))

    def hear(self, data: bytes) -> None:
        """Raises `msgspec.MsgspecError` where it cannot be read."""
        message = channel.read_to_server(data)
        asked = self._asked.get(message.id)
        if asked is None:
            return  # Whoever asked has gone.
        match message:
            case channel.Answer() | channel.Begin():
                if not asked.begun.done():
                    asked.begun.set_result(message)
                if isinstance(message, channel.Answer):
                    self._forget(message.id, asked)
            case channel.Part(_, part):
                asked.parts.put_nowait(part)
            case channel.Taken(_, count):
                asked.input_room += count
                asked.more_input_room.set()
            case channel.End():
                asked.parts.put_nowait(None)
                self._forget(message.id, asked)
            case channel.Refuse(_, code, text):
                self._fail(message.id, asked, Refusal(code, text))

    def break_off(self) -> None:
        """The connection is gone: all who wait hear it."""
        self._is_broken = True
        for number, asked in list(self._asked.items()):
            self._fail(number, asked, _broken())

    async def _begin(self, question: NodeQuestion) -> tuple[int, _Asked]:
        self._next += 1
        number, asked = self._next, _Asked()
        self._asked[number] = asked
        await self._say(channel.Ask(number, question.verb, question.about, question.parameters, question.body))
        return number, asked

    async def _parts(self, number: int, asked: _Asked) -> AsyncGenerator[bytes, None]:
        try:
            while (part := await asked.parts.get()) is not None:
                if isinstance(part, Refusal):
                    raise part
                yield part
                # Only now, when it has been taken, there is room for as much again.
                if not asked.is_over:
                    await self._say(channel.Room(number, len(part)))
        finally:
            await self._end(number, asked)

    async def _end(self, number: int, asked: _Asked) -> None:
        if asked.is_over:
            return
        self._forget(number, asked)
        if not self._is_broken:
            await self._say(channel.Enough(number))

    async def _tell(self, number: int, asked: _Asked, data: bytes) -> None:
        await asked.take_input_room(len(data))
        if not asked.is_over:
            await self._say(channel.Input(number, data))

    async def _say(self, message: channel.ToNode) -> None:
        if self._is_broken:
            raise _broken()
        await self._send(channel.written(message))

    def _forget(self, number: int, asked: _Asked) -> None:
        asked.is_over = True
        asked.more_input_room.set()
        self._asked.pop(number, None)

    def _fail(self, number: int, asked: _Asked, refusal: Refusal) -> None:
        self._forget(number, asked)
        if asked.begun.done():
            asked.parts.put_nowait(refusal)
        else:
            asked.begun.set_exception(refusal)


class LinkTalk:
    def __init__(self, parts: AsyncGenerator[bytes, None], say: Callable[[bytes], Awaitable[None]]) -> None:
        self._parts = parts
        self._say = say

    @property
    def parts(self) -> AsyncGenerator[bytes, None]:
        return self._parts

    async def say(self, data: bytes) -> None:
        await self._say(data)


def _broken() -> Refusal:
    return Refusal(Code.UNAVAILABLE, "the node's connection broke off: ask again")
