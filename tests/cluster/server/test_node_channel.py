"""Both ends of a node channel in memory: concurrent requests, streams, canceled callers and broken connections."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress

import pytest

from tests.kit.virtual_time import in_virtual_time, now_s, pass_time, until
from wharf.cluster.server.node_channels.connections import NodeConnection
from wharf.cluster.server.node_channels.port import NodeCall, NodeReply
from wharf.contract.model.refusal import Refusal, RefusalCode, RefusalReason, not_found
from wharf.contract.wire.nodes import channel
from wharf.node.channel.endpoint import (
    MAX_OPEN_REQUESTS,
    MAX_QUEUED_INPUTS,
    ChannelEndpoint,
    ChannelReply,
    TooManyRequests,
)
from wharf.world import SimulatedWorld


class Node:
    """A node that replies to requests depending on the verb, and counts open streams."""

    def __init__(self) -> None:
        self.sent = 0
        self.open_streams = 0
        self.release_count = 0
        self.reply_event = asyncio.Event()

    async def handle_request(self, request: channel.ChannelRequest, inputs: AsyncIterator[bytes]) -> ChannelReply:
        match request.verb:
            case "echo":
                return ChannelReply("text/plain", request.about.encode() + request.body)
            case "slow":
                await self.reply_event.wait()
                return ChannelReply("text/plain", b"late")
            case "large":
                return ChannelReply("text/plain", b"x" * int(request.parameters["bytes"]))
            case "stream":
                return ChannelReply("text/plain", chunks=self._stream(int(request.parameters["parts"])))
            case "held":
                return ChannelReply("text/plain", chunks=self._stream(1), release=self._count_release)
            case "talk":
                return ChannelReply("text/plain", chunks=self._echo_inputs(inputs))
            case "deaf":
                return ChannelReply("text/plain", chunks=self._echo_sizes_later(inputs))
            case "exec":
                return ChannelReply("text/plain", chunks=self._stream(int(request.parameters["parts"])))
            case "stubborn":
                return ChannelReply("text/plain", chunks=self._swallow_cancellation())
            case "forbidden":
                raise Refusal(RefusalCode.FORBIDDEN, "no", RefusalReason.SECRET_FILE)
            case "broken":
                raise ValueError("a bug")
        raise not_found(f"no {request.verb} here")

    async def _stream(self, parts: int) -> AsyncGenerator[bytes, None]:
        self.open_streams += 1
        try:
            for number in range(parts):
                self.sent += 1
                yield str(number).encode().rjust(1_000)
                if number % 50 == 0:
                    await pass_time(0.001)
            if parts == 1:
                raise not_found("no more")
        finally:
            self.open_streams -= 1

    async def _swallow_cancellation(self) -> AsyncGenerator[bytes, None]:
        """Yield one part, and ignore the first cancellation after it, as libraries may do."""
        self.open_streams += 1
        try:
            yield b"begun"
            with suppress(asyncio.CancelledError):
                await self.reply_event.wait()
            await self.reply_event.wait()
        finally:
            self.open_streams -= 1

    async def _count_release(self) -> None:
        self.release_count += 1

    async def _echo_sizes_later(self, inputs: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        yield b"begun"
        await self.reply_event.wait()
        async for data in inputs:
            yield str(len(data)).encode()

    async def _echo_inputs(self, inputs: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        async for data in inputs:
            if not data:
                return
            yield b"you said " + data


class Wire:
    """Both ends of a node channel, with a slow connection between them."""

    def __init__(self) -> None:
        world = SimulatedWorld(1, now_s)
        self.node = Node()
        self.link = NodeConnection(self._to_node, "n1")
        self.end = ChannelEndpoint(world, self.node, self._to_server)
        self.is_cut = False

    async def _to_node(self, data: bytes) -> None:
        await pass_time(0.001)
        if not self.is_cut:
            self.end.receive_message(data)

    async def _to_server(self, data: bytes) -> None:
        await pass_time(0.001)
        if self.is_cut:
            raise ConnectionResetError
        self.link.receive(data)

    async def call(self, verb: str, about: str = "", body: bytes = b"", **parameters: str | int) -> NodeReply:
        return await self.link.call(NodeCall(verb, about, parameters, body))


async def read_whole_body(reply: NodeReply) -> bytes:
    return reply.body + b"".join([part async for part in reply.parts] if reply.parts is not None else [])


@in_virtual_time
async def test_each_reply_reaches_its_caller() -> None:
    wire = Wire()

    replies = await asyncio.gather(*(wire.call("echo", f"a{n}", b"!") for n in range(20)))

    assert [f"a{n}!".encode() for n in range(20)] == [reply.body for reply in replies]


@in_virtual_time
async def test_resources_of_a_reply_are_released_even_if_it_cannot_be_sent() -> None:
    wire = Wire()
    asking = asyncio.ensure_future(wire.call("held"))
    await pass_time(0.0015)  # The request has arrived, and its reply is in flight.
    wire.is_cut = True

    await until(lambda: wire.node.release_count, what="the resources are released")

    assert (0, 1) == (wire.node.sent, wire.node.release_count)
    wire.link.disconnect()
    await asyncio.gather(asking, return_exceptions=True)


@in_virtual_time
async def test_a_slow_reply_delays_no_other() -> None:
    wire = Wire()
    slow = SimulatedWorld(2, now_s).start_task(wire.call("slow"), name="slow")

    assert b"quick" == (await wire.call("echo", "quick")).body
    wire.node.reply_event.set()
    assert b"late" == (await slow).body


@in_virtual_time
async def test_a_refusal_of_the_node_is_returned_with_its_text() -> None:
    wire = Wire()

    with pytest.raises(Refusal, match="no such here") as caught:
        await wire.call("such")

    assert RefusalCode.NOT_FOUND is caught.value.code


@in_virtual_time
async def test_an_internal_error_of_the_node_is_reported_as_one() -> None:
    with pytest.raises(Refusal, match="internal error of the node; see the node's log") as caught:
        await Wire().call("broken")

    assert RefusalCode.OUTCOME_UNKNOWN is caught.value.code


@pytest.mark.parametrize("count", [0, 1, channel.MAX_PART_BYTES, channel.MAX_PART_BYTES + 1, 3 * channel.WINDOW_BYTES])
def test_a_reply_of_any_size_arrives_completely(count: int) -> None:
    @in_virtual_time
    async def work() -> None:
        assert b"x" * count == await read_whole_body(await Wire().call("large", bytes=count))

    work()


@in_virtual_time
async def test_a_stream_arrives_in_order() -> None:
    body = await read_whole_body(await Wire().call("stream", parts=3_000))

    assert list(range(3_000)) == [int(number) for number in body.split()]


@in_virtual_time
async def test_a_stream_that_ends_with_a_refusal_delivers_its_parts_first() -> None:
    reply = await Wire().call("stream", parts=1)
    assert reply.parts is not None

    assert b"0" == (await anext(reply.parts)).strip()
    with pytest.raises(Refusal, match="no more"):
        await anext(reply.parts)


@in_virtual_time
async def test_a_slow_reader_pauses_the_node_and_delays_no_other_call() -> None:
    wire = Wire()
    reply = await wire.call("stream", parts=100_000)
    assert reply.parts is not None
    await anext(reply.parts)
    await pass_time(60)

    assert wire.node.sent * 1_000 < 2 * channel.WINDOW_BYTES
    assert b"x" == (await wire.call("echo", "x")).body
    assert isinstance(reply.parts, AsyncGenerator)
    await reply.parts.aclose()
    await wire.end.close()


@in_virtual_time
async def test_a_caller_that_cancels_ends_the_call_on_the_node() -> None:
    wire = Wire()
    reply = await wire.call("stream", parts=100_000)
    assert isinstance(reply.parts, AsyncGenerator)
    async with aclosing(reply.parts):
        await anext(reply.parts)
        assert 1 == wire.node.open_streams

    await until(lambda: wire.node.open_streams == 0, what="the end of the stream")


@in_virtual_time
async def test_a_caller_that_closes_a_stream_before_its_first_part_ends_the_call_on_the_node() -> None:
    wire = Wire()
    stream = await wire.link.open_stream(NodeCall("stream", parameters={"parts": 100_000}))
    await until(lambda: wire.node.open_streams == 1, what="the node sends the stream")

    await stream.parts.aclose()

    await until(lambda: wire.node.open_streams == 0, what="the end of the stream")


@in_virtual_time
async def test_a_caller_that_stops_waiting_leaves_nothing_behind() -> None:
    wire = Wire()
    slow = SimulatedWorld(2, now_s).start_task(wire.call("slow"), name="slow")
    await pass_time(1)
    slow.cancel()
    await pass_time(1)
    wire.node.reply_event.set()

    assert b"x" == (await wire.call("echo", "x")).body


@in_virtual_time
async def test_a_stream_has_input_and_output() -> None:
    stream = await Wire().link.open_stream(NodeCall("talk"))
    await stream.send(b"one")
    assert b"you said one" == await anext(stream.parts)
    await stream.send(b"two")
    assert b"you said two" == await anext(stream.parts)
    await stream.send(b"")

    assert [] == [part async for part in stream.parts]


@in_virtual_time
async def test_a_sender_waits_for_credit() -> None:
    wire = Wire()
    stream = await wire.link.open_stream(NodeCall("deaf"))
    part, sent_bytes = b"x" * channel.MAX_PART_BYTES, 0

    async def send_without_end() -> None:
        nonlocal sent_bytes
        while True:
            await stream.send(part)
            sent_bytes += len(part)

    sending = asyncio.get_running_loop().create_task(send_without_end())
    await pass_time(1)
    first_bytes = sent_bytes
    wire.node.reply_event.set()
    await until(lambda: sent_bytes > first_bytes, what="more output arrives")
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    await stream.parts.aclose()
    await wire.end.close()

    assert channel.EXEC_WINDOW_BYTES == first_bytes


@pytest.mark.parametrize("message", [b"", b"{}"])
def test_a_sender_of_short_messages_waits_for_the_node(message: bytes) -> None:
    @in_virtual_time
    async def scenario() -> None:
        wire = Wire()
        stream = await wire.link.open_stream(NodeCall("deaf"))
        sent_count = 0

        async def send_without_end() -> None:
            nonlocal sent_count
            while True:
                await stream.send(message)
                sent_count += 1

        sending = asyncio.get_running_loop().create_task(send_without_end())
        await pass_time(10)
        first_count = sent_count
        wire.node.reply_event.set()
        await until(lambda: sent_count > 3 * first_count, what="more input is sent")
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await stream.parts.aclose()
        await wire.end.close()

        assert first_count == channel.MAX_INPUTS_IN_FLIGHT

    scenario()


@in_virtual_time
async def test_a_server_that_ignores_the_limits_of_input_is_refused() -> None:
    wire = Wire()
    stream = await wire.link.open_stream(NodeCall("deaf"))
    assert b"begun" == await anext(stream.parts)
    for _ in range(MAX_QUEUED_INPUTS + 1):
        wire.end.receive_message(channel.encode_message(channel.ChannelInput(1, b"")))

    with pytest.raises(Refusal, match="the server sent more input than the node has permitted"):
        await anext(stream.parts)
    await wire.end.close()


@in_virtual_time
async def test_unread_output_of_a_command_is_limited() -> None:
    wire = Wire()
    stream = await wire.link.open_stream(NodeCall("exec", parameters={"parts": 100_000}))
    await anext(stream.parts)
    await pass_time(60)

    assert wire.node.sent * 1_000 < 1.1 * channel.EXEC_WINDOW_BYTES
    await stream.parts.aclose()
    await until(lambda: wire.node.open_streams == 0, what="the end of the stream")


@in_virtual_time
async def test_a_request_that_swallows_a_cancellation_is_cancelled_again() -> None:
    wire = Wire()
    reply = await wire.call("stubborn")
    assert isinstance(reply.parts, AsyncGenerator)
    async with aclosing(reply.parts):
        await anext(reply.parts)
        await pass_time(1)
        assert 1 == wire.node.open_streams

    await until(lambda: wire.node.open_streams == 0, what="the end of the stream")


@in_virtual_time
async def test_all_callers_fail_when_the_connection_breaks() -> None:
    wire = Wire()
    world = SimulatedWorld(2, now_s)
    slow = world.start_task(wire.call("slow"), name="slow")
    reply = await wire.call("stream", parts=100_000)
    assert reply.parts is not None
    await pass_time(1)
    wire.is_cut = True
    wire.link.disconnect()
    await wire.end.close()

    for waiting in (slow, read_whole_body(reply), wire.call("echo")):
        with pytest.raises(Refusal, match="the connection of node n1 was closed; retry"):
            await waiting
    assert 0 == wire.node.open_streams


@in_virtual_time
async def test_the_reason_of_a_refusal_crosses_the_channel() -> None:
    with pytest.raises(Refusal) as caught:
        await Wire().call("forbidden")

    assert (caught.value.code, caught.value.reason) == (RefusalCode.FORBIDDEN, RefusalReason.SECRET_FILE)


@in_virtual_time
async def test_a_node_refuses_requests_beyond_its_limit_and_leaves_a_server_that_goes_on() -> None:
    wire = Wire()
    slow = [asyncio.ensure_future(wire.call("slow")) for _ in range(MAX_OPEN_REQUESTS)]
    await pass_time(1)

    with pytest.raises(Refusal, match="the node handles 4,096 requests at a time"):
        await wire.call("echo")

    def send_requests(first: int, count: int) -> None:
        for number in range(first, first + count):
            wire.end.receive_message(channel.encode_message(channel.ChannelRequest(number, "slow", "", {}, b"")))

    with pytest.raises(TooManyRequests):
        send_requests(10_000, MAX_OPEN_REQUESTS + 1)
    wire.link.disconnect()
    await asyncio.gather(*slow, return_exceptions=True)
    await wire.end.close()


@in_virtual_time
async def test_a_repeated_request_or_cancellation_starts_no_further_task() -> None:
    wire = Wire()
    reply = await wire.call("stubborn")
    before = len(asyncio.all_tasks())

    for _ in range(100):
        wire.end.receive_message(channel.encode_message(channel.ChannelRequest(1, "slow", "", {}, b"")))
        wire.end.receive_message(channel.encode_message(channel.CancelRequest(1)))

    assert len(asyncio.all_tasks()) - before == 1
    assert isinstance(reply.parts, AsyncGenerator)
    await reply.parts.aclose()
    await wire.end.close()
