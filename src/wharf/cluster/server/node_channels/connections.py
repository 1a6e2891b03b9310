"""The connections to nodes that this process holds.

Calls are numbered, so that many can be in flight on one connection.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

from wharf.cluster.server.node_channels.directory import HeldNodesReporter
from wharf.cluster.server.node_channels.port import NodeCall, NodeChannel, NodeReply, NodeStream, build_no_node_path
from wharf.contract.model.refusal import Overloaded, Refusal, RefusalCode
from wharf.contract.wire.nodes import channel

MAX_UNREAD_BYTES: Final = channel.WINDOW_BYTES + channel.MAX_PART_BYTES
"""Bytes of one stream that may wait for its reader. The last part of a node may exceed its credit."""
MAX_UNREAD_PARTS: Final = 16_384
"""Parts of one stream that may wait for its reader. Each takes memory beside its bytes, which are limited separately."""
UNREAD_PARTS_TEXT: Final = (
    f"the caller has not read {MAX_UNREAD_PARTS:,} parts of the node's reply; retry and read them"
)
CAPACITY_RETRY_AFTER_S: Final = 10
"""The pause before a node tries again to connect to a process that had no place for it."""


class ChannelViolation(Exception):
    """The error for a node that breaks the rules of the channel. Its connection must be closed."""


class _ChannelCall:
    """One call to a node that is in flight: its first reply, the parts that arrived, and its input credit.

    The input credit is how many bytes of input the node accepts now. The node sends no more parts than it has credit for;
    `add_part` checks this.
    """

    def __init__(self) -> None:
        self.first_reply: asyncio.Future[channel.WholeReply | channel.StreamBegin] = (
            asyncio.get_running_loop().create_future()
        )
        self.parts: asyncio.Queue[bytes | Refusal | None] = asyncio.Queue()
        self.has_begun = False
        """Whether the first message of the reply has arrived."""
        self.is_over = False
        self._unread_bytes = 0
        """Bytes of the parts that the reader has not read. The node has used up credit for them."""
        self._has_too_many_parts = False
        self.input_credit = channel.EXEC_WINDOW_BYTES
        self.inputs_in_flight = 0
        """Messages of input that the node has not processed."""
        self.credit_event = asyncio.Event()

    def add_part(self, part: bytes) -> None:
        """Queue a part for the reader. Raises `ChannelViolation` if the node had no credit for it.

        If `MAX_UNREAD_PARTS` parts wait for the reader, the reader gets a refusal after them instead of this part.
        """
        self._unread_bytes += len(part)
        if self._unread_bytes > MAX_UNREAD_BYTES:
            raise ChannelViolation(f"the node sent more than {MAX_UNREAD_BYTES:,} bytes of a reply without credit")
        if self._has_too_many_parts:
            return
        if self.parts.qsize() >= MAX_UNREAD_PARTS:
            self._has_too_many_parts = True
            self.parts.put_nowait(Refusal(RefusalCode.UNAVAILABLE, UNREAD_PARTS_TEXT))
            return
        self.parts.put_nowait(part)

    def on_part_read(self, part: bytes) -> None:
        """Count a part as read. The caller gives the node credit for its bytes."""
        self._unread_bytes -= len(part)

    def add_input_credit(self, count: int) -> None:
        """Let the sender of input continue, because the node has processed a message of `count` bytes.

        Credit beyond the limits of a new call is ignored.
        """
        self.input_credit = min(channel.EXEC_WINDOW_BYTES, self.input_credit + max(0, count))
        self.inputs_in_flight = max(0, self.inputs_in_flight - 1)
        self.credit_event.set()

    async def wait_input_credit(self, count: int) -> None:
        """Wait until the node accepts more input or the call is over, then subtract `count` bytes from the credit.

        The credit may become negative: one message may exceed it.
        """
        while not self.is_over and (self.input_credit <= 0 or self.inputs_in_flight >= channel.MAX_INPUTS_IN_FLIGHT):
            self.credit_event.clear()
            await self.credit_event.wait()
        self.input_credit -= count
        self.inputs_in_flight += 1


class NodeConnection:
    """One connection to a node, with the calls that are in flight on it. `send` writes a message to the node.

    The code that reads the connection calls `receive` for each message, and `disconnect` at its end.
    """

    def __init__(self, send: Callable[[bytes], Awaitable[None]], node_name: str) -> None:
        self._send = send
        self._node_name = node_name
        self._disconnect_text = ""
        """Why calls fail after the end of the connection."""
        self._pending_calls: dict[int, _ChannelCall] = {}
        self._last_number = 0
        self.disconnected_event = asyncio.Event()
        """Set when the connection is closed, or replaced by a newer connection of the node."""

    async def call(self, request: NodeCall) -> NodeReply:
        """Call the node and return its reply, whole or in parts. Raises `Refusal`."""
        number, call = await self._start_call(request)
        try:
            first = await call.first_reply
        except BaseException:
            await self._end(number, call)
            raise
        if isinstance(first, channel.WholeReply):
            return NodeReply(first.content_type, first.body)
        return NodeReply(first.content_type, parts=await self._start_reading(number, call))

    async def open_stream(self, request: NodeCall) -> NodeStream:
        """Start a call with input and output streams, and return its stream once the node accepts it.

        Raises `Refusal`.
        """
        number, call = await self._start_call(request)
        try:
            await call.first_reply
        except BaseException:
            await self._end(number, call)
            raise
        parts = await self._start_reading(number, call)
        return ConnectionStream(parts, lambda data: self._send_input(number, call, data))

    def receive(self, data: bytes) -> None:
        """Process one message from the node.

        Raises `msgspec.MsgspecError` if it cannot be decoded, and `ChannelViolation` if the node may not send it.
        """
        message = channel.decode_message_to_server(data)
        call = self._pending_calls.get(message.id)
        if call is None:
            return  # The caller canceled.
        match message:
            case channel.WholeReply():
                self._begin_reply(call, message)
                call.parts.put_nowait(None)
                self._remove_call(message.id, call)
            case channel.StreamBegin():
                self._begin_reply(call, message)
            case channel.InputCredit(_, count):
                call.add_input_credit(count)
            case channel.StreamPart() | channel.StreamEnd() if not call.has_begun:
                raise ChannelViolation("the node sent a part of a reply before its begin")
            case channel.StreamPart(_, part):
                call.add_part(part)
            case channel.StreamEnd():
                call.parts.put_nowait(None)
                self._remove_call(message.id, call)
            case channel.ChannelRefusal(_, code, text, reason):
                self._fail(message.id, call, Refusal(code, text, reason))

    def disconnect(self, *, is_lost: bool = False) -> None:
        """Fail every call in flight, because the connection is closed.

        `is_lost`: without a word of the node, such as because it is frozen or cannot be reached.
        """
        if not self._disconnect_text:
            self._disconnect_text = (
                f"node {self._node_name} does not answer: its connection to the server was lost; retry"
                if is_lost
                else f"the connection of node {self._node_name} was closed; retry"
            )
        self.disconnected_event.set()
        for number, call in list(self._pending_calls.items()):
            self._fail(number, call, self._build_disconnect_refusal())

    @staticmethod
    def _begin_reply(call: _ChannelCall, message: channel.WholeReply | channel.StreamBegin) -> None:
        """Pass the first message of a reply to the caller. Raises `ChannelViolation` if the reply has begun already."""
        if call.has_begun:
            raise ChannelViolation("the node began a reply twice")
        if not call.first_reply.done():  # The caller may be cancelled.
            call.first_reply.set_result(message)
        call.has_begun = True

    async def _start_call(self, request: NodeCall) -> tuple[int, _ChannelCall]:
        """Send a request to the node. Return its call number and the call."""
        self._last_number += 1
        number, call = self._last_number, _ChannelCall()
        self._pending_calls[number] = call
        await self._send_message(
            channel.ChannelRequest(number, request.verb, request.target_id, request.parameters, request.body)
        )
        return number, call

    async def _start_reading(self, number: int, call: _ChannelCall) -> AsyncGenerator[bytes, None]:
        """Return the parts of a reply. They cancel the call on the node if they are closed or forgotten before their end."""
        parts = self._read_parts(number, call)
        await anext(parts)  # A generator that was not started would not run its `finally`.
        return parts

    async def _read_parts(self, number: int, call: _ChannelCall) -> AsyncGenerator[bytes, None]:
        """Yield nothing once, then the parts of a reply, and give the node credit for more after each.

        If the reader stops early, the call is cancelled on the node. Raises the `Refusal` of the node.
        """
        try:
            yield b""
            while (part := await call.parts.get()) is not None:
                if isinstance(part, Refusal):
                    raise part
                yield part
                # The reader has taken the part, so the node may send as many bytes again.
                call.on_part_read(part)
                if not call.is_over:
                    await self._send_message(channel.OutputCredit(number, len(part)))
        finally:
            await self._end(number, call)

    async def _end(self, number: int, call: _ChannelCall) -> None:
        """Remove the call and cancel it on the node. Does nothing if the call is over."""
        if call.is_over:
            return
        self._remove_call(number, call)
        if not self.disconnected_event.is_set():
            await self._send_message(channel.CancelRequest(number))

    async def _send_input(self, number: int, call: _ChannelCall, data: bytes) -> None:
        """Wait until the node accepts more input, then send the data, unless the call is over."""
        await call.wait_input_credit(len(data))
        if not call.is_over:
            await self._send_message(channel.ChannelInput(number, data))

    async def _send_message(self, message: channel.MessageToNode) -> None:
        """Send a message. Raises `Refusal` if the connection is closed."""
        if self.disconnected_event.is_set():
            raise self._build_disconnect_refusal()
        await self._send(channel.encode_message(message))

    def _build_disconnect_refusal(self) -> Refusal:
        return Refusal(RefusalCode.UNAVAILABLE, self._disconnect_text)

    def _remove_call(self, number: int, call: _ChannelCall) -> None:
        """Mark the call as over and remove it."""
        call.is_over = True
        call.credit_event.set()
        self._pending_calls.pop(number, None)

    def _fail(self, number: int, call: _ChannelCall, refusal: Refusal) -> None:
        """End the call: its reader gets the refusal."""
        self._remove_call(number, call)
        if call.first_reply.done():
            call.parts.put_nowait(refusal)
        else:
            call.first_reply.set_exception(refusal)


class ConnectionStream:
    """A `NodeStream` over the connection to a node: output of the node, and input to it."""

    def __init__(self, parts: AsyncGenerator[bytes, None], send: Callable[[bytes], Awaitable[None]]) -> None:
        self._read_parts = parts
        self._send_message = send

    @property
    def parts(self) -> AsyncGenerator[bytes, None]:
        """The output of the node, as it arrives."""
        return self._read_parts

    async def send(self, data: bytes) -> None:
        """Send input to the node."""
        await self._send_message(data)


class LocalNodeChannels:
    """The connections to nodes that this process holds, by node id."""

    def __init__(self) -> None:
        self._connections: dict[str, NodeConnection] = {}
        self.address_of: Callable[[str], str] = lambda process: process
        """Returns the address of another process of this server. Set by the wiring if there are several."""
        self.max_connections = sys.maxsize
        """Nodes that may have a connection at a time, so that callers find free file descriptors. Set by the wiring."""
        self.reporter: HeldNodesReporter | None = None
        """Reports held connections to the leader. Set by the wiring if other processes may need them."""

    def check_capacity(self, node_id: str) -> None:
        """Raise `Overloaded` if this process has no place for a connection to the node. Another server may have one."""
        if node_id not in self._connections and len(self._connections) >= self.max_connections:
            raise Overloaded(
                f"this server process holds the channels of {self.max_connections:,} nodes",
                CAPACITY_RETRY_AFTER_S,
                ", use another server, or raise the limit of open files of this one",
            )

    def add_connection(self, node_id: str, connection: NodeConnection) -> None:
        """Use this connection for the node. An older connection is disconnected and its calls fail."""
        old_connection = self._connections.get(node_id)
        self._connections[node_id] = connection
        if old_connection is not None:
            old_connection.disconnect()
        elif self.reporter is not None:
            self.reporter.add_node(node_id)

    def remove_connection(self, node_id: str, connection: NodeConnection) -> None:
        """Disconnect the connection, and remove it if it is still the node's current one."""
        connection.disconnect()
        if self._connections.get(node_id) is connection:
            del self._connections[node_id]
            if self.reporter is not None:
                self.reporter.remove_node(node_id)

    def channel_to(self, node_id: str) -> NodeChannel:
        """Return the connection to the node. Raises `NoNodePath` if this process holds none."""
        connection = self._connections.get(node_id)
        if connection is None:
            raise build_no_node_path()
        return connection
