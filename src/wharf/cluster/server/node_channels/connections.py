"""The server's end of a node's channel: questions go out with a number, and what comes back finds who asked.

The connections to nodes that this process holds, and the way to those that others hold.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from wharf.cluster.server.node_channels.directory import HeldNodesReporter
from wharf.cluster.server.node_channels.port import NodeCall, NodeChannel, NodeReply, NodeStream, build_no_node_path
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.wire.nodes import channel


class _Asked:
    """One question on its way."""

    def __init__(self) -> None:
        self.begun: asyncio.Future[channel.WholeReply | channel.StreamBegin] = (
            asyncio.get_running_loop().create_future()
        )
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


class NodeConnection:
    """`send` puts a message on the connection. Whoever reads the connection gives it to `hear`, and at its end calls `break_off`."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._send = send
        self._asked: dict[int, _Asked] = {}
        self._next = 0
        self._is_broken = False

    async def call(self, question: NodeCall) -> NodeReply:
        """Raises Refusal."""
        number, asked = await self._begin(question)
        try:
            first = await asked.begun
        except BaseException:
            await self._end(number, asked)
            raise
        if isinstance(first, channel.WholeReply):
            return NodeReply(first.content_type, first.body)
        return NodeReply(first.content_type, parts=self._parts(number, asked))

    async def open_stream(self, question: NodeCall) -> NodeStream:
        """A question that goes on: what is said goes in, what is answered comes out. Raises Refusal."""
        number, asked = await self._begin(question)
        try:
            await asked.begun
        except BaseException:
            await self._end(number, asked)
            raise
        return ConnectionStream(self._parts(number, asked), lambda data: self._tell(number, asked, data))

    def receive(self, data: bytes) -> None:
        """Raises `msgspec.MsgspecError` where it cannot be read."""
        message = channel.decode_message_to_server(data)
        asked = self._asked.get(message.id)
        if asked is None:
            return  # Whoever asked has gone.
        match message:
            case channel.WholeReply() | channel.StreamBegin():
                if not asked.begun.done():
                    asked.begun.set_result(message)
                if isinstance(message, channel.WholeReply):
                    self._forget(message.id, asked)
            case channel.StreamPart(_, part):
                asked.parts.put_nowait(part)
            case channel.InputCredit(_, count):
                asked.input_room += count
                asked.more_input_room.set()
            case channel.StreamEnd():
                asked.parts.put_nowait(None)
                self._forget(message.id, asked)
            case channel.ChannelRefusal(_, code, text):
                self._fail(message.id, asked, Refusal(code, text))

    def disconnect(self) -> None:
        """The connection is gone: all who wait hear it."""
        self._is_broken = True
        for number, asked in list(self._asked.items()):
            self._fail(number, asked, _broken())

    async def _begin(self, question: NodeCall) -> tuple[int, _Asked]:
        self._next += 1
        number, asked = self._next, _Asked()
        self._asked[number] = asked
        await self._say(
            channel.ChannelRequest(number, question.verb, question.target_id, question.parameters, question.body)
        )
        return number, asked

    async def _parts(self, number: int, asked: _Asked) -> AsyncGenerator[bytes, None]:
        try:
            while (part := await asked.parts.get()) is not None:
                if isinstance(part, Refusal):
                    raise part
                yield part
                # Only now, when it has been taken, there is room for as much again.
                if not asked.is_over:
                    await self._say(channel.OutputCredit(number, len(part)))
        finally:
            await self._end(number, asked)

    async def _end(self, number: int, asked: _Asked) -> None:
        if asked.is_over:
            return
        self._forget(number, asked)
        if not self._is_broken:
            await self._say(channel.CancelRequest(number))

    async def _tell(self, number: int, asked: _Asked, data: bytes) -> None:
        await asked.take_input_room(len(data))
        if not asked.is_over:
            await self._say(channel.ChannelInput(number, data))

    async def _say(self, message: channel.MessageToNode) -> None:
        if self._is_broken:
            raise _broken()
        await self._send(channel.encode_message(message))

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


class ConnectionStream:
    def __init__(self, parts: AsyncGenerator[bytes, None], send: Callable[[bytes], Awaitable[None]]) -> None:
        self._parts = parts
        self._say = send

    @property
    def parts(self) -> AsyncGenerator[bytes, None]:
        return self._parts

    async def send(self, data: bytes) -> None:
        await self._say(data)


def _broken() -> Refusal:
    return Refusal(RefusalCode.UNAVAILABLE, "the node's connection broke off: ask again")


class LocalNodeChannels:
    def __init__(self) -> None:
        self._links: dict[str, NodeConnection] = {}
        self.address_of: Callable[[str], str] = lambda process: process
        """The address of another process of this server; set by the wiring where there are several."""
        self.reporter: HeldNodesReporter | None = None
        """Hears of every change; set by the wiring where others may ask."""

    def add_connection(self, node_id: str, link: NodeConnection) -> None:
        """A node has one connection: the newest. Who waits on an older one is told that it broke off."""
        older = self._links.get(node_id)
        self._links[node_id] = link
        if older is not None:
            older.disconnect()
        elif self.reporter is not None:
            self.reporter.add_node(node_id)

    def remove_connection(self, node_id: str, link: NodeConnection) -> None:
        link.disconnect()
        if self._links.get(node_id) is link:
            del self._links[node_id]
            if self.reporter is not None:
                self.reporter.remove_node(node_id)

    def channel_to(self, node_id: str) -> NodeChannel:
        link = self._links.get(node_id)
        if link is None:
            raise build_no_node_path()
        return link
