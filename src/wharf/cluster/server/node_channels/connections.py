"""The connections to nodes that this process holds.

Calls are numbered, so that many can be in flight on one connection.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from wharf.cluster.server.node_channels.directory import HeldNodesReporter
from wharf.cluster.server.node_channels.port import NodeCall, NodeChannel, NodeReply, NodeStream, build_no_node_path
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.wire.nodes import channel


class _ChannelCall:
    """One call to a node that is in flight: its first reply, the parts that arrived, and its input credit.

    The input credit is how many bytes of input the node accepts now. The node limits the size of `parts`: it sends no more than
    it has credit for.
    """

    def __init__(self) -> None:
        self.first_reply: asyncio.Future[channel.WholeReply | channel.StreamBegin] = (
            asyncio.get_running_loop().create_future()
        )
        self.parts: asyncio.Queue[bytes | Refusal | None] = asyncio.Queue()
        self.is_over = False
        self.input_credit = channel.EXEC_WINDOW_BYTES
        self.inputs_in_flight = 0
        """Messages of input that the node has not processed."""
        self.credit_event = asyncio.Event()

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

    def __init__(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._send = send
        self._pending_calls: dict[int, _ChannelCall] = {}
        self._last_number = 0
        self._is_disconnected = False

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
        return NodeReply(first.content_type, parts=self._read_parts(number, call))

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
        return ConnectionStream(self._read_parts(number, call), lambda data: self._send_input(number, call, data))

    def receive(self, data: bytes) -> None:
        """Process one message from the node. Raises `msgspec.MsgspecError` if it cannot be decoded."""
        message = channel.decode_message_to_server(data)
        call = self._pending_calls.get(message.id)
        if call is None:
            return  # The caller canceled.
        match message:
            case channel.WholeReply() | channel.StreamBegin():
                if not call.first_reply.done():
                    call.first_reply.set_result(message)
                if isinstance(message, channel.WholeReply):
                    self._remove_call(message.id, call)
            case channel.StreamPart(_, part):
                call.parts.put_nowait(part)
            case channel.InputCredit(_, count):
                call.input_credit += count
                call.inputs_in_flight -= 1
                call.credit_event.set()
            case channel.StreamEnd():
                call.parts.put_nowait(None)
                self._remove_call(message.id, call)
            case channel.ChannelRefusal(_, code, text, reason):
                self._fail(message.id, call, Refusal(code, text, reason))

    def disconnect(self) -> None:
        """Fail every call in flight, because the connection is closed."""
        self._is_disconnected = True
        for number, call in list(self._pending_calls.items()):
            self._fail(number, call, _build_disconnect_refusal())

    async def _start_call(self, request: NodeCall) -> tuple[int, _ChannelCall]:
        """Send a request to the node. Return its call number and the call."""
        self._last_number += 1
        number, call = self._last_number, _ChannelCall()
        self._pending_calls[number] = call
        await self._send_message(
            channel.ChannelRequest(number, request.verb, request.target_id, request.parameters, request.body)
        )
        return number, call

    async def _read_parts(self, number: int, call: _ChannelCall) -> AsyncGenerator[bytes, None]:
        """Yield the parts of a reply, and give the node credit for more after each. Raises the `Refusal` of the node.

        If the reader stops early, the call is cancelled on the node.
        """
        try:
            while (part := await call.parts.get()) is not None:
                if isinstance(part, Refusal):
                    raise part
                yield part
                # The reader has taken the part, so the node may send as many bytes again.
                if not call.is_over:
                    await self._send_message(channel.OutputCredit(number, len(part)))
        finally:
            await self._end(number, call)

    async def _end(self, number: int, call: _ChannelCall) -> None:
        """Remove the call and cancel it on the node. Does nothing if the call is over."""
        if call.is_over:
            return
        self._remove_call(number, call)
        if not self._is_disconnected:
            await self._send_message(channel.CancelRequest(number))

    async def _send_input(self, number: int, call: _ChannelCall, data: bytes) -> None:
        """Wait until the node accepts more input, then send the data, unless the call is over."""
        await call.wait_input_credit(len(data))
        if not call.is_over:
            await self._send_message(channel.ChannelInput(number, data))

    async def _send_message(self, message: channel.MessageToNode) -> None:
        """Send a message. Raises `Refusal` if the connection is closed."""
        if self._is_disconnected:
            raise _build_disconnect_refusal()
        await self._send(channel.encode_message(message))

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


def _build_disconnect_refusal() -> Refusal:
    return Refusal(RefusalCode.UNAVAILABLE, "the node's connection was closed; retry")


class LocalNodeChannels:
    """The connections to nodes that this process holds, by node id."""

    def __init__(self) -> None:
        self._connections: dict[str, NodeConnection] = {}
        self.address_of: Callable[[str], str] = lambda process: process
        """Returns the address of another process of this server. Set by the wiring if there are several."""
        self.reporter: HeldNodesReporter | None = None
        """Reports held connections to the leader. Set by the wiring if other processes may need them."""

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
